//! Windows over images as columns, and back.

use super::{Made, named};
use crate::ops::windows::{Windowed, Windows};
use crate::{Shape, Size, Var};

/// The arguments of `im2col` and `col2im` for both axes.
struct Moves {
    size: [i64; 2],
    dilation: [i64; 2],
    padding: [i64; 2],
    stride: [i64; 2],
}

impl Moves {
    fn of(size: &[i64], dilation: &[i64], padding: &[i64], stride: &[i64]) -> Made<Moves> {
        let pair = |name: &str, list: &[i64], least: i64| {
            let pair = match *list {
                [both] => [both, both],
                [a, b] => [a, b],
                _ => return Err(format!("`{name}` takes one number or two, found {list:?}")),
            };
            match pair.iter().find(|n| !(least..1 << 30).contains(*n)) {
                Some(n) => Err(format!("`{name}` is at least {least}, found {n}")),
                None => Ok(pair),
            }
        };
        Ok(Moves {
            size: pair("kernel_size", size, 1)?,
            dilation: pair("dilation", dilation, 1)?,
            padding: pair("padding", padding, 0)?,
            stride: pair("stride", stride, 1)?,
        })
    }

    /// The windows along each axis of an image of these sizes.
    fn counts(&self, sizes: &[Size]) -> Made<[Size; 2]> {
        let count = |i: usize| {
            let span = self.dilation[i] * (self.size[i] - 1) + 1;
            let left = sizes[i] + 2 * self.padding[i] - span;
            if left.number().is_some_and(|left| left < 0) {
                let around = self.padding[i];
                return Err(format!(
                    "windows of {span} positions do not fit {} with {around} before and behind",
                    sizes[i]
                ));
            }
            Ok(left / self.stride[i] + 1)
        };
        Ok([count(0)?, count(1)?])
    }
}

impl<'t> Var<'t> {
    /// What windows over the last two axes see, one column for each window:
    /// `[batch, channels * positions, windows]`, without the batch for one image:
    /// [`torch.nn.functional.unfold`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.unfold.html).
    /// Each list has a number for both axes or one each.
    ///
    /// ```
    /// use tracecast_ir::ops::prelude::*;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("columns");
    /// let x = t.input("x", TensorType::new(DType::F32, [2, 3, 5, 5]));
    /// assert_eq!(x.im2col(&[3], &[1], &[1], &[2]).ty().to_string(), "f32[2, 27, 9]");
    /// ```
    #[track_caller]
    pub fn im2col(
        self,
        kernel_size: &[i64],
        dilation: &[i64],
        padding: &[i64],
        stride: &[i64],
    ) -> Var<'t> {
        named(self, "im2col", || {
            let moves = Moves::of(kernel_size, dilation, padding, stride)?;
            let shape = self.shape();
            let rank = shape.rank();
            if !(3..=4).contains(&rank) {
                return Err("takes images of 3 axes, or of 4 with a batch".to_owned());
            }
            let counts = moves.counts(&shape[rank - 2..])?;
            let windows =
                self.windows(moves.size, counts, moves.stride, moves.dilation, moves.padding);
            let rows = shape[rank - 3] * moves.size[0] * moves.size[1];
            let sizes = shape[..rank - 3].iter().copied().chain([rows, counts[0] * counts[1]]);
            Ok(windows.reshape_to(&sizes.collect()))
        })
    }

    /// The sums of what columns say of each element of images of that size: the transpose of
    /// [`im2col`](Var::im2col), as in
    /// [`torch.nn.functional.fold`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.fold.html).
    /// 16-bit floats are added up in f32.
    #[track_caller]
    pub fn col2im(
        self,
        output_size: &[i64],
        kernel_size: &[i64],
        dilation: &[i64],
        padding: &[i64],
        stride: &[i64],
    ) -> Var<'t> {
        named(self, "col2im", || {
            let moves = Moves::of(kernel_size, dilation, padding, stride)?;
            let shape = self.shape();
            let rank = shape.rank();
            let &[height, width] = output_size else {
                return Err(format!("`output_size` has two numbers, found {output_size:?}"));
            };
            let sizes = [height, width].map(Size::from);
            let counts = moves.counts(&sizes)?;
            let positions = moves.size[0] * moves.size[1];
            let columns = counts[0] * counts[1];
            let fits = (2..=3).contains(&rank) && self.size(rank - 1) == columns;
            let rows = if fits { self.size(rank - 2).number() } else { None };
            let Some(rows) = rows.filter(|rows| rows % positions == 0) else {
                return Err(format!(
                    "takes a multiple of {positions} rows and {columns} columns, for images of {height} by {width}"
                ));
            };
            let (lead, one) = (&shape[..rank - 2], Size::from(rows / positions));
            let lead: Vec<Size> = lead.iter().copied().chain([one]).collect();
            let apart = moves.size.iter().map(|n| Size::from(*n)).chain(counts);
            let windows = self.reshape_to(&lead.iter().copied().chain(apart).collect::<Shape>());
            let how = Windows {
                first: lead.len(),
                size: moves.size.to_vec(),
                count: counts.to_vec(),
                stride: moves.stride.to_vec(),
                dilation: moves.dilation.to_vec(),
                low: moves.padding.to_vec(),
            };
            let wide = windows.to(self.dtype().compute());
            Ok(wide.folded(&how, &sizes).to(self.dtype()))
        })
    }
}
