//! Gathers every second element of runs, as windows of stride two read a channel.

use super::loads::first;
use crate::machine::InstructionSet;
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

/// Elements of half a vector of AVX-512.
const LANES: usize = 16;
/// The same of AVX2.
const HALF: usize = 8;

/// True if [`every_second`] gathers such elements with vectors.
pub(in crate::contract) fn brings_seconds(instructions: InstructionSet, dtype: DType) -> bool {
    instructions != InstructionSet::Portable && dtype.bytes() == 2
}

/// Gathers every second element of `runs` runs of stride `apart`: `length` elements each, no gaps.
///
/// # Safety
///
/// The instructions must be the CPU's. Runs must be readable with the elements in between, and `to`
/// writable for as many elements and a vector more.
pub(in crate::contract) unsafe fn every_second(
    instructions: InstructionSet,
    from: *const u16,
    [runs, length]: [usize; 2],
    apart: isize,
    to: *mut u16,
) {
    for run in 0..runs {
        let from = from.wrapping_offset(run as isize * apart);
        let to = to.wrapping_add(run * length);
        if instructions == InstructionSet::Avx512 {
            // SAFETY: the caller's contract, for a run.
            unsafe { by_sixteens(from, length, to) };
        } else if length > HALF {
            // SAFETY: as above.
            unsafe { by_eights(from, length, to) };
        } else {
            for i in 0..length {
                // SAFETY: as above.
                let element = unsafe { from.wrapping_add(2 * i).read() };
                // SAFETY: its place.
                unsafe { to.wrapping_add(i).write(element) };
            }
        }
    }
}

/// Gathers a run.
///
/// # Safety
///
/// The CPU must have AVX-512F and BW. The run must be readable with the elements in between, and
/// `to` writable for it and a vector more.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn by_sixteens(from: *const u16, length: usize, to: *mut u16) {
    for i in (0..length).step_by(LANES) {
        let there = first((2 * (length - i) - 1).min(2 * LANES)) as u32;
        // SAFETY: elements of the run, and those between.
        let all = unsafe { x86::_mm512_maskz_loadu_epi16(there, from.wrapping_add(2 * i).cast()) };
        let seconds = x86::_mm512_cvtepi32_epi16(all);
        // SAFETY: their places, and those of later runs or a vector more.
        unsafe { x86::_mm256_storeu_si256(to.wrapping_add(i).cast(), seconds) };
    }
}

/// Gathers a run of more than eight elements.
///
/// # Safety
///
/// The CPU must have AVX2. The run must be readable with the elements in between, and `to` writable
/// for it.
#[target_feature(enable = "avx2")]
unsafe fn by_eights(from: *const u16, length: usize, to: *mut u16) {
    let low = x86::_mm256_set1_epi32(0xffff);
    for i in (0..length - HALF).step_by(HALF) {
        // SAFETY: eight elements of the run, not its last one, and those behind each.
        let all = unsafe { x86::_mm256_loadu_si256(from.wrapping_add(2 * i).cast()) };
        let seconds = x86::_mm256_and_si256(all, low);
        // SAFETY: their places.
        unsafe { store(to.wrapping_add(i), seconds) };
    }
    let last = length - HALF;
    // SAFETY: the last eight, and those before each.
    let all = unsafe { x86::_mm256_loadu_si256(from.wrapping_add(2 * last - 1).cast()) };
    let seconds = x86::_mm256_srli_epi32::<16>(all);
    // SAFETY: their places.
    unsafe { store(to.wrapping_add(last), seconds) };
}

/// Narrows and stores eight elements that zeros extend to 32 bits.
///
/// # Safety
///
/// `to` must be writable for them; the CPU must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(to: *mut u16, wide: x86::__m256i) {
    let [low, high] = [x86::_mm256_castsi256_si128(wide), x86::_mm256_extracti128_si256::<1>(wide)];
    let narrow = x86::_mm_packus_epi32(low, high);
    // SAFETY: the caller's contract.
    unsafe { x86::_mm_storeu_si128(to.cast(), narrow) };
}
