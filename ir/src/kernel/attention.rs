//! What attention computes, and in which order: [`Attend`], run here on one number after another.
//!
//! Scores are one chain of fused multiply-adds over the width, times the scale, plus the mask. Keys
//! come in blocks of [`KEYS`]: the largest score so far is brought up to date, what has been summed
//! is multiplied by what that makes of it, weights `e^(score - largest)` are summed in [`LANES`]
//! lanes that are folded in halves, and values are added to the sums in the order of keys. A weight
//! of zero takes no part, so that nothing behind a mask is read into a result, a NaN included. In
//! the end sums are divided by the sum of weights; of a query that sees no key the result is zero.
//! Gradients are chains in the order of keys, or of heads and queries, without blocks.
//!
//! Everything is computed in f32, in f64 for f64. Of 16-bit operands the weights, behind dropout,
//! and the gradients of scores are rounded to their dtype where they are multiplied with values,
//! queries and keys, as in PyTorch's kernels; sums of weights are those of unrounded ones, and each
//! result is rounded once.

use super::interpret::scalar::{Bits, read, write};
use super::{Scalar, math, narrow, philox};
use crate::{DType, Size};

/// Keys of a block.
pub const KEYS: usize = 256;

/// Lanes in which the weights of a block are summed.
pub const LANES: usize = 16;

/// What sizes may be padded by.
const PADDING: usize = 64;

/// Which results there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The means of values and the logarithms of the sums of weights.
    Forward,
    /// The gradients of queries, keys and values.
    Backward,
}

/// The sizes of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extents<C = Size> {
    /// Of the batch.
    pub batch: C,
    /// Heads of queries.
    pub heads: C,
    /// Heads of keys and values: each serves as many heads of queries, one after another.
    pub shared: C,
    /// Queries of a head.
    pub queries: C,
    /// Keys of a head.
    pub keys: C,
    /// Numbers of a query and of a key.
    pub width: C,
    /// Numbers of a value.
    pub value: C,
}

/// Where the elements of an operand lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed<C = Size> {
    /// The number of the input.
    pub input: usize,
    /// The first element.
    pub offset: C,
    /// From one position to the next along each of up to four axes.
    pub strides: [C; 4],
}

/// Weights that are dropped at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drop<C = Size> {
    /// The bits of the probability, an f64.
    pub p: u64,
    /// Tells the draws of a program apart.
    pub stream: u32,
    /// Key and step, and for a part of a larger batch the first element and how far apart elements
    /// lie along each axis.
    pub rng: Placed<C>,
    /// True for a part of a larger batch.
    pub part: bool,
}

/// Attention of a batch of heads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attend<C = Size> {
    /// Which results there are.
    pub pass: Pass,
    /// The sizes.
    pub extents: Extents<C>,
    /// Queries, keys and values.
    pub operands: [Placed<C>; 3],
    /// What is added to the scores, or truth values of what is seen.
    pub mask: Option<Placed<C>>,
    /// Dropout.
    pub drop: Option<Drop<C>>,
    /// Backward: the gradient of the result, over batch, queries and heads; the logarithms of the
    /// sums of weights; and what is taken from the gradients of weights, both over batch, heads and
    /// queries.
    pub given: Option<[Placed<C>; 3]>,
    /// Each query sees the keys up to its own position.
    pub causal: bool,
    /// The bits of what scores are multiplied by, an f64.
    pub scale: u64,
}

impl<C: Copy> Placed<C> {
    fn at<D, E>(&self, size: &mut dyn FnMut(C) -> Result<D, E>) -> Result<Placed<D>, E> {
        let [a, b, c, d] = self.strides;
        let offset = size(self.offset)?;
        Ok(Placed { input: self.input, offset, strides: [size(a)?, size(b)?, size(c)?, size(d)?] })
    }

    fn each(&mut self, each: &mut dyn FnMut(&mut C)) {
        each(&mut self.offset);
        self.strides.iter_mut().for_each(each);
    }
}

