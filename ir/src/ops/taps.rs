//! Taps: what each position along an axis of a result sees of the operand, known when a program is
//! recorded. Pooling and interpolation are made of them.
//!
//! Tap `j` of an axis is one position of the operand for each position of the result, or none,
//! perhaps with a weight. Where the positions are evenly apart a tap is a slice of the operand with
//! something around it, elsewhere a gather by constant positions. Nothing that windows see is
//! copied to memory.

use super::elementwise::Elementwise;
use super::index::Indexing;
use super::reduce::Reductions;
use super::view::Views;
use super::windows::Windowed;
use crate::{DType, Shape, Size, Var};

/// What the positions of a result see along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Along {
    /// Positions of the operand.
    pub(crate) from: i64,
    /// Positions of the result.
    pub(crate) to: i64,
    pub(crate) taps: Vec<Tap>,
}

/// One position of the operand for each of the result, outside of it where there is none, and its
/// weight; no weights are ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tap {
    pub(crate) at: Vec<i64>,
    pub(crate) weights: Option<Vec<f64>>,
}

impl Along {
    /// From what each position of the result sees: positions within the operand, in order, with
    /// weights. Missing ones are outside.
    pub(crate) fn of(from: i64, seen: &[Vec<(i64, f64)>]) -> Along {
        if let Some(even) = Along::evenly(from, seen) {
            return even;
        }
        let most = seen.iter().map(Vec::len).max().unwrap_or(0);
        let is_weighed = seen.iter().flatten().any(|(_, weight)| *weight != 1.0);
        let tap = |j: usize| Tap {
            at: seen.iter().map(|seen| seen.get(j).map_or(-1, |(at, _)| *at)).collect(),
            weights: is_weighed
                .then(|| seen.iter().map(|seen| seen.get(j).map_or(0.0, |(_, w)| *w)).collect()),
        };
        Along { from, to: seen.len() as i64, taps: (0..most).map(tap).collect() }
    }

    /// The same with taps that are evenly apart, if no more of them are needed: what is not seen is
    /// outside of the operand.
    fn evenly(from: i64, seen: &[Vec<(i64, f64)>]) -> Option<Along> {
        let most = seen.iter().map(Vec::len).max()? as i64;
        let first = |to: usize| Some(seen.get(to)?.first()?.0);
        let middle = seen.len() / 2;
        let step = first(middle)? - first(middle.checked_sub(1)?)?;
        let moved = |to: usize, at: i64| at - step * to as i64;
        let places =
            || (0..).zip(seen).flat_map(|(to, seen)| seen.iter().map(move |(at, _)| (to, *at)));
        let low = places().map(|(to, at)| moved(to, at)).min()?;
        let high = places().map(|(to, at)| moved(to, at)).max()?;
        if step < 1 || high - low >= most {
            return None;
        }
        let is_weighed = seen.iter().flatten().any(|(_, weight)| *weight != 1.0);
        let mut taps = Vec::new();
        for j in low..=high {
            let at: Vec<i64> = (0..seen.len() as i64).map(|to| step * to + j).collect();
            let weight = |(seen, at): (&Vec<(i64, f64)>, &i64)| {
                let found = seen.iter().find(|(place, _)| place == at);
                let is_outside = !(0..from).contains(at);
                found.map(|(_, weight)| *weight).or(is_outside.then_some(0.0))
            };
            let weights: Vec<f64> = seen.iter().zip(&at).map(weight).collect::<Option<_>>()?;
            taps.push(Tap { at, weights: is_weighed.then_some(weights) });
        }
        Some(Along { from, to: seen.len() as i64, taps })
    }

    /// What each position of the operand is seen by, in order: the other way round.
    pub(crate) fn transposed(&self) -> Along {
        let mut seen: Vec<Vec<(i64, f64)>> = vec![Vec::new(); self.from as usize];
        for to in 0..self.to as usize {
            for tap in &self.taps {
                let weight = tap.weights.as_ref().map_or(1.0, |weights| weights[to]);
                let at = tap.at[to];
                if (0..self.from).contains(&at) {
                    seen[at as usize].push((to as i64, weight));
                }
            }
        }
        Along::of(self.to, &seen)
    }

    /// How many positions each position of the result sees.
    pub(crate) fn counts(&self) -> Vec<i64> {
        let within = |to: usize| {
            self.taps.iter().filter(|tap| (0..self.from).contains(&tap.at[to])).count() as i64
        };
        (0..self.to as usize).map(within).collect()
    }

    /// True if a position that is seen is none of the operand.
    pub(crate) fn has_outside(&self) -> bool {
        self.taps.iter().flat_map(|tap| &tap.at).any(|at| !(0..self.from).contains(at))
    }

