//! Rows of scores on their way to weights, as `tracecast_ir::kernel::attention` defines them: the
//! same bits in vectors of any width.
//!
//! An exponential is a long chain of steps, so that those of two chunks of a row are computed
//! together ([`Pair`]): one waits while the other goes on.

pub(crate) mod double;
mod pair;
mod rounding;

use crate::machine::InstructionSet;
use pair::Pair;
use rounding::{Exact, Rounding, ToBf16, ToF16};
use std::ops::Add;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::LANES;
use tracecast_ir::kernel::half;
use tracecast_ir::kernel::math::{Lane, exp, exp_of_negative};

/// What rows, masks and what is kept are padded to.
pub(crate) const ROW: usize = 2 * LANES;

/// How products of a query and keys become weights.
#[derive(Clone, Copy)]
pub(crate) struct Scoring<'a, N = f32> {
    /// What they are multiplied by.
    pub(crate) scale: N,
    /// What is added to them; minus infinity takes a key out.
    pub(crate) mask: Option<&'a [N]>,
    /// How many of them are seen.
    pub(crate) seen: usize,
    /// What dropout multiplies weights by, behind their sum.
    pub(crate) kept: Option<&'a [N]>,
    /// The dtype of operands, to which what is multiplied with them is rounded: weights, behind
    /// dropout, and gradients of scores.
    pub(crate) dtype: DType,
}

/// What a block of keys makes of a query.
#[derive(Clone, Copy)]
pub(crate) struct Weighed<N = f32> {
    /// The largest score so far.
    pub(crate) largest: N,
    /// What has been summed so far is multiplied by this.
    pub(crate) again: N,
    /// The sum of the weights of the block.
    pub(crate) total: N,
}

/// What the gradients of a query's weights are made of.
#[derive(Clone, Copy)]
pub(crate) struct Slopes<N = f32> {
    /// The logarithm of the sum of weights.
    pub(crate) log: N,
    /// What is taken from the gradients of weights.
    pub(crate) less: N,
}

/// A row of products becomes weights. Rows, masks and what is kept are multiples of [`ROW`].
pub(crate) fn weigh(
    instructions: InstructionSet,
    row: &mut [f32],
    scoring: &Scoring<'_>,
    largest: f32,
) -> Weighed {
    match scoring.dtype {
        DType::BF16 => weigh_to::<ToBf16>(instructions, row, scoring, largest),
        DType::F16 => weigh_to::<ToF16>(instructions, row, scoring, largest),
        _ => weigh_to::<Exact>(instructions, row, scoring, largest),
    }
}

fn weigh_to<R: Rounding>(
    instructions: InstructionSet,
    row: &mut [f32],
    scoring: &Scoring<'_>,
    largest: f32,
) -> Weighed {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => {
            // SAFETY: `InstructionSet::of` gives this for a CPU that has it.
            unsafe { x86::weigh_512::<R>(row, scoring, largest) }
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => {
            // SAFETY: as above.
            unsafe { x86::weigh_256::<R>(row, scoring, largest) }
        }
        _ => weighed::<f32, R, LANES>(row, scoring, largest),
    }
}

/// A row of products, and one of gradients of weights, become weights and gradients of scores.
/// Rows, masks and what is kept are multiples of [`ROW`].
pub(crate) fn differentiate(
    instructions: InstructionSet,
    row: &mut [f32],
    inner: &mut [f32],
    scoring: &Scoring<'_>,
    slopes: &Slopes,
) {
    match scoring.dtype {
        DType::BF16 => differentiate_to::<ToBf16>(instructions, row, inner, scoring, slopes),
        DType::F16 => differentiate_to::<ToF16>(instructions, row, inner, scoring, slopes),
        _ => differentiate_to::<Exact>(instructions, row, inner, scoring, slopes),
    }
}

fn differentiate_to<R: Rounding>(
    instructions: InstructionSet,
    row: &mut [f32],
    inner: &mut [f32],
    scoring: &Scoring<'_>,
    slopes: &Slopes,
) {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => {
            // SAFETY: `InstructionSet::of` gives this for a CPU that has it.
            unsafe { x86::differentiate_512::<R>(row, inner, scoring, slopes) }
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => {
            // SAFETY: as above.
            unsafe { x86::differentiate_256::<R>(row, inner, scoring, slopes) }
        }
        _ => differentiated::<f32, R, LANES>(row, inner, scoring, slopes),
    }
}

