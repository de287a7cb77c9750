//! [`Layout`]: where the lines of an operand lie. [`Scan`]: what a scan along them combines.

use std::str::FromStr;

/// How lines lie in memory: `outer` times `inner` of them, the elements of one `inner` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Positions before the axis of the lines.
    pub outer: usize,
    /// Elements of a line.
    pub length: usize,
    /// Positions behind the axis.
    pub inner: usize,
    /// How many results a line has, from the first: as many as elements, or fewer of an order.
    pub kept: usize,
}

/// Which result so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The position of the last of the largest numbers, as i64; that of the last NaN, once there is
    /// one.
    ArgMax,
    /// The position of the last of the smallest numbers, as i64; that of the last NaN, once there
    /// is one.
    ArgMin,
    /// The logarithm of the sum of the powers of `e`.
    LogSumExp,
    /// Of two operands: the result before times the element of the first, plus the element of the
    /// second.
    Recurrence,
}

impl Scan {
    /// All of them.
    pub const ALL: [Scan; 6] =
        [Scan::Sum, Scan::Prod, Scan::ArgMax, Scan::ArgMin, Scan::LogSumExp, Scan::Recurrence];

    /// The name used in text.
    pub const fn name(self) -> &'static str {
        match self {
            Scan::Sum => "sum",
            Scan::Prod => "prod",
            Scan::ArgMax => "argmax",
            Scan::ArgMin => "argmin",
            Scan::LogSumExp => "logsumexp",
            Scan::Recurrence => "recurrence",
        }
    }

    /// True if the results are positions.
    pub const fn is_position(self) -> bool {
        matches!(self, Scan::ArgMax | Scan::ArgMin)
    }
}

impl FromStr for Scan {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Scan::ALL.into_iter().find(|scan| scan.name() == s).ok_or_else(|| {
            let names: Vec<_> = Scan::ALL.iter().map(|scan| scan.name()).collect();
            format!("unknown kind {s:?}: expected one of {}", names.join(", "))
        })
    }
}
