//! AVX-512 loads and stores of depthwise convolutions, 3 × 3 or 5 × 5.

use super::super::super::pack::vectors::first;
use super::super::SHORT;
use super::super::avx512::Avx512F32;
use super::super::cell::{Bf16, Same, Sight, There};
use super::super::vector::{Vector, unrolled};
use super::{Planes, Row, Rows, Sums};
use crate::routines::to_bf16;
use core::arch::x86_64::{self as x86, __m512 as V};
use std::marker::PhantomData;
use tracecast_ir::DType;

/// Vectors of one channel each, or of `TWO` in a half each.
struct Vectors<C, const TWO: bool>(PhantomData<C>);

impl<C: Sight<V>, const K: usize, const S: usize, const N: usize, const TWO: bool>
    Row<Avx512F32, K, S, N> for Vectors<C, TWO>
{
    const BYTES: usize = C::BYTES;
    const PLANES: usize = if TWO { 2 * N } else { N };
    const IS_MASKED: bool = true;

    #[inline(always)]
    unsafe fn load(rows: &Rows, there: &[There; K]) -> [[V; N]; K] {
        let there = match TWO {
            true => there.map(|there| There { mask: there.mask * (1 | 1 << (8 * S)), ..there }),
            false => *there,
        };
        let mut seen = [[V::splat(0.0); N]; K];
        unrolled!(v of 0 1 => {
            if v < N {
                let from = match TWO {
                    true => [rows[2 * v], rows[2 * v + 1]],
                    false => [rows[v], rows[v].wrapping_add(16 * C::BYTES)],
                };
                // SAFETY: the caller's contract.
                let taps = unsafe { C::taps::<K, S, TWO>(from, &there) };
                for (seen, tap) in seen.iter_mut().zip(taps) {
                    seen[v] = tap;
                }
            }
        });
        seen
    }

    #[inline(always)]
    unsafe fn store(to: &Sums, count: usize, sums: [V; N], rounds: bool) {
        let mask = first(count) as u16;
        for (v, sums) in sums.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { put(to[if TWO { 2 * v } else { v }], mask, sums, rounds) };
            if TWO {
                let half = 8 * if rounds { DType::BF16.bytes() } else { size_of::<f32>() };
                // SAFETY: the caller's contract.
                unsafe { put(to[2 * v + 1].wrapping_sub(half), mask << 8, sums, rounds) };
            }
        }
    }
}

/// Stores the sums of the mask, rounded to bf16 or as f32.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL, and `to` be writable for the sums of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn put(to: *mut u8, mask: u16, sums: V, rounds: bool) {
    if rounds {
        let rounded = to_bf16(sums);
        // SAFETY: the caller's contract.
        unsafe { x86::_mm256_mask_storeu_epi16(to.cast(), mask, rounded) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { x86::_mm512_mask_storeu_ps(to.cast(), mask, sums) }
    }
}

/// Computes all lines, `taps` 3 or 5, `step` 1 or 2, of an input of f32 or bf16.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. What is in bounds must be readable, and sums writable.
pub(in crate::contract) unsafe fn sum(planes: &Planes<'_>, windows: [usize; 2], is_bf16: bool) {
    let of = if is_bf16 { of::<Bf16> } else { of::<Same> };
    // SAFETY: the caller's contract.
    unsafe { of(planes, windows) }
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. What is in bounds must be readable, and sums writable.
unsafe fn of<C: Sight<V>>(planes: &Planes<'_>, [taps, step]: [usize; 2]) {
    let two = planes.counts[1] <= SHORT;
    let vectors = if two { planes.count.div_ceil(2) } else { planes.count };
    let sum = match (taps, step, two, vectors) {
        (3, 1, false, 1) => super::sum::<Avx512F32, Vectors<C, false>, 3, 1, 1>,
        (3, 1, false, 2) => super::sum::<Avx512F32, Vectors<C, false>, 3, 1, 2>,
        (3, 2, false, 1) => super::sum::<Avx512F32, Vectors<C, false>, 3, 2, 1>,
        (3, 2, false, 2) => super::sum::<Avx512F32, Vectors<C, false>, 3, 2, 2>,
        (3, 2, true, 1) => super::sum::<Avx512F32, Vectors<C, true>, 3, 2, 1>,
        (3, 2, true, 2) => super::sum::<Avx512F32, Vectors<C, true>, 3, 2, 2>,
        (5, 1, false, 1) => super::sum::<Avx512F32, Vectors<C, false>, 5, 1, 1>,
        (5, 1, false, 2) => super::sum::<Avx512F32, Vectors<C, false>, 5, 1, 2>,
        (5, 2, false, 1) => super::sum::<Avx512F32, Vectors<C, false>, 5, 2, 1>,
        (5, 2, false, 2) => super::sum::<Avx512F32, Vectors<C, false>, 5, 2, 2>,
        (5, 2, true, 1) => super::sum::<Avx512F32, Vectors<C, true>, 5, 2, 1>,
        (5, 2, true, 2) => super::sum::<Avx512F32, Vectors<C, true>, 5, 2, 2>,
        _ => unreachable!("no {taps} positions {step} apart of {} planes", planes.count),
    };
    // SAFETY: the caller's contract.
    unsafe { sum(planes) }
}
