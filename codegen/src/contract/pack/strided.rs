//! Gathers rows of a small stride: the elements of nearby steps are packed as lines, then sorted.
//!
//! So are the weights of an input gradient read: a row is an input channel, with a window each.

use super::super::micro::{Engine, Number};
use super::super::prefetch::prefetch_bytes;
use super::{Elements, MOVED, Part, pack_singly, strips};
use std::iter::StepBy;
use std::ops::Range;

/// Elements of a row that are packed together.
const NEAR: usize = 16;

/// The most rows of a strip: two vectors of any engine.
const ROWS: usize = 32;

/// Prefetch distance, in steps.
const AHEAD: usize = 32;

/// Fewer nearby steps are not worth packing what lies between them.
const FEW: usize = 3;

/// Steps whose elements are near each other.
struct Near {
    /// Consecutive steps, or every second one.
    steps: StepBy<Range<usize>>,
    /// The first of these elements, and how many there are.
    low: isize,
    span: usize,
}

/// Groups steps by nearness: all of them, or every second one where two channels are interleaved.
fn near(offsets: &[isize]) -> impl Iterator<Item = Near> {
    let are_near = |steps: [usize; 2]| {
        let [a, b] = steps.map(|step| offsets.get(step));
        a.zip(b).is_some_and(|(a, b)| a.abs_diff(*b) < NEAR)
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
            if higher - lower >= NEAR as isize {
                break;
            }
            (low, high, next) = (lower, higher, next + every);
        }
        let steps = (from..next.min(offsets.len())).step_by(every);
        Some(Near { steps, low, span: (high - low) as usize + 1 })
    })
}

/// As [`super::pack`], in strips of at most `most` rows of stride `row`; `offsets` are the first
/// row's.
///
/// # Safety
///
/// The CPU must be the engine's, whose numbers hold one step. Elements must be readable for these
/// rows at `offsets` and between them, and `dst` writable for [`super::room`].
pub(in crate::contract) unsafe fn pack_apart<E: Engine>(
    from: Elements,
    row: isize,
    offsets: &[isize],
    (rows, most): (usize, usize),
    dst: *mut E::Num,
) {
    let mut packed = [E::Num::ZERO; NEAR * ROWS + MOVED];
    assert!(most <= ROWS, "packed has no room for more");
    for Part { start, count, .. } in strips(rows, most) {
        let to = dst.wrapping_add(start * offsets.len());
        let from = from.moved(start as isize * row);
        for Near { steps, low, span } in near(offsets) {
            let is_worth = steps.len() >= FEW;
            if is_worth {
                let later = steps.clone().next().and_then(|first| offsets.get(first + AHEAD));
                if let (Some(later), Ok(row)) = (later, usize::try_from(row)) {
                    prefetch_bytes(from.moved(*later).base, count * row * from.dtype.bytes());
                }
                let lines = from.moved(low).lines(row, 1);
                // SAFETY: elements of rows and those between them, and room for them.
                unsafe { E::pack(&lines, count, span, packed.as_mut_ptr(), count) };
            }
            for p in steps {
                let to = to.wrapping_add(p * count);
                if is_worth {
                    let own = &packed[(offsets[p] - low) as usize * count..][..count];
                    // SAFETY: the places of a step.
                    unsafe { to.copy_from_nonoverlapping(own.as_ptr(), count) };
                    continue;
                }
                let lines = from.moved(offsets[p]).lines(row, 0);
                // SAFETY: the elements of a step, and their places.
                unsafe { pack_singly(&lines, count, 1, to, count) };
            }
        }
    }
}
