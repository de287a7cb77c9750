//! Packs the operands of a contraction into the panels that microkernels read, widening on the way.
//!
//! Both operands are packed alike. *Lines*, rows of A or columns of B, run along `k`; several side
//! by side form a strip or a panel, step by step. Any strides will do; a stride of one, along lines
//! or across them, is read in vectors.

#[cfg(target_arch = "x86_64")]
pub(super) mod alternate;
#[cfg(target_arch = "x86_64")]
pub(super) mod apart;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod eights;
#[cfg(target_arch = "x86_64")]
pub(super) mod halves;
#[cfg(target_arch = "x86_64")]
pub(super) mod loads;
#[cfg(target_arch = "x86_64")]
pub(super) mod seconds;
#[cfg(target_arch = "x86_64")]
pub(super) mod squares;
#[cfg(target_arch = "x86_64")]
pub(super) mod through;
#[cfg(target_arch = "x86_64")]
pub(super) mod window_rows;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::micro::{Engine, Number};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::half;

/// Lines of an operand in memory, with strides in elements, rounded to the dtype `round`, if any.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) base: *const u8,
    pub(super) dtype: DType,
    pub(super) round: Option<DType>,
    /// Stride of lines.
    pub(super) across: isize,
    /// Stride of `k`.
    pub(super) along: isize,
}

/// Elements in memory, of any layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    /// Address of the first one.
    pub(super) base: *const u8,
    pub(super) dtype: DType,
    /// The 16-bit float to which they are rounded first.
    pub(super) round: Option<DType>,
}

#[cfg(target_arch = "x86_64")]
impl Elements {
    /// True if vectors of f32 can hold them: floats of at most 32 bits, or f32 that are rounded.
    fn become_f32(&self) -> bool {
        match self.dtype {
            DType::F32 => [None, Some(DType::BF16), Some(DType::F16)].contains(&self.round),
            DType::BF16 | DType::F16 => self.round.is_none(),
            _ => false,
        }
    }
}

/// Rows to deinterleave: their count, stride and elements each, and the row stride of the result.
/// For pairs, `second` is the offset of the row that has the other steps.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Rows {
    pub(in crate::contract) count: usize,
    pub(in crate::contract) along: isize,
    pub(in crate::contract) second: Option<isize>,
    pub(in crate::contract) elements: usize,
    pub(in crate::contract) pitch: usize,
}

/// One half of pairs: elements in `rows` by `columns`, zeros elsewhere. `from` is row 0, column 0.
#[derive(Clone, Debug)]
pub(in crate::contract) struct Half {
    pub(in crate::contract) from: Elements,
    pub(in crate::contract) rows: Range<usize>,
    pub(in crate::contract) columns: Range<usize>,
}

/// Strides of rows and of columns, in elements, and of rows of pairs.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Grid {
    pub(in crate::contract) along: isize,
    pub(in crate::contract) across: isize,
    pub(in crate::contract) pitch: usize,
}

/// Two-row matrices that a line reads column by column: their stride, that of rows, their columns.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Matrices {
    pub(in crate::contract) next: isize,
    pub(in crate::contract) second: isize,
    pub(in crate::contract) columns: usize,
}

/// Destination of every second number of a row, and their count.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Alternate<T> {
    pub(in crate::contract) to: *mut T,
    pub(in crate::contract) count: usize,
}

impl Lines {
    /// The part that begins at a line and a step.
    #[inline]
    pub(super) fn from(self, line: usize, step: usize) -> Lines {
        self.moved(line as isize * self.across + step as isize * self.along)
    }

    /// The same, `by` elements on.
    #[inline]
    pub(super) fn moved(self, by: isize) -> Lines {
        Lines { base: self.base.wrapping_offset(by * self.dtype.bytes() as isize), ..self }
    }
}

/// Accumulator numbers that every float dtype can be read as.
pub(super) trait Wider: Number {
    /// The dtype of these numbers in memory.
    const DTYPE: DType;

    /// Reads one element; other dtypes than floats read as zero.
    ///
    /// # Safety
    ///
    /// `p` must be readable for an element of `dtype`.
    unsafe fn read(dtype: DType, p: *const u8) -> Self;

    /// The nearest value of a 16-bit float; the same number for other dtypes.
    fn nearest(self, to: DType) -> Self;
}

/// # Safety
///
/// `p` must be readable for a `T`, any bits of which are valid.
#[inline(always)]
unsafe fn at<T: Copy>(p: *const u8) -> T {
    // SAFETY: the caller's contract.
    unsafe { p.cast::<T>().read_unaligned() }
}

impl Wider for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn read(dtype: DType, p: *const u8) -> f32 {
        match dtype {
            // SAFETY: the caller's contract.
            DType::F32 => unsafe { at(p) },
            // SAFETY: the caller's contract.
            DType::F16 => half::f16_to_f32(unsafe { at(p) }),
            // SAFETY: the caller's contract.
            DType::BF16 => half::bf16_to_f32(unsafe { at(p) }),
            // SAFETY: the caller's contract.
            DType::F64 => (unsafe { at::<f64>(p) }) as f32,
            _ => 0.0,
        }
    }

    #[inline(always)]
    fn nearest(self, to: DType) -> f32 {
        match to {
            DType::F16 => half::round_to_f16(self),
            DType::BF16 => half::round_to_bf16(self),
            _ => self,
        }
    }
}

