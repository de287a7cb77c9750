//! Element types: [`DType`], and what follows from the one table about them.
//!
//! Policies and files may speak of every dtype the field names; kernels exist for the
//! [computable](DType::is_computable) ones. A dtype becomes computable by its entry in
//! [`DType::COMPUTABLE`]: its row in `storage` says everything else. The conversions of
//! low-precision floats, which follow from the row, are in
//! [`kernel::narrow`](crate::kernel::narrow).

mod storage;
mod variants;

pub use storage::{Float, Storage, Top};
pub use variants::{Class, DType};

use std::fmt;
use std::str::FromStr;
use storage::TABLE;
pub(crate) use storage::power_of_two;

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

    /// The floats among the computable dtypes.
    pub const FLOATS: [DType; count(computable() & of_class(Class::Float))] =
        chosen(computable() & of_class(Class::Float));

    /// The floats and integers among the computable dtypes.
    pub const NUMBERS: [DType; count(computable() & !of_class(Class::Bool))] =
        chosen(computable() & !of_class(Class::Bool));

    /// How elements lie in memory, and what computes with them.
    pub const fn storage(self) -> &'static Storage {
        &TABLE[self as usize]
    }

    /// The name used in text, such as `bf16`.
    pub const fn name(self) -> &'static str {
        self.storage().name
    }

    /// The size of one element in bytes.
    pub const fn bytes(self) -> usize {
        self.storage().bits / 8
    }

    /// What kind of number this is.
    pub const fn class(self) -> Class {
        self.storage().class
    }

    /// True for real floating point, 8 to 64 bits.
    pub const fn is_float(self) -> bool {
        FLOAT_BITS & bit(self) != 0
    }

    /// True for signed and unsigned integers; false for bool.
    pub const fn is_int(self) -> bool {
        INT_BITS & bit(self) != 0
    }

    /// True for the low-precision floats, of 8 and 16 bits: they exist in memory, and are computed
    /// with in f32.
    pub const fn is_low(self) -> bool {
        LOW_BITS & bit(self) != 0
    }

    /// True if kernels exist for this dtype.
    pub const fn is_computable(self) -> bool {
        COMPUTABLE_BITS & bit(self) != 0
    }

    /// The dtype in which arithmetic on `self` happens: f32 for the low-precision floats, itself
    /// otherwise.
    pub const fn compute(self) -> DType {
        self.storage().compute
    }

    /// True if every value of `self` is a value of `other`: the lattice of exact casts between
    /// computable dtypes.
    ///
    /// ```
    /// use tracecast_ir::DType;
    /// assert!(DType::BF16.fits_in(DType::F32));
    /// assert!(!DType::BF16.fits_in(DType::F16) && !DType::F16.fits_in(DType::BF16));
    /// ```
    pub const fn fits_in(self, other: DType) -> bool {
        FITS[self as usize] & bit(other) != 0
    }

    /// The dtype of an elementwise result of `self` and `other`, as PyTorch promotes two tensors
    /// with dimensions.
    ///
    /// The higher class wins; within a class the wider type, f16 with bf16 giving f32. `None` where
    /// PyTorch has no rule (8-bit floats with another float).
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

/// A set of one dtype.
const fn bit(dtype: DType) -> u32 {
    1 << dtype as u32
}

/// The set of [`DType::COMPUTABLE`].
const COMPUTABLE_BITS: u32 = computable();

const fn computable() -> u32 {
    let (mut set, mut at) = (0, 0);
    while at < DType::COMPUTABLE.len() {
        set |= bit(DType::COMPUTABLE[at]);
        at += 1;
    }
    set
}

// The sets of dtypes that are asked for at every turn: a test of a bit is cheaper than a look into
// the table.
const FLOAT_BITS: u32 = of_class(Class::Float);
const INT_BITS: u32 = of_class(Class::Int);
const LOW_BITS: u32 = low();

/// The dtypes of a class.
const fn of_class(class: Class) -> u32 {
    let (mut set, mut at) = (0, 0);
    while at < DType::ALL.len() {
        if TABLE[at].class as u8 == class as u8 {
            set |= bit(DType::ALL[at]);
        }
        at += 1;
    }
    set
}

/// The dtypes that another one computes.
const fn low() -> u32 {
    let (mut set, mut at) = (0, 0);
    while at < DType::ALL.len() {
        if TABLE[at].compute as u8 != at as u8 {
            set |= bit(DType::ALL[at]);
        }
        at += 1;
    }
    set
}

const fn count(set: u32) -> usize {
    set.count_ones() as usize
}

/// The members of a set of computable dtypes, in the order of [`DType::COMPUTABLE`].
const fn chosen<const N: usize>(set: u32) -> [DType; N] {
    let mut all = [DType::Bool; N];
    let (mut at, mut to) = (0, 0);
    while at < DType::COMPUTABLE.len() {
        if set & bit(DType::COMPUTABLE[at]) != 0 {
            all[to] = DType::COMPUTABLE[at];
            to += 1;
        }
        at += 1;
    }
    all
}

/// For each dtype, the dtypes that every value of it is a value of.
static FITS: [u32; DType::ALL.len()] = {
    let mut sets = [0; DType::ALL.len()];
    let mut at = 0;
    while at < sets.len() {
        let (from, mut to) = (DType::ALL[at], 0);
        while to < sets.len() {
            if fits(from, DType::ALL[to]) {
                sets[at] |= bit(DType::ALL[to]);
            }
            to += 1;
        }
        at += 1;
    }
    sets
};

const fn fits(from: DType, to: DType) -> bool {
    if from as u8 == to as u8 {
        return true;
    }
    if !from.is_computable() || !to.is_computable() {
        return false;
    }
    let digits = match from {
        DType::Bool => return true,
        DType::U8 => 8,
        DType::I32 => 31,
        DType::I64 => 63,
        _ => 0,
    };
    match (TABLE[from as usize].float, TABLE[to as usize].float) {
        (Some(from), Some(to)) => from.fits_in(to),
        (None, Some(to)) => digits > 0 && digits <= to.digits(),
        (None, None) => digits > 0 && to.is_int() && to.bytes() > from.bytes(),
        (Some(_), None) => false,
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
    fn floats_and_numbers_are_in_the_order_of_the_computable_dtypes() {
        assert_eq!(DType::FLOATS, [DType::F32, DType::F16, DType::BF16, DType::F64]);
        assert_eq!(DType::NUMBERS[..], DType::COMPUTABLE[..7]);
    }

    #[test]
    fn exact_casts_are_those_of_the_numbers() {
        use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
        let exact: [(DType, &[DType]); 8] = [
            (Bool, &[U8, I32, I64, F16, BF16, F32, F64]),
            (U8, &[I32, I64, F16, BF16, F32, F64]),
            (I32, &[I64, F64]),
            (I64, &[]),
            (F16, &[F32, F64]),
            (BF16, &[F32, F64]),
            (F32, &[F64]),
            (F64, &[]),
        ];
        for (from, into) in exact {
            for to in DType::ALL {
                let expected = from == to || into.contains(&to);
                assert_eq!(from.fits_in(to), expected, "{from} in {to}");
            }
        }
        let float = |dtype: DType| dtype.storage().float.unwrap();
        assert!(
            float(DType::F8E4M3).fits_in(float(F16)) && float(DType::F8E5M2).fits_in(float(BF16))
        );
        assert!(!float(DType::F8E4M3).fits_in(float(DType::F8E5M2)));
        assert!(!float(DType::F8E5M2).fits_in(float(DType::F8E4M3)));
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
