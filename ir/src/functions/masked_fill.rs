//! Tensors with some elements put in their places: one number everywhere, by positions in row-major
//! order, or where a mask holds.

use super::{axis, named, resized, size};
use crate::kernel::Reduction;
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::indexed::along;
use crate::ops::lines::LineOps;
use crate::ops::scatter::Scatters;
use crate::ops::view::{Views, cat};
use crate::{DType, Number, Shape, TensorType, Var};

impl<'t> Var<'t> {
    /// As [`scatter`](Scatters::scatter), with one number at all places; a fraction is cut off for
    /// integers:
    /// [`torch.scatter`](https://docs.pytorch.org/docs/stable/generated/torch.scatter.html) with
    /// `value`.
    #[track_caller]
    pub fn scatter_value(self, index: Var<'t>, value: f64, dim: i64) -> Var<'t> {
        named(self, "scatter_value", || {
            let src = self.filled(&index.shape(), value);
            Ok(self.scatter(index, src, dim))
        })
    }

    /// A number as elements of this dtype, in another shape.
    pub(super) fn filled(self, shape: &Shape, value: impl Into<Number>) -> Var<'t> {
        let ty = TensorType { dtype: self.dtype(), shape: shape.clone() };
        let value = match (value.into(), ty.dtype) {
            (Number::F64(value), DType::Bool) => f64::from(u8::from(value != 0.0)).into(),
            (Number::F64(value), dtype) if dtype.is_int() => value.trunc().into(),
            (value, _) => value,
        };
        self.tracer().full(ty, value)
    }

    /// With a number in the slices along axis `dim` that a vector of indices names, of which
    /// negative ones count from the end:
    /// [`torch.index_fill`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_fill_.html).
    #[track_caller]
    pub fn index_fill(self, dim: i64, index: Var<'t>, value: f64) -> Var<'t> {
        named(self, "index_fill", || {
            Ok(self.index_fill_with(dim, index, self.filled(&Shape::scalar(), value)))
        })
    }

    /// As [`index_fill`](Var::index_fill), with the only element of a tensor without axes.
    #[track_caller]
    pub fn index_fill_with(self, dim: i64, index: Var<'t>, value: Var<'t>) -> Var<'t> {
        named(self, "index_fill_with", || {
            if index.rank() > 1 || value.rank() > 0 {
                let found = (index.ty(), value.ty());
                return Err(format!(
                    "`index` is {}, expected one axis, and `value` {}, expected none",
                    found.0, found.1
                ));
            }
            let x = if self.rank() == 0 { self.reshape([1]) } else { self };
            let axis = axis(x, dim)?;
            let n = size(x, axis)?;
            let index = index.check_range(-n, n, None).wrapped(n);
            let shape = resized(&x.shape(), axis, index.ty().numel());
            let src = value.to(x.dtype()).expand_to(&shape);
            let y = x.scatter(along(index, &shape, axis), src, axis as i64);
            Ok(y.reshape_to(&self.shape()))
        })
    }

    /// With the elements of `source` at these places in row-major order, of which negative ones
    /// count from the end, or with `accumulate` added to those there:
    /// [`torch.put`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.put_.html).
    #[track_caller]
    pub fn put(self, index: Var<'t>, source: Var<'t>, accumulate: bool) -> Var<'t> {
        named(self, "put", || {
            let count = index.ty().numel();
            if source.ty().numel() != count || source.dtype() != self.dtype() {
                let (of, is) = (index.ty(), source.ty());
                return Err(format!(
                    "`source` is {is}, expected one element for each of `index`, {of}"
                ));
            }
            let flat = self.ravel();
            let n = size(flat, 0)?;
            if n == 0 {
                return if count == 0 { Ok(self) } else { Err("there are no places".to_owned()) };
            }
            let index = index.ravel().check_range(-n, n, None).wrapped(n);
            let source = source.ravel();
            let y = if accumulate {
                flat.scatter_add(index, source, 0)
            } else {
                flat.scatter(index, source, 0)
            };
            Ok(y.reshape_to(&self.shape()))
        })
    }

    /// With the elements of `source`, one after the other, at the places in row-major order where
    /// `mask` holds; the mask and this tensor are repeated to one shape:
    /// [`torch.masked_scatter`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.masked_scatter_.html).
    ///
    /// More places than elements are a data error of the run.
    #[track_caller]
    pub fn masked_scatter(self, mask: Var<'t>, source: Var<'t>) -> Var<'t> {
        named(self, "masked_scatter", || {
            if mask.dtype() != DType::Bool || source.dtype() != self.dtype() {
                let (mask, source) = (mask.ty(), source.ty());
                return Err(format!(
                    "the mask is {mask}, expected bool, and `source` {source}, expected the dtype"
                ));
            }
            let shape = self.shape().broadcast(&mask.shape())?;
            let (x, mask) = (self.expand_to(&shape), mask.expand_to(&shape));
            if shape.numel() == 0 {
                return Ok(x);
            }
            let source = source.ravel();
            let flat = mask.ravel();
            // How many places come before each one: the number of its element.
            let ones = flat.to(DType::I64);
            let number = ones.scan(0, Some(Reduction::Sum.name()), false).sub(ones);
            let zero = self.tracer().zeros_like(number);
            // Where the mask does not hold nothing is taken, and there may be nothing.
            let none = self.tracer().full(TensorType::new(source.dtype(), [1]), 0.0);
            let from = cat(&[none, source], 0);
            let at = flat.choose(number.add(1.0), zero);
            Ok(mask.choose(from.gather(at, 0).reshape_to(&shape), x))
        })
    }
}