impl<C: Copy> Attend<C> {
    /// With other sizes.
    ///
    /// # Errors
    /// Those of `size`.
    pub fn at<D, E>(&self, size: &mut dyn FnMut(C) -> Result<D, E>) -> Result<Attend<D>, E> {
        let Extents { batch, heads, shared, queries, keys, width, value } = self.extents;
        let extents = Extents {
            batch: size(batch)?,
            heads: size(heads)?,
            shared: size(shared)?,
            queries: size(queries)?,
            keys: size(keys)?,
            width: size(width)?,
            value: size(value)?,
        };
        let [q, k, v] = &self.operands;
        let operands = [q.at(size)?, k.at(size)?, v.at(size)?];
        let mask = self.mask.as_ref().map(|mask| mask.at(size)).transpose()?;
        let drop = match &self.drop {
            Some(drop) => {
                let Drop { p, stream, part, .. } = *drop;
                Some(Drop { p, stream, part, rng: drop.rng.at(size)? })
            }
            None => None,
        };
        let given = match &self.given {
            Some([dy, lse, d]) => Some([dy.at(size)?, lse.at(size)?, d.at(size)?]),
            None => None,
        };
        let (pass, causal, scale) = (self.pass, self.causal, self.scale);
        Ok(Attend { pass, extents, operands, mask, drop, given, causal, scale })
    }

    /// Gives `each` all sizes.
    pub(crate) fn each_size(&mut self, each: &mut dyn FnMut(&mut C)) {
        let Extents { batch, heads, shared, queries, keys, width, value } = &mut self.extents;
        [batch, heads, shared, queries, keys, width, value].into_iter().for_each(&mut *each);
        let drop = self.drop.iter_mut().map(|drop| &mut drop.rng);
        let given = self.given.iter_mut().flatten();
        let all = self.operands.iter_mut().chain(&mut self.mask).chain(drop).chain(given);
        all.for_each(|placed| placed.each(each));
    }

    /// What scores are multiplied by.
    pub fn scale(&self) -> f64 {
        f64::from_bits(self.scale)
    }
}

/// The numbers that attention is computed in.
trait Real: Copy + PartialEq + PartialOrd {
    const SCALAR: Scalar;
    fn of(x: f64) -> Self;
    fn from_bits(bits: Bits, scalar: Scalar) -> Self;
    fn bits(self) -> Bits;
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn over(self, o: Self) -> Self;
    fn fma(self, b: Self, c: Self) -> Self;
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn rounded(self, to: DType) -> Self;
}

impl Real for f32 {
    const SCALAR: Scalar = Scalar::F32;
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn from_bits(bits: Bits, scalar: Scalar) -> f32 {
        match scalar {
            Scalar::F64 => f64::from_bits(bits) as f32,
            _ => f32::from_bits(bits as u32),
        }
    }
    fn bits(self) -> Bits {
        Bits::from(self.to_bits())
    }
    fn add(self, o: f32) -> f32 {
        self + o
    }
    fn sub(self, o: f32) -> f32 {
        self - o
    }
    fn mul(self, o: f32) -> f32 {
        self * o
    }
    fn over(self, o: f32) -> f32 {
        self / o
    }
    fn fma(self, b: f32, c: f32) -> f32 {
        math::fma(self, b, c)
    }
    fn exp(self) -> f32 {
        math::exp(self)
    }
    fn log(self) -> f32 {
        math::log(self)
    }
    fn rounded(self, to: DType) -> f32 {
        if to.is_low() { narrow::round(to, self) } else { self }
    }
}

impl Real for f64 {
    const SCALAR: Scalar = Scalar::F64;
    fn of(x: f64) -> f64 {
        x
    }
    fn from_bits(bits: Bits, scalar: Scalar) -> f64 {
        match scalar {
            Scalar::F64 => f64::from_bits(bits),
            _ => f64::from(f32::from_bits(bits as u32)),
        }
    }
    fn bits(self) -> Bits {
        self.to_bits()
    }
    fn add(self, o: f64) -> f64 {
        self + o
    }
    fn sub(self, o: f64) -> f64 {
        self - o
    }
    fn mul(self, o: f64) -> f64 {
        self * o
    }
    fn over(self, o: f64) -> f64 {
        self / o
    }
    fn fma(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn exp(self) -> f64 {
        math::exp_f64(self)
    }
    fn log(self) -> f64 {
        math::log_f64(self)
    }
    fn rounded(self, _: DType) -> f64 {
        self
    }
}

/// A query among all: batch, head, the head of its keys, position.
#[derive(Clone, Copy)]
struct Query {
    batch: usize,
    head: usize,
    shared: usize,
    at: usize,
}

/// The operands of a run.
struct Run<'a> {
    attend: &'a Attend<i64>,
    inputs: &'a [(&'a [u8], DType)],
    extents: Extents<usize>,
    /// Of queries, keys and values.
    dtype: DType,
    /// Probability, stream, and what draws are made of.
    drop: Option<(f32, u32, Seeds)>,
}

/// What draws are made of: key, step, the number of the first element, and how far apart elements
/// lie along each axis.
pub type Seeds = [i64; 7];