    /// The step from each position to the next, if all taps have the same one.
    pub(crate) fn step(&self) -> Option<i64> {
        let step = |tap: &Tap| {
            let step = tap.at.get(1).map_or(1, |second| second - tap.at[0]);
            let is_even = tap.at.windows(2).all(|pair| pair[1] - pair[0] == step);
            (is_even && step > 0).then_some(step)
        };
        let first = step(self.taps.first()?)?;
        self.taps.iter().all(|tap| step(tap) == Some(first)).then_some(first)
    }
}

/// An operand seen along some of its axes, with what stands around it.
pub(crate) struct Seen<'a, 't> {
    x: Var<'t>,
    /// The axes and what is seen along them.
    axes: &'a [(usize, &'a Along)],
    outside: f64,
}

impl<'a, 't> Seen<'a, 't> {
    /// The operand with that number around it.
    pub(crate) fn new(x: Var<'t>, axes: &'a [(usize, &'a Along)], outside: f64) -> Self {
        Seen { x, axes, outside }
    }

    /// What is seen through that tap of each axis.
    pub(crate) fn through(&self, taps: &[usize]) -> Var<'t> {
        let (mut even, mut others) = (Vec::new(), Vec::new());
        for ((axis, along), tap) in self.axes.iter().zip(taps) {
            let tap = &along.taps[*tap];
            match along.step() {
                Some(step) => {
                    let [first, to] = [tap.at[0], along.to];
                    even.push(Moved { axis: *axis, from: along.from, first, step, to });
                }
                None => others.push((*axis, along.from, tap)),
            }
        }
        let y = moved(self.x, &even, self.outside);
        others.iter().fold(y, |y, (axis, from, tap)| gathered(y, *axis, *from, tap, self.outside))
    }

    /// Every choice of a tap for each axis, those of the last axis next to each other.
    pub(crate) fn choices(&self) -> Vec<Vec<usize>> {
        let more = |choices: Vec<Vec<usize>>, (_, along): &(usize, &Along)| {
            let with = |choice: Vec<usize>| {
                (0..along.taps.len()).map(move |tap| [&choice[..], &[tap]].concat())
            };
            choices.into_iter().flat_map(with).collect()
        };
        self.axes.iter().fold(vec![Vec::new()], more)
    }
}

/// Positions that are evenly apart along an axis.
struct Moved {
    axis: usize,
    from: i64,
    first: i64,
    step: i64,
    to: i64,
}

impl Moved {
    /// Behind the last position.
    fn end(&self) -> i64 {
        self.first + (self.to - 1) * self.step + 1
    }

    fn is_within(&self) -> bool {
        self.first >= 0 && self.end() <= self.from
    }
}

/// The elements at positions that are evenly apart, and `outside` where there are none: loads with
/// a step, which look where they are.
fn moved<'t>(x: Var<'t>, axes: &[Moved], outside: f64) -> Var<'t> {
    if axes.iter().all(Moved::is_within) {
        let one = |y: Var<'t>, m: &Moved| y.slice(m.axis as i64, m.first, m.end(), m.step);
        return axes.iter().fold(x, one);
    }
    let shape = x.shape();
    let first = axes.iter().map(|m| m.axis).min().unwrap_or(0);
    let count = shape.rank() - first;
    let mut to = shape[first..].to_vec();
    let (mut stride, mut low) = (vec![1; count], vec![0; count]);
    for m in axes {
        let at = m.axis - first;
        (to[at], stride[at], low[at]) = (Size::from(m.to), m.step, -m.first);
    }
    let ones = vec![1; count];
    let y = x.windows(&ones, &to, &stride, &ones, &low);
    let result: Shape = shape[..first].iter().chain(&to).copied().collect();
    let y = y.reshape_to(&result);
    if outside == 0.0 {
        return y;
    }
    let t = x.tracer();
    let flags = axes.iter().filter(|m| !m.is_within()).flat_map(|m| {
        let at = t.iota(DType::I32, &result, m.axis).mul(m.step as f64).add(m.first as f64);
        let begins = (m.first < 0).then(|| at.ge(0.0));
        let ends = (m.end() > m.from).then(|| at.lt(m.from as f64));
        begins.into_iter().chain(ends)
    });
    let within = flags.reduce(|a, b| a.logical_and(b));
    within.map_or(y, |within| within.choose(y, t.full(y.ty(), outside)))
}

/// The elements at constant positions along an axis, and `outside` where there are none.
fn gathered<'t>(x: Var<'t>, axis: usize, from: i64, tap: &Tap, outside: f64) -> Var<'t> {
    let t = x.tracer();
    let mut shape = x.shape().to_vec();
    shape[axis] = Size::from(tap.at.len() as i64);
    let shape = Shape::new(&shape);
    let within = |at: &i64| (0..from).contains(at);
    let places: Vec<f64> =
        tap.at.iter().map(|at| if within(at) { *at as f64 } else { 0.0 }).collect();
    let place = beside(x, axis, DType::I64, &places);
    let y = x.gather(place.expand_to(&shape), axis as i64);
    if tap.at.iter().all(within) {
        return y;
    }
    let flags: Vec<f64> = tap.at.iter().map(|at| f64::from(u8::from(within(at)))).collect();
    let within = beside(x, axis, DType::Bool, &flags).expand_to(&shape);
    within.choose(y, t.full(y.ty(), outside))
}

