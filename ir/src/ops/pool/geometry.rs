//! What pooling is over: its axes and windows, from the type of the operand and PyTorch's
//! arguments.

use crate::ops::infer;
use crate::ops::taps::Along;
use crate::{Attrs, Size, TensorType};

/// Numbers beyond this are no sizes of windows over tensors that there can be.
const FAR: i64 = 1 << 30;
/// Taps are lists of positions: their number in all.
const MOST: i64 = 1 << 22;

/// Windows along the last axes.
pub(super) struct Geometry {
    /// The first axis that windows move over.
    pub(super) first: usize,
    pub(super) axes: Vec<Windows>,
}

/// The windows along an axis: for each of them its first position, how many there are, and the step
/// between them.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub(super) from: i64,
    starts: Vec<i64>,
    lengths: Vec<i64>,
    dilation: i64,
    /// What PyTorch divides by where padding counts.
    pub(super) padded: Vec<i64>,
}

impl Windows {
    /// What each window sees.
    pub(super) fn along(&self) -> Along {
        let most = self.lengths.iter().copied().max().unwrap_or(0);
        let tap = |j: i64| {
            let at = self.starts.iter().zip(&self.lengths);
            let at =
                at.map(|(start, length)| if j < *length { start + j * self.dilation } else { -1 });
            crate::ops::taps::Tap { at: at.collect(), weights: None }
        };
        Along { from: self.from, to: self.starts.len() as i64, taps: (0..most).map(tap).collect() }
    }

    /// True if one window sees all of the axis and nothing else.
    pub(super) fn is_whole(&self) -> bool {
        self.starts == [0] && self.lengths == [self.from] && self.dilation == 1
    }
}

impl Geometry {
    /// Of the operand, and windows over a number of axes: adaptive ones if the op has an
    /// `output_size`.
    ///
    /// # Errors
    /// If an argument is out of range, or no window fits.
    pub(super) fn of(x: &TensorType, attrs: &Attrs, axes: usize) -> Result<Geometry, String> {
        match attrs.get("output_size") {
            Some(_) => Geometry::adaptive(x, attrs, axes),
            None => Geometry::moving(x, attrs, axes),
        }
    }

    /// Windows as PyTorch's pooling has them.
    fn moving(x: &TensorType, attrs: &Attrs, axes: usize) -> Result<Geometry, String> {
        let (first, sizes) = sizes(x, axes)?;
        let kernel = list(attrs, "kernel_size", axes, None)?;
        let stride = list(attrs, "stride", axes, Some(&kernel))?;
        let padding = list(attrs, "padding", axes, Some(&vec![0; axes]))?;
        let dilation = list(attrs, "dilation", axes, Some(&vec![1; axes]))?;
        for (name, list, least) in [
            ("kernel_size", &kernel, 1),
            ("stride", &stride, 1),
            ("padding", &padding, 0),
            ("dilation", &dilation, 1),
        ] {
            if let Some(n) = list.iter().find(|n| !(least..FAR).contains(*n)) {
                return Err(format!("`{name}` is at least {least}, found {n}"));
            }
        }
        let one = |i: usize| {
            let arguments = [kernel[i], stride[i], padding[i], dilation[i]];
            moved(x, sizes[i], arguments, attrs.bool("ceil_mode"))
        };
        Ok(Geometry { first, axes: (0..axes).map(one).collect::<Result<_, _>>()? })
    }

