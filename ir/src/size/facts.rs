//! [`Sizes`]: the names of a program with their bounds and the values it was traced with, its size
//! guards, and what follows from them.

use super::{Claim, Relation, Size, SizeGuard};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;

/// A name of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSize {
    /// The name.
    pub name: &'static str,
    /// The least value, 0 or more.
    pub least: i64,
    /// The largest value, if there is one.
    pub most: Option<i64>,
    /// The value that the program was traced with. What costs least is decided by it, and nothing
    /// else.
    pub hint: i64,
}

/// Numbers for names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Values(SmallVec<[(&'static str, i64); 4]>);

/// The names and the size guards of a program, in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    names: Vec<NamedSize>,
    /// For each name the line that declared it; empty if that is not known.
    lines: Vec<String>,
    guards: Vec<SizeGuard>,
}

impl Sizes {
    /// True if there are neither names nor guards: all sizes are numbers.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.guards.is_empty()
    }

    /// The names.
    pub fn names(&self) -> &[NamedSize] {
        &self.names
    }

    /// What the program depends on.
    pub fn guards(&self) -> &[SizeGuard] {
        &self.guards
    }

    /// The declaration of a name.
    pub fn get(&self, name: &str) -> Option<&NamedSize> {
        self.names.iter().find(|known| known.name == name)
    }

    /// Declares a name; one that is declared already has to agree.
    ///
    /// # Errors
    /// If the name is not a word, the bounds exclude the value, or the name was declared otherwise.
    pub fn declare(&mut self, new: NamedSize) -> Result<(), String> {
        self.declare_at(new, String::new())
    }

    /// As [`declare`](Sizes::declare), on a line that errors about its bounds name.
    ///
    /// # Errors
    /// As [`declare`](Sizes::declare).
    pub fn declare_at(&mut self, new: NamedSize, line: String) -> Result<(), String> {
        let NamedSize { name, least, most, hint } = new;
        if !is_name(name) {
            return Err(format!(
                "{name:?} is no name of a size: expected a letter, then letters, digits, `_` and `.`"
            ));
        }
        if least < 0 || hint < least || most.is_some_and(|most| hint > most || most > Size::MAX) {
            return Err(format!("`{}` is not 0 or more within its bounds", new));
        }
        match self.get(name) {
            Some(known) if *known == new => Ok(()),
            Some(known) => {
                let line = self.line(name).map(|line| format!(" at {line}")).unwrap_or_default();
                Err(format!("`{known}` is declared already{line}, now asked for as `{new}`"))
            }
            None => {
                self.names.push(new);
                self.lines.push(line);
                Ok(())
            }
        }
    }

    /// The line that declared a name, if it is known.
    pub fn line(&self, name: &str) -> Option<&str> {
        let at = self.names.iter().position(|known| known.name == name)?;
        Some(&*self.lines[at]).filter(|line| !line.is_empty())
    }

    /// Says what a declared name is worth in the run that is traced for.
    ///
    /// # Errors
    /// If the value lies outside of its bounds, or a guard that was decided by another value does
    /// not hold for it.
    pub fn trace_at(&mut self, name: &str, value: i64) -> Result<(), String> {
        let known = self.names.iter_mut().find(|known| known.name == name);
        let known = known.ok_or_else(|| format!("no size is called `{name}`"))?;
        known.hint = value;
        self.check(&self.hints())
    }

    /// Adds a guard, unless it says nothing new.
    pub fn guard(&mut self, guard: SizeGuard) {
        if !self.proves(guard.claim) {
            self.guards.push(guard);
        }
    }

    /// The value that a size had when the program was traced: for costs, never for what must be
    /// right.
    ///
    /// # Errors
    /// If it has no value: a name that is not declared, a number that is too large, a division by
    /// zero.
    pub fn hint(&self, size: Size) -> Result<i64, String> {
        size.at(&|name| self.get(name).map(|known| known.hint))
    }

    /// The values that the program was traced with.
    pub fn hints(&self) -> Values {
        self.names.iter().map(|known| (known.name, known.hint)).collect()
    }

    /// Whether a claim holds for the values that the program was traced with.
    pub fn holds_for_hints(&self, claim: Claim) -> bool {
        match (self.hint(claim.left), self.hint(claim.right)) {
            (Ok(left), Ok(right)) => Claim::holds(claim.relation, left, right),
            _ => false,
        }
    }

    /// Whether a claim holds for all values within the bounds for which the guards hold. `false`
    /// may mean that it is not known.
    pub fn proves(&self, claim: Claim) -> bool {
        if let Some(answer) = claim.of_numbers() {
            return answer;
        }
        if self.guards.iter().any(|guard| guard.claim.says(claim)) {
            return true;
        }
        let claim = claim.map(|size| self.reduced(size));
        if let Some(answer) = claim.of_numbers() {
            return answer;
        }
        let gap = claim.left - claim.right;
        match claim.relation {
            Relation::Equal => claim.left == claim.right,
            Relation::AtLeast => {
                let of_guards =
                    self.guards.iter().filter(|g| g.claim.relation == Relation::AtLeast);
                let mut known = of_guards.map(|g| self.reduced(g.claim.left - g.claim.right));
                self.least(gap) >= 0 || known.any(|known| self.least(gap - known) >= 0)
            }
            Relation::Divides => {
                let known = |g: &SizeGuard| g.claim.map(|size| self.reduced(size)) == claim;
                let divides = claim.left * (claim.right / claim.left) == claim.right;
                divides && self.least(claim.left) >= 1 || self.guards.iter().any(known)
            }
        }
    }

    /// What a size is when names that guards tie to something else are written as that.
    fn reduced(&self, size: Size) -> Size {
        if !size.has_names() {
            return size;
        }
        let equal = self.guards.iter().filter(|guard| guard.claim.relation == Relation::Equal);
        equal.fold(size, |size, guard| {
            let Claim { left, right, .. } = guard.claim;
            let (name, other) = match (left.name(), right.name()) {
                (Some(name), _) if !right.names().contains(&name) => (name, right),
                (_, Some(name)) if !left.names().contains(&name) => (name, left),
                _ => return size,
            };
            size.substitute(&|known| (known == name).then_some(other))
        })
    }

    /// The least value; the least number if it is not known.
    fn least(&self, size: Size) -> i128 {
        let ends = |name: &str| match self.get(name) {
            Some(known) => (i128::from(known.least), known.most.map_or(i128::MAX, i128::from)),
            None => (0, i128::MAX),
        };
        let direct = size.range(&ends).0;
        let below = match size.form() {
            super::Form::Expression(p) => p.below(),
            _ => None,
        };
        let least = |(below, times): (super::Polynomial, i64)| {
            below.range(&ends).0.div_euclid(i128::from(times))
        };
        below.map_or(direct, |below| direct.max(least(below)))
    }

    /// Checks that a value lies within the bounds of its name.
    ///
    /// # Errors
    /// The name, the value and the bounds, with the line that set them.
    pub fn check_bounds(&self, name: &str, value: i64) -> Result<(), String> {
        match self.get(name) {
            Some(known) if !known.admits(value) => {
                let line = self.line(name).map(|line| format!(", set at {line}"));
                let line = line.unwrap_or_default();
                Err(format!("`{name}` is {value}, expected {}{line}", known.bounds()))
            }
            Some(_) => Ok(()),
            None => Err(format!("no size is called `{name}`")),
        }
    }

    /// Checks that values lie within their bounds and that all guards hold.
    ///
    /// # Errors
    /// The bound or the guard that does not, with the values; for a guard with its op and line.
    pub fn check(&self, values: &Values) -> Result<(), String> {
        for known in &self.names {
            let value =
                values.get(known.name).ok_or_else(|| format!("`{}` has no value", known.name))?;
            self.check_bounds(known.name, value)?;
        }
        for guard in &self.guards {
            let Claim { left, relation, right } = guard.claim;
            let value = |size: Size| size.at(&|name| values.get(name));
            if !Claim::holds(relation, value(left)?, value(right)?) {
                return Err(format!("the program needs {guard}, found {values}"));
            }
        }
        Ok(())
    }
}