/// The seeds of an operand.
///
/// # Errors
/// If it is not there.
fn seeds(
    drop: &Drop<i64>,
    extents: &Extents<usize>,
    inputs: &[(&[u8], DType)],
) -> Result<Seeds, String> {
    let Extents { heads, queries, keys, .. } = *extents;
    let row = (queries * keys) as i64;
    let mut seeds = [0, 0, 0, heads as i64 * row, row, keys as i64, 1];
    let given = if drop.part { 7 } else { 2 };
    for (i, seed) in seeds.iter_mut().enumerate().take(given) {
        let (bytes, dtype) = inputs.get(drop.rng.input).ok_or("an operand is missing")?;
        let index = drop.rng.offset + i as i64 * drop.rng.strides[0];
        *seed = read(bytes, *dtype, index).ok_or("seeds are missing")? as i64;
    }
    Ok(seeds)
}

/// Whether the weight of a query and a key is kept: `at` is batch, head, query and key.
pub fn is_kept(seeds: &Seeds, stream: u32, p: f32, at: [usize; 4]) -> bool {
    let [key, step, first, strides @ ..] = seeds;
    let far = |(at, stride): (usize, &i64)| (at as i64).wrapping_mul(*stride);
    let element = at.into_iter().zip(strides).map(far).fold(*first, i64::wrapping_add);
    philox::uniform_f32(philox::random_bits(*key, *step, stream, element as u64)) >= p
}

impl Attend<i64> {
    /// The sizes as counts, of which products fit into an index with room for padding.
    ///
    /// # Errors
    /// If one is negative, heads of keys do not divide those of queries, or there is too much to
    /// do.
    pub fn counts(&self) -> Result<Extents<usize>, String> {
        let count = |n: i64| usize::try_from(n).map_err(|_| format!("a size is {n}"));
        let Extents { batch, heads, shared, queries, keys, width, value } = self.extents;
        let counts = Extents {
            batch: count(batch)?,
            heads: count(heads)?,
            shared: count(shared)?,
            queries: count(queries)?,
            keys: count(keys)?,
            width: count(width)?,
            value: count(value)?,
        };
        let whole = counts.heads.checked_rem(counts.shared).unwrap_or(counts.heads) == 0;
        if !whole {
            return Err(format!("{shared} heads of keys do not divide {heads} of queries"));
        }
        let padded = |n: usize| n.checked_add(PADDING)?.checked_next_multiple_of(PADDING);
        let inner = padded(counts.width).zip(padded(counts.value)).map(|(a, b)| a.max(b));
        let rows = padded(counts.queries).zip(padded(counts.keys));
        let all = rows.zip(inner).and_then(|((queries, keys), inner)| {
            let inside = queries.checked_mul(keys)?.checked_mul(inner)?;
            let heads = counts.batch.max(1).checked_mul(counts.heads.max(1))?;
            inside.checked_mul(heads)?.checked_mul(PADDING)
        });
        match all.filter(|all| i64::try_from(*all).is_ok()) {
            Some(_) => Ok(counts),
            None => Err(format!(
                "attention of {batch} times {heads} heads, {queries} queries, {keys} keys and widths of {width} and {value} is too large"
            )),
        }
    }

    /// Key and step of the generator, and where draws of elements lie; nothing without dropout.
    ///
    /// # Errors
    /// If an operand is not there.
    pub fn seeds(&self, inputs: &[(&[u8], DType)]) -> Result<Option<Seeds>, String> {
        let extents = self.counts()?;
        self.drop.map(|drop| seeds(&drop, &extents, inputs)).transpose()
    }

    /// Computes all results.
    ///
    /// # Errors
    /// If operands or results are not what the sizes say.
    pub fn run(
        &self,
        inputs: &[(&[u8], DType)],
        outputs: &mut [(&mut [u8], DType)],
    ) -> Result<(), String> {
        let extents = self.counts()?;
        let seeds = self.seeds(inputs)?;
        let drop = self.drop.zip(seeds);
        let drop = drop.map(|(drop, seeds)| (f64::from_bits(drop.p) as f32, drop.stream, seeds));
        let (_, dtype) = *inputs.get(self.operands[0].input).ok_or("an operand is missing")?;
        let run = Run { attend: self, inputs, extents, dtype, drop };
        match (self.pass, dtype == DType::F64) {
            (Pass::Forward, false) => run.forward::<f32>(outputs),
            (Pass::Forward, true) => run.forward::<f64>(outputs),
            (Pass::Backward, false) => run.backward::<f32>(outputs),
            (Pass::Backward, true) => run.backward::<f64>(outputs),
        }
    }
}

