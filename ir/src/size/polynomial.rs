//! Polynomials over names with whole coefficients, in one form: terms in order, none of them zero.
//! The order is by degree, then by name, and never by when something was made, so texts and keys
//! are the same in every process.

use super::arithmetic::floor_division;
use super::{Form, Size, table};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::fmt::{self, Write};

/// More terms than this, and factors in one, are no size of a program but an accident: repeated
/// squaring, say.
const MOST_TERMS: usize = 64;
const MOST_FACTORS: usize = 12;

/// A sum of terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Polynomial(SmallVec<[Term; 2]>);

/// A whole number, not zero, times factors in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    factors: SmallVec<[Factor; 2]>,
    coefficient: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Factor {
    Name(&'static str),
    /// The first by the second, rounded down.
    Quotient(Size, Size),
}

impl Polynomial {
    pub(super) fn number(n: i64) -> Self {
        Polynomial::of([Term { factors: SmallVec::new(), coefficient: n }])
    }

    pub(super) fn name(name: &'static str) -> Self {
        Polynomial::factor(Factor::Name(name))
    }

    fn factor(factor: Factor) -> Self {
        Polynomial::of([Term { factors: SmallVec::from_elem(factor, 1), coefficient: 1 }])
    }

    fn of<const N: usize>(terms: [Term; N]) -> Self {
        Polynomial(terms.into_iter().filter(|term| term.coefficient != 0).collect())
    }

    /// The number, if there are no factors.
    pub(super) fn as_number(&self) -> Option<i64> {
        match &self.0[..] {
            [] => Some(0),
            [Term { factors, coefficient }] if factors.is_empty() => Some(*coefficient),
            _ => None,
        }
    }

    /// The name, if it is nothing else.
    pub(super) fn as_name(&self) -> Option<&'static str> {
        match &self.0[..] {
            [Term { factors, coefficient: 1 }] => match factors[..] {
                [Factor::Name(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn collect_names(&self, into: &mut Vec<&'static str>) {
        for factor in self.0.iter().flat_map(|term| &term.factors) {
            match factor {
                Factor::Name(name) => into.push(name),
                Factor::Quotient(a, b) => {
                    into.extend(a.names());
                    into.extend(b.names());
                }
            }
        }
    }

    pub(super) fn plus(&self, other: &Polynomial) -> Option<Polynomial> {
        self.plus_times(other, 1)
    }

    pub(super) fn minus(&self, other: &Polynomial) -> Option<Polynomial> {
        self.plus_times(other, -1)
    }

    /// `self + by * other`
    fn plus_times(&self, other: &Polynomial, by: i64) -> Option<Polynomial> {
        let mut sum = SmallVec::with_capacity(self.0.len() + other.0.len());
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => order(&a.factors, &b.factors),
            };
            let mine = left.next_if(|_| order != Ordering::Greater);
            let theirs = right.next_if(|_| order != Ordering::Less);
            let scaled = theirs.map_or(Some(0), |t| t.coefficient.checked_mul(by))?;
            let coefficient = mine.map_or(0, |t| t.coefficient).checked_add(scaled)?;
            let factors = &mine.or(theirs)?.factors;
            if coefficient != 0 {
                sum.push(Term { factors: factors.clone(), coefficient });
            }
        }
        (sum.len() <= MOST_TERMS).then_some(Polynomial(sum))
    }

    pub(super) fn times(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut product = Polynomial::default();
        for term in &other.0 {
            product = product.plus(&self.times_term(term)?)?;
        }
        Some(product)
    }

    fn times_term(&self, by: &Term) -> Option<Polynomial> {
        let product = |term: &Term| {
            let mut factors = term.factors.clone();
            factors.extend_from_slice(&by.factors);
            factors.sort_unstable_by(Factor::order);
            let coefficient = term.coefficient.checked_mul(by.coefficient)?;
            (factors.len() <= MOST_FACTORS).then_some(Term { factors, coefficient })
        };
        // Multiplying by one term keeps the order.
        self.0.iter().map(product).collect::<Option<_>>().map(Polynomial)
    }

    /// The floor of `self / by`: what divides leaves the fraction, `(p*q + r)/q = p + r/q`.
    pub(super) fn over(&self, by: &Polynomial) -> Option<Polynomial> {
        let first = by.0.first()?;
        if first.coefficient < 0 {
            let minus = |p: &Polynomial| Polynomial::default().minus(p);
            return minus(self)?.over(&minus(by)?);
        }
        let (whole, mut rest) = self.divide(by, first)?;
        if let (Some(rest), Some(by)) = (rest.as_number(), by.as_number()) {
            return whole.plus(&Polynomial::number(floor_division(rest, by)?));
        }
        let mut by = by.clone();
        let common = rest.0.iter().chain(&by.0).fold(0, |all, term| gcd(all, term.coefficient));
        for term in rest.0.iter_mut().chain(&mut by.0) {
            term.coefficient /= common;
        }
        if rest.0.is_empty() {
            return Some(whole);
        }
        let quotient = Factor::Quotient(table::place_of(rest), table::place_of(by));
        whole.plus(&Polynomial::factor(quotient))
    }

    /// Long division: how often `by`, whose first term is `first`, is contained, and what is left.
    fn divide(&self, by: &Polynomial, first: &Term) -> Option<(Polynomial, Polynomial)> {
        let (mut whole, mut left, mut rest) =
            (Polynomial::default(), self.clone(), Polynomial::default());
        for _ in 0..4 * MOST_TERMS {
            let Some(term) = left.0.first().cloned() else { return Some((whole, rest)) };
            let factors = without(&term.factors, &first.factors);
            let coefficient = term.coefficient.div_euclid(first.coefficient);
            let times = match factors {
                Some(factors) if coefficient != 0 => Term { factors, coefficient },
                _ => {
                    left.0.remove(0);
                    rest.0.push(term);
                    continue;
                }
            };
            left = left.minus(&by.times_term(&times)?)?;
            whole = whole.plus(&Polynomial::of([times]))?;
        }
        None
    }

    pub(super) fn substitute(&self, with: &dyn Fn(&str) -> Option<Size>) -> Size {
        let factor = |factor: &Factor| match factor {
            Factor::Name(name) => with(name).unwrap_or_else(|| Size::named(name)),
            Factor::Quotient(a, b) => a.substitute(with) / b.substitute(with),
        };
        let term =
            |term: &Term| term.factors.iter().map(factor).product::<Size>() * term.coefficient;
        self.0.iter().map(term).sum()
    }

    pub(super) fn at(&self, value: &dyn Fn(&str) -> Option<i64>) -> Result<i64, String> {
        const TOO_LARGE: &str = "is too large";
        let number = |size: Size| match size.form() {
            Form::Number(n) => Ok(n),
            Form::Expression(p) => p.at(value),
            Form::Unknown | Form::OutOfRange => Err("has no value".to_owned()),
        };
        let mut sum = 0i64;
        for term in &self.0 {
            let mut product = term.coefficient;
            for factor in &term.factors {
                let by = match factor {
                    Factor::Name(name) => {
                        value(name).ok_or_else(|| format!("has no value: `{name}` has none"))?
                    }
                    Factor::Quotient(a, b) => match (number(*a)?, number(*b)?) {
                        (_, 0) => return Err("divides by zero".to_owned()),
                        (a, b) => floor_division(a, b).ok_or(TOO_LARGE)?,
                    },
                };
                product = product.checked_mul(by).ok_or(TOO_LARGE)?;
            }
            sum = sum.checked_add(product).ok_or(TOO_LARGE)?;
        }
        Size::of_number(Some(sum)).number().ok_or_else(|| TOO_LARGE.to_owned())
    }

    /// The least and the largest value, where names lie within these bounds; the ends of `i128`
    /// stand for none.
    pub(super) fn range(&self, of: &dyn Fn(&str) -> (i128, i128)) -> (i128, i128) {
        let number = |size: Size| match size.form() {
            Form::Number(n) => (i128::from(n), i128::from(n)),
            Form::Expression(p) => p.range(of),
            Form::Unknown | Form::OutOfRange => (i128::MIN, i128::MAX),
        };
        let mut sum = (0i128, 0i128);
        for term in &self.0 {
            let mut product = (i128::from(term.coefficient), i128::from(term.coefficient));
            for factor in &term.factors {
                let by = match factor {
                    Factor::Name(name) => of(name),
                    Factor::Quotient(a, b) => quotient(number(*a), number(*b)),
                };
                let ends =
                    [product.0, product.1].map(|a| [by.0, by.1].map(|b| a.saturating_mul(b)));
                let ends = ends.as_flattened();
                product = ends.iter().fold((i128::MAX, i128::MIN), |(low, high), end| {
                    (low.min(*end), high.max(*end))
                });
            }
            sum = (add(sum.0, product.0), add(sum.1, product.1));
        }
        sum
    }

    /// A polynomial that is at most a multiple of this one, and which multiple: quotients by
    /// numbers written as the fractions that they are next to,
    /// `a/b - 1 + 1/b <= floor(a/b) <= a/b`. `None` if there are none.
    pub(super) fn below(&self) -> Option<(Polynomial, i64)> {
        let (mut below, mut times) = (self.clone(), 1i64);
        loop {
            let quotient = below.0.iter().find_map(|term| match term.factors[..] {
                [Factor::Quotient(a, b)] => Some((term.clone(), a, b.number().filter(|b| *b > 0)?)),
                _ => None,
            });
            let Some((term, a, b)) = quotient else { break };
            let rest = below.minus(&Polynomial(SmallVec::from_elem(term.clone(), 1)))?;
            let fraction = if term.coefficient < 0 { a } else { a - b + 1 };
            let fraction = match (fraction * term.coefficient).form() {
                Form::Number(n) => Polynomial::number(n),
                Form::Expression(p) => p.clone(),
                Form::Unknown | Form::OutOfRange => return None,
            };
            below = rest.times(&Polynomial::number(b))?.plus(&fraction)?;
            times = times.checked_mul(b)?;
        }
        (times != 1 || below != *self).then_some((below, times))
    }

    fn order(&self, other: &Polynomial) -> Ordering {
        let terms = |p: &Polynomial| p.0.len();
        let each =
            self.0.iter().zip(&other.0).map(|(a, b)| {
                order(&a.factors, &b.factors).then(a.coefficient.cmp(&b.coefficient))
            });
        each.fold(Ordering::Equal, Ordering::then).then(terms(self).cmp(&terms(other)))
    }
}

/// The sum, where an end of the range stays what it is.
fn add(a: i128, b: i128) -> i128 {
    let is_end = |n: i128| n == i128::MIN || n == i128::MAX;
    if is_end(a) { a } else { a.saturating_add(b) }
}

/// The range of a quotient; nothing is known where the divisor may be zero or negative.
fn quotient((low, high): (i128, i128), by: (i128, i128)) -> (i128, i128) {
    if by.0 < 1 {
        return (i128::MIN, i128::MAX);
    }
    let is_end = |n: i128| n == i128::MIN || n == i128::MAX;
    let over = |n: i128, by: i128| match (is_end(n), is_end(by)) {
        (true, _) => n,
        (false, true) => {
            if n < 0 {
                -1
            } else {
                0
            }
        }
        (false, false) => n.div_euclid(by),
    };
    (over(low, by.0).min(over(low, by.1)), over(high, by.0).max(over(high, by.1)))
}

impl Factor {
    fn order(&self, other: &Factor) -> Ordering {
        match (self, other) {
            (Factor::Name(a), Factor::Name(b)) => a.cmp(b),
            (Factor::Name(_), Factor::Quotient(..)) => Ordering::Less,
            (Factor::Quotient(..), Factor::Name(_)) => Ordering::Greater,
            (Factor::Quotient(a, b), Factor::Quotient(c, d)) => {
                by_form(*a, *c).then(by_form(*b, *d))
            }
        }
    }
}

/// An order of sizes that does not depend on the table.
fn by_form(a: Size, b: Size) -> Ordering {
    match (a.form(), b.form()) {
        (Form::Number(a), Form::Number(b)) => a.cmp(&b),
        (Form::Number(_), _) => Ordering::Less,
        (_, Form::Number(_)) => Ordering::Greater,
        (Form::Expression(a), Form::Expression(b)) => a.order(b),
        _ => Ordering::Equal,
    }
}

/// Terms of more factors first, then by their names.
fn order(a: &[Factor], b: &[Factor]) -> Ordering {
    let each = a.iter().zip(b).map(|(a, b)| a.order(b));
    b.len().cmp(&a.len()).then_with(|| each.fold(Ordering::Equal, Ordering::then))
}

/// The factors without others, if all of those are among them.
fn without(factors: &[Factor], others: &[Factor]) -> Option<SmallVec<[Factor; 2]>> {
    let mut left: SmallVec<[Factor; 2]> = SmallVec::from_slice(factors);
    for other in others {
        let at = left.iter().position(|factor| factor == other)?;
        left.remove(at);
    }
    Some(left)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

impl fmt::Display for Polynomial {
    /// The first positive term leads, so that no text begins with a sign before a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leader = self.0.iter().position(|term| term.coefficient > 0).unwrap_or(0);
        let others = (0..self.0.len()).filter(|at| *at != leader);
        for (place, at) in std::iter::once(leader).chain(others).enumerate() {
            let Term { factors, coefficient } = &self.0[at];
            let (sign, shown) = match (place, *coefficient < 0) {
                (0, _) => ("", *coefficient),
                (_, true) => (" - ", -*coefficient),
                (_, false) => (" + ", *coefficient),
            };
            f.write_str(sign)?;
            if factors.is_empty() || shown != 1 {
                write!(f, "{shown}")?;
            }
            let alone = factors.len() == 1 && shown == 1;
            for (number, factor) in factors.iter().enumerate() {
                if number > 0 || shown != 1 {
                    f.write_char('*')?;
                }
                match factor {
                    Factor::Name(name) => f.write_str(name)?,
                    Factor::Quotient(a, b) if alone => write!(f, "{}/{}", Atom(*a), Atom(*b))?,
                    Factor::Quotient(a, b) => write!(f, "({}/{})", Atom(*a), Atom(*b))?,
                }
            }
        }
        Ok(())
    }
}

/// In parentheses unless it is a name or a number.
struct Atom(Size);

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.0.name().is_some() || self.0.number().is_some();
        if plain { write!(f, "{}", self.0) } else { write!(f, "({})", self.0) }
    }
}
