//! What is packed: elements in memory, lines of them, and windows; and packing number by number,
//! which any CPU can.

use super::super::im2col::{Runs, Seen};
use super::super::micro::Number;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::half;

/// Elements that [`move_line`] moves at once.
pub(in crate::contract) const MOVED: usize = 16;

/// Lines of an operand in memory, with strides in elements, rounded to the dtype `round`, if any.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Lines {
    pub(in crate::contract) base: *const u8,
    pub(in crate::contract) dtype: DType,
    pub(in crate::contract) round: Option<DType>,
    /// Stride of lines.
    pub(in crate::contract) across: isize,
    /// Stride of `k`.
    pub(in crate::contract) along: isize,
}

/// Elements in memory, of any layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    /// Address of the first one.
    pub(crate) base: *const u8,
    pub(crate) dtype: DType,
    /// The 16-bit float to which they are rounded first.
    pub(crate) round: Option<DType>,
}

impl Elements {
    /// The same, `by` elements on.
    pub(in crate::contract) fn moved(self, by: isize) -> Elements {
        Elements { base: self.base.wrapping_offset(by * self.dtype.bytes() as isize), ..self }
    }

    /// Lines of these strides, in elements.
    pub(in crate::contract) fn lines(self, across: isize, along: isize) -> Lines {
        let Elements { base, dtype, round } = self;
        Lines { base, dtype, round, across, along }
    }
}

/// Routines that pack elements of a dtype into 32-bit numbers with vectors, as
/// [`Engine::pack`](super::super::micro::Engine::pack) and `im2col::pack` say.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other CPUs have none"))]
pub(in crate::contract) struct Packing {
    pub(in crate::contract) lines: unsafe fn(&Lines, Option<isize>, [usize; 3], *mut u32) -> u16,
    pub(in crate::contract) patches: PatchesFn,
}

type PatchesFn =
    unsafe fn(&Seen, *const u8, (Range<usize>, Range<usize>), &mut Runs, *mut u32) -> u16;

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

impl Lines {
    /// The part that begins at a line and a step.
    #[inline]
    pub(in crate::contract) fn from(self, line: usize, step: usize) -> Lines {
        self.moved(line as isize * self.across + step as isize * self.along)
    }

    /// The same, `by` elements on.
    #[inline]
    pub(in crate::contract) fn moved(self, by: isize) -> Lines {
        Lines { base: self.base.wrapping_offset(by * self.dtype.bytes() as isize), ..self }
    }
}

/// Accumulator numbers that every float dtype can be read as.
pub(in crate::contract) trait Wider: Number {
    /// The dtype of these numbers in memory.
    const DTYPE: DType;

    /// The value of an element with these bits; zero for other dtypes than floats.
    fn of_bits(dtype: DType, bits: u64) -> Self;

    /// The nearest value of a 16-bit float; the same number for other dtypes.
    fn nearest(self, to: DType) -> Self;

    /// Reads one element.
    ///
    /// # Safety
    ///
    /// `p` must be readable for an element of `dtype`.
    #[inline(always)]
    unsafe fn read(dtype: DType, p: *const u8) -> Self {
        let bits = match dtype.bytes() {
            // SAFETY: the caller's contract.
            2 => u64::from(unsafe { p.cast::<u16>().read_unaligned() }),
            // SAFETY: the caller's contract.
            4 => u64::from(unsafe { p.cast::<u32>().read_unaligned() }),
            // SAFETY: the caller's contract.
            8 => unsafe { p.cast::<u64>().read_unaligned() },
            _ => 0,
        };
        Self::of_bits(dtype, bits)
    }
}

impl Wider for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn of_bits(dtype: DType, bits: u64) -> f32 {
        match dtype {
            DType::F32 => f32::from_bits(bits as u32),
            DType::F16 => half::f16_to_f32(bits as u16),
            DType::BF16 => half::bf16_to_f32(bits as u16),
            DType::F64 => f64::from_bits(bits) as f32,
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
    fn of_bits(dtype: DType, bits: u64) -> f64 {
        match dtype {
            DType::F64 => f64::from_bits(bits),
            _ => f64::from(f32::of_bits(dtype, bits)),
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

/// [`Engine::pack`](super::super::micro::Engine::pack), number by number.
///
/// # Safety
///
/// Lines must be readable for `k` steps. `ld` is at least `count`, and `dst` writable for `k * ld`
/// numbers.
pub(in crate::contract) unsafe fn pack_singly<T: Wider>(
    lines: &Lines,
    count: usize,
    k: usize,
    dst: *mut T,
    ld: usize,
) {
    for p in 0..k {
        for j in 0..count {
            // SAFETY: an element of the operand.
            let x = unsafe { T::read(lines.dtype, lines.from(j, p).base) };
            let x = lines.round.map_or(x, |to| x.nearest(to));
            // SAFETY: its place.
            unsafe { dst.wrapping_add(p * ld + j).write(x) };
        }
    }
}

/// Moves `count` elements, and past them up to a whole piece of [`MOVED`].
///
/// # Safety
///
/// All must be readable and writable.
#[inline(always)]
pub(in crate::contract) unsafe fn move_line<T: Number>(from: *const T, to: *mut T, count: usize) {
    for i in (0..count).step_by(MOVED) {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy(from.wrapping_add(i), to.wrapping_add(i), MOVED) };
    }
}
