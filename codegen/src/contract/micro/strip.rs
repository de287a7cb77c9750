//! GEMM microkernel: a strip of rows by vectors of columns, accumulated over `k`. Columns are
//! packed or read in place, in any dtype that a [`Cell`] loads.

use super::super::prefetch::ask;
use super::vector::{Number, Vector};
use tracecast_ir::DType;

/// Arguments of the GEMM microkernel: a strip of rows times columns over part of a `k` block.
pub(in crate::contract) struct Strip<T> {
    pub(in crate::contract) k: usize,
    /// First element of A; `row` and `step` are the strides of rows and of `k`, in elements.
    pub(in crate::contract) a: *const T,
    pub(in crate::contract) row: isize,
    pub(in crate::contract) step: isize,
    /// First column of B, of dtype `cell`; columns are contiguous. `b_step` is in bytes, along `k`.
    pub(in crate::contract) b: *const u8,
    pub(in crate::contract) b_step: isize,
    pub(in crate::contract) cell: DType,
    /// Prefetch distance from the columns that a step reads, in bytes.
    pub(in crate::contract) ahead: isize,
    /// Accumulators to continue, of row stride `from_ld`; null for zeros, as with widened columns.
    pub(in crate::contract) from: *const T,
    pub(in crate::contract) from_ld: usize,
    /// Destination of the sums, with row stride `ld` in sums.
    pub(in crate::contract) out: *mut T,
    pub(in crate::contract) ld: usize,
    /// Adds to the destination instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Stores the sums as bf16, which `out` then points to. Never with `add`.
    pub(in crate::contract) rounded: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
}

impl<T> Strip<T> {
    /// Address of the sum at index `sums`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn place(&self, sums: usize) -> *mut T {
        place(self.out, sums, self.rounded)
    }
}

/// Address of the sum at index `sums` after `first`; sums are stored as bf16 if `rounded`.
pub(in crate::contract) fn place<T>(first: *mut T, sums: usize, rounded: bool) -> *mut T {
    let bytes = if rounded { DType::BF16.bytes() } else { size_of::<T>() };
    first.wrapping_byte_add(sums * bytes)
}

/// Loads elements of one dtype as a vector.
pub(super) trait Cell<T: Vector> {
    const BYTES: usize;
    /// Loads a vector of columns; `step` is the stride of numbers along `k`, in bytes.
    ///
    /// # Safety
    ///
    /// `p` must be readable for as many elements as the vector has lanes, in each step of a number.
    unsafe fn load(p: *const u8, step: isize) -> T;
    /// Two adjacent vectors of columns, in a lane order of the cell's own.
    ///
    /// # Safety
    ///
    /// `p` must be readable for both vectors' elements, in each step of a number.
    #[inline(always)]
    unsafe fn load_two(p: *const u8, step: isize) -> [T; 2] {
        // SAFETY: the caller's contract.
        let first = unsafe { Self::load(p, step) };
        // SAFETY: as above.
        [first, unsafe { Self::load(p.wrapping_add(T::LANES * Self::BYTES), step) }]
    }
    /// Restores column order after [`Cell::load_two`].
    #[inline(always)]
    fn in_order(two: [T; 2]) -> [T; 2] {
        two
    }
    /// [`Vector::round`] of two vectors in the order of [`Cell::load_two`].
    ///
    /// # Safety
    ///
    /// `p` must be writable for both vectors' sums.
    #[inline(always)]
    unsafe fn round_two(two: [T; 2], p: *mut u16) {
        for (v, x) in two.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { x.round(p.wrapping_add(v * T::LANES)) };
        }
    }
    /// Updates the least magnitude so far, zeros at first. Only pairs of bf16 keep it.
    fn smaller(least: T, _: T) -> T {
        least
    }
    /// That magnitude, as [`Engine::pack`] returns it.
    fn least(_: T) -> u16 {
        u16::MAX
    }
}

/// Elements of the accumulator's dtype.
pub(super) struct Same;

impl<T: Vector> Cell<T> for Same {
    const BYTES: usize = size_of::<T::Num>();
    #[inline(always)]
    unsafe fn load(p: *const u8, _: isize) -> T {
        // SAFETY: the caller's contract.
        unsafe { T::load(p.cast()) }
    }
}

/// bf16 in memory.
pub(super) struct Bf16;

/// f16 in memory.
pub(super) struct F16;

/// # Safety
///
/// The CPU must have the vector. What `R` rows and `V` vectors span must be readable, and their
/// sums writable, as bf16 if `ROUNDED`.
#[inline(always)]
pub(super) unsafe fn product<
    T: Vector,
    C: Cell<T>,
    const R: usize,
    const V: usize,
    const ROUNDED: bool,