/// Lanes that come from memory and go there.
trait Vector: Lane {
    /// How many they are.
    const WIDTH: usize;
    /// The first numbers of a slice, which has as many.
    fn load(from: &[f32]) -> Self;
    /// To the first numbers of a slice, which has as many.
    fn store(self, to: &mut [f32]);
    /// The nearest f16, as f32.
    fn nearest_f16(self) -> Self;
}

impl Vector for f32 {
    const WIDTH: usize = 1;
    #[inline(always)]
    fn load(from: &[f32]) -> f32 {
        from[0]
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[0] = self;
    }
    #[inline(always)]
    fn nearest_f16(self) -> f32 {
        half::round_to_f16(self)
    }
}

/// The same lanes of two chunks.
#[inline(always)]
fn both<V: Vector>(chunks: &[f32], lane: usize) -> Pair<V> {
    Pair(V::load(&chunks[lane..]), V::load(&chunks[LANES + lane..]))
}

/// To the same lanes of two chunks.
#[inline(always)]
fn put<V: Vector>(Pair(first, second): Pair<V>, chunks: &mut [f32], lane: usize) {
    first.store(&mut chunks[lane..]);
    second.store(&mut chunks[LANES + lane..]);
}

const NEVER: f32 = f32::NEG_INFINITY;

/// The numbers of the lanes.
static NUMBERS: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

impl Scoring<'_, f32> {
    /// The scores of some products, from a position on.
    #[inline(always)]
    fn scores<V: Vector>(&self, products: V, at: usize, lane: usize) -> V {
        let never = V::splat(NEVER);
        let mut scores = products.mul(V::splat(self.scale));
        if let Some(mask) = self.mask {
            let mask = V::load(&mask[at + lane..]);
            scores = V::select(mask.eq(never), never, scores.add(mask));
        }
        if at + LANES > self.seen {
            let position = V::load(&NUMBERS[lane..]).add(V::splat(at as f32));
            scores = V::select(position.lt(V::splat(self.seen as f32)), scores, never);
        }
        scores
    }
}

#[inline(always)]
fn weighed<V: Vector, R: Rounding, const N: usize>(
    row: &mut [f32],
    scoring: &Scoring<'_>,
    largest: f32,
) -> Weighed {
    let mut peaks = [V::splat(NEVER); N];
    for (i, chunk) in row.chunks_exact_mut(LANES).enumerate() {
        for (j, peak) in peaks.iter_mut().enumerate() {
            let lane = j * V::WIDTH;
            let scores = scoring.scores(V::load(&chunk[lane..]), i * LANES, lane);
            scores.store(&mut chunk[lane..]);
            *peak = scores.max(*peak);
        }
    }
    // Of lanes none is NaN, so that the order is of no matter.
    let peak = folded(numbers(peaks), |m, s| if s > m { s } else { m });
    let peak = if peak > largest { peak } else { largest };
    let base = if peak == NEVER { 0.0 } else { peak };
    let mut totals = [V::splat(0.0); N];
    for (i, chunks) in row.chunks_exact_mut(ROW).enumerate() {
        for (j, total) in totals.iter_mut().enumerate() {
            let lane = j * V::WIDTH;
            let mut weights = exp_of_negative(both::<V>(chunks, lane).sub(Pair::splat(base)));
            *total = total.add(weights.0).add(weights.1);
            if let Some(kept) = scoring.kept {
                weights = weights.mul(both(&kept[i * ROW..], lane));
            }
            put(R::of(weights), chunks, lane);
        }
    }
    let total = folded(numbers(totals), Add::add);
    Weighed { largest: peak, again: exp(largest - base), total }
}

