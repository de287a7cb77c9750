//! [`Size`]: how long an axis is, a number or an expression of names such as `2*batch + 1`.
//!
//! A program with names means the program traced with the numbers: whoever runs it puts numbers for
//! the names first. This room knows what a size is, what can be computed with sizes, and what can
//! be proven of them from bounds and guards ([`Sizes`]). Who may ask what of a size, and when that
//! leaves a guard, is told where it is asked: by the type rules of ops and by passes.

mod arithmetic;
mod claim;
mod facts;
mod number;
mod polynomial;
mod table;
#[cfg(test)]
mod tests;

pub use claim::{Claim, Relation, SizeGuard};
pub use facts::{Must, NamedSize, Sizes, Values};
pub use number::Number;

use crate::unknown;
use polynomial::Polynomial;
use std::fmt;
use std::hash::{Hash, Hasher};

/// How long an axis is, where it begins, how far apart positions are: a whole number, or a
/// polynomial over names with whole coefficients, in which a floor division may stand like a name.
///
/// Copied like a number and made from every integer type. `+`, `-`, `*` and `/`, which rounds down,
/// give the size in one form, so sizes that are the same polynomial are equal by `==`; sizes
/// without floor divisions are equal if and only if they are for all values. Comparisons by size
/// are asked of a tracer ([`Tracer::holds`](crate::Tracer::holds)), since the answer may depend on
/// the names.
///
/// ```
/// use tracecast_ir::Size;
///
/// let batch = Size::named("batch");
/// assert_eq!((batch + 1) * 2 - 2, batch * 2);
/// assert_eq!((batch * 12) / 4, 3 * batch);
/// assert_eq!((2 * batch + 1).to_string(), "2*batch + 1");
/// assert_eq!(Size::from(7) / 2, 3);
/// ```
#[derive(Clone, Copy, Default)]
pub struct Size(u64);

/// What the bits of a size say.
enum Form {
    Number(i64),
    /// Not a number.
    Expression(&'static Polynomial),
    Unknown,
    OutOfRange,
}

/// Set in sizes that are not plain numbers.
const PLACE: u64 = 1;

impl Size {
    /// A size of something whose op failed. Arithmetic with it gives it again, and ops that are
    /// given it pass the failure on, so that the first error of a program is the one that is told.
    pub const UNKNOWN: Size = Size(u64::MAX);

    /// What arithmetic gives that leaves 63 bits, divides by zero, or makes an expression longer
    /// than programs need. A program cannot have it: the op that is given it is an error.
    pub const OUT_OF_RANGE: Size = Size(u64::MAX - 2);

    /// The largest number that is a size.
    pub const MAX: i64 = i64::MAX >> 1;

    /// The size of that name. Programs declare their names
    /// ([`Tracer::size_in`](crate::Tracer::size_in)): a size without a declaration has neither
    /// bounds nor a value.
    pub fn named(name: &str) -> Size {
        table::place_of(Polynomial::name(table::name(name)))
    }

    /// The number, if it is one.
    #[track_caller]
    #[inline]
    pub fn number(self) -> Option<i64> {
        let number = self.plain();
        if number.is_none() && self.is_unknown() {
            unknown::asked();
        }
        number
    }

    /// As [`number`](Size::number), where nothing is decided by it.
    #[inline]
    pub(crate) fn plain(self) -> Option<i64> {
        (self.0 & PLACE == 0).then_some((self.0 as i64) >> 1)
    }

    /// The number of a size in a program that runs: all its sizes are numbers, and none is
    /// negative.
    ///
    /// # Panics
    /// If it is an expression of names, negative, or of an op that failed.
    #[track_caller]
    #[inline]
    pub fn get(self) -> usize {
        let number = self.number().and_then(|n| usize::try_from(n).ok());
        number.unwrap_or_else(|| panic!("{self} is not the number of something"))
    }

    /// True for a number of 0 or more, and for every expression of names.
    pub fn may_be_extent(self) -> bool {
        match self.form() {
            Form::Number(n) => n >= 0,
            Form::Expression(_) => true,
            Form::Unknown | Form::OutOfRange => false,
        }
    }

