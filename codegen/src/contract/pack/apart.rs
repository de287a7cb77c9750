//! Gathers rows of a small stride: the elements of nearby steps are read as vectors and transposed.
//!
//! So are the weights of an input gradient read: a row is an input channel, with a window each.

use super::super::prefetch::ask_bytes;
use super::avx512::{store, turn_lines};
use super::loads::{self, Numbers, One, first};
use super::x86::{self as octets, Octet};
use super::{Elements, apart_singly};
use crate::routines;
use core::arch::x86_64 as x86;
use std::iter::StepBy;
use std::ops::Range;
use tracecast_ir::DType;

/// A routine that packs rows: the first row's elements, the stride of rows, the offset of each
/// step, the count of rows, and the destination.
type ApartFn = unsafe fn(&Elements, isize, &[isize], usize, *mut f32);

/// Prefetch distance, in steps.
const AHEAD: usize = 32;

/// Fewer nearby steps are not worth a transposition.
const FEW: usize = 3;

/// Steps whose elements fit one vector.
struct Near {
    /// Consecutive steps, or every second one.
    steps: StepBy<Range<usize>>,
    /// The first of these elements, and how many there are.
    low: isize,
    span: usize,
}

/// Groups steps by nearness: all of them, or every second one where two channels are interleaved.
fn near(offsets: &[isize], most: usize) -> impl Iterator<Item = Near> {
    let are_near = |steps: [usize; 2]| {
        let [a, b] = steps.map(|step| offsets.get(step));
        a.zip(b).is_some_and(|(a, b)| a.abs_diff(*b) < most)
    };
    let every = if !are_near([0, 1]) && are_near([0, 2]) { 2 } else { 1 };
    let (mut nth, mut next) = (0, 0);
    std::iter::from_fn(move || {
        if next >= offsets.len() {
            nth += 1;
            next = nth;
        }
        if nth == every || next >= offsets.len() {
            return None;
        }
        let from = next;
        let (mut low, mut high) = (offsets[from], offsets[from]);
        while let Some(offset) = offsets.get(next) {
            let [lower, higher] = [low.min(*offset), high.max(*offset)];
            if higher - lower >= most as isize {
                break;
            }
            (low, high, next) = (lower, higher, next + every);
        }
        let steps = (from..next.min(offsets.len())).step_by(every);
        Some(Near { steps, low, span: (high - low) as usize + 1 })
    })
}

/// Prefetches `count` rows of a later step, if their stride is positive.
#[inline(always)]
fn ask_for(from: &Elements, row: isize, offset: Option<&isize>, count: usize) {
    let (Some(offset), Ok(row)) = (offset, usize::try_from(row)) else { return };
    ask_bytes(from.moved(*offset).base, count * row * from.dtype.bytes());
}

/// The routine that packs these elements to f32, sixteen rows at a time.
pub(in crate::contract) fn by_sixteens(from: &Elements) -> ApartFn {
    match (from.dtype, from.round) {
        (DType::F32, None) => sixteens::<One<loads::F32>>,
        (DType::BF16, None) => sixteens::<One<loads::Bf16>>,
        _ => apart_singly,
    }
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. The elements, of the dtype that is loaded, must be
/// readable for `count` rows at `offsets`, and `dst` writable for their numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn sixteens<N: Numbers>(
    from: &Elements,
    row: isize,
    offsets: &[isize],
    count: usize,
    dst: *mut f32,
) {
    for Near { steps, low, span } in near(offsets, 16) {
        let later = steps.clone().next().and_then(|first| offsets.get(first + AHEAD));
        if steps.len() < FEW {
            for p in steps {
                let to = dst.wrapping_add(p * count);
                // SAFETY: the caller's contract, for a step.
                unsafe { apart_singly(from, row, &offsets[p..=p], count, to) };
            }
            continue;
        }
        ask_for(from, row, later, count);
        let base = from.moved(low);
        for j in (0..count).step_by(16) {
            let n = 16.min(count - j);
            // SAFETY: elements of a row, and those between them.
            let line =
                |l: usize| unsafe { N::along(base.moved((j + l) as isize * row).base, span) };
            let turned = turn_lines(n, line);
            for p in steps.clone() {
                let numbers = turned[(offsets[p] - low) as usize];
                let to = dst.wrapping_add(p * count + j);
                // SAFETY: the numbers' places.
                unsafe { store(to.cast(), first(n) as u16, numbers) };
            }
        }
    }
}

/// The routine that packs these elements to f32, eight rows at a time.
pub(in crate::contract) fn by_eights(from: &Elements) -> ApartFn {
    match (from.dtype, from.round) {
        (DType::F32, None) => eights::<octets::F32>,
        (DType::BF16, None) => eights::<octets::Bf16>,
        _ => apart_singly,
    }
}

/// # Safety
///
/// The CPU must have AVX2 and F16C. The elements, of the dtype that is loaded, must be readable for
/// `count` rows at `offsets`, and `dst` writable for their numbers.
#[target_feature(enable = "avx2,f16c")]
unsafe fn eights<O: Octet>(
    from: &Elements,
    row: isize,
    offsets: &[isize],
    count: usize,
    dst: *mut f32,
) {
    for Near { steps, low, span } in near(offsets, 8) {
        let later = steps.clone().next().and_then(|first| offsets.get(first + AHEAD));
        let whole = if steps.len() < FEW { 0 } else { count / 8 * 8 };
        if whole > 0 {
            ask_for(from, row, later, count);
        }
        let base = from.moved(low);
        for j in (0..whole).step_by(8) {
            let line = |l: usize| {
                let line = base.moved((j + l) as isize * row).base;
                if span == 8 {
                    // SAFETY: elements of a row, and those between them.
                    unsafe { O::load(line) }
                } else {
                    // SAFETY: as above.
                    unsafe { O::some::<1>(line, first(span) as u8) }
                }
            };
            let turned = routines::transpose(std::array::from_fn(line));
            for p in steps.clone() {
                let to = dst.wrapping_add(p * count + j);
                // SAFETY: the numbers' places.
                unsafe { x86::_mm256_storeu_ps(to, turned[(offsets[p] - low) as usize]) };
            }
        }
        for p in steps {
            for j in whole..count {
                let at = from.moved(offsets[p] + j as isize * row).base;
                // SAFETY: an element of the operand.
                let number = unsafe { O::one(at) };
                // SAFETY: its place.
                unsafe { dst.wrapping_add(p * count + j).write(number) };
            }
        }
    }
}
