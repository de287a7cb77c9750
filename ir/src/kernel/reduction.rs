//! The reductions of the language, and every fact about them that others decide by.
//!
//! A new reduction is a variant here with its row in each method; the interpreter, the verifier and
//! devices ask these methods and name no reduction themselves. The order in which values are
//! combined is no fact of a reduction: it is the same for all (see [`kernel`](super)). What
//! [`Reduction::combine`] computes stands in `eval`, with the rest of the arithmetic.

use super::{Scalar, ScalarOp};
use crate::DType;
use std::fmt;
use std::str::FromStr;

/// How values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Addition.
    Sum,
    /// [`ScalarOp::Max`].
    Max,
    /// [`ScalarOp::Min`].
    Min,
    /// The row position of the first maximum (NaN counts as the largest), as i64.
    ArgMax,
    /// The row position of the first minimum (NaN counts as the smallest), as i64.
    ArgMin,
    /// Multiplication.
    Prod,
}

/// What becomes of two partial results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// The instruction takes both to one value: partial results are values.
    Value(ScalarOp),
    /// The first position of the extreme value wins: partial results are a value and its position.
    Position(Extreme),
}

/// The end of an order at which a value is looked for. NaN lies beyond both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    /// The largest value.
    Largest,
    /// The smallest value.
    Smallest,
}

impl Extreme {
    /// The reduction that gives the value itself instead of its position.
    pub const fn value(self) -> Reduction {
        match self {
            Extreme::Largest => Reduction::Max,
            Extreme::Smallest => Reduction::Min,
        }
    }
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 6] = [
        Reduction::Sum,
        Reduction::Max,
        Reduction::Min,
        Reduction::ArgMax,
        Reduction::ArgMin,
        Reduction::Prod,
    ];

    /// The name used in text and in the attribute `kind` of the core reductions.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::ArgMax => "argmax",
            Reduction::ArgMin => "argmin",
            Reduction::Prod => "prod",
        }
    }

    /// How two partial results become one.
    pub const fn combines(self) -> Combine {
        match self {
            Reduction::Sum => Combine::Value(ScalarOp::Add),
            Reduction::Max => Combine::Value(ScalarOp::Max),
            Reduction::Min => Combine::Value(ScalarOp::Min),
            Reduction::ArgMax => Combine::Position(Extreme::Largest),
            Reduction::ArgMin => Combine::Position(Extreme::Smallest),
            Reduction::Prod => Combine::Value(ScalarOp::Mul),
        }
    }

    /// The bits, as in [`ScalarOp::Const`], of the value that a reduction of `ty` starts from, and
    /// that a reduction of nothing gives.
    ///
    /// A reduction to a position starts from the value that any other beats, at position 0.
    ///
    /// ```
    /// use tracecast_ir::kernel::{Reduction, Scalar};
    /// let least = Reduction::Max.identity(Scalar::F32);
    /// assert_eq!(f32::from_bits(least as u32), f32::NEG_INFINITY);
    /// ```
    pub const fn identity(self, ty: Scalar) -> u64 {
        match self {
            Reduction::Sum => 0,
            Reduction::Max | Reduction::ArgMax => least(ty),
            Reduction::Min | Reduction::ArgMin => greatest(ty),
            Reduction::Prod => one(ty),
        }
    }

    /// The type of the result of reducing values of `ty`.
    pub const fn result(self, ty: Scalar) -> Scalar {
        if self.is_position() { Scalar::I64 } else { ty }
    }

    /// The dtype of the result of reducing elements of `dtype`.
    pub const fn result_dtype(self, dtype: DType) -> DType {
        if self.is_position() { DType::I64 } else { dtype }
    }

    /// True if the result is a position along the row and no value: then there is no such reduction
    /// down columns.
    pub const fn is_position(self) -> bool {
        matches!(self.combines(), Combine::Position(_))
    }

    /// True if the combination of two values may be a third one, which is rounded: then what is
    /// accumulated is to be no narrower than f32, and its order shows. Other reductions pick one of
    /// the values, in any order the same.
    pub const fn accumulates(self) -> bool {
        match self {
            Reduction::Sum | Reduction::Prod => true,
            Reduction::Max | Reduction::Min | Reduction::ArgMax | Reduction::ArgMin => false,
        }
    }

    /// True if the result is one of the values reduced.
    pub const fn picks_value(self) -> bool {
        !self.accumulates() && !self.is_position()
    }

    /// True if the identity combined with any value of `ty` is that value, bit by bit. A sum of
    /// floats makes `0.0` of `-0.0`.
    pub const fn keeps_single(self, ty: Scalar) -> bool {
        match self {
            Reduction::Sum => !ty.is_float(),
            Reduction::Max | Reduction::Min | Reduction::Prod => true,
            Reduction::ArgMax | Reduction::ArgMin => false,
        }
    }
}

