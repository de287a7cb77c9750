//! Operands and results of attention in memory, and their rows as f32 or f64.

use super::real::Real;
use crate::routines::Tiles;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Seeds, is_kept};

/// Address and strides of an operand or a result of four axes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Its first element.
    pub(crate) base: *mut u8,
    pub(crate) dtype: DType,
    /// Strides of the axes in elements.
    pub(crate) strides: [isize; 4],
}

// SAFETY: an address is a number; `attend` uses it, and its caller splits results among threads.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// Weights that are dropped at random.
#[derive(Clone, Copy)]
pub(crate) struct Dropped {
    /// What draws are made of.
    pub(crate) seeds: Seeds,
    /// Distinguishes the draws of a program.
    pub(crate) stream: u32,
    /// The probability that a weight is dropped.
    pub(crate) p: f32,
    /// What the others are multiplied by.
    pub(crate) scale: f64,
}

impl Dropped {
    /// Dropout factors of the weights of a query and some keys.
    pub(super) fn factors<N: Real>(
        &self,
        [batch, head, query]: [usize; 3],
        first: usize,
        to: &mut [N],
    ) {
        let scale = N::of(self.scale);
        for (i, to) in to.iter_mut().enumerate() {
            let at = [batch, head, query, first + i];
            let kept = is_kept(&self.seeds, self.stream, self.p, at);
            *to = if kept { scale } else { N::ZERO };
        }
    }
}

/// Rows of numbers, one after another.
pub(super) struct Rows<'a, N> {
    pub(super) numbers: &'a [N],
    pub(super) width: usize,
    /// All of them are finite.
    pub(super) finite: bool,
}

impl<N> Rows<'_, N> {
    pub(super) fn row(&self, row: usize) -> &[N] {
        &self.numbers[row * self.width..][..self.width]
    }
}

impl Place {
    fn at(&self, at: [usize; 4]) -> *mut u8 {
        let far = at.iter().zip(&self.strides).map(|(at, stride)| *at as isize * stride);
        self.base.wrapping_offset(far.sum::<isize>() * self.dtype.bytes() as isize)
    }

    /// Rows along the third axis, from `at`: in place if contiguous and of dtype `N`, else in `to`.
    ///
    /// # Safety
    ///
    /// They must be readable, and not be written as long as the rows live.
    pub(super) unsafe fn rows<'a, N: Real>(
        &self,
        tiles: &Tiles,
        at: [usize; 4],
        [rows, width]: [usize; 2],
        to: &'a mut [N],
    ) -> Rows<'a, N> {
        let together = width > 0 && self.strides[2] == width as isize && self.strides[3] == 1;
        let there = self.at(at).cast_const().cast::<N>();
        if together && rows > 0 && self.dtype == N::DTYPE && there.is_aligned() {
            // SAFETY: the caller's contract.
            let numbers = unsafe { std::slice::from_raw_parts(there, rows * width) };
            return Rows { numbers, width, finite: all_finite(numbers) };
        }
        let numbers = &mut to[..rows * width];
        let length = if together { rows * width } else { width };
        for (i, to) in numbers.chunks_exact_mut(length.max(1)).enumerate() {
            let mut at = at;
            at[2] += i;
            // SAFETY: the caller's contract.
            unsafe { self.row(tiles, at, to) };
        }
        let finite = all_finite(numbers);
        Rows { numbers, width, finite }
    }

    /// Elements along the last axis; of truth values, zero or minus infinity.
    ///
    /// # Safety
    ///
    /// They must be readable.
    pub(super) unsafe fn row<N: Real>(&self, tiles: &Tiles, at: [usize; 4], to: &mut [N]) {
        let from = self.at(at).cast_const();
        let side_by_side = self.strides[3] == 1;
        match N::narrow(self.dtype) {
            _ if side_by_side && self.dtype == N::DTYPE => {
                let bytes = size_of_val(to);
                // SAFETY: the caller's contract; a number has any bits.
                unsafe { to.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, bytes) };
            }
            Some(narrow) if side_by_side => {
                // SAFETY: the caller's contract; the routine is one of this CPU.
                unsafe { tiles.widen(narrow)(from, to.as_mut_ptr().cast(), to.len()) };
            }
            _ => {
                let step = self.strides[3] * self.dtype.bytes() as isize;
                for (i, to) in to.iter_mut().enumerate() {
                    let element = from.wrapping_offset(i as isize * step);
                    if self.dtype == DType::Bool {
                        // SAFETY: the caller's contract.
                        let is_seen = unsafe { element.read() } != 0;
                        *to = if is_seen { N::ZERO } else { N::NEVER };
                        continue;
                    }
                    // SAFETY: the caller's contract.
                    *to = unsafe { N::read(self.dtype, element) };
                }
            }
        }
    }

    /// Writes contiguous numbers, rounded.
    ///
    /// # Safety
    ///
    /// They must be writable, and of the dtype of the numbers or one that these are rounded to.
    pub(super) unsafe fn put<N: Real>(&self, tiles: &Tiles, at: [usize; 4], from: &[N]) {
        let (to, bytes) = (self.at(at), size_of_val(from));
        let first = from.as_ptr().cast::<u8>();
        match N::narrow(self.dtype) {
            // SAFETY: the caller's contract; the routine is one of this CPU.
            Some(narrow) => unsafe { tiles.narrow(narrow)(first, to, from.len()) },
            // SAFETY: the caller's contract.
            None => unsafe { to.copy_from_nonoverlapping(first, bytes) },
        }
    }
}

/// True if all are finite. Groups of fixed size vectorise; a loop that may end anywhere does not.
fn all_finite<N: Real>(numbers: &[N]) -> bool {
    numbers.chunks(1024).all(|some| some.iter().fold(true, |all, x| all & x.is_finite()))
}
