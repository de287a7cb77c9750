//! The element types, and the classes of numbers that they belong to.

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
