//! Elements at positions, and tensors with some positions changed.

use super::{Made, axis, named, resized, size};
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::length::Lengths;
use crate::ops::view::Views;
use crate::{DType, Shape, Size, Var};

impl<'t> Var<'t> {
    /// The positions of an axis that a vector of indices names: `index` is not checked.
    #[track_caller]
    pub(crate) fn picked(self, axis: usize, index: Var<'t>) -> Var<'t> {
        let shape = resized(&self.shape(), axis, index.ty().numel());
        if self.ty().numel() == 0 && shape.numel() == 0 {
            return self.tracer().full(crate::TensorType { dtype: self.dtype(), shape }, 0.0);
        }
        let mut along: Vec<Size> = vec![Size::from(1); shape.rank()];
        along[axis] = shape[axis];
        self.gather(index.reshape(&along).expand_to(&shape), axis as i64)
    }

    /// The positions of an axis that a vector names, or a tensor without axes:
    /// [`torch.index_select`](https://docs.pytorch.org/docs/stable/generated/torch.index_select.html).
    #[track_caller]
    pub fn index_select(self, dim: i64, index: Var<'t>) -> Var<'t> {
        named(self, "index_select", || {
            if index.rank() > 1 {
                return Err(format!("`index` is {}, expected one axis", index.ty()));
            }
            if self.rank() == 0 {
                return Ok(self.reshape([1]).picked(0, index).reshape_to(&Shape::scalar()));
            }
            Ok(self.picked(axis(self, dim)?, index))
        })
    }

    /// As [`narrow`](Var::narrow), from a position that is data: a tensor of one index.
    #[track_caller]
    pub fn narrow_at(self, dim: i64, start: Var<'t>, length: i64) -> Var<'t> {
        named(self, "narrow_at", || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            if !(0..=n).contains(&length) || start.ty().numel() != 1 {
                return Err(format!(
                    "start {} and length {length} do not fit axis {dim}",
                    start.ty()
                ));
            }
            let at = self.tracer().iota(start.dtype(), Shape::new(&[length]), 0);
            Ok(self.picked(axis, at.add(start.reshape([1]).wrapped(n))))
        })
    }

    /// The elements at these places in row-major order, of which negative ones count from the end:
    /// [`torch.take`](https://docs.pytorch.org/docs/stable/generated/torch.take.html).
    #[track_caller]
    pub fn take(self, index: Var<'t>) -> Var<'t> {
        named(self, "take", || {
            let flat = self.ravel();
            let n = size(flat, 0)?;
            let places = index.wrapped(n).ravel();
            Ok(flat.picked(0, places).reshape_to(&index.shape()))
        })
    }

    /// As [`gather`](Indexing::gather) with both repeated to one shape elsewhere, or
    /// [`take`](Var::take) of all elements without an axis:
    /// [`torch.take_along_dim`](https://docs.pytorch.org/docs/stable/generated/torch.take_along_dim.html).
    #[track_caller]
    pub fn take_along_dim(self, index: Var<'t>, dim: Option<i64>) -> Var<'t> {
        named(self, "take_along_dim", || {
            let Some(dim) = dim else { return Ok(self.ravel().picked(0, index.ravel())) };
            let axis = axis(self, dim)?;
            if index.rank() != self.rank() {
                return Err(format!("`index` is {}, expected as many axes", index.ty()));
            }
            let [mine, theirs] = [self, index].map(|x| resized(&x.shape(), axis, 1));
            let common = mine.broadcast(&theirs)?;
            let x = self.expand_to(&resized(&common, axis, self.size(axis)));
            let index = index.wrapped(size(self, axis)?);
            let index = index.expand_to(&resized(&common, axis, index.size(axis)));
            Ok(x.gather(index, axis as i64))
        })
    }

    /// As [`embedding`](Var::embedding) of the rows of this table: `padding`, which may count from
    /// the end, names a row that gets no gradient, and with `scale` the gradient of each other row
    /// is divided by how often it was taken. For `max_norm` see [`limited`](Var::limited):
    /// [`torch.nn.functional.embedding`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html).
    #[track_caller]
    pub fn embedding_with(self, indices: Var<'t>, padding: Option<i64>, scale: bool) -> Var<'t> {
        named(self, "embedding_with", || {
            let padding = padding.map(|padding| self.row_of(padding)).transpose()?;
            Ok(self.embedding_rows(indices, padding, scale))
        })
    }

    /// The number of a row, which may count from the end.
    pub(super) fn row_of(self, row: i64) -> Made<i64> {
        if row >= 0 || self.rank() == 0 {
            return Ok(row);
        }
        Ok(row + size(self, 0)?)
    }

    /// The rows of this table, those with a norm of order `order` above `most` shortened to it.
    /// Gradients do not see that: what PyTorch's embeddings do to their table if they have a
    /// `max_norm`.
    #[track_caller]
    pub fn limited(self, order: f64, most: f64) -> Var<'t> {
        named(self, "limited", || {
            if self.rank() != 2 {
                return Err("takes rows and their elements".to_owned());
            }
            let short = self.detach().renorm(order, 0, most);
            Ok(short.add(self.sub(self.detach())))
        })
    }

    /// One where the last axis is at the class, else zero, as i64:
    /// [`torch.nn.functional.one_hot`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.one_hot.html).
    /// A number of classes below zero, PyTorch's default, is refused: the shape would depend on the
    /// data.
    #[track_caller]
    pub fn one_hot_rows(self, classes: impl Into<Size>) -> Var<'t> {
        let classes = classes.into();
        if classes.number().is_some_and(|n| n < 0) {
            return self.of_unknown_shape("one_hot_rows", "give the number of classes");
        }
        named(self, "one_hot_rows", || {
            let of = self.check_range(0, classes, None);
            Ok(of.one_hot(self.rank(), classes).to(DType::I64))
        })
    }

    /// Indices below zero counted from the end of `n` positions.
    #[track_caller]
    pub(crate) fn wrapped(self, n: i64) -> Var<'t> {
        self.lt(0.0).choose(self.add(n as f64), self)
    }

    /// With `src` at position `index` of an axis:
    /// [`torch.select_scatter`](https://docs.pytorch.org/docs/stable/generated/torch.select_scatter.html).
    #[track_caller]
    pub fn select_scatter(self, src: Var<'t>, dim: i64, index: i64) -> Var<'t> {
        named(self, "select_scatter", || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            let at = if index < 0 { index + n } else { index };
            if !(0..n).contains(&at) {
                return Err(format!("position {index} of axis {dim} is out of range"));
            }
            let one = resized(&self.shape(), axis, 1);
            let src = src.unsqueeze(axis as i64);
            if src.shape() != one {
                return Err(format!("`src` is {}", src.ty()));
            }
            let here = self.places(axis)?.eq(at as f64);
            Ok(here.choose(src.to(self.dtype()), self))
        })
    }

    /// With `src` at every `step`-th position of an axis from `start` up to `end`, bounds as those
    /// of Python:
    /// [`torch.slice_scatter`](https://docs.pytorch.org/docs/stable/generated/torch.slice_scatter.html).
    #[track_caller]
    pub fn slice_scatter(
        self,
        src: Var<'t>,
        dim: i64,
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
    ) -> Var<'t> {
        named(self, "slice_scatter", || {
            let axis = axis(self, dim)?;
            if step < 1 {
                return Err(format!("step {step} is below 1"));
            }
            let n = size(self, axis)?;
            let bound = |at: i64| if at < 0 { at.saturating_add(n).max(0) } else { at.min(n) };
            let from = bound(start.unwrap_or(0));
            let to = bound(end.unwrap_or(n)).max(from);
            let count = if to > from { (to - from - 1) / step + 1 } else { 0 };
            let shape = resized(&self.shape(), axis, count);
            if src.shape() != shape {
                return Err(format!("`src` is {}, expected shape {shape}", src.ty()));
            }
            if count == 0 {
                return Ok(self);
            }
            let places = self.places(axis)?;
            let which = places.sub(from as f64).div_trunc(step as f64);
            let last = self.tracer().full(which.ty(), (count - 1) as f64);
            let which = which.minimum(last).maximum(self.tracer().zeros_like(which));
            let at = which.mul(step as f64).add(from as f64);
            let spread = src.to(self.dtype()).picked(axis, which.ravel());
            Ok(at.eq(places).choose(spread, self))
        })
    }

    /// The positions along an axis, of size 1 along the others.
    pub(super) fn places(self, axis: usize) -> Made<Var<'t>> {
        let shape = resized(&Shape::new(&vec![1; self.rank()]), axis, self.size(axis));
        Ok(self.tracer().iota(DType::I64, &shape, axis))
    }

