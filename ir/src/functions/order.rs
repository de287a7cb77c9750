//! Elements in another order along axes: turned round, shifted, rotated.

use super::{axis, named, size};
use crate::ops::elementwise::Elementwise;
use crate::ops::view::{Views, cat};
use crate::{DType, Shape, Var};

impl<'t> Var<'t> {
    /// Turned round along axes:
    /// [`torch.flip`](https://docs.pytorch.org/docs/stable/generated/torch.flip.html).
    #[track_caller]
    pub fn flip(self, dims: &[i64]) -> Var<'t> {
        named(self, "flip", || {
            if dims.is_empty()
                || self.ty().numel() == 0 && self.shape().axes(dims).is_ok()
                || self.rank() == 0
            {
                return Ok(self);
            }
            let turned = |x: Var<'t>, axis: usize| -> super::Made<Var<'t>> {
                let n = size(x, axis)?;
                let places = x.tracer().iota(DType::I64, Shape::new(&[n]), 0);
                Ok(x.picked(axis, places.rsub((n - 1) as f64)))
            };
            self.shape().axes(dims)?.into_iter().try_fold(self, turned)
        })
    }

    /// Turned round along the second axis:
    /// [`torch.fliplr`](https://docs.pytorch.org/docs/stable/generated/torch.fliplr.html).
    #[track_caller]
    pub fn fliplr(self) -> Var<'t> {
        named(self, "fliplr", || {
            if self.rank() < 2 {
                Err("takes at least two axes".to_owned())
            } else {
                Ok(self.flip(&[1]))
            }
        })
    }

    /// Turned round along the first axis:
    /// [`torch.flipud`](https://docs.pytorch.org/docs/stable/generated/torch.flipud.html).
    #[track_caller]
    pub fn flipud(self) -> Var<'t> {
        named(self, "flipud", || {
            if self.rank() < 1 {
                Err("takes at least one axis".to_owned())
            } else {
                Ok(self.flip(&[0]))
            }
        })
    }

    /// Shifted along axes, what leaves one end entering at the other; of all elements in a row if
    /// there are no axes:
    /// [`torch.roll`](https://docs.pytorch.org/docs/stable/generated/torch.roll.html).
    #[track_caller]
    pub fn roll(self, shifts: &[i64], dims: &[i64]) -> Var<'t> {
        named(self, "roll", || {
            if let ([shift], []) = (shifts, dims) {
                return Ok(self.ravel().roll(&[*shift], &[0]).reshape_to(&self.shape()));
            }
            if shifts.is_empty() || shifts.len() != dims.len() {
                return Err(format!("{shifts:?} are not as many shifts as axes in {dims:?}"));
            }
            let mut y = self;
            for (&shift, &dim) in shifts.iter().zip(dims) {
                let axis = axis(y, dim)?;
                let n = size(y, axis)?;
                let cut = if n == 0 { 0 } else { n - shift.rem_euclid(n) };
                if cut != n && n > 0 {
                    let part = |from, to| y.slice(axis as i64, from, to, 1);
                    y = cat(&[part(cut, n), part(0, cut)], axis as i64);
                }
            }
            Ok(y)
        })
    }

    /// Rotated by `k` quarters of a turn in the plane of two axes, from the first towards the
    /// second: [`torch.rot90`](https://docs.pytorch.org/docs/stable/generated/torch.rot90.html).
    #[track_caller]
    pub fn rot90(self, k: i64, dims: &[i64]) -> Var<'t> {
        named(self, "rot90", || {
            let &[a, b] = dims else { return Err(format!("takes two axes, found {dims:?}")) };
            let (first, second) = (axis(self, a)?, axis(self, b)?);
            if first == second {
                return Err(format!("the axes {dims:?} are one"));
            }
            let (a, b) = (first as i64, second as i64);
            Ok(match k.rem_euclid(4) {
                0 => self,
                1 => self.flip(&[b]).transpose(a, b),
                2 => self.flip(&[a, b]),
                _ => self.flip(&[a]).transpose(a, b),
            })
        })
    }
}