impl Wider for f64 {
    const DTYPE: DType = DType::F64;

    #[inline(always)]
    unsafe fn read(dtype: DType, p: *const u8) -> f64 {
        match dtype {
            // SAFETY: the caller's contract.
            DType::F64 => unsafe { at(p) },
            // SAFETY: the caller's contract.
            _ => f64::from(unsafe { f32::read(dtype, p) }),
        }
    }

    #[inline(always)]
    fn nearest(self, to: DType) -> f64 {
        match to {
            DType::F16 => half::round_to_f16_f64(self),
            DType::BF16 => half::round_to_bf16_f64(self),
            _ => self,
        }
    }
}

/// [`Engine::pack`], number by number, for some of the lines and steps.
///
/// # Safety
///
/// As [`Engine::pack`].
#[inline(always)]
pub(super) unsafe fn pack_singly<T: Wider>(
    lines: &Lines,
    which: Range<usize>,
    steps: Range<usize>,
    dst: *mut T,
    ld: usize,
) {
    for p in steps {
        for j in which.clone() {
            // SAFETY: an element of the operand.
            let x = unsafe { T::read(lines.dtype, lines.from(j, p).base) };
            let x = lines.round.map_or(x, |to| x.nearest(to));
            // SAFETY: its place.
            unsafe { dst.wrapping_add(p * ld + j).write(x) };
        }
    }
}

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

/// Numbers that [`pack`] may write for `lines` lines.
pub(super) fn room<E: Engine>(lines: usize, width: usize, k: usize) -> usize {
    lines.next_multiple_of(width) * k.div_ceil(E::DEPTH) + 8
}

/// Steps that are packed before the next part if adjacent lines have stride one, to read memory in
/// order. A multiple of every engine's depth.
const CHUNK: usize = 16;

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

/// As [`pack`], in strips of at most `most` rows of stride `row`; `offsets` are the first row's.
///
/// # Safety
///
/// As there.
pub(super) unsafe fn pack_apart<E: Engine>(
    from: Elements,
    row: isize,
    offsets: &[isize],
    (rows, most): (usize, usize),
    dst: *mut E::Num,
) -> u16 {
    let mut least = u16::MAX;
    for Part { start, count, .. } in strips(rows, most) {
        let to = dst.wrapping_add(start * offsets.len().div_ceil(E::DEPTH));
        let first = from.moved(start as isize * row);
        // SAFETY: the caller's contract, for these rows.
        least = least.min(unsafe { E::pack_apart(&first, row, offsets, count, to) });
    }
    least
}

/// Transposes sums from columns of stride `ld` to `rows` by `columns` without gaps.
///
/// # Safety
///
/// The CPU must be the engine's. Sums must be readable, `to` writable for all that packing writes.
pub(super) unsafe fn turn_sums<E: Engine>(
    (sums, ld): (*const E::Num, usize),
    [rows, columns]: [usize; 2],
    to: *mut E::Num,
) {
    let (base, dtype) = (sums.cast(), E::Num::DTYPE);
    let lines = Lines { base, dtype, round: None, across: ld as isize, along: 1 };
    // SAFETY: the caller's contract.
    unsafe { E::Singly::pack(&lines, columns, rows, to, columns) };
}

/// Windows that lie back to back, one for each row, in several planes.
pub(super) struct WindowRows<'a> {
    /// Rows, planes, and the stride of planes in elements.
    pub(super) count: usize,
    pub(super) planes: usize,
    pub(super) apart: isize,
    /// Per position of a window: the place of the first plane's numbers, and the stride of planes.
    pub(super) places: &'a [[usize; 2]],
    /// Prefetch distance in elements, unless the memory is cached already.
    pub(super) ahead: Option<isize>,
}

/// [`Engine::pack_window_rows`], number by number.
///
/// # Safety
///
/// As there.
pub(super) unsafe fn window_rows_singly<T: Wider>(
    from: &Elements,
    rows: &WindowRows<'_>,
    dst: *mut T,
) {
    let window = rows.places.len() as isize;
    for plane in 0..rows.planes {
        let from = from.moved(plane as isize * rows.apart);
        for (position, [place, step]) in rows.places.iter().enumerate() {
            let to = dst.wrapping_add(place + plane * step);
            // SAFETY: the caller's contract, for a position.
            unsafe { apart_singly(&from, window, &[position as isize], rows.count, to) };
        }
    }
}

/// [`Engine::pack_apart`], number by number.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn apart_singly<T: Wider>(
    from: &Elements,
    row: isize,
    offsets: &[isize],
    count: usize,
    dst: *mut T,
) {
    let Elements { dtype, round, .. } = *from;
    let as_they_are = dtype == T::DTYPE && round.is_none();
    for (p, offset) in offsets.iter().enumerate() {
        let (line, to) = (from.moved(*offset), dst.wrapping_add(p * count));
        let mut at = 0;
        for j in 0..count {
            let number = if as_they_are {
                // SAFETY: an element of the operand, which is a number.
                unsafe { line.base.cast::<T>().wrapping_offset(at).read_unaligned() }
            } else {
                // SAFETY: an element of the operand.
                let number = unsafe { T::read(dtype, line.moved(at).base) };
                round.map_or(number, |to| number.nearest(to))
            };
            // SAFETY: its place.
            unsafe { to.wrapping_add(j).write(number) };
            at += row;
        }
    }
}