impl Size {
    fn range(self, of: &dyn Fn(&str) -> (i128, i128)) -> (i128, i128) {
        match self.form() {
            super::Form::Number(n) => (i128::from(n), i128::from(n)),
            super::Form::Expression(p) => p.range(of),
            super::Form::Unknown | super::Form::OutOfRange => (i128::MIN, i128::MAX),
        }
    }
}

/// True for a word that texts read as a name and not as something else.
fn is_name(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let taken = ["true", "false", "inf", "nan", "of", "at", "in", "divides"].contains(&name);
    first && word && !taken && name.parse::<crate::DType>().is_err()
}

impl NamedSize {
    /// True if a value lies within the bounds.
    pub fn admits(&self, value: i64) -> bool {
        value >= self.least && self.most.is_none_or(|most| value <= most)
    }

    /// The bounds as texts write them: `1..=64`, `0..`.
    pub fn bounds(&self) -> String {
        match self.most {
            Some(most) => format!("{}..={most}", self.least),
            None => format!("{}..", self.least),
        }
    }
}

impl fmt::Display for NamedSize {
    /// `batch = 32 in 1..=64`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.hint)?;
        if (self.least, self.most) == (0, None) {
            Ok(())
        } else {
            write!(f, " in {}", self.bounds())
        }
    }
}

