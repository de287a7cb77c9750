//! The most that a core can do: fused multiply-adds in registers, with nothing to load.

use crate::machine::InstructionSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Independent accumulators: enough to hide the latency of a fused multiply-add.
const CHAINS: usize = 12;

/// Rounds of one measurement.
const ROUNDS: usize = 20_000;

/// Floating-point operations per second of f32 on this thread, the best of several measurements.
pub(crate) fn flops(instructions: InstructionSet) -> f64 {
    let (run, lanes) = kernel(instructions);
    let best = (0..15).map(|_| {
        let start = Instant::now();
        black_box(run(black_box(1.0)));
        start.elapsed().max(Duration::from_nanos(1))
    });
    let best = best.min().unwrap_or(Duration::MAX);
    (2 * CHAINS * ROUNDS * lanes) as f64 / best.as_secs_f64()
}

type Run = fn(f32) -> f32;

fn kernel(instructions: InstructionSet) -> (Run, usize) {
    match instructions {
        InstructionSet::Portable => (plain_sums, 4),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => (|x| wide_sums(x), 8),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => (|x| vast_sums(x), 16),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => (plain_sums, 4),
    }
}

#[cfg(target_arch = "x86_64")]
fn wide_sums(x: f32) -> f32 {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_cvtss_f32, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps,
    };

    #[target_feature(enable = "avx2,fma")]
    fn sums(x: f32) -> f32 {
        let factor = _mm256_set1_ps(x);
        let mut chains = [_mm256_setzero_ps(); CHAINS];
        for _ in 0..ROUNDS {
            for chain in &mut chains {
                *chain = _mm256_fmadd_ps(*chain, factor, factor);
            }
        }
        let sum = chains.into_iter().fold(_mm256_setzero_ps(), |a, b| _mm256_add_ps(a, b));
        _mm256_cvtss_f32(sum)
    }

    // SAFETY: `InstructionSet::of` found AVX2 and FMA.
    unsafe { sums(x) }
}

#[cfg(target_arch = "x86_64")]
fn vast_sums(x: f32) -> f32 {
    use std::arch::x86_64::{
        _mm512_add_ps, _mm512_cvtss_f32, _mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps,
    };

    #[target_feature(enable = "avx512f")]
    fn sums(x: f32) -> f32 {
        let factor = _mm512_set1_ps(x);
        let mut chains = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..ROUNDS {
            for chain in &mut chains {
                *chain = _mm512_fmadd_ps(*chain, factor, factor);
            }
        }
        let sum = chains.into_iter().fold(_mm512_setzero_ps(), |a, b| _mm512_add_ps(a, b));
        _mm512_cvtss_f32(sum)
    }

    // SAFETY: `InstructionSet::of` found AVX-512F.
    unsafe { sums(x) }
}

/// Multiplications and additions of four numbers at a time.
fn plain_sums(x: f32) -> f32 {
    let mut chains = [[0f32; 4]; CHAINS];
    for _ in 0..ROUNDS {
        for lane in chains.as_flattened_mut() {
            *lane = *lane * x + x;
        }
    }
    chains.as_flattened().iter().sum()
}
