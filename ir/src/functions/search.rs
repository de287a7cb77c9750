//! Places among sorted numbers, and membership.

use super::operand_or_number::OperandOrNumber;
use super::{Made, named, size};
use crate::args::OperandOf;
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::view::Views;
use crate::{DType, Shape, Size, TensorType, Var, given};

/// More elements than this are sorted before others are looked for among them.
const COMPARED: i64 = 16;

impl<'t> Var<'t> {
    /// Where along the last axis of `self`, which is sorted, each of `values` would be put, as i64:
    /// before equal elements, or behind them with `right`:
    /// [`torch.searchsorted`](https://docs.pytorch.org/docs/stable/generated/torch.searchsorted.html).
    ///
    /// The other axes of both are the same, unless `self` is a vector. `sorter` holds the positions
    /// in order where `self` is not sorted itself. Which dtype of indices is asked for says a cast
    /// of the result. One number may stand in the place of `values`.
    ///
    /// ```
    /// use tracecast_ir::{DType, Tracer};
    ///
    /// let tracer = Tracer::new("g");
    /// let sorted = tracer.constant(DType::F32, &[3], &[1.0, 3.0, 5.0]);
    /// let places = sorted.searchsorted(tracer.constant(DType::F32, &[2], &[3.0, 9.0]), None, false);
    /// assert_eq!(places.ty().to_string(), "i64[2]");
    /// ```
    #[track_caller]
    pub fn searchsorted(
        self,
        values: impl OperandOf<'t, given::OrNumber>,
        sorter: Option<Var<'t>>,
        right: bool,
    ) -> Var<'t> {
        named(self, "searchsorted", || {
            let (x, values) = OperandOrNumber::of(values, self.dtype())?.beside(self);
            x.places_among(values, sorter, right)
        })
    }

    /// As [`searchsorted`](Var::searchsorted), of tensors.
    fn places_among(self, values: Var<'t>, sorter: Option<Var<'t>>, right: bool) -> Made<Var<'t>> {
        if self.rank() == 0 {
            return Err("takes at least one axis".to_owned());
        }
        if self.dtype() != values.dtype() {
            return Err(format!("takes values of the same dtype, found {}", values.ty()));
        }
        let outer = self.rank() - 1;
        let is_alike = values.rank() == self.rank()
            && (0..outer).all(|axis| values.size(axis) == self.size(axis));
        if outer > 0 && !is_alike {
            return Err(format!("has other axes than the values, {}", values.ty()));
        }
        if let Some(sorter) =
            sorter.filter(|s| s.shape() != self.shape() || s.dtype() != DType::I64)
        {
            return Err(format!("`sorter` is {}, expected i64{}", sorter.ty(), self.shape()));
        }
        let shape = values.shape();
        if shape.numel() == 0 {
            return Ok(self.tracer().full(TensorType { dtype: DType::I64, shape }, 0.0));
        }
        let values = if outer == 0 { values.reshape([-1]) } else { values };
        let sorted = sorter.map_or(self, |sorter| self.gather(sorter, -1));
        Ok(sorted.places_of(values, right)?.reshape_to(&shape))
    }

    /// Where along the last axis of `self` each of `values` would be put: steps of half the length,
    /// of half of that, and so on.
    fn places_of(self, values: Var<'t>, right: bool) -> Made<Var<'t>> {
        let length = size(self, self.rank() - 1)?;
        let mut place = self.tracer().full(values.ty().with_dtype(DType::I64), 0.0);
        let mut step = if length == 0 { 0 } else { 1i64 << length.ilog2() };
        while step > 0 {
            let next = place.add(step as f64);
            let inside = next.le(length as f64);
            let last = next.sub(1.0).clamp_to(None, Some((length - 1) as f64));
            let found = self.gather(last, -1);
            let is_behind = if right { found.gt(values) } else { found.ge(values) };
            place = inside.logical_and(is_behind.logical_not()).choose(next, place);
            step /= 2;
        }
        Ok(place)
    }

    /// Which of the intervals between `boundaries`, which are sorted, holds each element, as i64;
    /// an element that is a boundary is in the interval before it, or in that behind it with
    /// `right`:
    /// [`torch.bucketize`](https://docs.pytorch.org/docs/stable/generated/torch.bucketize.html).
    #[track_caller]
    pub fn bucketize(self, boundaries: Var<'t>, right: bool) -> Var<'t> {
        named(self, "bucketize", || {
            if boundaries.rank() != 1 {
                return Err(format!("takes a vector of boundaries, found {}", boundaries.ty()));
            }
            Ok(boundaries.searchsorted(self, None, right))
        })
    }

    /// Whether each element is one of `others`; with `invert`, whether it is none:
    /// [`torch.isin`](https://docs.pytorch.org/docs/stable/generated/torch.isin.html).
    #[track_caller]
    pub fn isin(self, others: impl OperandOf<'t, given::OrNumber>, invert: bool) -> Var<'t> {
        named(self, "isin", || {
            let others = match OperandOrNumber::of(others, self.dtype())? {
                OperandOrNumber::Value(others) => others,
                OperandOrNumber::Number(number, _) if invert => return Ok(self.ne(number)),
                OperandOrNumber::Number(number, _) => return Ok(self.eq(number)),
            };
            let flat = others.reshape([-1]);
            let is_few = flat.size(0).number().is_none_or(|count| count <= COMPARED);
            let is_in = if is_few || self.dtype() != others.dtype() {
                let sizes: Vec<Size> =
                    self.shape().iter().copied().chain([Size::from(1)]).collect();
                self.reshape_to(&Shape::new(&sizes)).eq(flat).any(-1)
            } else {
                let (sorted, _) = flat.sort(0, false);
                let last = size(sorted, 0)? - 1;
                let place = sorted.searchsorted(self, None, false);
                let place = place.clamp_to(None, Some(last as f64)).reshape([-1]);
                sorted.gather(place, 0).reshape_to(&self.shape()).eq(self)
            };
            Ok(if invert { is_in.logical_not() } else { is_in })
        })
    }
}
