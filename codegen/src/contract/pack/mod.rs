//! Packs the operands of a contraction into the panels that microkernels read, widening on the way.
//!
//! Both operands are packed alike. *Lines*, rows of A or columns of B, run along `k`; several side
//! by side form a strip or a panel, step by step. Any strides will do; a stride of one, along lines
//! or across them, is read in vectors.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
mod elements;
#[cfg(target_arch = "x86_64")]
mod im2col;
#[cfg(target_arch = "x86_64")]
pub(super) mod interleave;
#[cfg(target_arch = "x86_64")]
mod lines;
#[cfg(target_arch = "x86_64")]
pub(super) mod routines;
pub(super) mod strided;
#[cfg(target_arch = "x86_64")]
pub(super) mod vectors;

pub(crate) use elements::Elements;
pub(super) use elements::{Grid, Half, Lines, MOVED, Packing, Wider, move_line, pack_singly};

use super::micro::Engine;

/// Lines that are packed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The first line.
    pub(super) start: usize,
    /// How many there are.
    pub(super) count: usize,
    /// Stride of steps in numbers.
    pub(super) ld: usize,
}

/// Strips of up to `most` rows, as even as can be: the `i`-th ends at `rows * (i + 1) / strips`.
pub(super) fn strips(rows: usize, most: usize) -> impl Iterator<Item = Part> + Clone {
    let strips = rows.div_ceil(most).max(1);
    let (least, over) = (rows / strips, rows % strips);
    // Accumulates the remainder: a division for each strip would cost as much as a few steps.
    let (mut start, mut rest) = (0, 0);
    (0..strips).map(move |_| {
        rest += over;
        let one_more = usize::from(rest >= strips);
        rest -= one_more * strips;
        let part = Part { start, count: least + one_more, ld: least + one_more };
        start += part.count;
        part
    })
}

/// Panels of `width` columns; the last one may have fewer but is as wide.
pub(super) fn panels(columns: usize, width: usize) -> impl Iterator<Item = Part> + Clone {
    (0..columns).step_by(width).map(move |start| Part {
        start,
        count: width.min(columns - start),
        ld: width,
    })
}

/// Numbers that [`pack`] may write for `lines` lines, or the largest number if that overflows.
pub(super) fn room<E: Engine>(lines: usize, width: usize, k: usize) -> usize {
    let wide = lines.checked_next_multiple_of(width).unwrap_or(usize::MAX);
    wide.saturating_mul(k.div_ceil(E::DEPTH)).saturating_add(8)
}

/// Steps that are packed before the next part if adjacent lines have stride one, to read memory in
/// order. A multiple of every engine's depth.
const CHUNK: usize = 16;

/// Interleaves rows of two planes into rows of pairs: `count` elements of `rows` rows, whose pairs
/// have stride `ld`. `second` is the offset of the second plane. Returns as [`Engine::pack`].
///
/// # Safety
///
/// The CPU must be the engine's, whose numbers hold two steps. `lines` must be readable in both
/// planes, with `along` as the stride of rows, and `dst` writable for the rows.
pub(super) unsafe fn pack_rows<E: Engine>(
    lines: &Lines,
    second: isize,
    [count, rows, ld]: [usize; 3],
    dst: *mut E::Num,
) -> u16 {
    let packing = E::packing(lines.dtype, lines.round).expect("pairs are packed with vectors");
    // SAFETY: the caller's contract.
    unsafe { (packing.lines)(lines, Some(second), [count, 2 * rows, ld], dst.cast()) }
}

/// Packs an operand's parts, each from `dst[start * k / depth]` on; returns as [`Engine::pack`].
///
/// # Safety
///
/// The CPU must be the engine's. `k` steps must be readable, and `dst` writable for [`room`].
pub(super) unsafe fn pack<E: Engine>(
    lines: Lines,
    parts: impl Iterator<Item = Part> + Clone,
    k: usize,
    dst: *mut E::Num,
) -> u16 {
    let mut least = u16::MAX;
    let chunk = if lines.across == 1 && lines.along != 1 { CHUNK } else { k.max(1) };
    for p in (0..k).step_by(chunk) {
        let steps = chunk.min(k - p);
        for Part { start, count, ld } in parts.clone() {
            let to = dst.wrapping_add(start * k.div_ceil(E::DEPTH) + p / E::DEPTH * ld);
            // SAFETY: the caller's contract. What exceeds a part, the next one overwrites.
            least = least.min(unsafe { E::pack(&lines.from(start, p), count, steps, to, ld) });
        }
    }
    least
}

/// Packs one line whose steps are contiguous; returns as [`Engine::pack`].
///
/// # Safety
///
/// The CPU must be the engine's. The line must be readable for `k` elements, and `dst` writable for
/// their numbers.
pub(super) unsafe fn pack_line<E: Engine>(line: Elements, k: usize, dst: *mut E::Num) -> u16 {
    // Numbers that hold a step are those of lines side by side. Neither is packed past its end.
    let (lines, [count, steps, ld]) = match E::DEPTH {
        1 => (line.lines(1, 0), [k, 1, k]),
        _ => (line.lines(0, 1), [1, k, 1]),
    };
    // SAFETY: the caller's contract.
    unsafe { E::pack(&lines, count, steps, dst, ld) }
}

/// Transposes sums from columns of stride `ld` to `rows` by `columns` without gaps.
///
/// # Safety
///
/// The CPU must be the engine's. Sums must be readable, `to` writable for all that packing writes.
pub(super) unsafe fn transpose_sums<E: Engine>(
    (sums, ld): (*const E::Num, usize),
    [rows, columns]: [usize; 2],
    to: *mut E::Num,
) {
    let (base, dtype) = (sums.cast(), E::Num::DTYPE);
    let lines = Lines { base, dtype, round: None, across: ld as isize, along: 1 };
    // SAFETY: the caller's contract.
    unsafe { E::Singly::pack(&lines, columns, rows, to, columns) };
}