impl Run<'_> {
    fn element<R: Real>(&self, of: &Placed<i64>, at: [usize; 4]) -> Result<R, String> {
        let (bytes, dtype) = self.inputs.get(of.input).ok_or("an operand is missing")?;
        let far = at.iter().zip(&of.strides).map(|(at, stride)| *at as i64 * stride);
        let index = of.offset + far.sum::<i64>();
        let scalar = if *dtype == DType::F64 { Scalar::F64 } else { Scalar::F32 };
        match read(bytes, *dtype, index) {
            Some(seen) if *dtype == DType::Bool => {
                Ok(R::of(if seen == 0 { f64::NEG_INFINITY } else { 0.0 }))
            }
            Some(bits) => Ok(R::from_bits(bits, scalar)),
            None => Err("an operand is too small".to_owned()),
        }
    }

    /// Numbers of an operand along its last axis.
    fn row<R: Real>(
        &self,
        of: &Placed<i64>,
        at: [usize; 3],
        count: usize,
    ) -> Result<Vec<R>, String> {
        let [a, b, c] = at;
        (0..count).map(|i| self.element(of, [a, b, c, i])).collect()
    }

    fn each_query(&self, mut each: impl FnMut(Query) -> Result<(), String>) -> Result<(), String> {
        let Extents { batch, heads, shared, queries, .. } = self.extents;
        let group = heads.checked_div(shared).unwrap_or(1).max(1);
        for batch in 0..batch {
            for head in 0..heads {
                for at in 0..queries {
                    each(Query { batch, head, shared: head / group, at })?;
                }
            }
        }
        Ok(())
    }

    fn seen(&self, query: Query) -> usize {
        let keys = self.extents.keys;
        if self.attend.causal { keys.min(query.at + 1) } else { keys }
    }

    /// The score of a key.
    fn score<R: Real>(&self, query: Query, q: &[R], key: usize) -> Result<R, String> {
        let Query { batch, head, shared, at } = query;
        let k = self.row::<R>(&self.attend.operands[1], [batch, shared, key], q.len())?;
        let score = dot(q, &k).mul(R::of(self.attend.scale()));
        let Some(mask) = &self.attend.mask else { return Ok(score) };
        let mask: R = self.element(mask, [batch, head, at, key])?;
        let never = R::of(f64::NEG_INFINITY);
        Ok(if mask == never { never } else { score.add(mask) })
    }

    /// What dropout multiplies a weight by.
    fn kept<R: Real>(&self, query: Query, key: usize) -> Option<R> {
        let (p, stream, seeds) = self.drop.as_ref()?;
        let Query { batch, head, at, .. } = query;
        let kept = is_kept(seeds, *stream, *p, [batch, head, at, key]);
        Some(if kept { R::of(kept_scale(f64::from_bits(self.attend.drop?.p))) } else { R::of(0.0) })
    }

    fn forward<R: Real>(&self, outputs: &mut [(&mut [u8], DType)]) -> Result<(), String> {
        let [y, lse] = outputs else { return Err("forward has two results".to_owned()) };
        let Extents { heads, queries, width, value, .. } = self.extents;
        let (zero, never) = (R::of(0.0), R::of(f64::NEG_INFINITY));
        self.each_query(|query| {
            let Query { batch, head, shared, at } = query;
            let q = self.row::<R>(&self.attend.operands[0], [batch, head, at], width)?;
            let (mut largest, mut sum, mut acc) = (never, zero, vec![zero; value]);
            let seen = self.seen(query);
            for first in (0..seen).step_by(KEYS) {
                let keys = first..seen.min(first + KEYS);
                let scores: Vec<R> =
                    keys.clone().map(|key| self.score(query, &q, key)).collect::<Result<_, _>>()?;
                let peak = scores.iter().fold(largest, |m, s| if *s > m { *s } else { m });
                let base = if peak == never { zero } else { peak };
                let again = largest.sub(base).exp();
                largest = peak;
                let weights: Vec<R> = scores.iter().map(|s| s.sub(base).exp()).collect();
                sum = sum.fma(again, folded(&weights));
                acc.iter_mut().for_each(|acc| *acc = acc.mul(again));
                for (key, weight) in keys.zip(weights) {
                    let weight = self.kept(query, key).map_or(weight, |kept| weight.mul(kept));
                    let weight = weight.rounded(self.dtype);
                    if weight != zero {
                        let v =
                            self.row::<R>(&self.attend.operands[2], [batch, shared, key], value)?;
                        acc.iter_mut().zip(v).for_each(|(acc, v)| *acc = weight.fma(v, *acc));
                    }
                }
            }
            let part = if sum == zero { zero } else { R::of(1.0).over(sum) };
            for (i, acc) in acc.iter().enumerate() {
                let place = ((batch * queries + at) * heads + head) * value + i;
                put(y, place, acc.mul(part).add(zero))?;
            }
            let log = if sum == zero { never } else { largest.add(sum.log()) };
            put(lse, (batch * heads + head) * queries + at, log)
        })
    }

    fn backward<R: Real>(&self, outputs: &mut [(&mut [u8], DType)]) -> Result<(), String> {
        let [dq, dk, dv] = outputs else { return Err("backward has three results".to_owned()) };
        let Some([dy, lse, less]) = &self.attend.given else {
            return Err("backward is given a gradient".to_owned());
        };
        let Extents { batch, heads, shared: kinds, queries, keys, width, value } = self.extents;
        let (zero, never) = (R::of(0.0), R::of(f64::NEG_INFINITY));
        let scale = R::of(self.attend.scale());
        let mut keys_sum = vec![zero; batch * keys * kinds * width];
        let mut values_sum = vec![zero; batch * keys * kinds * value];
        self.each_query(|query| {
            let Query { batch, head, shared, at } = query;
            let [of_q, of_k, of_v] = &self.attend.operands;
            let q = self.row::<R>(of_q, [batch, head, at], width)?;
            let gradient = self.row::<R>(dy, [batch, at, head], value)?;
            let log: R = self.element(lse, [batch, head, at, 0])?;
            let log = if log == never { zero } else { log };
            let less: R = self.element(less, [batch, head, at, 0])?;
            let mut sum = vec![zero; width];
            for key in 0..self.seen(query) {
                let score = self.score(query, &q, key)?;
                // The logarithm is NaN where a score is, which what is masked takes no part in.
                let weight = if score == never { zero } else { score.sub(log).exp() };
                let kept = self.kept::<R>(query, key);
                let v = self.row::<R>(of_v, [batch, shared, key], value)?;
                let inner = dot(&gradient, &v);
                let inner = kept.map_or(inner, |kept| inner.mul(kept));
                let along = if weight == zero { zero } else { weight.mul(inner.sub(less)) };
                let along = along.rounded(self.dtype);
                let weight = kept.map_or(weight, |kept| weight.mul(kept)).rounded(self.dtype);
                let row = (batch * keys + key) * kinds + shared;
                if weight != zero {
                    let to = &mut values_sum[row * value..][..value];
                    to.iter_mut().zip(&gradient).for_each(|(to, g)| *to = weight.fma(*g, *to));
                }
                if along != zero {
                    let k = self.row::<R>(of_k, [batch, shared, key], width)?;
                    sum.iter_mut().zip(&k).for_each(|(sum, k)| *sum = along.fma(*k, *sum));
                    let to = &mut keys_sum[row * width..][..width];
                    to.iter_mut().zip(&q).for_each(|(to, q)| *to = along.fma(*q, *to));
                }
            }
            for (i, sum) in sum.iter().enumerate() {
                let place = ((batch * queries + at) * heads + head) * width + i;
                put(dq, place, sum.mul(scale).add(zero))?;
            }
            Ok(())
        })?;
        for (i, sum) in keys_sum.iter().enumerate() {
            put(dk, i, sum.mul(scale).add(zero))?;
        }
        values_sum.iter().enumerate().try_for_each(|(i, sum)| put(dv, i, sum.add(zero)))
    }
}

/// What weights that are kept are multiplied by, for the probability that they are dropped.
pub fn kept_scale(p: f64) -> f64 {
    if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) }
}

/// A chain of fused multiply-adds from zero.
fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    a.iter().zip(b).fold(R::of(0.0), |sum, (a, b)| a.fma(*b, sum))
}

/// The sum of the weights of a block.
fn folded<R: Real>(weights: &[R]) -> R {
    let mut lanes = [R::of(0.0); LANES];
    for (i, weight) in weights.iter().enumerate() {
        lanes[i % LANES] = lanes[i % LANES].add(*weight);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = lanes[i].add(lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Writes a number, rounded to the dtype of the result.
fn put<R: Real>(to: &mut (&mut [u8], DType), index: usize, number: R) -> Result<(), String> {
    let (bytes, dtype) = to;
    write(bytes, *dtype, index as i64, R::SCALAR, number.bits())
        .ok_or_else(|| "a result is too small".to_owned())
}
