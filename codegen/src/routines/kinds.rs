//! What routines differ in: the precision of a number, a narrow float, the size of an element.

use tracecast_ir::DType;
use tracecast_ir::kernel::Scalar;

/// The precision of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Precision {
    /// f32.
    Single,
    /// f64.
    Double,
}

/// A float that is stored in fewer bits than the f32 that it is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NarrowFloat(DType);

/// The size of an element that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ElementSize {
    /// One byte.
    One,
    /// Two bytes.
    Two,
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
}

impl Precision {
    pub(super) const ALL: [Precision; 2] = [Precision::Single, Precision::Double];

    /// That of a float; `None` for other scalars.
    pub(crate) fn of(ty: Scalar) -> Option<Precision> {
        match ty {
            Scalar::F32 => Some(Precision::Single),
            Scalar::F64 => Some(Precision::Double),
            Scalar::I32 | Scalar::I64 | Scalar::Bool => None,
        }
    }

    /// What it adds to the symbol of a routine.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Precision::Single => "",
            Precision::Double => "_f64",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Precision::Single => "f32",
            Precision::Double => "f64",
        }
    }
}

impl NarrowFloat {
    /// Every one that kernels exist for.
    pub(super) fn all() -> impl Iterator<Item = NarrowFloat> {
        DType::COMPUTABLE.into_iter().filter_map(NarrowFloat::of)
    }

    /// That of a dtype; `None` if the dtype is something else.
    pub(crate) fn of(dtype: DType) -> Option<NarrowFloat> {
        (dtype.is_low() && dtype.is_computable()).then_some(NarrowFloat(dtype))
    }

    /// Its dtype.
    pub(super) fn dtype(self) -> DType {
        self.0
    }
}

impl ElementSize {
    /// Every size, in order.
    pub(crate) const ALL: [ElementSize; 4] =
        [ElementSize::One, ElementSize::Two, ElementSize::Four, ElementSize::Eight];

    /// That of elements of `bytes` bytes; `None` if no element has as many.
    pub(crate) fn of(bytes: i64) -> Option<ElementSize> {
        ElementSize::ALL.into_iter().find(|size| size.bytes() == bytes)
    }

    pub(super) fn bytes(self) -> i64 {
        match self {
            ElementSize::One => 1,
            ElementSize::Two => 2,
            ElementSize::Four => 4,
            ElementSize::Eight => 8,
        }
    }
}
