//! [`Pick`]: what Python writes in brackets behind a tensor.

use super::{Made, named, size};
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::{DType, Shape, Size, Var};

/// One index of [`Var::pick`].
#[derive(Clone, Copy, Debug)]
pub enum Pick<'t> {
    /// A position, which may count from the end: the axis goes.
    At(i64),
    /// `start:end:step`.
    Range(Option<i64>, Option<i64>, i64),
    /// A new axis of size 1.
    New,
    /// All axes that the other indices leave.
    Rest,
    /// Positions: integers of any shape, repeated to one shape with those of other axes.
    Of(Var<'t>),
}

impl<'t> Var<'t> {
    /// The elements that PyTorch gives for `x[index, …]`.
    ///
    /// Indices that are tensors stand where the first of them is if they are side by side, else in
    /// front. A mask is refused: the shape would depend on the data.
    #[track_caller]
    pub fn pick(self, index: &[Pick<'t>]) -> Var<'t> {
        named(self, "pick", || {
            let (x, places) = self.picked_plainly(index)?;
            if places.is_empty() { Ok(x) } else { x.picked_at(&places) }
        })
    }

    /// With everything done that needs no tensor; and the axes that tensors index.
    fn picked_plainly(self, index: &[Pick<'t>]) -> Made<(Var<'t>, Vec<(usize, Var<'t>)>)> {
        let taken = index.iter().filter(|i| !matches!(i, Pick::New | Pick::Rest)).count();
        if taken > self.rank() {
            return Err(format!("{taken} indices for {} axes", self.rank()));
        }
        let (mut x, mut axis, mut places) = (self, 0, Vec::new());
        for pick in index {
            match *pick {
                Pick::At(at) => x = x.select(axis as i64, at),
                Pick::Range(start, end, step) => {
                    x = x.slice_of(axis as i64, start, end, step);
                    axis += 1;
                }
                Pick::New => {
                    x = x.unsqueeze(axis as i64);
                    axis += 1;
                }
                Pick::Rest => axis += self.rank() - taken,
                Pick::Of(places_of) => {
                    if matches!(places_of.dtype(), DType::Bool | DType::U8) {
                        let why = "the shape of the result depends on the data";
                        return Err(format!("{why}: choose with `where` instead of a mask"));
                    }
                    places.push((axis, places_of));
                    axis += 1;
                }
            }
        }
        Ok((x, places))
    }

    /// The elements at positions along axes, in ascending order.
    fn picked_at(self, places: &[(usize, Var<'t>)]) -> Made<Var<'t>> {
        let shape = places.iter().try_fold(Shape::scalar(), |s, (_, p)| s.broadcast(&p.shape()))?;
        let axes: Vec<i64> = places.iter().map(|(axis, _)| *axis as i64).collect();
        let front: Vec<i64> = (0..axes.len() as i64).collect();
        let x = self.movedim(&axes, &front);
        let (mut at, mut whole): (Option<Var<'t>>, i64) = (None, 1);
        for (axis, of) in places {
            let n = size(self, *axis)?;
            let of = of.to(DType::I64).check_range(-n, n, None).wrapped(n).expand_to(&shape);
            at = Some(at.map_or(of, |at| at.mul(n as f64).add(of)));
            whole *= n;
        }
        let at = at.ok_or("no positions")?;
        let rest = &x.shape()[axes.len()..];
        let flat: Vec<Size> = [Size::from(whole)].into_iter().chain(rest.iter().copied()).collect();
        let y = x.reshape_to(&Shape::new(&flat)).picked(0, at.ravel());
        let y = y.reshape_to(&shape.iter().chain(rest).copied().collect());
        let is_together = axes.windows(2).all(|w| w[1] == w[0] + 1);
        let count = shape.rank() as i64;
        let source: Vec<i64> = (0..count).collect();
        let back: Vec<i64> = source.iter().map(|i| i + axes[0]).collect();
        Ok(if is_together { y.movedim(&source, &back) } else { y })
    }
}
