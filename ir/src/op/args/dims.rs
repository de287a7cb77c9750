//! [`Dims`]: the axes that a reduction runs over, and what becomes of them.

use crate::op::AttrKind;
use crate::{Attrs, DType};
use smallvec::{SmallVec, smallvec};

/// Axes to reduce over: `1`, `-1`, `[0, 2]`, or `()` for all; with [`keep`](IntoDims::keep) they
/// stay with size 1, and with [`dtype`](IntoDims::dtype) the op works in that dtype.
///
/// ```
/// use tracecast_ir::ops::reduce::Reductions;
/// use tracecast_ir::{DType, IntoDims, Tracer};
///
/// let t = Tracer::new("g");
/// let x = t.constant(DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert_eq!(x.mean(()).ty().to_string(), "f32[]");
/// assert_eq!(x.sum(1).ty().to_string(), "f32[2]");
/// assert_eq!(x.sum([0, -1].keep().dtype(DType::F64)).ty().to_string(), "f64[1, 1]");
/// assert_eq!(x.argmax(-1).ty().to_string(), "i64[2]");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dims {
    dims: SmallVec<[i64; 4]>,
    keep: bool,
    dtype: Option<DType>,
}

/// What can be given for [`Dims`], and what can be said about them.
pub trait IntoDims: Into<Dims> {
    /// The reduced axes stay, with size 1: PyTorch's `keepdim=True`.
    fn keep(self) -> Dims {
        self.kept(true)
    }

    /// The reduced axes stay if `keep` says so.
    fn kept(self, keep: bool) -> Dims {
        Dims { keep, ..self.into() }
    }

    /// Operand and result are of that dtype; `None` leaves it to the op.
    fn dtype(self, dtype: impl Into<Option<DType>>) -> Dims {
        Dims { dtype: dtype.into(), ..self.into() }
    }
}

impl<T: Into<Dims>> IntoDims for T {}

impl Dims {
    /// The axes; none if all are meant.
    pub fn list(&self) -> &[i64] {
        &self.dims
    }

    /// The axis, if not all are meant.
    ///
    /// # Errors
    /// If there are several.
    pub fn at_most_one(&self) -> Result<Option<i64>, String> {
        match self.dims[..] {
            [] => Ok(None),
            [dim] => Ok(Some(dim)),
            _ => Err(format!("takes one axis, found {:?}", &self.dims[..])),
        }
    }

    /// The one axis.
    ///
    /// # Errors
    /// If there are none or several.
    pub fn one(&self) -> Result<i64, String> {
        self.at_most_one()?.ok_or_else(|| "takes one axis, found none".to_owned())
    }

    /// Whether the axes stay.
    pub fn keeps(&self) -> bool {
        self.keep
    }

    /// The dtype that was asked for.
    pub fn wanted(&self) -> Option<DType> {
        self.dtype
    }

    /// Sets `dim`, of that kind, and what else was said. What the op does not have is refused where
    /// attributes meet its schema.
    #[doc(hidden)]
    pub fn put(self, dim: &'static str, kind: AttrKind, attrs: &mut Attrs) {
        match (kind, &self.dims[..]) {
            (AttrKind::Int | AttrKind::OptInt, []) => {}
            (AttrKind::Int | AttrKind::OptInt, [one]) => attrs.set(dim, *one),
            (_, several) => attrs.set(dim, several),
        }
        if self.keep {
            attrs.set("keepdim", true);
        }
        if let Some(dtype) = self.dtype {
            attrs.set("dtype", dtype);
        }
    }
}

impl From<()> for Dims {
    fn from((): ()) -> Dims {
        Dims::default()
    }
}

impl From<i64> for Dims {
    fn from(dim: i64) -> Dims {
        Dims { dims: smallvec![dim], ..Dims::default() }
    }
}

impl From<Option<i64>> for Dims {
    fn from(dim: Option<i64>) -> Dims {
        Dims { dims: dim.into_iter().collect(), ..Dims::default() }
    }
}

impl From<&[i64]> for Dims {
    fn from(dims: &[i64]) -> Dims {
        Dims { dims: SmallVec::from_slice(dims), ..Dims::default() }
    }
}

impl<const N: usize> From<[i64; N]> for Dims {
    fn from(dims: [i64; N]) -> Dims {
        Dims::from(&dims[..])
    }
}

impl<const N: usize> From<&[i64; N]> for Dims {
    fn from(dims: &[i64; N]) -> Dims {
        Dims::from(&dims[..])
    }
}

impl From<&Vec<i64>> for Dims {
    fn from(dims: &Vec<i64>) -> Dims {
        Dims::from(&dims[..])
    }
}