const fn one(ty: Scalar) -> u64 {
    match ty {
        Scalar::F32 => 1f32.to_bits() as u64,
        Scalar::F64 => 1f64.to_bits(),
        Scalar::I32 | Scalar::I64 | Scalar::Bool => 1,
    }
}

/// The value below all others.
const fn least(ty: Scalar) -> u64 {
    match ty {
        Scalar::F32 => f32::NEG_INFINITY.to_bits() as u64,
        Scalar::F64 => f64::NEG_INFINITY.to_bits(),
        Scalar::I32 => i32::MIN as u32 as u64,
        Scalar::I64 => i64::MIN as u64,
        Scalar::Bool => 0,
    }
}

/// The value above all others.
const fn greatest(ty: Scalar) -> u64 {
    match ty {
        Scalar::F32 => f32::INFINITY.to_bits() as u64,
        Scalar::F64 => f64::INFINITY.to_bits(),
        Scalar::I32 => i32::MAX as u32 as u64,
        Scalar::I64 => i64::MAX as u64,
        Scalar::Bool => 1,
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Reduction::ALL.into_iter().find(|reduction| reduction.name() == s).ok_or_else(|| {
            let names: Vec<_> = Reduction::ALL.iter().map(|reduction| reduction.name()).collect();
            format!("unknown kind {s:?}: expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALARS: [Scalar; 5] = [Scalar::F32, Scalar::F64, Scalar::I32, Scalar::I64, Scalar::Bool];

    /// Ends of the type, zeros of both signs, one, and no number.
    fn values(ty: Scalar) -> Vec<u64> {
        let floats = [0.0, -0.0, 1.0, -2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        match ty {
            Scalar::F32 => floats.iter().map(|v| u64::from((*v as f32).to_bits())).collect(),
            Scalar::F64 => floats.iter().map(|v| v.to_bits()).collect(),
            Scalar::I32 => [0, 1, -1, i32::MIN, i32::MAX].map(|v| u64::from(v as u32)).to_vec(),
            Scalar::I64 => [0, 1, -1, i64::MIN, i64::MAX].map(|v| v as u64).to_vec(),
            Scalar::Bool => vec![0, 1],
        }
    }

    #[test]
    fn names_round_trip() {
        for reduction in Reduction::ALL {
            assert_eq!(reduction.name().parse(), Ok(reduction));
        }
        let error = "median".parse::<Reduction>().unwrap_err();
        assert!(error.contains("median") && error.contains("sum, max, min"), "{error}");
    }

    #[test]
    fn what_is_said_of_a_reduction_holds_for_its_combinations() {
        for reduction in Reduction::ALL {
            for ty in SCALARS.into_iter().filter(|ty| *ty != Scalar::Bool) {
                let values = values(ty);
                let identity = reduction.identity(ty);
                let kept = values.iter().all(|v| reduction.combine(ty, identity, *v) == *v);
                if !reduction.is_position() {
                    assert_eq!(kept, reduction.keeps_single(ty), "{reduction} {ty:?}");
                }
                let picks = values.iter().all(|a| {
                    values.iter().all(|b| [*a, *b].contains(&reduction.combine(ty, *a, *b)))
                });
                assert_eq!(picks, !reduction.accumulates(), "{reduction} {ty:?}");
            }
        }
    }
}
