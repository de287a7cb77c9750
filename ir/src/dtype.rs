//! Element types: [`DType`], and the one table about them.
//!
//! Policies and files may speak of every dtype the field names; kernels exist for the [computable](DType::is_computable) ones.

use std::fmt;
use std::str::FromStr;

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// True or false, one byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no negative zero.
    F8E4M3Fnuz,
    /// 8-bit float, 5 exponent and 2 mantissa bits, no negative zero.
    F8E5M2Fnuz,
    /// IEEE binary16.
    F16,
    /// The upper half of an IEEE binary32.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// Two binary16: a complex number.
    C32,
    /// Two binary32: a complex number.
    C64,
    /// Two binary64: a complex number.
    C128,
}

/// What kind of number a dtype holds; the order is that of type promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Truth values.
    Bool,
    /// Integers.
    Int,
    /// Real floating point.
    Float,
    /// Complex floating point.
    Complex,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [DType; 17] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F8E4M3Fnuz,
        DType::F8E5M2Fnuz,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::C32,
        DType::C64,
        DType::C128,
    ];

    /// The dtypes kernels exist for.
    pub const COMPUTABLE: [DType; 8] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
    ];

    /// Name in text, bits per element, and class.
    const fn row(self) -> (&'static str, usize, Class) {
        match self {
            DType::Bool => ("bool", 8, Class::Bool),
            DType::U8 => ("u8", 8, Class::Int),
            DType::I8 => ("i8", 8, Class::Int),
            DType::I16 => ("i16", 16, Class::Int),
            DType::I32 => ("i32", 32, Class::Int),
            DType::I64 => ("i64", 64, Class::Int),
            DType::F8E4M3 => ("f8e4m3", 8, Class::Float),
            DType::F8E5M2 => ("f8e5m2", 8, Class::Float),
            DType::F8E4M3Fnuz => ("f8e4m3fnuz", 8, Class::Float),
            DType::F8E5M2Fnuz => ("f8e5m2fnuz", 8, Class::Float),
            DType::F16 => ("f16", 16, Class::Float),
            DType::BF16 => ("bf16", 16, Class::Float),
            DType::F32 => ("f32", 32, Class::Float),
            DType::F64 => ("f64", 64, Class::Float),
            DType::C32 => ("c32", 32, Class::Complex),
            DType::C64 => ("c64", 64, Class::Complex),
            DType::C128 => ("c128", 128, Class::Complex),
        }
    }

    /// The name used in text, such as `bf16`.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The size of one element in bytes.
    pub const fn bytes(self) -> usize {
        self.row().1 / 8
    }

    /// What kind of number this is.
    pub const fn class(self) -> Class {
        self.row().2
    }

    /// True for real floating point, 8 to 64 bits.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float)
    }

    /// True for signed and unsigned integers; false for bool.
    pub const fn is_int(self) -> bool {
        matches!(self.class(), Class::Int)
    }

    /// True for the 16-bit floats, which exist in memory and are computed with in f32.
    pub const fn is_low(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// True if kernels exist for this dtype.
    pub const fn is_computable(self) -> bool {
        matches!(
            self,
            DType::F32
                | DType::F16
                | DType::BF16
                | DType::F64
                | DType::I32
                | DType::I64
                | DType::U8
                | DType::Bool
        )
    }

    /// The dtype in which arithmetic on `self` happens: f32 for the 16-bit floats, itself otherwise.
    pub const fn compute(self) -> DType {
        if self.is_low() { DType::F32 } else { self }
    }

    /// True if every value of `self` is a value of `other`: the lattice of exact casts.
    ///
    /// ```
    /// use tracecast_ir::DType;
    /// assert!(DType::BF16.fits_in(DType::F32));
    /// assert!(!DType::BF16.fits_in(DType::F16) && !DType::F16.fits_in(DType::BF16));
    /// ```
    pub const fn fits_in(self, other: DType) -> bool {
        use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
        if self as u8 == other as u8 {
            return true;
        }
        match self {
            Bool => other.is_computable(),
            U8 => matches!(other, I32 | I64 | F16 | BF16 | F32 | F64),
            I32 => matches!(other, I64 | F64),
            F16 | BF16 => matches!(other, F32 | F64),
            F32 => matches!(other, F64),
            _ => false,
        }
    }

    /// The dtype of an elementwise result of `self` and `other`, as PyTorch promotes two tensors with dimensions.
    ///
    /// The higher class wins; within a class the wider type, f16 with bf16 giving f32. `None` where PyTorch has no rule
    /// (8-bit floats with another float).
    pub fn promote(self, other: DType) -> Option<DType> {
        if self == other {
            return Some(self);
        }
        let (low, high) = if self.class() <= other.class() { (self, other) } else { (other, self) };
        if low.class() < high.class() {
            return match (low, high) {
                (DType::F64, DType::C32 | DType::C64) => Some(DType::C128),
                (DType::F32 | DType::BF16, DType::C32) => Some(DType::C64),
                _ => Some(high),
            };
        }
        match low.class() {
            Class::Bool => Some(DType::Bool),
            Class::Int if low == DType::U8 || high == DType::U8 => {
                let signed = if low == DType::U8 { high } else { low };
                Some(if signed == DType::I8 { DType::I16 } else { signed })
            }
            Class::Float if low.bytes() == 1 || high.bytes() == 1 => None,
            Class::Float if low.is_low() && high.is_low() => Some(DType::F32),
            _ => Some(if low.bytes() >= high.bytes() { low } else { high }),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| {
            let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            format!("unknown dtype `{s}`: expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for d in DType::ALL {
            assert_eq!(d.name().parse::<DType>().unwrap(), d);
        }
        assert!("f31".parse::<DType>().unwrap_err().contains("f31"));
    }

    #[test]
    fn promotion_is_symmetric_and_wide_enough() {
        for a in DType::COMPUTABLE {
            for b in DType::COMPUTABLE {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
            }
        }
        assert_eq!(DType::F16.promote(DType::BF16), Some(DType::F32));
        assert_eq!(DType::I64.promote(DType::F16), Some(DType::F16));
        assert_eq!(DType::U8.promote(DType::I32), Some(DType::I32));
    }
}
