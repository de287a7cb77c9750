//! `grid_sampler`: elements around places that are data, gathered and weighed. Its gradients are
//! those of what it is made of.

use crate::op::{ExpandCx, InferCx, Inferred};
use crate::ops::elementwise::Elementwise;
use crate::ops::index::Indexing;
use crate::ops::infer;
use crate::ops::view::Views;
use crate::{DType, Results, Shape, Size, TensorType, Var};
use smallvec::smallvec;

/// What stands outside of the operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// How elements around a place are taken together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Linear,
    Nearest,
    Cubic,
}

fn mode(name: Option<&str>) -> Result<Mode, String> {
    match name {
        None | Some("bilinear") => Ok(Mode::Linear),
        Some("nearest") => Ok(Mode::Nearest),
        Some("bicubic") => Ok(Mode::Cubic),
        Some(other) => {
            Err(format!("`mode` is \"bilinear\", \"nearest\" or \"bicubic\", found {other:?}"))
        }
    }
}

fn outside(name: Option<&str>) -> Result<Outside, String> {
    match name {
        None | Some("zeros") => Ok(Outside::Zeros),
        Some("border") => Ok(Outside::Border),
        Some("reflection") => Ok(Outside::Reflection),
        Some(other) => Err(format!(
            "`padding_mode` is \"zeros\", \"border\" or \"reflection\", found {other:?}"
        )),
    }
}

pub(super) fn inferred(cx: &InferCx<'_>) -> infer::Answer {
    let (x, grid) = (cx.operand(0), cx.operand(1));
    infer::need_float(x)?;
    let rank = x.shape.rank();
    if rank != 4 && rank != 5 {
        return Err(format!("takes channels with two or three axes, found {x}"));
    }
    if grid.dtype != x.dtype || grid.shape.rank() != rank {
        return Err(format!("`grid` is {grid}, expected {rank} axes of {}", x.dtype));
    }
    let count = rank - 2;
    if !cx.must.equal(grid.shape[0], x.shape[0])
        || !cx.must.equal(grid.shape[rank - 1], Size::from(count))
    {
        return Err(format!(
            "`grid` is {grid}, expected {} examples and {count} numbers for each place",
            x.shape[0]
        ));
    }
    for size in &x.shape[2..] {
        match size.number() {
            Some(1..) => {}
            Some(_) => return Err(format!("takes channels with positions, found {x}")),
            None => return Err(format!("{x} needs numbers there: pin the sizes of sampled axes")),
        }
    }
    outside(cx.attrs.str("padding_mode"))?;
    if mode(cx.attrs.str("mode"))? == Mode::Cubic && rank == 5 {
        return Err(format!("`mode` \"bicubic\" takes two axes, found {x}"));
    }
    let shape: Shape = x.shape[..2].iter().chain(&grid.shape[1..rank - 1]).copied().collect();
    if shape.numel().is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

/// An axis of the operand, with the place of each position of the result along it.
struct Axis<'t> {
    size: i64,
    outside: Outside,
    align_corners: bool,
    /// In positions of the operand, as the grid says.
    place: Var<'t>,
}

/// An element along an axis for each position of the result.
#[derive(Clone, Copy)]
struct Near<'t> {
    /// Its position, within the operand.
    at: Var<'t>,
    /// Whether it is there; none if it always is.
    is_there: Option<Var<'t>>,
    weight: Option<Var<'t>>,
}

impl<'t> Axis<'t> {
    /// Of numbers from -1 to 1.
    fn new(numbers: Var<'t>, size: i64, outside: Outside, align_corners: bool) -> Self {
        let place = match align_corners {
            true => numbers.add(1.0).div(2.0).mul((size - 1) as f64),
            false => numbers.add(1.0).mul(size as f64).sub(1.0).div(2.0),
        };
        Axis { size, outside, align_corners, place }
    }