    /// Windows that divide each axis into as many parts as `output_size` says, which overlap by a
    /// position where they do not divide it.
    ///
    /// # Errors
    /// If an argument is out of range.
    fn adaptive(x: &TensorType, attrs: &Attrs, axes: usize) -> Result<Geometry, String> {
        let (first, sizes) = sizes(x, axes)?;
        let to = list(attrs, "output_size", axes, None)?;
        if let Some(n) = to.iter().find(|n| !(0..MOST).contains(*n)) {
            return Err(format!("`output_size` is at least 0, found {n}"));
        }
        let one = |(from, to): (&i64, &i64)| {
            let starts: Vec<i64> = (0..*to).map(|o| o * from / to).collect();
            let lengths: Vec<i64> =
                (0..*to).map(|o| ((o + 1) * from + to - 1) / to - o * from / to).collect();
            let most = lengths.iter().copied().max().unwrap_or(0);
            if most.saturating_mul(*to) > MOST {
                return Err(format!("windows of {most} positions are too many, of {x}"));
            }
            Ok(Windows { from: *from, starts, padded: lengths.clone(), lengths, dilation: 1 })
        };
        let axes = sizes.iter().zip(&to).map(one).collect::<Result<_, _>>()?;
        Ok(Geometry { first, axes })
    }

    /// The sizes of the result.
    pub(super) fn shape(&self, x: &TensorType) -> crate::Shape {
        let to = self.axes.iter().map(|axis| Size::from(axis.starts.len() as i64));
        x.shape[..self.first].iter().copied().chain(to).collect()
    }

    /// What is seen along each axis.
    pub(super) fn along(&self) -> Vec<Along> {
        self.axes.iter().map(Windows::along).collect()
    }
}

/// The windows of that size, stride, padding and dilation along an axis.
fn moved(
    x: &TensorType,
    from: i64,
    [kernel, stride, padding, dilation]: [i64; 4],
    ceil: bool,
) -> Result<Windows, String> {
    let span = dilation.saturating_mul(kernel - 1) + 1;
    if padding > span / 2 {
        return Err(format!(
            "`padding` is at most half of the {span} positions of a window, found {padding}"
        ));
    }
    let room = from + 2 * padding - span;
    let mut count = (room + if ceil { stride - 1 } else { 0 }).div_euclid(stride) + 1;
    // A window begins within the operand or before it.
    if ceil && (count - 1) * stride >= from + padding {
        count -= 1;
    }
    if count < 1 {
        return Err(format!(
            "windows of {span} positions do not fit {from} with {padding} before and behind, of {x}"
        ));
    }
    if kernel.saturating_mul(count) > MOST {
        return Err(format!("windows of {kernel} positions are too many, of {x}"));
    }
    let starts: Vec<i64> = (0..count).map(|o| o * stride - padding).collect();
    let padded = starts.iter().map(|start| (start + kernel).min(from + padding) - start).collect();
    Ok(Windows { from, lengths: vec![kernel; starts.len()], starts, dilation, padded })
}

/// The first of the last axes, and their sizes as numbers.
fn sizes(x: &TensorType, axes: usize) -> Result<(usize, Vec<i64>), String> {
    infer::need_number(x)?;
    let rank = x.shape.rank();
    if rank != axes + 1 && rank != axes + 2 {
        return Err(format!("takes {} or {} axes, found {x}", axes + 1, axes + 2));
    }
    let first = rank - axes;
    let number = |size: &Size| {
        size.number()
            .ok_or_else(|| format!("{x} needs numbers there: pin the sizes of windowed axes"))
    };
    let sizes = x.shape[first..].iter().map(number).collect::<Result<Vec<i64>, _>>()?;
    if let Some(size) = sizes.iter().find(|size| **size >= FAR) {
        return Err(format!("takes axes of less than {FAR} positions to move over, found {size}"));
    }
    if x.shape[first - 1..].contains(&Size::from(0)) {
        return Err(format!("takes channels with positions, found {x}"));
    }
    Ok((first, sizes))
}

/// A number for each axis, given as one for all, one each, or none where there is something to take
/// instead.
fn list(
    attrs: &Attrs,
    name: &str,
    axes: usize,
    absent: Option<&Vec<i64>>,
) -> Result<Vec<i64>, String> {
    match (attrs.ints(name), absent) {
        ([], Some(absent)) => Ok(absent.clone()),
        ([one], _) => Ok(vec![*one; axes]),
        (each, _) if each.len() == axes => Ok(each.to_vec()),
        (each, _) => Err(format!("`{name}` takes one number or {axes}, found {each:?}")),
    }
}
