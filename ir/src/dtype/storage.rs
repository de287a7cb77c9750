//! The table of dtypes: how elements lie in memory, and what computes with them.
//!
//! Exact casts and promotion follow from it in [`dtype`](super); conversions in
//! [`kernel::narrow`](crate::kernel::narrow).

use super::{Class, DType};

/// How elements of a dtype lie in memory, and what computes with them: the dtype's row in the
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The name used in text.
    pub name: &'static str,
    /// Bits of an element.
    pub bits: usize,
    /// What kind of number it is.
    pub class: Class,
    /// The dtype in which arithmetic happens; each element of this one is an element of that.
    pub compute: DType,
    /// The bits of a real floating point number.
    pub float: Option<Float>,
}

/// The bits of a binary floating point number: the sign, then the exponent, then the fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float {
    /// Bits of the exponent.
    pub exponent_bits: u32,
    /// Bits of the fraction, the leading one of the significand not included.
    pub fraction_bits: u32,
    /// What the bits at the end of the range stand for.
    pub top: Top,
}

/// What the bits of a float at the end of its range stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    /// As in IEEE 754: the largest exponent holds infinities and NaNs. What is too large becomes
    /// infinite.
    Infinite,
    /// The largest exponent holds numbers, and NaN where all bits of the fraction are set (`fn`).
    /// What is too large becomes NaN.
    Finite,
    /// The largest exponent holds numbers, the bits of negative zero are the only NaN, and the
    /// exponent's bias is one more (`fnuz`). What is too large becomes NaN.
    FiniteUnsignedZero,
}

impl Float {
    const fn ieee(exponent_bits: u32, fraction_bits: u32) -> Option<Float> {
        Some(Float { exponent_bits, fraction_bits, top: Top::Infinite })
    }

    const fn finite(exponent_bits: u32, fraction_bits: u32, top: Top) -> Option<Float> {
        Some(Float { exponent_bits, fraction_bits, top })
    }

    /// Bits of the significand, the leading one included: integers up to 2^digits are exact.
    pub const fn digits(self) -> u32 {
        self.fraction_bits + 1
    }

    /// The largest integer up to which all are exact.
    pub const fn exact(self) -> f64 {
        power_of_two(self.digits() as i32)
    }

    /// What is added to an exponent before it is stored.
    pub const fn bias(self) -> i32 {
        let ieee = (1 << (self.exponent_bits - 1)) - 1;
        match self.top {
            Top::Infinite | Top::Finite => ieee,
            Top::FiniteUnsignedZero => ieee + 1,
        }
    }

    /// The exponent of the smallest normal number.
    pub const fn least_exponent(self) -> i32 {
        1 - self.bias()
    }

    /// The exponent of the largest number.
    pub const fn most_exponent(self) -> i32 {
        let largest = (1 << self.exponent_bits) - 1 - self.bias();
        match self.top {
            Top::Infinite => largest - 1,
            Top::Finite | Top::FiniteUnsignedZero => largest,
        }
    }

    /// The bits of the largest number, as an integer.
    pub const fn largest_bits(self) -> u64 {
        let all = (1 << (self.exponent_bits + self.fraction_bits)) - 1;
        match self.top {
            Top::Infinite => all - (1 << self.fraction_bits),
            Top::Finite => all - 1,
            Top::FiniteUnsignedZero => all,
        }
    }

    /// The smallest normal number.
    pub fn smallest_normal(self) -> f64 {
        power_of_two(self.least_exponent())
    }

    /// The smallest number above zero.
    pub fn smallest(self) -> f64 {
        power_of_two(self.least_exponent() - self.fraction_bits as i32)
    }

    /// The largest number.
    pub fn largest(self) -> f64 {
        let fraction = self.largest_bits() & ((1 << self.fraction_bits) - 1);
        let significand = 1.0 + fraction as f64 * power_of_two(-(self.fraction_bits as i32));
        power_of_two(self.most_exponent()) * significand
    }

