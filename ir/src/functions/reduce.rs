//! Reductions that only choose or count: extremes with their positions, truth values, the most
//! frequent element; and those that are several ops in PyTorch.

use super::{Made, named, named_all};
use crate::kernel::Reduction;
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::lines::LineOps;
use crate::ops::reduce::{Reductions, reduce};
use crate::ops::statistics::Statistics;
use crate::ops::view::Views;
use crate::{DType, Dims, IntoDims, Shape, Size, Var};

impl<'t> Var<'t> {
    /// The largest element along axis `dim` and the position of the first of equal ones, as i64;
    /// NaN counts as the largest:
    /// [`torch.max`](https://docs.pytorch.org/docs/stable/generated/torch.max.html). Of all
    /// elements there is [`amax`](Reductions::amax).
    ///
    /// ```
    /// use tracecast_ir::{DType, Tracer};
    ///
    /// let tracer = Tracer::new("g");
    /// let (values, indices) = tracer.constant(DType::F32, &[2, 2], &[1.0, 3.0, 5.0, 2.0]).max(1);
    /// assert_eq!((values.dtype(), indices.dtype()), (DType::F32, DType::I64));
    /// ```
    #[track_caller]
    pub fn max(self, dim: impl IntoDims) -> (Var<'t>, Var<'t>) {
        self.found("max", dim.into(), |x, dim| x.argmax([dim].keep()))
    }

    /// The smallest element along axis `dim` and the position of the first of equal ones, as i64;
    /// NaN counts as the smallest:
    /// [`torch.min`](https://docs.pytorch.org/docs/stable/generated/torch.min.html). Of all
    /// elements there is [`amin`](Reductions::amin).
    #[track_caller]
    pub fn min(self, dim: impl IntoDims) -> (Var<'t>, Var<'t>) {
        self.found("min", dim.into(), |x, dim| x.argmin([dim].keep()))
    }

    /// The most frequent element along axis `dim`, the smallest of several, and the last position
    /// that has it, as i64; NaN is equal to itself and counts as the largest:
    /// [`torch.mode`](https://docs.pytorch.org/docs/stable/generated/torch.mode.html).
    #[track_caller]
    pub fn mode(self, dim: impl IntoDims) -> (Var<'t>, Var<'t>) {
        self.found("mode", dim.into(), |x, dim| {
            let x = if x.rank() == 0 { x.reshape([1]) } else { x };
            let order = x.order(dim, false, None);
            let sorted = x.gather(order, dim);
            // How many equal elements there are up to each: a run goes on, or begins again.
            let size = x.size(x.shape().axis(dim).unwrap_or(0));
            let (before, here) = (sorted.slice(dim, 0, size - 1, 1), sorted.slice(dim, 1, size, 1));
            let are_nan = before.ne(before).logical_and(here.ne(here));
            let goes_on = before.eq(here).logical_or(are_nan).to(DType::F64);
            let mut first = vec![0; x.rank()];
            first[x.shape().axis(dim).unwrap_or(0)] = 1;
            let goes_on = goes_on.pad(&first, &vec![0; x.rank()], 0.0);
            let run = goes_on.recurrence(x.tracer().ones_like(goes_on), dim, false);
            order.gather(run.argmax([dim].keep()), dim)
        })
    }

    /// One element of each line and its position, which `position` gives with the axis kept.
    #[track_caller]
    fn found(
        self,
        name: &'static str,
        dims: Dims,
        position: impl FnOnce(Var<'t>, i64) -> Var<'t>,
    ) -> (Var<'t>, Var<'t>) {
        let both = named_all(self, name, || {
            let (dim, keepdim) = (dims.one()?, dims.keeps());
            let shape = self.shape();
            let axis = shape.axis(dim)?;
            let kept = (0..shape.rank()).filter(|a| keepdim || *a != axis);
            let one = Size::from(1);
            let ty: Shape = kept.map(|a| if a == axis { one } else { shape[a] }).collect();
            if shape.get(axis).is_some_and(|size| size.number() == Some(0)) {
                return Err(format!("there is no element along axis {dim}"));
            }
            let x = if self.dtype() == DType::Bool { self.to(DType::U8) } else { self };
            let indices = position(x, dim);
            if indices.is_poison() {
                return Ok(vec![indices]);
            }
            let values = if shape.rank() == 0 {
                self.reshape([1]).gather(indices.reshape([1]), 0)
            } else {
                self.gather(indices, dim)
            };
            Ok(vec![values.reshape_to(&ty), indices.reshape_to(&ty)])
        });
        (both[0], both[both.len() - 1])
    }

    /// The smallest and the largest element over the axes `dims`; NaN if there is one. Equal ones
    /// share the gradient:
    /// [`torch.aminmax`](https://docs.pytorch.org/docs/stable/generated/torch.aminmax.html).
    #[track_caller]
    pub fn aminmax(self, dims: impl IntoDims) -> (Var<'t>, Var<'t>) {
        let dims = dims.into();
        let both =
            named_all(self, "aminmax", || Ok(vec![self.amin(dims.clone()), self.amax(dims)]));
        (both[0], both[both.len() - 1])
    }

    /// Whether an element over the axes `dims` is not zero; NaN is not. Of u8 it is 0 or 1 in u8:
    /// [`torch.any`](https://docs.pytorch.org/docs/stable/generated/torch.any.html).
    #[track_caller]
    pub fn any(self, dims: impl IntoDims) -> Var<'t> {
        named(self, "any", || self.truth(&dims.into(), Reduction::Max))
    }

