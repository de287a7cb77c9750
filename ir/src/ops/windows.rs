//! `windows`: the elements of a tensor seen through windows that move over its last axes, as
//! convolution, pooling and `unfold` need them.
//!
//! Where a kernel can read them at their places nothing is stored: a convolution reads its operand
//! through windows while it packs it.

use super::elementwise::Elementwise;
use super::infer;
use super::view::Views;
use crate::op::{
    ANY, Dispatch, Domain, GradCx, InferCx, Inferred, Lower, Position, Rounding, core, rule,
};
use crate::{Attrs, Shape, Size, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait Windowed;

/// Windows over the last axes of `x`, as many as `size` names: `y[.., k.., o..] = x[.., o *
/// stride + k * dilation - low ..]`, and zero where that is outside of `x`. `size` are the
/// positions `k` of a window, `count` the windows `o` along each axis.
///
/// A dilation may be negative: then windows are read backwards. Nothing is stored where a kernel
/// reads `y` at its loops' own positions; a [`contract`](fn@crate::ops::linalg::Products::contract)
/// does so behind a `reshape` that merges the positions `k` with each other and the windows `o`
/// with each other.
///
/// The gradient adds up what all windows say of an element, in order of the positions in a window,
/// axis by axis.
WINDOWS = windows(x; size: Ints, count: Sizes, stride: Ints, dilation: Ints, low: Ints) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer_windows,
    body:     core(rule(&|cx| smallvec![Some(folded(cx))]), Lower::Windows),
    rounding: Rounding::nowhere("nowhere forward; the gradient once, at the sum"),
    domain:   Domain { dtypes: ANY, samples: &[
        "T[2, 7] {size = [3], count = [4], stride = [2], dilation = [1], low = [1]}",
        "T[2, 5, 6] {size = [2, 3], count = [3, 4], stride = [2, 1], dilation = [1, 2], low = [0, 1]}",
        "T[6] {size = [3], count = [5], stride = [1], dilation = [-2], low = [-3]}",
    ] },
}
}

/// The attributes of windows.
pub(crate) struct Windows {
    /// The first axis that windows move over.
    pub(crate) first: usize,
    /// Positions of a window.
    pub(crate) size: Vec<i64>,
    /// Windows along each axis.
    pub(crate) count: Vec<Size>,
    pub(crate) stride: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) low: Vec<i64>,
}

impl Windows {
    /// Those of an operand with that number of axes.
    ///
    /// # Errors
    /// If the lists differ in length, are empty or longer than there are axes.
    pub(crate) fn of(rank: usize, attrs: &Attrs) -> Result<Windows, String> {
        let list = |name| attrs.ints(name).to_vec();
        let (size, count) = (list("size"), attrs.sizes("count").to_vec());
        let (stride, dilation, low) = (list("stride"), list("dilation"), list("low"));
        let axes = size.len();
        if axes == 0 || axes > rank {
            return Err(format!("windows move over 1 to {rank} axes, found {axes}"));
        }
        if [count.len(), stride.len(), dilation.len(), low.len()] != [axes; 4] {
            return Err(format!("takes {axes} numbers in each list, as in `size`"));
        }
        Ok(Windows { first: rank - axes, size, count, stride, dilation, low })
    }

    /// How many axes windows move over.
    pub(crate) fn axes(&self) -> usize {
        self.size.len()
    }

    /// The first and the last position that windows see along an axis, whether it is there or not.
    pub(crate) fn seen(&self, axis: usize) -> [Size; 2] {
        let steps = Size::from(self.size[axis] - 1) * Size::from(self.dilation[axis]);
        let windows = (self.count[axis] - 1) * Size::from(self.stride[axis]);
        let low = Size::from(-self.low[axis]);
        if self.dilation[axis] < 0 {
            [low + steps, low + windows]
        } else {
            [low, low + windows + steps]
        }
    }

    /// The positions in a window that some window has on an axis of that size, and few others.
    fn seeing(&self, axis: usize, size: Size) -> std::ops::Range<i64> {
        let all = 0..self.size[axis];
        let (Some(count), Some(size)) = (self.count[axis].number(), size.number()) else {
            return all;
        };
        // `k * dilation` lies between what reaches the first element from the last window, and the
        // last element from the first one.
        let (low, dilation) = (i128::from(self.low[axis]), i128::from(self.dilation[axis]));
        let reach = i128::from(count - 1) * i128::from(self.stride[axis]);
        let (least, most) = (low - reach, low + i128::from(size) - 1);
        let [from, to] = if dilation > 0 { [least, most] } else { [-most, -least] };
        let step = dilation.abs();
        let from = (from + step - 1).div_euclid(step).clamp(0, i128::from(all.end));
        let to = (to.div_euclid(step) + 1).clamp(from, i128::from(all.end));
        from as i64..to as i64
    }

    /// The position in the operand for a window and a position in it.
    pub(crate) fn position(&self, axis: usize, window: &Position, within: &Position) -> Position {
        let (stride, dilation) = (Size::from(self.stride[axis]), Size::from(self.dilation[axis]));
        let strides = window.strides.iter().zip(&within.strides);
        Position {
            offset: window.offset * stride + within.offset * dilation - Size::from(self.low[axis]),
            strides: strides.map(|(o, k)| *o * stride + *k * dilation).collect(),
            index: None,
        }
    }
}

