//! [`Number`]: a float that an op is given, which may depend on names: the count of a mean.

use super::Size;
use std::fmt;

/// A number, a size as a number, or a number by a size; computed in f64 when names have values.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A number.
    F64(f64),
    /// A size.
    Size(Size),
    /// The first by the second; by 1 where that is 0.
    Ratio(f64, Size),
}

impl Number {
    /// The value, if it does not depend on names.
    pub fn value(self) -> Option<f64> {
        match self {
            Number::F64(value) => Some(value),
            Number::Size(size) => Some(size.plain()? as f64),
            Number::Ratio(value, size) => Some(value / size.plain()?.max(1) as f64),
        }
    }

    /// The size in it, if it may depend on names.
    pub fn size(self) -> Option<Size> {
        match self {
            Number::F64(_) => None,
            Number::Size(size) | Number::Ratio(_, size) => Some(size),
        }
    }

    /// The same with another size in it.
    #[must_use]
    pub(crate) fn map(self, with: &dyn Fn(Size) -> Size) -> Number {
        match self {
            Number::F64(_) => self,
            Number::Size(size) => Number::Size(with(size)),
            Number::Ratio(value, size) => Number::Ratio(value, with(size)),
        }
    }
}

/// Floats are compared by bits.
impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        match (self, other) {
            (Number::F64(a), Number::F64(b)) => a.to_bits() == b.to_bits(),
            (Number::Size(a), Number::Size(b)) => a == b,
            (Number::Ratio(a, n), Number::Ratio(b, m)) => a.to_bits() == b.to_bits() && n == m,
            _ => false,
        }
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::F64(value)
    }
}

impl From<Size> for Number {
    fn from(size: Size) -> Number {
        Number::Size(size)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::F64(value) => write!(f, "{value:?}"),
            Number::Size(size) => size.fmt(f),
            Number::Ratio(value, size) if size.name().is_some() => write!(f, "{value:?}/{size}"),
            Number::Ratio(value, size) => write!(f, "{value:?}/({size})"),
        }
    }
}