    /// Whether no element over the axes `dims` is zero. Of u8 it is 0 or 1 in u8:
    /// [`torch.all`](https://docs.pytorch.org/docs/stable/generated/torch.all.html).
    #[track_caller]
    pub fn all(self, dims: impl IntoDims) -> Var<'t> {
        named(self, "all", || self.truth(&dims.into(), Reduction::Min))
    }

    /// Truth values as the integers 0 and 1, reduced. What an empty extreme starts from is on the
    /// right side of 0.
    fn truth(self, dims: &Dims, reduction: Reduction) -> Made<Var<'t>> {
        let shape = self.shape();
        let axes = shape.axes(dims.list())?;
        let kept = (0..shape.rank()).filter(|a| dims.keeps() || !axes.contains(a));
        let one = Size::from(1);
        let to: Shape = kept.map(|a| if axes.contains(&a) { one } else { shape[a] }).collect();
        let ones = self.to(DType::Bool).to(DType::I32);
        let y = reduce(ones, dims.list(), reduction).gt(0.0).reshape_to(&to);
        Ok(if self.dtype() == DType::U8 { y.to(DType::U8) } else { y })
    }

    /// How many elements over the axes `dims` are not zero, as i64:
    /// [`torch.count_nonzero`](https://docs.pytorch.org/docs/stable/generated/torch.count_nonzero.html).
    #[track_caller]
    pub fn count_nonzero(self, dims: impl IntoDims) -> Var<'t> {
        named(self, "count_nonzero", || Ok(self.to(DType::Bool).sum(dims)))
    }

    /// The mean of the elements over the axes `dims` that are no NaN; NaN if there is none:
    /// [`torch.nanmean`](https://docs.pytorch.org/docs/stable/generated/torch.nanmean.html).
    #[track_caller]
    pub fn nanmean(self, dims: impl IntoDims) -> Var<'t> {
        let dims = dims.into();
        named(self, "nanmean", || {
            if !self.dtype().is_float() {
                return Err("takes floating point".to_owned());
            }
            let count = self.eq(self).sum(dims.list().kept(dims.keeps()));
            let sum = self.nansum(dims);
            Ok(sum.div(count.to(sum.dtype())))
        })
    }

    /// The element in the middle of all, the lower one of two; NaN if there is one. Equal ones
    /// share the gradient:
    /// [`torch.median`](https://docs.pytorch.org/docs/stable/generated/torch.median.html) without
    /// an axis.
    #[track_caller]
    pub fn median_of_all(self) -> Var<'t> {
        named(self, "median_of_all", || {
            let flat = self.reshape([-1]);
            Ok(flat.shared_among_equals(flat.median(0).0))
        })
    }

    /// As [`median_of_all`](Var::median_of_all), of the numbers alone; NaN if there is none:
    /// [`torch.nanmedian`](https://docs.pytorch.org/docs/stable/generated/torch.nanmedian.html)
    /// without an axis.
    #[track_caller]
    pub fn nanmedian_of_all(self) -> Var<'t> {
        named(self, "nanmedian_of_all", || {
            let flat = self.reshape([-1]);
            Ok(flat.shared_among_equals(flat.nanmedian(0).0))
        })
    }

    /// The value, which is one of the elements, with a gradient that goes to all of its kind: it is
    /// the largest where the others are gone.
    fn shared_among_equals(self, value: Var<'t>) -> Var<'t> {
        if !self.dtype().is_float() || value.is_poison() {
            return value;
        }
        let value = value.detach();
        let is_nan = self.ne(self).logical_and(value.ne(value));
        let is_taken = self.eq(value).logical_or(is_nan);
        let gone = self.tracer().full(self.ty(), f64::NEG_INFINITY);
        is_taken.choose(self, gone).amax(())
    }
}
