//! What pooling is made of: chains of comparisons, and sums divided by what they are of.

use super::geometry::Geometry;
use crate::ops::division::Divisions;
use crate::ops::elementwise::Elementwise;
use crate::ops::taps::{Along, FEW, Seen, beside};
use crate::{Attrs, DType, Number, Shape, TensorType, Tracer, Var};

/// The largest of what is seen, and its position among the elements of the axes.
pub(super) fn largest<'t>(x: Var<'t>, axes: &[(usize, &Along)]) -> (Var<'t>, Var<'t>) {
    let (t, shape) = (x.tracer(), x.shape());
    let all: i64 = axes.iter().map(|(_, along)| along.from).product();
    let dtype = if i32::try_from(all).is_ok() { DType::I32 } else { DType::I64 };
    let at = positions(t, dtype, &shape, axes.iter().map(|(axis, along)| (*axis, along.from)));
    let few: usize = axes.iter().map(|(_, along)| along.taps.len()).product();
    if few <= FEW && axes.iter().all(|(_, along)| along.step().is_some()) {
        return compared(x, at, axes);
    }
    axes.iter().rev().fold((x, at), |(x, at), axis| compared(x, at, std::slice::from_ref(axis)))
}

/// One after the other, of which the first of the largest stays, or a NaN.
fn compared<'t>(x: Var<'t>, at: Var<'t>, axes: &[(usize, &Along)]) -> (Var<'t>, Var<'t>) {
    let lowest = match x.dtype() {
        DType::U8 => 0.0,
        DType::I32 => f64::from(i32::MIN),
        DType::I64 => i64::MIN as f64,
        _ => f64::NEG_INFINITY,
    };
    let (seen, places) = (Seen::new(x, axes, lowest), Seen::new(at, axes, -1.0));
    let has_outside = axes.iter().any(|(_, along)| along.has_outside());
    let mut parts =
        seen.choices().into_iter().map(|choice| (seen.through(&choice), places.through(&choice)));
    let Some(first) = parts.next() else {
        let none = |x| crate::ops::taps::nothing(x, axes);
        return (none(x), none(at));
    };
    let (y, at) = parts.fold(first, |(best, at), (value, place)| {
        let mut is_better = value.gt(best);
        if value.dtype().is_float() {
            is_better = is_better.logical_or(value.ne(value));
        }
        if has_outside {
            is_better = is_better.logical_or(at.lt(0.0));
        }
        (best.maximum(value), is_better.choose(place, at))
    });
    let zero = at.tracer().zeros_like(at);
    (y, if has_outside { at.maximum(zero) } else { at })
}

/// What the windows that cover an element and chose it say, added up in their order: `dy`, and
/// `at`, the position that each window chose, seen along axes the other way round. One axis after
/// the other, so that no element is looked for by two positions at once.
pub(super) fn covering<'t>(dy: Var<'t>, at: Var<'t>, back: &[(usize, &Along)]) -> Var<'t> {
    let t = dy.tracer();
    let all: i64 = back.iter().map(|(_, along)| along.to).product();
    let dtype = if i32::try_from(all).is_ok() { DType::I32 } else { DType::I64 };
    let mut parts = vec![(dy, at.to(dtype))];
    for axis in back.iter().rev() {
        let one = std::slice::from_ref(axis);
        let through = |tap: usize| {
            move |(dy, at): &(Var<'t>, Var<'t>)| {
                let dy = Seen::new(*dy, one, 0.0).through(&[tap]);
                (dy, Seen::new(*at, one, -1.0).through(&[tap]))
            }
        };
        parts = (0..axis.1.taps.len()).flat_map(|tap| parts.iter().map(through(tap))).collect();
    }
    let shape = parts.first().map_or_else(|| dy.shape(), |(dy, _)| dy.shape());
    let own = positions(t, dtype, &shape, back.iter().map(|(axis, along)| (*axis, along.to)));
    let chosen = |(dy, at): (Var<'t>, Var<'t>)| at.eq(own).choose(dy, t.zeros_like(dy));
    let sum = parts.into_iter().map(chosen).reduce(|sum, part| sum.add(part));
    sum.unwrap_or_else(|| crate::ops::taps::nothing(dy, back))
}

/// The position of each element among those of some axes, the last of them next to each other.
fn positions<'t>(
    t: &'t Tracer,
    dtype: DType,
    shape: &Shape,
    axes: impl DoubleEndedIterator<Item = (usize, i64)>,
) -> Var<'t> {
    let mut at = t.full(TensorType { dtype, shape: shape.clone() }, 0.0);
    let mut stride = 1;
    for (axis, size) in axes.rev() {
        at = t.iota(dtype, shape, axis).mul(stride as f64).add(at);
        stride *= size;
    }
    at
}

/// The sums divided by what they are of: a number, or one for each window.
pub(super) fn divided<'t>(
    sum: Var<'t>,
    geometry: &Geometry,
    along: &[Along],
    attrs: &Attrs,
) -> Var<'t> {
    let counts = |i: usize| {
        let is_padded = attrs.bool("count_include_pad") || attrs.get("output_size").is_some();
        if is_padded { geometry.axes[i].padded.clone() } else { along[i].counts() }
    };
    let counts: Vec<Vec<i64>> = (0..along.len()).map(counts).collect();
    let one = counts.iter().try_fold(1, |product, counts| {
        let first = counts.first().copied().unwrap_or(1);
        counts.iter().all(|n| *n == first).then_some(product * first)
    });
    if let Some(divisor) = attrs.int("divisor_override").or(one) {
        let divisor = divisor as f64;
        return match sum.dtype().is_float() {
            true => sum.div(Number::F64(divisor)),
            false => sum.sub(sum.fmod(divisor)).floor_divide(divisor),
        };
    }
    let each = counts.iter().enumerate().map(|(i, counts)| {
        let numbers: Vec<f64> = counts.iter().map(|n| *n as f64).collect();
        beside(sum, geometry.first + i, sum.dtype(), &numbers)
    });
    let shape = sum.shape();
    let divisor = each.map(|n| n.expand_to(&shape)).reduce(|a, b| a.mul(b));
    let divisor = divisor.unwrap_or_else(|| sum.tracer().ones_like(sum));
    match sum.dtype().is_float() {
        true => sum.div(divisor),
        false => sum.sub(sum.fmod(divisor)).floor_divide(divisor),
    }
}