impl Values {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Gives a name a value, unless it has one.
    ///
    /// # Errors
    /// The value that it has, if that is another.
    pub fn set(&mut self, name: &'static str, value: i64) -> Result<(), i64> {
        match self.get(name) {
            Some(known) if known != value => Err(known),
            Some(_) => Ok(()),
            None => {
                self.0.push((name, value));
                Ok(())
            }
        }
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, i64)> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<(&'static str, i64)> for Values {
    fn from_iter<I: IntoIterator<Item = (&'static str, i64)>>(values: I) -> Self {
        Values(values.into_iter().collect())
    }
}

impl fmt::Display for Values {
    /// `batch = 3, length = 60`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name} = {value}", if place > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Who answers a type rule what it must know of sizes to go on.
///
/// A claim that is proven holds. One that is not, but holds for the values a program is traced
/// with, holds too where guards may be added, which is in the trace of user code, and leaves one.
/// Elsewhere it does not.
#[derive(Debug)]
pub struct Must<'a> {
    sizes: &'a Sizes,
    /// What has been taken for granted, where that is allowed.
    taken: Option<RefCell<SmallVec<[Claim; 2]>>>,
}

impl<'a> Must<'a> {
    /// Takes only what is proven.
    pub fn proven(sizes: &'a Sizes) -> Self {
        Must { sizes, taken: None }
    }

    /// Takes what holds for the traced values as well.
    pub fn guarded(sizes: &'a Sizes) -> Self {
        Must { sizes, taken: Some(RefCell::default()) }
    }

    /// Whether the claim holds, perhaps by a guard that the program then has.
    pub fn hold(&self, claim: Claim) -> bool {
        if claim.relation == Relation::Equal && claim.left == claim.right
            || self.sizes.proves(claim)
        {
            return true;
        }
        let Some(taken) = &self.taken else { return false };
        let named = claim.left.has_names() || claim.right.has_names();
        let holds = named && self.sizes.holds_for_hints(claim);
        if holds {
            taken.borrow_mut().push(claim);
        }
        holds
    }

    /// True in the trace of user code.
    pub fn adds_guards(&self) -> bool {
        self.taken.is_some()
    }

    /// Whether two sizes are equal, perhaps by a guard.
    pub fn equal(&self, a: Size, b: Size) -> bool {
        a == b || self.hold(a.equals(b))
    }

    /// Whether all sizes of two shapes are equal, perhaps by guards.
    pub fn alike(&self, a: &[Size], b: &[Size]) -> bool {
        a == b || a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.equal(*a, *b))
    }

    /// The number that a size is, perhaps by a guard.
    pub fn number(&self, size: Size) -> Option<i64> {
        let known = size.number();
        known.or_else(|| self.sizes.hint(size).ok().filter(|n| self.hold(size.equals(*n))))
    }

    /// What was taken for granted.
    pub fn taken(self) -> SmallVec<[Claim; 2]> {
        self.taken.map(RefCell::into_inner).unwrap_or_default()
    }
}