    /// The elements at `offset + Σ i · stride` in row-major order:
    /// [`torch.as_strided`](https://docs.pytorch.org/docs/stable/generated/torch.as_strided.html)
    /// of a tensor without gaps.
    #[track_caller]
    pub fn as_strided(self, sizes: &[i64], strides: &[i64], offset: i64) -> Var<'t> {
        named(self, "as_strided", || {
            if sizes.len() != strides.len() {
                return Err(format!("{sizes:?} and {strides:?} are not as many axes"));
            }
            let flat = self.ravel();
            let n = size(flat, 0)?;
            let is_negative = |list: &[i64]| list.iter().any(|n| *n < 0);
            let span = |(n, stride): (&i64, &i64)| n.saturating_sub(1).saturating_mul(*stride);
            let last = sizes.iter().zip(strides).map(span).fold(offset, i64::saturating_add);
            let is_empty = sizes.contains(&0);
            if is_negative(sizes) || is_negative(strides) || offset < 0 || last >= n && !is_empty {
                return Err(format!("{sizes:?} by {strides:?} from {offset} reaches beyond {n}"));
            }
            let shape = Shape::new(sizes);
            let start = self.tracer().full(crate::TensorType::scalar(DType::I64), offset as f64);
            let at = strides.iter().enumerate().fold(start.expand_to(&shape), |at, (i, stride)| {
                let along = self.tracer().iota(DType::I64, &shape, i);
                at.add(along.mul(*stride as f64))
            });
            Ok(flat.picked(0, at.ravel()).reshape_to(&shape))
        })
    }

    /// Refused: the shape of the result depends on the data.
    #[track_caller]
    fn of_unknown_shape(self, name: &'static str, advice: &str) -> Var<'t> {
        named(self, name, || Err(format!("the shape of the result depends on the data: {advice}")))
    }

    /// Refused, with advice: how many positions there are depends on the data.
    #[track_caller]
    pub fn nonzero(self) -> Var<'t> {
        self.of_unknown_shape("nonzero", "keep the mask `x.ne(0.0)` and choose with `where`")
    }

    /// Refused, with advice: how many positions there are depends on the data.
    #[track_caller]
    pub fn argwhere(self) -> Var<'t> {
        self.of_unknown_shape("argwhere", "keep the mask and choose with `where`")
    }

    /// Refused, with advice: how many elements there are depends on the data.
    #[track_caller]
    pub fn masked_select(self, mask: Var<'t>) -> Var<'t> {
        let advice = "choose with `where`, or sum what is masked";
        if mask.is_poison() { mask } else { self.of_unknown_shape("masked_select", advice) }
    }

    /// Refused, with advice: the number of positions depends on the data in `repeats`.
    #[track_caller]
    pub fn repeat_interleave_by(self, repeats: Var<'t>) -> Var<'t> {
        let advice = "repeat by a number, or `index_select` with indices from outside";
        if repeats.is_poison() {
            return repeats;
        }
        self.of_unknown_shape("repeat_interleave_by", advice)
    }
}
