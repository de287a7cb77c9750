//! Diagonals and triangles of matrices.

use super::{Made, axis, named, size};
use crate::ops::elementwise::Elementwise;
use crate::ops::view::Views;
use crate::{DType, Shape, Size, TensorType, Var};

impl<'t> Var<'t> {
    /// The diagonal of the matrices in two axes, as the last axis:
    /// [`torch.diagonal`](https://docs.pytorch.org/docs/stable/generated/torch.diagonal.html).
    #[track_caller]
    pub fn diagonal(self, offset: i64, dim1: i64, dim2: i64) -> Var<'t> {
        named(self, "diagonal", || {
            let (first, second) = two_axes(self, dim1, dim2)?;
            let (rows, columns) = (size(self, first)?, size(self, second)?);
            let x = self.movedim(&[first as i64, second as i64], &[-2, -1]);
            let outer = x.shape()[..x.rank() - 2].to_vec();
            let flat: Vec<Size> =
                outer.iter().copied().chain([Size::from(rows * columns)]).collect();
            let (mut start, mut end) = (0, 0);
            let count = length(rows, columns, offset);
            if count > 0 {
                start = if offset >= 0 { offset } else { -offset * columns };
                end = start + (count - 1) * (columns + 1) + 1;
            }
            let flat = x.reshape(&flat);
            Ok(flat.slice(flat.rank() as i64 - 1, start, end, columns + 1))
        })
    }

    /// The last axis as the diagonal of new matrices in two axes, zeros elsewhere:
    /// [`torch.diag_embed`](https://docs.pytorch.org/docs/stable/generated/torch.diag_embed.html).
    #[track_caller]
    pub fn diag_embed(self, offset: i64, dim1: i64, dim2: i64) -> Var<'t> {
        named(self, "diag_embed", || {
            let rank = self.rank();
            let n = Size::from(size(self, axis(self, -1)?)?) + offset.unsigned_abs();
            let resolved = |dim: i64| Shape::new(&vec![1; rank + 1]).axis(dim);
            let (first, second) = (resolved(dim1)?, resolved(dim2)?);
            if first == second {
                return Err(format!("the axes {dim1} and {dim2} are one"));
            }
            let mut shape = self.shape().to_vec();
            shape.pop();
            shape.extend([n, n]);
            let zeros = self.tracer().full(TensorType::new(self.dtype(), &shape[..]), 0.0);
            let y = zeros.with_diagonal(self, offset)?;
            Ok(y.movedim(&[-2, -1], &[first as i64, second as i64]))
        })
    }

    /// A vector as the diagonal of a matrix, or the diagonal of a matrix:
    /// [`torch.diag`](https://docs.pytorch.org/docs/stable/generated/torch.diag.html).
    #[track_caller]
    pub fn diag(self, offset: i64) -> Var<'t> {
        named(self, "diag", || match self.rank() {
            1 => Ok(self.diag_embed(offset, -2, -1)),
            2 => Ok(self.diagonal(offset, 0, 1)),
            rank => Err(format!("takes one or two axes, found {rank}")),
        })
    }

    /// All elements as the diagonal of a matrix:
    /// [`torch.diagflat`](https://docs.pytorch.org/docs/stable/generated/torch.diagflat.html).
    #[track_caller]
    pub fn diagflat(self, offset: i64) -> Var<'t> {
        named(self, "diagflat", || Ok(self.ravel().diag_embed(offset, -2, -1)))
    }

    /// With `src` as the diagonal of the matrices in two axes:
    /// [`torch.diagonal_scatter`](https://docs.pytorch.org/docs/stable/generated/torch.diagonal_scatter.html).
    #[track_caller]
    pub fn diagonal_scatter(self, src: Var<'t>, offset: i64, dim1: i64, dim2: i64) -> Var<'t> {
        named(self, "diagonal_scatter", || {
            let (first, second) = two_axes(self, dim1, dim2)?;
            let (first, second) = (first as i64, second as i64);
            let x = self.movedim(&[first, second], &[-2, -1]);
            let count = length(size(x, x.rank() - 2)?, size(x, x.rank() - 1)?, offset);
            let mut shape = x.shape().to_vec();
            shape.truncate(shape.len() - 2);
            shape.push(Size::from(count));
            if src.shape() != Shape::new(&shape) {
                return Err(format!(
                    "`src` is {}, expected shape {}",
                    src.ty(),
                    Shape::new(&shape)
                ));
            }
            let y = x.with_diagonal(src.to(self.dtype()), offset)?;
            Ok(y.movedim(&[-2, -1], &[first, second]))
        })
    }

    /// The matrices in the last two axes with this diagonal.
    fn with_diagonal(self, diagonal: Var<'t>, offset: i64) -> Made<Var<'t>> {
        let rank = self.rank();
        let (rows, columns) = (size(self, rank - 2)?, size(self, rank - 1)?);
        let count = length(rows, columns, offset);
        if count == 0 {
            return Ok(self);
        }
        // Element `k` lies in row `k` above the middle diagonal, in column `k` below it.
        let (along, other) = if offset >= 0 { (rows, -1) } else { (columns, -2) };
        let last = diagonal.rank() - 1;
        let (low, mut high) = (vec![0; last + 1], vec![0; last + 1]);
        high[last] = along - count;
        let spread = diagonal.pad(&low, &high, 0.0).unsqueeze(other);
        Ok(self.below()?.eq(offset as f64).choose(spread, self))
    }

    /// For each place of a matrix its column minus its row.
    fn below(self) -> Made<Var<'t>> {
        let rank = self.rank();
        if rank < 2 {
            return Err("takes at least two axes".to_owned());
        }
        let (rows, columns) = (self.size(rank - 2), self.size(rank - 1));
        let row = self.tracer().iota(DType::I64, Shape::new(&[rows, 1.into()]), 0);
        let column = self.tracer().iota(DType::I64, Shape::new(&[1.into(), columns]), 1);
        Ok(column.sub(row))
    }

    /// Zeros above a diagonal:
    /// [`torch.tril`](https://docs.pytorch.org/docs/stable/generated/torch.tril.html).
    #[track_caller]
    pub fn tril(self, diagonal: i64) -> Var<'t> {
        named(self, "tril", || {
            let kept = self.below()?.le(diagonal as f64);
            Ok(kept.choose(self, self.tracer().zeros_like(self)))
        })
    }

    /// Zeros below a diagonal:
    /// [`torch.triu`](https://docs.pytorch.org/docs/stable/generated/torch.triu.html).
    #[track_caller]
    pub fn triu(self, diagonal: i64) -> Var<'t> {
        named(self, "triu", || {
            let kept = self.below()?.ge(diagonal as f64);
            Ok(kept.choose(self, self.tracer().zeros_like(self)))
        })
    }
}

/// How long the diagonal is.
fn length(rows: i64, columns: i64, offset: i64) -> i64 {
    let count = if offset >= 0 { rows.min(columns - offset) } else { (rows + offset).min(columns) };
    count.max(0)
}

fn two_axes(x: Var<'_>, dim1: i64, dim2: i64) -> Made<(usize, usize)> {
    let (first, second) = (axis(x, dim1)?, axis(x, dim2)?);
    if first == second {
        return Err(format!("the axes {dim1} and {dim2} are one"));
    }
    Ok((first, second))
}