/// Numbers for each position along an axis of a tensor, to be broadcast beside it.
pub(crate) fn beside<'t>(x: Var<'t>, axis: usize, dtype: DType, numbers: &[f64]) -> Var<'t> {
    let mut shape = vec![1; x.rank()];
    shape[axis] = numbers.len();
    x.tracer().constant(dtype, &shape, numbers)
}

/// The sum of what is seen, with weights: of all axes at once where that are few, or else axis by
/// axis. Sums start with the first tap.
pub(crate) fn summed<'t>(x: Var<'t>, axes: &[(usize, &Along)]) -> Var<'t> {
    let all: usize = axes.iter().map(|(_, along)| along.taps.len()).product();
    let is_plain = axes.iter().all(|(_, along)| along.taps.iter().all(|tap| tap.weights.is_none()));
    // Gathers by two positions at once are none that a load can make.
    let is_even = axes.iter().all(|(_, along)| along.step().is_some());
    if axes.len() > 1 && (all > FEW || !is_plain || !is_even) {
        // What is made of whole rows first, where that leaves fewer of them; else the shortest rows
        // first.
        return match axes {
            [first, rest @ ..] if first.1.to < first.1.from => summed(summed(x, &[*first]), rest),
            [rest @ .., last] => summed(summed(x, &[*last]), rest),
            [] => x,
        };
    }
    if let [(axis, along)] = axes
        && along.taps.len() > if is_even { MANY } else { FEW }
    {
        return in_rows(x, *axis, along);
    }
    let seen = Seen::new(x, axes, 0.0);
    let part = |choice: Vec<usize>| {
        let y = seen.through(&choice);
        axes.iter().zip(&choice).fold(y, |y, ((axis, along), tap)| {
            match &along.taps[*tap].weights {
                Some(weights) => {
                    let scale = beside(y, *axis, y.dtype(), weights).expand_to(&y.shape());
                    y.mul(scale)
                }
                None => y,
            }
        })
    };
    let sum = seen.choices().into_iter().map(part).reduce(|sum, part| sum.add(part));
    sum.unwrap_or_else(|| nothing(x, axes))
}

/// The same along one axis of which positions see many: what each of them sees is a row that is
/// added up, so that the program does not grow with it.
fn in_rows<'t>(x: Var<'t>, axis: usize, along: &Along) -> Var<'t> {
    let (rank, last) = (x.rank(), x.rank() - 1);
    let within = |at: i64| (0..along.from).contains(&at);
    let (mut places, mut weights) = (Vec::new(), Vec::new());
    for to in 0..along.to as usize {
        // What is not there is an element that is seen anyway, without weight.
        let other = along.taps.iter().map(|tap| tap.at[to]).find(|at| within(*at)).unwrap_or(0);
        for tap in &along.taps {
            let weight = tap.weights.as_ref().map_or(1.0, |weights| weights[to]);
            let is_there = within(tap.at[to]);
            places.push(if is_there { tap.at[to] as f64 } else { other as f64 });
            weights.push(if is_there { weight } else { 0.0 });
        }
    }
    let order: Vec<i64> =
        (0..rank).filter(|i| *i != axis).chain([axis]).map(|i| i as i64).collect();
    let x = x.permute(&order);
    let lead = x.shape()[..last].to_vec();
    let count = along.taps.len() as i64;
    let all: Shape = lead.iter().copied().chain([Size::from(along.to * count)]).collect();
    let place = beside(x, last, DType::I64, &places).expand_to(&all);
    let seen: Shape = lead.iter().copied().chain([along.to, count].map(Size::from)).collect();
    let weights = beside(x, last, x.dtype(), &weights).expand_to(&all).reshape_to(&seen);
    let y = x.gather(place, last as i64).reshape_to(&seen).mul(weights).sum([-1]);
    let mut back: Vec<i64> = (0..last as i64).collect();
    back.insert(axis, last as i64);
    y.permute(&back)
}

/// The most positions of a window that are taken at once.
pub(crate) const FEW: usize = 32;

/// The most positions with one stride along an axis that are taken one after the other.
const MANY: usize = 128;

/// Zeros in the place of what sees nothing.
pub(crate) fn nothing<'t>(x: Var<'t>, axes: &[(usize, &Along)]) -> Var<'t> {
    let mut shape = x.shape().to_vec();
    axes.iter().for_each(|(axis, along)| shape[*axis] = Size::from(along.to));
    x.tracer().full(crate::TensorType { dtype: x.dtype(), shape: Shape::new(&shape) }, 0.0)
}