    /// A place put within the operand, where that is asked for. What has been moved has no
    /// gradient.
    fn within(&self, place: Var<'t>) -> Var<'t> {
        match self.outside {
            Outside::Zeros => place,
            Outside::Border => self.clipped(place),
            Outside::Reflection => self.clipped(self.reflected(place)),
        }
    }

    fn clipped(&self, place: Var<'t>) -> Var<'t> {
        let t = place.tracer();
        let last = (self.size - 1) as f64;
        let place = place.gt(0.0).choose(place, t.zeros_like(place));
        place.lt(last).choose(place, t.full(place.ty(), last))
    }

    /// Mirrored at both ends as often as it takes.
    fn reflected(&self, place: Var<'t>) -> Var<'t> {
        let size = self.size as f64;
        let (low, span) = if self.align_corners { (0.0, size - 1.0) } else { (-0.5, size) };
        if span == 0.0 {
            return place.tracer().zeros_like(place);
        }
        let away = place.sub(low).abs();
        let flips = away.div(span).floor();
        let rest = away.sub(flips.mul(span));
        let is_even = flips.div(2.0).floor().mul(2.0).eq(flips);
        is_even.choose(rest.add(low), rest.rsub(span).add(low))
    }

    /// The element at an integral place.
    fn element(&self, place: Var<'t>, weight: Option<Var<'t>>) -> Near<'t> {
        let last = (self.size - 1) as f64;
        let is_there = place.ge(0.0).logical_and(place.le(last));
        // Behind the last element, where it has no weight, is that element again.
        let inside = is_there.choose(place, place.tracer().full(place.ty(), last));
        let is_there = (self.outside == Outside::Zeros).then_some(is_there);
        Near { at: inside.to(DType::I64), is_there, weight }
    }

    /// The elements around the places.
    fn near(&self, mode: Mode) -> Vec<Near<'t>> {
        match mode {
            Mode::Nearest => vec![self.element(self.within(self.place).round(), None)],
            Mode::Linear => {
                let place = self.within(self.place);
                let lower = place.floor();
                let part = place.sub(lower);
                vec![
                    self.element(lower, Some(part.rsub(1.0))),
                    self.element(lower.add(1.0), Some(part)),
                ]
            }
            Mode::Cubic => {
                let lower = self.place.floor();
                let part = self.place.sub(lower);
                let far = |x: Var<'t>| x.mul(-0.75).add(3.75).mul(x).sub(6.0).mul(x).add(3.0);
                let close = |x: Var<'t>| x.mul(1.25).sub(2.25).mul(x).mul(x).add(1.0);
                let weights =
                    [far(part.add(1.0)), close(part), close(part.rsub(1.0)), far(part.rsub(2.0))];
                let one = |(i, weight): (i64, Var<'t>)| {
                    self.element(self.within(lower.add((i - 1) as f64)), Some(weight))
                };
                (0..4).zip(weights).map(one).collect()
            }
        }
    }
}

pub(super) fn expanded<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let (x, grid) = (cx.args[0], cx.args[1]);
    let mode = mode(cx.attrs.str("mode")).expect(super::CHECKED);
    let outside = outside(cx.attrs.str("padding_mode")).expect(super::CHECKED);
    let count = x.rank() - 2;
    // Examples, channels, and all positions as one axis.
    let places: Size = grid.shape()[1..=count].iter().product();
    let sizes: Vec<i64> = x.shape()[2..].iter().filter_map(|n| n.number()).collect();
    let [examples, channels] = [0, 1].map(|axis| x.size(axis));
    let flat =
        x.reshape_to(&Shape::new(&[examples, channels, sizes.iter().product::<i64>().into()]));
    let near = |axis: usize| {
        let from_last = (count - 1 - axis) as i64;
        let numbers = grid.slice(-1, from_last, from_last + 1, 1);
        let numbers = numbers.reshape_to(&Shape::new(&[examples, 1.into(), places]));
        Axis::new(numbers, sizes[axis], outside, cx.attrs.bool("align_corners")).near(mode)
    };
    let axes: Vec<Vec<Near<'t>>> = (0..count).map(near).collect();
    let all = Shape::new(&[examples, channels, places]);
    let y = weighed(flat, &axes, &sizes, None, &all);
    smallvec![y.reshape_to(&cx.results[0].shape)]
}

/// The sum over the elements along the first of the axes of what the others make of them.
fn weighed<'t>(
    x: Var<'t>,
    axes: &[Vec<Near<'t>>],
    sizes: &[i64],
    above: Option<Near<'t>>,
    shape: &Shape,
) -> Var<'t> {
    let Some((first, rest)) = axes.split_first() else {
        let Some(near) = above else { return x };
        let y = x.gather(near.at.expand_to(shape), 2);
        let Some(is_there) = near.is_there else { return y };
        return is_there.expand_to(shape).choose(y, y.tracer().zeros_like(y));
    };
    let part = |near: &Near<'t>| {
        let near_all = match above {
            None => *near,
            Some(above) => Near {
                at: above.at.mul(sizes[0] as f64).add(near.at),
                is_there: above.is_there.zip(near.is_there).map(|(a, b)| a.logical_and(b)),
                weight: None,
            },
        };
        let y = weighed(x, rest, &sizes[1..], Some(near_all), shape);
        near.weight.map_or(y, |weight| y.mul(weight.expand_to(shape)))
    };
    first.iter().map(part).reduce(|sum, part| sum.add(part)).unwrap_or(x)
}