/// Lanes folded in halves.
#[inline(always)]
fn folded<N: Copy>(mut lanes: [N; LANES], of: impl Fn(N, N) -> N) -> N {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = of(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn differentiated<V: Vector, R: Rounding, const N: usize>(
    row: &mut [f32],
    inner: &mut [f32],
    scoring: &Scoring<'_>,
    slopes: &Slopes,
) {
    let [log, less, zero, never] = [slopes.log, slopes.less, 0.0, NEVER].map(Pair::<V>::splat);
    let chunks = row.chunks_exact_mut(ROW).zip(inner.chunks_exact_mut(ROW));
    for (i, (chunks, inner)) in chunks.enumerate() {
        for j in 0..N {
            let (at, lane) = (i * ROW, j * V::WIDTH);
            let Pair(first, second) = both::<V>(chunks, lane);
            let first = scoring.scores(first, at, lane);
            let second = scoring.scores(second, at + LANES, lane);
            let scores = Pair(first, second);
            // `log` may be NaN, and then `never - log` is.
            let mut weights = Pair::select(scores.eq(never), zero, exp(scores.sub(log)));
            let mut slope = both(inner, lane);
            let kept = scoring.kept.map(|kept| both(&kept[at..], lane));
            if let Some(kept) = kept {
                slope = slope.mul(kept);
            }
            let along = weights.mul(slope.sub(less));
            put(R::of(Pair::select(weights.eq(zero), zero, along)), inner, lane);
            if let Some(kept) = kept {
                weights = weights.mul(kept);
            }
            put(R::of(weights), chunks, lane);
        }
    }
}

/// The lanes of some vectors.
#[inline(always)]
fn numbers<V: Vector, const N: usize>(vectors: [V; N]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for (vector, to) in vectors.into_iter().zip(lanes.chunks_exact_mut(V::WIDTH)) {
        vector.store(to);
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Pair, Rounding, Scoring, Slopes, Vector, Weighed, differentiated, weighed};
    use crate::routines::{avx2, avx512};
    use core::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
        _mm256_storeu_ps, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_storeu_ps,
    };

    macro_rules! vector {
        ($ty:path, $width:literal, $load:ident, $store:ident, $narrow:ident, $widen:ident) => {
            impl Vector for $ty {
                const WIDTH: usize = $width;
                #[inline(always)]
                fn load(from: &[f32]) -> Self {
                    let from = &from[..$width];
                    // SAFETY: that number of elements is there; called only inside routines whose
                    // caller has checked the CPU.
                    $ty(unsafe { $load(from.as_ptr()) })
                }
                #[inline(always)]
                fn store(self, to: &mut [f32]) {
                    let to = &mut to[..$width];
                    // SAFETY: as above.
                    unsafe { $store(to.as_mut_ptr(), self.0) }
                }
                #[inline(always)]
                fn nearest_f16(self) -> Self {
                    // SAFETY: as above.
                    let narrow = unsafe { $narrow::<{ _MM_FROUND_TO_NEAREST_INT }>(self.0) };
                    // SAFETY: as above.
                    $ty(unsafe { $widen(narrow) })
                }
            }
        };
    }

    use avx2::Wide as Eight;
    use avx512::Wide as Sixteen;
    vector!(Eight, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_cvtps_ph, _mm256_cvtph_ps);
    vector!(Sixteen, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_cvtps_ph, _mm512_cvtph_ps);

    /// A chunk of a row in vectors of AVX2.
    type Chunk = Pair<Eight>;

    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn weigh_512<R: Rounding>(
        row: &mut [f32],
        scoring: &Scoring<'_>,
        largest: f32,
    ) -> Weighed {
        weighed::<Sixteen, R, { LANES / 16 }>(row, scoring, largest)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn weigh_256<R: Rounding>(
        row: &mut [f32],
        scoring: &Scoring<'_>,
        largest: f32,
    ) -> Weighed {
        weighed::<Chunk, R, { LANES / 16 }>(row, scoring, largest)
    }

    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn differentiate_512<R: Rounding>(
        row: &mut [f32],
        inner: &mut [f32],
        scoring: &Scoring<'_>,
        slopes: &Slopes,
    ) {
        differentiated::<Sixteen, R, { LANES / 16 }>(row, inner, scoring, slopes);
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn differentiate_256<R: Rounding>(
        row: &mut [f32],
        inner: &mut [f32],
        scoring: &Scoring<'_>,
        slopes: &Slopes,
    ) {
        differentiated::<Chunk, R, { LANES / 16 }>(row, inner, scoring, slopes);
    }
}
