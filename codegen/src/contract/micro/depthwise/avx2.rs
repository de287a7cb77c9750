//! AVX2 loads and stores of 3 × 3 depthwise convolutions: eight outputs, or sixteen of bf16 at
//! stride one.

use super::super::super::pack::avx2::{in_quarters, parities};
use super::super::avx2::Avx2F32;
use super::super::cell::{Bf16, Same, Sight, There};
use super::super::vector::{Interleave, Vector};
use super::{Planes, Row, Rows, Sums};
use core::arch::x86_64::__m256 as V;
use std::marker::PhantomData;

/// Numbers of a vector.
const LANES: usize = 8;

/// Loads sixteen f32, deinterleaved by halves as [`parities`].
///
/// # Safety
///
/// The CPU must have AVX2. They must be readable where they are there.
#[inline(always)]
unsafe fn halves(from: *const u8, there: There) -> [V; 2] {
    // SAFETY: the caller's contract.
    let low = unsafe { Same::side_by_side(from, there) };
    let there = There { mask: there.mask >> LANES, ..there };
    // SAFETY: the caller's contract.
    let high = unsafe { Same::side_by_side(from.wrapping_add(LANES * 4), there) };
    // SAFETY: the CPU has AVX2.
    unsafe { parities(low, high) }
}

/// A vector of outputs, each tap's input in order.
struct InOrder<C>(PhantomData<C>);

impl<C: Sight<V>, const S: usize> Row<Avx2F32, 3, S, 1> for InOrder<C> {
    const BYTES: usize = C::BYTES;

    #[inline(always)]
    unsafe fn load([row, ..]: &Rows, there: &[There; 3]) -> [[V; 1]; 3] {
        let both = [*row, row.wrapping_add(LANES * C::BYTES)];
        // SAFETY: the caller's contract.
        let [first, second, third] = unsafe { C::taps::<3, S, false>(both, there) };
        [[first], [second], [third]]
    }

    #[inline(always)]
    unsafe fn store([to, ..]: &Sums, _: usize, [sums]: [V; 1], rounds: bool) {
        match rounds {
            // SAFETY: the caller's contract.
            true => unsafe { sums.round(to.cast()) },
            // SAFETY: the caller's contract.
            false => unsafe { sums.store(to.cast()) },
        }
    }
}

/// Even and odd elements of two vectors, interleaved by halves; sums are reordered at the end.
impl Row<Avx2F32, 3, 2, 1> for Same {
    const BYTES: usize = 4;

    /// The first position is loaded alone, so that most outputs load the others at even places.
    #[inline(always)]
    unsafe fn load([row, ..]: &Rows, there: &[There; 3]) -> [[V; 1]; 3] {
        // SAFETY: the caller's contract.
        let [first, _] = unsafe { halves(*row, there[0]) };
        // SAFETY: the caller's contract.
        let [second, third] = unsafe { halves(row.wrapping_add(4), there[1]) };
        [[first], [second], [third]]
    }

    #[inline(always)]
    unsafe fn store([to, ..]: &Sums, _: usize, [sums]: [V; 1], _: bool) {
        // SAFETY: the caller's contract.
        let sums = unsafe { in_quarters(sums) };
        // SAFETY: the caller's contract.
        unsafe { sums.store(to.cast()) }
    }
}

/// Two vectors hold even and odd outputs: both read even and odd elements of a row.
impl Row<Avx2F32, 3, 1, 2> for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load([row, ..]: &Rows, there: &[There; 3]) -> [[V; 2]; 3] {
        let both = [*row, row.wrapping_add(LANES * 2)];
        // SAFETY: the caller's contract.
        let [first, second] = unsafe { Bf16::apart::<false>(both, there[0]) };
        let both = both.map(|row| row.wrapping_add(4));
        // SAFETY: the caller's contract.
        let [third, fourth] = unsafe { Bf16::apart::<false>(both, there[2]) };
        [[first, second], [second, third], [third, fourth]]
    }

    #[inline(always)]
    unsafe fn store([to, ..]: &Sums, _: usize, [even, odd]: [V; 2], rounds: bool) {
        if rounds {
            // SAFETY: the caller's contract.
            return unsafe { even.round_in_turn(odd, *to) };
        }
        let [first, last] = even.interleave(odd);
        // SAFETY: the caller's contract.
        unsafe { first.store(to.cast()) };
        // SAFETY: the caller's contract.
        unsafe { last.store(to.wrapping_add(LANES * 4).cast()) };
    }
}

/// Outputs of a line that are accumulated together, the fewest that a line has.
pub(in crate::contract) const fn windows(is_bf16: bool, step: usize) -> usize {
    if is_bf16 && step == 1 { 2 * LANES } else { LANES }
}

/// Computes all lines at stride `step`, 1 or 2, of an input of f32 or bf16.
///
/// # Safety
///
/// The CPU must have AVX2 and FMA. What is in bounds must be readable, and sums writable. Lines
/// have at least [`windows`] outputs, and rows at least eight elements.
pub(in crate::contract) unsafe fn sum(planes: &Planes<'_>, step: usize, is_bf16: bool) {
    let sum = match (is_bf16, step) {
        (false, 1) => super::sum::<Avx2F32, InOrder<Same>, 3, 1, 1>,
        (false, 2) => super::sum::<Avx2F32, Same, 3, 2, 1>,
        (true, 1) => super::sum::<Avx2F32, Bf16, 3, 1, 2>,
        (true, 2) => super::sum::<Avx2F32, InOrder<Bf16>, 3, 2, 1>,
        _ => unreachable!("no windows {step} apart"),
    };
    // SAFETY: the caller's contract.
    unsafe { sum(planes) }
}
