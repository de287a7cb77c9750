//! Rows of scores on their way to weights, as `tracecast_ir::kernel::attention` defines them: the same bits in vectors of any width.

pub(crate) mod double;

use crate::machine::InstructionSet;
use std::ops::Add;
use tracecast_ir::kernel::attention::LANES;
use tracecast_ir::kernel::math::{Lane, exp};

/// How products of a query and keys become scores.
#[derive(Clone, Copy)]
pub(crate) struct Scoring<'a, N = f32> {
    /// What they are multiplied by.
    pub(crate) scale: N,
    /// What is added to them; minus infinity takes a key out.
    pub(crate) mask: Option<&'a [N]>,
    /// So many of them are seen.
    pub(crate) seen: usize,
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
pub(crate) struct Slopes<'a, N = f32> {
    /// The logarithm of the sum of weights.
    pub(crate) log: N,
    /// What is taken from the gradients of weights.
    pub(crate) less: N,
    /// What dropout multiplies weights by.
    pub(crate) kept: Option<&'a [N]>,
}

/// A row of products becomes weights. Rows and masks are whole lanes.
pub(crate) fn weigh(
    instructions: InstructionSet,
    row: &mut [f32],
    scoring: &Scoring<'_>,
    largest: f32,
) -> Weighed {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => {
            // SAFETY: `InstructionSet::of` gives this for a CPU that has it.
            unsafe { x86::weigh_512(row, scoring, largest) }
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => {
            // SAFETY: as above.
            unsafe { x86::weigh_256(row, scoring, largest) }
        }
        _ => weighed::<f32, LANES>(row, scoring, largest),
    }
}

/// A row of products, and one of gradients of weights, become weights and gradients of scores. Rows, masks and what is kept are whole lanes.
pub(crate) fn differentiate(
    instructions: InstructionSet,
    row: &mut [f32],
    inner: &mut [f32],
    scoring: &Scoring<'_>,
    slopes: &Slopes<'_>,
) {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => {
            // SAFETY: `InstructionSet::of` gives this for a CPU that has it.
            unsafe { x86::differentiate_512(row, inner, scoring, slopes) }
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => {
            // SAFETY: as above.
            unsafe { x86::differentiate_256(row, inner, scoring, slopes) }
        }
        _ => differentiated::<f32, LANES>(row, inner, scoring, slopes),
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
fn weighed<V: Vector, const N: usize>(
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
    let peak = numbers(peaks).into_iter().fold(largest, |m, s| if s > m { s } else { m });
    let base = if peak == NEVER { 0.0 } else { peak };
    let mut totals = [V::splat(0.0); N];
    for chunk in row.chunks_exact_mut(LANES) {
        for (j, total) in totals.iter_mut().enumerate() {
            let at = &mut chunk[j * V::WIDTH..];
            let weights = exp(V::load(at).sub(V::splat(base)));
            weights.store(at);
            *total = total.add(weights);
        }
    }
    let total = folded(numbers(totals));
    Weighed { largest: peak, again: exp(largest - base), total }
}

/// The sum of lanes, folded in halves.
#[inline(always)]
fn folded<N: Copy + Add<Output = N>>(mut lanes: [N; LANES]) -> N {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = lanes[i] + lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn differentiated<V: Vector, const N: usize>(
    row: &mut [f32],
    inner: &mut [f32],
    scoring: &Scoring<'_>,
    slopes: &Slopes<'_>,
) {
    let (log, less, zero) = (V::splat(slopes.log), V::splat(slopes.less), V::splat(0.0));
    let chunks = row.chunks_exact_mut(LANES).zip(inner.chunks_exact_mut(LANES));
    for (i, (chunk, inner)) in chunks.enumerate() {
        for j in 0..N {
            let (at, lane) = (i * LANES, j * V::WIDTH);
            let scores = scoring.scores(V::load(&chunk[lane..]), at, lane);
            let mut weights = exp(scores.sub(log));
            let mut slope = V::load(&inner[lane..]);
            let kept = slopes.kept.map(|kept| V::load(&kept[at + lane..]));
            if let Some(kept) = kept {
                slope = slope.mul(kept);
            }
            let along = weights.mul(slope.sub(less));
            V::select(weights.eq(zero), zero, along).store(&mut inner[lane..]);
            if let Some(kept) = kept {
                weights = weights.mul(kept);
            }
            weights.store(&mut chunk[lane..]);
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
    use super::{LANES, Scoring, Slopes, Vector, Weighed, differentiated, weighed};
    use crate::routines::{avx2, avx512};
    use core::arch::x86_64::{
        _mm256_loadu_ps, _mm256_storeu_ps, _mm512_loadu_ps, _mm512_storeu_ps,
    };

    macro_rules! vector {
        ($ty:path, $width:literal, $load:ident, $store:ident) => {
            impl Vector for $ty {
                const WIDTH: usize = $width;
                #[inline(always)]
                fn load(from: &[f32]) -> Self {
                    let from = &from[..$width];
                    // SAFETY: so many numbers are there; called only inside routines whose caller has checked the CPU.
                    $ty(unsafe { $load(from.as_ptr()) })
                }
                #[inline(always)]
                fn store(self, to: &mut [f32]) {
                    let to = &mut to[..$width];
                    // SAFETY: as above.
                    unsafe { $store(to.as_mut_ptr(), self.0) }
                }
            }
        };
    }

    use avx2::Wide as Eight;
    use avx512::Wide as Sixteen;
    vector!(Eight, 8, _mm256_loadu_ps, _mm256_storeu_ps);
    vector!(Sixteen, 16, _mm512_loadu_ps, _mm512_storeu_ps);

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn weigh_512(row: &mut [f32], scoring: &Scoring<'_>, largest: f32) -> Weighed {
        weighed::<Sixteen, { LANES / 16 }>(row, scoring, largest)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn weigh_256(row: &mut [f32], scoring: &Scoring<'_>, largest: f32) -> Weighed {
        weighed::<Eight, { LANES / 8 }>(row, scoring, largest)
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn differentiate_512(
        row: &mut [f32],
        inner: &mut [f32],
        scoring: &Scoring<'_>,
        slopes: &Slopes<'_>,
    ) {
        differentiated::<Sixteen, { LANES / 16 }>(row, inner, scoring, slopes);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn differentiate_256(
        row: &mut [f32],
        inner: &mut [f32],
        scoring: &Scoring<'_>,
        slopes: &Slopes<'_>,
    ) {
        differentiated::<Eight, { LANES / 8 }>(row, inner, scoring, slopes);
    }
}