>(
    s: &Strip<T::Num>,
) -> u16 {
    let mut least = T::splat(T::Num::ZERO);
    let mut acc = [[T::splat(T::Num::ZERO); V]; R];
    if !s.from.is_null() {
        for (i, row) in acc.iter_mut().enumerate() {
            for (v, sum) in row.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the chains' memory.
                *sum = unsafe { T::load(s.from.wrapping_add(i * s.from_ld + v * T::LANES)) };
            }
        }
    }
    if s.row == 1 {
        let mut a = s.a;
        let mut b = s.b;
        for _ in 0..s.k {
            // SAFETY: this step's row of the panel and of the strip, for which the caller vouches.
            unsafe {
                step::<T, C, R, V>((b, s.b_step), |i| a.wrapping_add(i), &mut acc, &mut least)
            };
            ask(b.wrapping_offset(s.ahead));
            a = a.wrapping_offset(s.step);
            b = b.wrapping_offset(s.b_step);
        }
    } else {
        let mut rows = [s.a; R];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = s.a.wrapping_offset(i as isize * s.row);
        }
        let mut b = s.b;
        let mut at = 0isize;
        for _ in 0..s.k {
            // SAFETY: as above.
            unsafe {
                step::<T, C, R, V>(
                    (b, s.b_step),
                    |i| rows[i].wrapping_offset(at),
                    &mut acc,
                    &mut least,
                )
            };
            ask(b.wrapping_offset(s.ahead));
            at += s.step;
            b = b.wrapping_offset(s.b_step);
        }
    }
    for (i, row) in acc.into_iter().enumerate() {
        // SAFETY: the caller vouches for the sums' memory.
        unsafe { finish::<T, C, V, ROUNDED>(s, row, i * s.ld) };
    }
    C::least(least)
}

/// Stores a row of sums, or adds it to memory, `place` sums after the first.
///
/// # Safety
///
/// The CPU must have the vector, and the places of these sums be writable, and readable if they are
/// added to.
#[inline(always)]
unsafe fn finish<T: Vector, C: Cell<T>, const V: usize, const ROUNDED: bool>(
    s: &Strip<T::Num>,
    mut row: [T; V],
    place: usize,
) {
    if ROUNDED {
        let out = s.out.cast::<u16>().wrapping_add(place);
        for v in 0..V / 2 {
            let to = out.wrapping_add(2 * v * T::LANES);
            // SAFETY: the caller's contract.
            unsafe { C::round_two([row[2 * v], row[2 * v + 1]], to) };
        }
        if V % 2 == 1 {
            // SAFETY: as above.
            unsafe { row[V - 1].round(out.wrapping_add((V - 1) * T::LANES)) };
        }
        return;
    }
    for v in 0..V / 2 {
        [row[2 * v], row[2 * v + 1]] = C::in_order([row[2 * v], row[2 * v + 1]]);
    }
    for (v, sum) in row.into_iter().enumerate() {
        let out = s.out.wrapping_add(place + v * T::LANES);
        // SAFETY: as above.
        let total = if s.add { unsafe { T::load(out) }.add(sum) } else { sum };
        // SAFETY: as above.
        unsafe { total.store(out) };
    }
}

/// One step along `k`.
///
/// # Safety
///
/// `b` must be readable for `V` vectors of cells, `a` must give addresses of numbers.
#[inline(always)]
pub(super) unsafe fn step<T: Vector, C: Cell<T>, const R: usize, const V: usize>(
    (b, step): (*const u8, isize),
    a: impl Fn(usize) -> *const T::Num,
    acc: &mut [[T; V]; R],
    least: &mut T,
) {
    let mut right = [T::splat(T::Num::ZERO); V];
    let from = |v: usize| b.wrapping_add(v * T::LANES * C::BYTES);
    for v in 0..V / 2 {
        // SAFETY: the caller's contract.
        [right[2 * v], right[2 * v + 1]] = unsafe { C::load_two(from(2 * v), step) };
    }
    if V % 2 == 1 {
        // SAFETY: the caller's contract.
        right[V - 1] = unsafe { C::load(from(V - 1), step) };
    }
    for right in right {
        *least = C::smaller(*least, right);
    }
    for (i, row) in acc.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        let left = T::splat(unsafe { a(i).read_unaligned() });
        for (v, sum) in row.iter_mut().enumerate() {
            *sum = left.fma(right[v], *sum);
        }
    }
}

/// Dispatches to [`product`] by the strip's rows and vectors; few rows may have more vectors.
macro_rules! sizes {
    ($vector:ty, $cell:ty, $rounded:expr, $rows:expr, $vectors:expr, $strip:expr, few: [$($few:literal)*], all: [$($r:literal)*], more: [$($v:literal)*]) => {
        match ($rows, $vectors) {
            // SAFETY: the caller vouches for a strip of this size.
            $(($r, 1) => unsafe { $crate::contract::micro::strip::product::<$vector, $cell, $r, 1, { $rounded }>($strip) },
            // SAFETY: as above.
            ($r, 2) => unsafe { $crate::contract::micro::strip::product::<$vector, $cell, $r, 2, { $rounded }>($strip) },)*
            // SAFETY: as above.
            $(($few, 3) => unsafe { $crate::contract::micro::strip::product::<$vector, $cell, $few, 3, { $rounded }>($strip) },
            // SAFETY: as above.
            ($few, 4) => unsafe { $crate::contract::micro::strip::product::<$vector, $cell, $few, 4, { $rounded }>($strip) },)*
            // SAFETY: as above.
            $(($v, 3) => unsafe { $crate::contract::micro::strip::product::<$vector, $cell, $v, 3, { $rounded }>($strip) },)*
            (rows, vectors) => unreachable!("no strip of {rows} rows by {vectors} vectors"),
        }
    };
}

pub(super) use sizes;