fn infer_windows(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    let windows = Windows::of(x.shape.rank(), cx.attrs)?;
    let counts = infer::sizes(cx.must, &windows.count)?;
    let sizes: Vec<Size> = windows.size.iter().map(|n| Size::from(*n)).collect();
    let sizes = infer::sizes(cx.must, &sizes)?;
    for axis in 0..windows.axes() {
        let (stride, dilation) = (windows.stride[axis], windows.dilation[axis]);
        if stride < 1 || dilation == 0 {
            return Err(format!("stride {stride} and dilation {dilation} move no window"));
        }
        let low = windows.low[axis];
        let size = windows.size[axis];
        let far = [size, low, dilation, stride].iter().any(|n| n.unsigned_abs() > 1 << 40);
        if far || windows.seen(axis).iter().any(|at| at.is_out_of_range()) {
            return Err(format!("windows along axis {} reach too far", windows.first + axis));
        }
    }
    let lead = x.shape[..windows.first].iter();
    let shape: Shape = lead.chain(sizes.iter()).chain(counts.iter()).copied().collect();
    if shape.numel().is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

/// What all windows say of each element, added up in f32 for 16-bit floats.
fn folded<'t>(cx: &GradCx<'_, 't>) -> Var<'t> {
    let (x, dy) = (cx.args[0].ty(), cx.dy());
    let windows = Windows::of(x.shape.rank(), cx.attrs).expect("checked when recorded");
    dy.to(x.dtype.compute()).folded(&windows, &x.shape[windows.first..]).to(x.dtype)
}

impl<'t> Var<'t> {
    /// The sum of what windows `[.., k.., o..]` say of the elements of axes of these sizes: the
    /// transpose of [`WINDOWS`].
    #[track_caller]
    pub(crate) fn folded(self, windows: &Windows, sizes: &[Size]) -> Var<'t> {
        // Of axes that are done the positions in windows are gone, so the next ones stand where
        // they stood.
        let at = [windows.first, windows.first + windows.axes()];
        let along =
            |y: Var<'t>, (axis, size): (usize, &Size)| y.folded_along(at, windows, axis, *size);
        sizes.iter().enumerate().fold(self, along)
    }

    /// The same along one axis, of positions `at[0]` in windows `at[1]`: the windows' axis becomes
    /// the element's, the other is gone.
    fn folded_along(self, at: [usize; 2], windows: &Windows, axis: usize, size: Size) -> Var<'t> {
        let [within, along] = at;
        let (stride, dilation, low) =
            (windows.stride[axis], windows.dilation[axis], windows.low[axis]);
        let rank = self.rank();
        // The windows' axis last, the positions' axis first.
        let others = (0..rank).filter(|i| *i != within && *i != along);
        let order: Vec<i64> = std::iter::once(within)
            .chain(others.clone())
            .chain([along])
            .map(|i| i as i64)
            .collect();
        let mut dy = self.permute(&order);
        if stride > 1 {
            dy = dy.spread_last(stride);
        }
        let lead: Shape = dy.shape()[1..rank - 1].iter().copied().collect();
        let one = |k: i64| {
            let part = dy.slice(0, k, k + 1, 1);
            let flat: Shape = lead.iter().copied().chain([dy.size(rank - 1)]).collect();
            let part = part.reshape_to(&flat);
            let moved = part.windows([1], [size], [1], [1], [k * dilation - low]);
            moved.reshape_to(&lead.iter().copied().chain([size]).collect())
        };
        let sum = windows.seeing(axis, size).map(one).reduce(|sum, part| sum.add(part));
        let shape: Shape = lead.iter().copied().chain([size]).collect();
        let sum = sum.unwrap_or_else(|| {
            self.tracer().full(TensorType { dtype: self.dtype(), shape: shape.clone() }, 0.0)
        });
        // The element's axis where the windows' was.
        let mut back: Vec<i64> = (0..rank as i64 - 2).collect();
        back.insert(along - 1, rank as i64 - 2);
        sum.permute(&back)
    }

    /// With `stride - 1` zeros behind each element of the last axis.
    fn spread_last(self, stride: i64) -> Var<'t> {
        let shape = self.shape();
        let rank = shape.rank();
        let mut apart = shape.to_vec();
        apart.push(Size::from(1));
        let mut high = vec![0; rank + 1];
        high[rank] = stride - 1;
        let mut merged = shape.to_vec();
        merged[rank - 1] = shape[rank - 1] * Size::from(stride);
        let spread = self.reshape(&apart).pad(&vec![0; rank + 1], &high, 0.0);
        spread.reshape(&merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_that_no_window_has_are_left_out_of_a_gradient() {
        let seeing = |size: i64, count: i64, [stride, dilation, low]: [i64; 3], of: i64| {
            let windows = Windows {
                first: 0,
                size: vec![size],
                count: vec![Size::from(count)],
                stride: vec![stride],
                dilation: vec![dilation],
                low: vec![low],
            };
            windows.seeing(0, Size::from(of))
        };
        assert_eq!(seeing(3, 4, [2, 1, 1], 7), 0..3);
        assert_eq!(seeing(i64::from(i32::MAX), 4, [2, 1, 1], 7), 0..8);
        assert_eq!(seeing(100, 5, [1, -2, -30], 6), 13..18);
        assert_eq!(seeing(5, 2, [1, 1, 90], 6), 5..5);
        for [size, count, stride, dilation, low, of] in
            [[9, 4, 3, 2, 5, 4], [9, 2, 1, -3, -11, 6], [7, 3, 2, 4, 9, 5]]
        {
            let range = seeing(size, count, [stride, dilation, low], of);
            for k in 0..size {
                let is_seen =
                    (0..count).any(|o| (0..of).contains(&(o * stride + k * dilation - low)));
                assert!(!is_seen || range.contains(&k), "{k} of {range:?}");
            }
        }
    }
}
