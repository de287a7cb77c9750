//! The same elements in another order or under another shape.

use super::{Made, axis, named, resized, size};
use crate::ops::reduce::Reductions;
use crate::ops::view::Views;
use crate::{Shape, Size, Var};
use smallvec::SmallVec;

impl<'t> Var<'t> {
    /// Two axes exchanged:
    /// [`torch.transpose`](https://docs.pytorch.org/docs/stable/generated/torch.transpose.html).
    #[track_caller]
    pub fn transpose(self, dim0: i64, dim1: i64) -> Var<'t> {
        named(self, "transpose", || {
            let (a, b) = (self.shape().axis(dim0)?, self.shape().axis(dim1)?);
            let mut order: SmallVec<[i64; 4]> = (0..self.rank() as i64).collect();
            if order.is_empty() {
                return Ok(self);
            }
            order.swap(a, b);
            Ok(self.permute(&order))
        })
    }

    /// The last two axes exchanged.
    #[track_caller]
    pub fn m_t(self) -> Var<'t> {
        named(self, "m_t", || Ok(self.transpose(-2, -1)))
    }

    /// Axes moved to other places, the others in their order:
    /// [`torch.movedim`](https://docs.pytorch.org/docs/stable/generated/torch.movedim.html).
    #[track_caller]
    pub fn movedim(self, source: &[i64], destination: &[i64]) -> Var<'t> {
        named(self, "movedim", || {
            if source.len() != destination.len() {
                return Err(format!("{source:?} and {destination:?} are not as many axes"));
            }
            let rank = self.rank();
            let resolved = |dims: &[i64]| -> Made<Vec<usize>> {
                let axes = dims.iter().map(|d| self.shape().axis(*d)).collect::<Made<Vec<_>>>()?;
                let is_twice = (1..axes.len()).any(|i| axes[..i].contains(&axes[i]));
                if is_twice { Err(format!("an axis appears twice in {dims:?}")) } else { Ok(axes) }
            };
            let (from, to) = (resolved(source)?, resolved(destination)?);
            let mut rest = (0..rank).filter(|axis| !from.contains(axis));
            let order: Option<SmallVec<[i64; 4]>> = (0..rank)
                .map(|i| match to.iter().position(|axis| *axis == i) {
                    Some(k) => Some(from[k] as i64),
                    None => rest.next().map(|axis| axis as i64),
                })
                .collect();
            Ok(self.permute(&order.ok_or("the axes do not fit")?))
        })
    }

    /// Without the axes of `dims` that have size 1, of all axes if there are none:
    /// [`torch.squeeze`](https://docs.pytorch.org/docs/stable/generated/torch.squeeze.html).
    #[track_caller]
    pub fn squeeze(self, dims: &[i64]) -> Var<'t> {
        named(self, "squeeze", || {
            let (shape, axes) = (self.shape(), self.shape().axes(dims)?);
            let kept = (0..shape.rank()).filter(|i| !axes.contains(i) || shape[*i] != 1);
            Ok(self.reshape_to(&kept.map(|i| shape[i]).collect()))
        })
    }

    /// Repeated to the shape of `other`.
    #[track_caller]
    pub fn expand_as(self, other: Var<'t>) -> Var<'t> {
        named(self, "expand_as", || Ok(self.expand_to(&other.shape())))
    }

    /// The elements under the shape of `other`.
    #[track_caller]
    pub fn reshape_as(self, other: Var<'t>) -> Var<'t> {
        named(self, "reshape_as", || Ok(self.reshape_to(&other.shape())))
    }

    /// The axes from `start` up to and with `end` as one:
    /// [`torch.flatten`](https://docs.pytorch.org/docs/stable/generated/torch.flatten.html).
    #[track_caller]
    pub fn flatten(self, start: i64, end: i64) -> Var<'t> {
        named(self, "flatten", || {
            let (shape, from, to) =
                (self.shape(), self.shape().axis(start)?, self.shape().axis(end)?);
            if from > to {
                return Err(format!("axis {start} lies behind axis {end}"));
            }
            if shape.rank() == 0 {
                return Ok(self.reshape([1]));
            }
            let one: Size = shape[from..=to].iter().product();
            let sizes = shape[..from].iter().chain([&one]).chain(&shape[to + 1..]).copied();
            Ok(self.reshape_to(&sizes.collect()))
        })
    }

    /// One axis as several, of which one size may be -1:
    /// [`torch.unflatten`](https://docs.pytorch.org/docs/stable/generated/torch.unflatten.html).
    #[track_caller]
    pub fn unflatten(self, dim: i64, sizes: &[i64]) -> Var<'t> {
        named(self, "unflatten", || {
            let axis = axis(self, dim)?;
            if sizes.is_empty() {
                return Err("takes at least one size".to_owned());
            }
            let mut given = sizes.iter().filter(|n| **n != -1);
            let known = given.try_fold(1i64, |product, n| product.checked_mul(*n));
            let (Some(known), true) = (known, sizes.iter().filter(|n| **n == -1).count() < 2)
            else {
                return Err(format!("{sizes:?} does not make {}", self.size(axis)));
            };
            let whole = self.size(axis);
            let one = |n: &i64| match (n, whole.number()) {
                (-1, Some(whole)) if known > 0 => Size::from(whole / known),
                (-1, None) => whole / known.max(1),
                (n, _) => Size::from(*n),
            };
            let parts: Vec<Size> = sizes.iter().map(one).collect();
            let product: Size = parts.iter().product();
            if product.number().is_some() && product != whole {
                return Err(format!("{sizes:?} does not make {whole}"));
            }
            let shape = self.shape();
            let all = shape[..axis].iter().chain(&parts).chain(&shape[axis + 1..]).copied();
            Ok(self.reshape(&all.collect::<Vec<Size>>()))
        })
    }

    /// All elements along one axis.
    #[track_caller]
    pub fn ravel(self) -> Var<'t> {
        named(self, "ravel", || Ok(self.reshape_to(&Shape::new(&[self.ty().numel()]))))
    }

    /// With at least that many axes, the new ones as PyTorch's `atleast_1d`, `atleast_2d` and
    /// `atleast_3d` place them.
    #[track_caller]
    pub fn at_least(self, axes: usize) -> Var<'t> {
        named(self, "at_least", || {
            if axes > 3 {
                return Err(format!("takes 1 to 3 axes, found {axes}"));
            }
            let mut sizes: SmallVec<[Size; 4]> = self.shape().iter().copied().collect();
            while sizes.len() < axes {
                // One axis becomes the second of three, two the first two.
                let at = if sizes.len() == 2 { 2 } else { 0 };
                sizes.insert(at, Size::from(1));
            }
            Ok(self.reshape_to(&Shape::new(&sizes)))
        })
    }

    /// The positions `start` up to `start + length` of an axis:
    /// [`torch.narrow`](https://docs.pytorch.org/docs/stable/generated/torch.narrow.html).
    #[track_caller]
    pub fn narrow(self, dim: i64, start: i64, length: i64) -> Var<'t> {
        named(self, "narrow", || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            let from = if start < 0 { start + n } else { start };
            if length < 0 || from < 0 || from > n - length {
                return Err(format!("start {start} and length {length} do not fit axis {dim}"));
            }
            Ok(self.slice(axis as i64, from, from + length, 1))
        })
    }

    /// Position `index` of an axis, which goes:
    /// [`torch.select`](https://docs.pytorch.org/docs/stable/generated/torch.select.html).
    #[track_caller]
    pub fn select(self, dim: i64, index: i64) -> Var<'t> {
        named(self, "select", || {
            let axis = axis(self, dim)?;
            let at = Size::from(index) + if index < 0 { self.size(axis) } else { 0.into() };
            let one = self.slice(axis as i64, at, at + 1, 1);
            let mut sizes = self.shape().to_vec();
            sizes.remove(axis);
            Ok(one.reshape_to(&Shape::new(&sizes)))
        })
    }

    /// Every `step`-th position of an axis, with bounds as Python has them: negative ones count
    /// from the end, ones beyond an end mean it.
    #[track_caller]
    pub fn slice_of(self, dim: i64, start: Option<i64>, end: Option<i64>, step: i64) -> Var<'t> {
        named(self, "slice_of", || {
            let axis = axis(self, dim)?;
            if step < 1 {
                return Err(format!("step {step} is below 1"));
            }
            let n = size(self, axis)?;
            let bound = |at: i64| if at < 0 { at.saturating_add(n).max(0) } else { at.min(n) };
            let start = bound(start.unwrap_or(0));
            Ok(self.slice(axis as i64, start, bound(end.unwrap_or(n)).max(start), step))
        })
    }

    /// The whole tensor `repeats[i]` times along axis `i`, with new axes in front if there are
    /// more:
    /// [`Tensor.repeat`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.repeat.html).
    #[track_caller]
    pub fn repeat(self, repeats: &[i64]) -> Var<'t> {
        named(self, "repeat", || {
            let Some(fresh) = repeats.len().checked_sub(self.rank()) else {
                return Err(format!("{repeats:?} has fewer numbers than there are axes"));
            };
            if let Some(n) = repeats.iter().find(|n| **n < 0) {
                return Err(format!("repeats {n} times"));
            }
            let shape = self.shape();
            let (mut split, mut wide, mut merged) = (Vec::new(), Vec::new(), Vec::new());
            for (i, &n) in repeats.iter().enumerate() {
                let own = if i < fresh { Size::from(1) } else { shape[i - fresh] };
                split.extend([Size::from(1), own]);
                wide.extend([Size::from(n), own]);
                merged.push(own * n);
            }
            Ok(self.reshape(&split).expand(&wide).reshape(&merged))
        })
    }

    /// As [`repeat`](Var::repeat), once along axes in front that `dims` leaves out:
    /// [`torch.tile`](https://docs.pytorch.org/docs/stable/generated/torch.tile.html).
    #[track_caller]
    pub fn tile(self, dims: &[i64]) -> Var<'t> {
        named(self, "tile", || {
            let missing = std::iter::repeat_n(1, self.rank().saturating_sub(dims.len()));
            let all: Vec<i64> = missing.chain(dims.iter().copied()).collect();
            Ok(self.repeat(&all))
        })
    }

    /// Each position `repeats` times in a row, along an axis or of all elements:
    /// [`torch.repeat_interleave`](https://docs.pytorch.org/docs/stable/generated/torch.repeat_interleave.html).
    #[track_caller]
    pub fn repeat_interleave(self, repeats: i64, dim: Option<i64>) -> Var<'t> {
        named(self, "repeat_interleave", || {
            if repeats < 0 {
                return Err(format!("repeats {repeats} times"));
            }
            let Some(dim) = dim else {
                return Ok(self.ravel().repeat_interleave(repeats, Some(0)));
            };
            let axis = axis(self, dim)?;
            let mut wide = self.shape().to_vec();
            wide.insert(axis + 1, repeats.into());
            let merged = resized(&self.shape(), axis, self.size(axis) * repeats);
            Ok(self.unsqueeze(axis as i64 + 1).expand(&wide).reshape_to(&merged))
        })
    }

    /// Summed over what would have to be repeated to become this shape:
    /// [`Tensor.sum_to_size`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.sum_to_size.html).
    #[track_caller]
    pub fn sum_to_size(self, sizes: &[i64]) -> Var<'t> {
        named(self, "sum_to_size", || {
            let (mine, shape) = (self.shape(), Shape::new(sizes));
            let Some(fresh) = mine.rank().checked_sub(shape.rank()) else {
                return Err(format!("has fewer axes than {shape}"));
            };
            let is_one = |i: usize| shape[i] == 1 && mine[i + fresh] != 1;
            let fits = |i: usize| shape[i] == mine[i + fresh] || is_one(i);
            if !(0..shape.rank()).all(fits) {
                return Err(format!("is not {shape} repeated"));
            }
            let summed = |&i: &usize| i < fresh || is_one(i - fresh);
            let axes: Vec<i64> = (0..mine.rank()).filter(summed).map(|i| i as i64).collect();
            let is_whole = self.dtype().is_float() && axes.is_empty();
            let whole = is_whole || mine.rank() > 0 && mine == shape;
            let y = if whole { self } else { self.sum(&axes) };
            Ok(y.reshape_to(&shape))
        })
    }
}