    /// True if it is of an op that failed.
    #[inline]
    pub fn is_unknown(self) -> bool {
        self.0 == Size::UNKNOWN.0
    }

    /// True if arithmetic has failed.
    #[inline]
    pub fn is_out_of_range(self) -> bool {
        self.0 == Size::OUT_OF_RANGE.0
    }

    /// True if it is an expression of names.
    pub fn has_names(self) -> bool {
        matches!(self.form(), Form::Expression(_))
    }

    /// The name, if it is nothing but a name.
    pub fn name(self) -> Option<&'static str> {
        match self.form() {
            Form::Expression(p) => p.as_name(),
            _ => None,
        }
    }

    /// The names in it, each once, in the order of the alphabet.
    pub fn names(self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if let Form::Expression(p) = self.form() {
            p.collect_names(&mut names);
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The same with a size in the place of every name that `with` knows.
    #[must_use]
    pub fn substitute(self, with: &dyn Fn(&str) -> Option<Size>) -> Size {
        match self.form() {
            Form::Expression(p) => p.substitute(with),
            _ => self,
        }
    }

    /// The only name in it and the value with which it is `number`, if it grows evenly with the
    /// name.
    ///
    /// ```
    /// use tracecast_ir::Size;
    ///
    /// let n = Size::named("n");
    /// assert_eq!((n * 2 + 1).solve(7), Some(("n", 3)));
    /// assert_eq!((n * 2 + 1).solve(8), None);
    /// ```
    pub fn solve(self, number: i64) -> Option<(&'static str, i64)> {
        let [name] = self.names()[..] else { return None };
        let at = |value: i64| self.at(&|_| Some(value)).ok();
        let start = at(0)?;
        let step = at(1)?.checked_sub(start).filter(|step| *step != 0)?;
        let value = number.checked_sub(start)?.checked_div(step)?;
        (at(value) == Some(number)).then_some((name, value))
    }

    /// The number that it is when names have these values.
    ///
    /// # Errors
    /// If a name has no value, the number leaves 63 bits, or something is divided by zero.
    pub fn at(self, value: &dyn Fn(&str) -> Option<i64>) -> Result<i64, String> {
        match self.form() {
            Form::Number(n) => Ok(n),
            Form::Expression(p) => p.at(value).map_err(|why| format!("{self} {why}")),
            Form::Unknown | Form::OutOfRange => Err(format!("{self} has no value")),
        }
    }

    #[inline]
    fn of_number(n: Option<i64>) -> Size {
        match n {
            Some(n) if (-Size::MAX - 1..=Size::MAX).contains(&n) => Size((n as u64) << 1),
            _ => Size::OUT_OF_RANGE,
        }
    }

    #[inline]
    fn form(self) -> Form {
        match self.plain() {
            Some(n) => Form::Number(n),
            None if self.is_unknown() => Form::Unknown,
            None if self.is_out_of_range() => Form::OutOfRange,
            None => Form::Expression(table::at((self.0 >> 1) as usize)),
        }
    }
}

impl<T: Copy + Into<Size>> PartialEq<T> for Size {
    #[track_caller]
    #[inline]
    fn eq(&self, other: &T) -> bool {
        let other: Size = (*other).into();
        if self.is_unknown() || other.is_unknown() {
            unknown::asked();
        }
        self.0 == other.0
    }
}

impl Eq for Size {}

impl Hash for Size {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

macro_rules! from_integers {
    ($($ty:ty),+) => { $(
        impl From<$ty> for Size {
            #[inline]
            fn from(n: $ty) -> Size {
                Size::of_number(i64::try_from(n).ok())
            }
        }
    )+ };
}

from_integers!(usize, u64, u32, i64, i32);

impl From<&Size> for Size {
    fn from(size: &Size) -> Size {
        *size
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            Form::Number(n) => n.fmt(f),
            Form::Expression(p) => p.fmt(f),
            Form::Unknown => f.write_str("?"),
            Form::OutOfRange => f.write_str("out of range"),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An array of [`Size`]s from numbers and sizes: `sizes![batch, 2 * length + 1, 784]`.
#[macro_export]
macro_rules! sizes {
    ($($size:expr),* $(,)?) => { [$($crate::Size::from($size)),*] };
}