    /// True if every number of `self`, infinities and NaN included, is one of `other`.
    pub(super) const fn fits_in(self, other: Float) -> bool {
        let smallest = self.least_exponent() - self.fraction_bits as i32;
        let others = other.least_exponent() - other.fraction_bits as i32;
        let has_ends = !matches!(self.top, Top::Infinite) || matches!(other.top, Top::Infinite);
        self.fraction_bits <= other.fraction_bits
            && smallest >= others
            && self.most_exponent() <= other.most_exponent()
            && has_ends
    }
}

/// Two to a power that f64 has, exactly.
pub(crate) const fn power_of_two(exponent: i32) -> f64 {
    let bits =
        if exponent < -1022 { 1 << (exponent + 1074) } else { ((exponent + 1023) as u64) << 52 };
    f64::from_bits(bits)
}

/// What is said of each dtype, in the order of [`DType::ALL`].
pub(super) static TABLE: [Storage; DType::ALL.len()] = {
    use Class::{Bool, Complex, Float as Real, Int};
    use DType::F32;
    const fn row(
        name: &'static str,
        bits: usize,
        class: Class,
        compute: DType,
        float: Option<Float>,
    ) -> Storage {
        Storage { name, bits, class, compute, float }
    }
    [
        row("bool", 8, Bool, DType::Bool, None),
        row("u8", 8, Int, DType::U8, None),
        row("i8", 8, Int, DType::I8, None),
        row("i16", 16, Int, DType::I16, None),
        row("i32", 32, Int, DType::I32, None),
        row("i64", 64, Int, DType::I64, None),
        row("f8e4m3", 8, Real, F32, Float::finite(4, 3, Top::Finite)),
        row("f8e5m2", 8, Real, F32, Float::ieee(5, 2)),
        row("f8e4m3fnuz", 8, Real, F32, Float::finite(4, 3, Top::FiniteUnsignedZero)),
        row("f8e5m2fnuz", 8, Real, F32, Float::finite(5, 2, Top::FiniteUnsignedZero)),
        row("f16", 16, Real, F32, Float::ieee(5, 10)),
        row("bf16", 16, Real, F32, Float::ieee(8, 7)),
        row("f32", 32, Real, F32, Float::ieee(8, 23)),
        row("f64", 64, Real, DType::F64, Float::ieee(11, 52)),
        row("c32", 32, Complex, DType::C32, None),
        row("c64", 64, Complex, DType::C64, None),
        row("c128", 128, Complex, DType::C128, None),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dtype_has_its_own_row() {
        for (at, dtype) in DType::ALL.into_iter().enumerate() {
            let Storage { name, bits, compute, float, .. } = *dtype.storage();
            assert_eq!(dtype as usize, at, "{name}");
            assert_eq!(float.is_some(), dtype.is_float(), "{name}");
            let sum =
                float.map_or(bits, |f| 1 + f.exponent_bits as usize + f.fraction_bits as usize);
            assert_eq!(sum, bits, "{name}");
            assert_eq!(compute.compute(), compute, "{name}");
            assert!(compute == dtype || compute.bytes() > dtype.bytes(), "{name}");
        }
    }

    #[test]
    fn the_ends_of_floats_are_where_the_standards_put_them() {
        let ends = |dtype: DType| {
            let float = dtype.storage().float.unwrap();
            (float.largest(), float.smallest_normal(), float.smallest())
        };
        assert_eq!(ends(DType::F64), (f64::MAX, f64::MIN_POSITIVE, f64::from_bits(1)));
        let single = (f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1));
        let single = (single.0.into(), single.1.into(), single.2.into());
        assert_eq!(ends(DType::F32), single);
        assert_eq!(ends(DType::F16), (65504.0, f64::exp2(-14.0), f64::exp2(-24.0)));
        assert_eq!(ends(DType::BF16).2, f64::exp2(-133.0));
        assert_eq!(ends(DType::F8E4M3), (448.0, f64::exp2(-6.0), f64::exp2(-9.0)));
        assert_eq!(ends(DType::F8E5M2), (57344.0, f64::exp2(-14.0), f64::exp2(-16.0)));
        assert_eq!(ends(DType::F8E4M3Fnuz), (240.0, f64::exp2(-7.0), f64::exp2(-10.0)));
        assert_eq!(ends(DType::F8E5M2Fnuz), (57344.0, f64::exp2(-15.0), f64::exp2(-17.0)));
    }
}
