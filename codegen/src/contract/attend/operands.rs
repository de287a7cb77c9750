//! Operands and results of attention in memory, and rows of them as f32.

use super::super::pack::Wider;
use crate::routines::{NarrowFloat, Tiles};
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Seeds, is_kept};

/// Where an operand or a result lies, over four axes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Its first element.
    pub(crate) base: *mut u8,
    /// The dtype of its elements.
    pub(crate) dtype: DType,
    /// From a position to the next along each axis, in elements.
    pub(crate) strides: [isize; 4],
}

// SAFETY: an address is only a number; what is at it is read and written by `attend`, whose caller splits results among threads.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// Weights that are dropped at random.
#[derive(Clone, Copy)]
pub(crate) struct Dropped {
    /// What draws are made of.
    pub(crate) seeds: Seeds,
    /// Tells the draws of a program apart.
    pub(crate) stream: u32,
    /// The probability that a weight is dropped.
    pub(crate) p: f32,
    /// What the others are multiplied by.
    pub(crate) scale: f32,
}

impl Dropped {
    /// What the weights of a query and some keys are multiplied by.
    pub(super) fn factors(&self, [batch, head, query]: [usize; 3], first: usize, to: &mut [f32]) {
        for (i, to) in to.iter_mut().enumerate() {
            let at = [batch, head, query, first + i];
            let kept = is_kept(&self.seeds, self.stream, self.p, at);
            *to = if kept { self.scale } else { 0.0 };
        }
    }
}

/// Rows of f32, one after another.
pub(super) struct Rows<'a> {
    pub(super) numbers: &'a [f32],
    pub(super) width: usize,
    /// All of them are finite.
    pub(super) finite: bool,
}

impl Rows<'_> {
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.width..][..self.width]
    }
}

impl Place {
    fn at(&self, at: [usize; 4]) -> *mut u8 {
        let far = at.iter().zip(&self.strides).map(|(at, stride)| *at as isize * stride);
        self.base.wrapping_offset(far.sum::<isize>() * self.dtype.bytes() as isize)
    }

    /// So many rows along the third axis, from a position on, in f32.
    ///
    /// # Safety
    ///
    /// They must be readable.
    pub(super) unsafe fn rows<'a>(
        &self,
        tiles: &Tiles,
        at: [usize; 4],
        [rows, width]: [usize; 2],
        to: &'a mut [f32],
    ) -> Rows<'a> {
        let numbers = &mut to[..rows * width];
        let together = width > 0 && self.strides[2] == width as isize && self.strides[3] == 1;
        let length = if together { rows * width } else { width };
        for (i, to) in numbers.chunks_exact_mut(length.max(1)).enumerate() {
            let mut at = at;
            at[2] += i;
            // SAFETY: the caller's contract.
            unsafe { self.row(tiles, at, to) };
        }
        let finite = numbers.iter().all(|x| x.is_finite());
        Rows { numbers, width, finite }
    }

    /// Elements along the last axis, in f32; of truth values, zero or minus infinity.
    ///
    /// # Safety
    ///
    /// They must be readable.
    pub(super) unsafe fn row(&self, tiles: &Tiles, at: [usize; 4], to: &mut [f32]) {
        let from = self.at(at).cast_const();
        let side_by_side = self.strides[3] == 1;
        match (self.dtype, NarrowFloat::of(self.dtype)) {
            (DType::F32, _) if side_by_side => {
                // SAFETY: the caller's contract; an f32 has any bits.
                unsafe {
                    to.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, 4 * to.len())
                };
            }
            (_, Some(narrow)) if side_by_side => {
                // SAFETY: the caller's contract; the routine is one of this CPU.
                unsafe { tiles.widen(narrow)(from, to.as_mut_ptr().cast(), to.len()) };
            }
            (dtype, _) => {
                let step = self.strides[3] * dtype.bytes() as isize;
                for (i, to) in to.iter_mut().enumerate() {
                    let element = from.wrapping_offset(i as isize * step);
                    // SAFETY: the caller's contract.
                    *to = unsafe { number(dtype, element) };
                }
            }
        }
    }

    /// Writes numbers side by side, rounded.
    ///
    /// # Safety
    ///
    /// They must be writable.
    pub(super) unsafe fn put(&self, tiles: &Tiles, at: [usize; 4], from: &[f32]) {
        let (to, from, count) = (self.at(at), from.as_ptr().cast::<u8>(), from.len());
        match NarrowFloat::of(self.dtype) {
            // SAFETY: the caller's contract; the routine is one of this CPU.
            Some(narrow) => unsafe { tiles.narrow(narrow)(from, to, count) },
            // SAFETY: the caller's contract.
            None => unsafe { to.copy_from_nonoverlapping(from, 4 * count) },
        }
    }
}

/// # Safety
///
/// `at` must be readable for an element of that dtype.
unsafe fn number(dtype: DType, at: *const u8) -> f32 {
    if dtype != DType::Bool {
        // SAFETY: the caller's contract.
        return unsafe { f32::read(dtype, at) };
    }
    // SAFETY: the caller's contract.
    if unsafe { at.read() } == 0 { f32::NEG_INFINITY } else { 0.0 }
}
