//! Microkernel of outer products: numbers of A are broadcast to vectors of B, accumulated over `k`.
//!
//! As in oneDNN's brgemm, one kernel serves operands at strides and operands behind a table of
//! offsets ([`Outer`]): GEMM ([`Strip`]), implicit GEMM with vectors along the columns of an image
//! ([`Taps`]), and with vectors along rows ([`Spots`]).

use super::super::prefetch::prefetch_l1;
use super::cell::{Cell, Same};
use super::engine::Engine;
use super::vector::{Microkernel, Number, Vector};
use std::marker::PhantomData;
use tracecast_ir::DType;

/// The most columns of [`Spots`] of any engine.
pub(in crate::contract) const MOST: usize = 16;

/// Where accumulators begin and where their sums go. Rows have strides in sums.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Sums<T> {
    /// Accumulators to continue; null for zeros, as with widened columns.
    pub(in crate::contract) from: *const T,
    pub(in crate::contract) from_ld: usize,
    /// Destination of the sums.
    pub(in crate::contract) out: *mut T,
    pub(in crate::contract) ld: usize,
    /// Adds to the destination instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Stores the sums as bf16, which `out` then points to. Never with `add`.
    pub(in crate::contract) rounded: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
}

impl<T> Sums<T> {
    /// Those of a vector of row `row`, from column `at` on.
    fn part(&self, row: usize, at: usize) -> Sums<T> {
        let from = self.from.wrapping_add(row * self.from_ld + at);
        let from = if self.from.is_null() { self.from } else { from };
        Sums { from, out: place(self.out, row * self.ld + at, self.rounded), ..*self }
    }
}

/// Address of the sum at index `sums` after `first`; sums are stored as bf16 if `rounded`.
pub(in crate::contract) fn place<T>(first: *mut T, sums: usize, rounded: bool) -> *mut T {
    let bytes = if rounded { DType::BF16.bytes() } else { size_of::<T>() };
    first.wrapping_byte_add(sums * bytes)
}

/// A strip of rows of A by columns of B, packed or in place, over part of a `k` block.
#[derive(Clone, Copy)]
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
    pub(in crate::contract) sums: Sums<T>,
}

/// A packed strip of rows times columns of an image, at one offset per step.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Taps<'a, T> {
    /// The first step's rows, contiguous; `step` is the stride of steps, in elements.
    pub(in crate::contract) a: *const T,
    pub(in crate::contract) step: isize,
    /// The first column of a step at offset zero.
    pub(in crate::contract) b: *const T,
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    pub(in crate::contract) sums: Sums<T>,
}

/// Numbers of a few columns of an image times vectors of rows. Sums are never rounded.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Spots<'a, T> {
    pub(in crate::contract) image: *const T,
    /// Offset of each column in the image.
    pub(in crate::contract) columns: &'a [isize],
    /// Offset of each step from there.
    pub(in crate::contract) at: &'a [isize],
    /// The first step's rows, contiguous; `step` is the stride of steps.
    pub(in crate::contract) rows: *const T,
    pub(in crate::contract) step: usize,
    /// Accumulators to continue; null to start at zero.
    pub(in crate::contract) from: *const T,
    /// Destination of the sums.
    pub(in crate::contract) out: *mut T,
    /// Offset of each column's sums from both.
    pub(in crate::contract) places: &'a [isize],
    /// Adds to the destination instead of replacing it.
    pub(in crate::contract) add: bool,
    /// Sums may be subnormal.
    pub(in crate::contract) tiny: bool,
}

/// Operands of an outer product: `R` numbers and `V` vectors in each step.
pub(in crate::contract) trait Outer<T: Vector>: Copy {
    /// True if the numbers are those of columns, and vectors those of rows: [`Spots`].
    const BY_COLUMN: bool = false;

    /// The sums.
    fn sums(&self) -> Sums<T::Num>;

    /// The dtype of columns that are read in place; `None` for those of packed numbers.
    fn cell(&self) -> Option<DType> {
        None
    }

    /// Offset of a row's sums, which have stride `ld`.
    #[inline(always)]
    fn row(&self, row: usize, ld: usize) -> isize {
        (row * ld) as isize
    }

    /// A row, and the vector from `at` on.
    fn part(&self, row: usize, at: usize) -> Self;

    /// Adds the products of all steps. `least` is [`Cell::smaller`] of all columns.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector. What `R` numbers and `V` vectors span must be readable.
    unsafe fn accumulate<C: Cell<T>, const R: usize, const V: usize>(
        &self,
        acc: &mut [[T; V]; R],
        least: &mut T,
    );
}

impl<T: Vector> Outer<T> for Strip<T::Num> {
    #[inline(always)]
    fn sums(&self) -> Sums<T::Num> {
        self.sums
    }

    fn cell(&self) -> Option<DType> {
        Some(self.cell)
    }

    fn part(&self, row: usize, at: usize) -> Self {
        let a = self.a.wrapping_offset(row as isize * self.row);
        let b = self.b.wrapping_add(at * self.cell.bytes());
        Strip { a, b, sums: self.sums.part(row, at), ..*self }
    }

    #[inline(always)]
    unsafe fn accumulate<C: Cell<T>, const R: usize, const V: usize>(
        &self,
        acc: &mut [[T; V]; R],
        least: &mut T,
    ) {
        let mut b = self.b;
        if self.row == 1 {
            let mut a = self.a;
            for _ in 0..self.k {
                // SAFETY: this step's row of the panel and of the strip.
                unsafe { step::<T, C, R, V>((b, self.b_step), |i| a.wrapping_add(i), acc, least) };
                prefetch_l1(b.wrapping_offset(self.ahead));
                a = a.wrapping_offset(self.step);
                b = b.wrapping_offset(self.b_step);
            }
            return;
        }
        let rows: [*const T::Num; R] =
            std::array::from_fn(|i| self.a.wrapping_offset(i as isize * self.row));
        let mut at = 0isize;
        for _ in 0..self.k {
            let a = |i: usize| rows[i].wrapping_offset(at);
            // SAFETY: as above.
            unsafe { step::<T, C, R, V>((b, self.b_step), a, acc, least) };
            prefetch_l1(b.wrapping_offset(self.ahead));
            at += self.step;
            b = b.wrapping_offset(self.b_step);
        }
    }
}

impl<T: Vector> Outer<T> for Taps<'_, T::Num> {
    #[inline(always)]
    fn sums(&self) -> Sums<T::Num> {
        self.sums
    }

    fn part(&self, row: usize, at: usize) -> Self {
        let (a, b) = (self.a.wrapping_add(row), self.b.wrapping_add(at));
        Taps { a, b, sums: self.sums.part(row, at), ..*self }
    }

    #[inline(always)]
    unsafe fn accumulate<C: Cell<T>, const R: usize, const V: usize>(
        &self,
        acc: &mut [[T; V]; R],
        least: &mut T,
    ) {
        let mut a = self.a;
        for at in self.at {
            let b = self.b.wrapping_offset(*at).cast();
            // SAFETY: this step's columns and its row of the strip.
            unsafe { step::<T, C, R, V>((b, 0), |i| a.wrapping_add(i), acc, least) };
            a = a.wrapping_offset(self.step);
        }
    }
}

/// Registers hold the sums, the vectors of rows, and a broadcast number, or one for each column
/// where the compiler loads all first: [`Engine::SPOTS`].
impl<T: Vector> Outer<T> for Spots<'_, T::Num> {
    const BY_COLUMN: bool = true;

    #[inline(always)]
    fn sums(&self) -> Sums<T::Num> {
        let Spots { from, out, add, tiny, .. } = *self;
        Sums { from, from_ld: 0, out, ld: 0, add, rounded: false, tiny }
    }

    #[inline(always)]
    fn row(&self, row: usize, _: usize) -> isize {
        self.places[row]
    }

    fn part(&self, row: usize, at: usize) -> Self {
        let one = row..row + 1;
        let from = if self.from.is_null() { self.from } else { self.from.wrapping_add(at) };
        Spots {
            columns: &self.columns[one.clone()],
            rows: self.rows.wrapping_add(at),
            from,
            out: self.out.wrapping_add(at),
            places: &self.places[one],
            ..*self
        }
    }

    #[inline(always)]
    unsafe fn accumulate<C: Cell<T>, const R: usize, const V: usize>(
        &self,
        acc: &mut [[T; V]; R],
        least: &mut T,
    ) {
        let columns: [*const T::Num; R] =
            std::array::from_fn(|c| self.image.wrapping_offset(self.columns[c]));
        let mut rows = self.rows;
        for at in self.at {
            let a = |c: usize| columns[c].wrapping_offset(*at);
            // SAFETY: this step's rows, and what the columns read in it.
            unsafe { step::<T, C, R, V>((rows.cast(), 0), a, acc, least) };
            rows = rows.wrapping_add(self.step);
        }
    }
}

/// One step along `k`.
///
/// # Safety
///
/// `b` must be readable for `V` vectors of cells, `a` must give addresses of numbers.
#[inline(always)]
unsafe fn step<T: Vector, C: Cell<T>, const R: usize, const V: usize>(
    (b, step): (*const u8, isize),
    a: impl Fn(usize) -> *const T::Num,
    acc: &mut [[T; V]; R],
    least: &mut T,
) {
    let from = |v: usize| b.wrapping_add(v * T::LANES * C::BYTES);
    // SAFETY: the caller's contract.
    let load = |v: usize| unsafe { C::load(from(v), step) };
    // SAFETY: the caller's contract.
    let number = |i: usize| T::splat(unsafe { a(i).read_unaligned() });
    if R < V && C::BYTES == size_of::<T::Num>() {
        // Three by four sums, all numbers and a vector fit the registers of AVX2.
        let left: [T; R] = std::array::from_fn(number);
        for v in 0..V {
            let right = load(v);
            *least = C::smaller(*least, right);
            for (row, left) in acc.iter_mut().zip(left) {
                row[v] = left.fma(right, row[v]);
            }
        }
        return;
    }
    let mut right = [T::splat(T::Num::ZERO); V];
    for v in 0..V / 2 {
        // SAFETY: the caller's contract.
        [right[2 * v], right[2 * v + 1]] = unsafe { C::load_two(from(2 * v), step) };
    }
    if V % 2 == 1 {
        right[V - 1] = load(V - 1);
    }
    for right in right {
        *least = C::smaller(*least, right);
    }
    for (i, row) in acc.iter_mut().enumerate() {
        let left = number(i);
        for (v, sum) in row.iter_mut().enumerate() {
            *sum = left.fma(right[v], *sum);
        }
    }
}

/// Stores a row of sums, or adds it to memory, `place` sums after the first.
///
/// # Safety
///
/// The CPU must have the vector, and the places of these sums be writable, and readable if they are
/// added to.
#[inline(always)]
unsafe fn finish<T: Vector, C: Cell<T>, const V: usize, const ROUNDED: bool>(
    sums: &Sums<T::Num>,
    mut row: [T; V],
    place: isize,
) {
    if ROUNDED {
        let out = sums.out.cast::<u16>().wrapping_offset(place);
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
        let out = sums.out.wrapping_offset(place).wrapping_add(v * T::LANES);
        // SAFETY: as above.
        let total = if sums.add { unsafe { T::load(out) }.add(sum) } else { sum };
        // SAFETY: as above.
        unsafe { total.store(out) };
    }
}

/// The kernel of a tile of rows by vectors, for an engine's vectors and cells; [`tile`] alone makes
/// it. It fits registers: a jump that waits for sizes from memory would hold up a short tile.
struct Tile<'a, E, O, C, const ROUNDED: bool> {
    sizes: [u32; 2],
    of: &'a O,
    kind: PhantomData<(E, C)>,
}

impl<E: Engine, O: Outer<E::Vector>, C: Cell<E::Vector>, const ROUNDED: bool>
    Tile<'_, E, O, C, ROUNDED>
{
    /// Computes `R` rows by `V` vectors, rounded to bf16 if `ROUNDED`.
    #[inline(always)]
    fn sum<const R: usize, const V: usize>(&self) -> u16 {
        let zero = E::Vector::splat(E::Num::ZERO);
        let (mut least, mut acc) = (zero, [[zero; V]; R]);
        let sums = self.of.sums();
        if !sums.from.is_null() {
            for (i, row) in acc.iter_mut().enumerate() {
                let from = sums.from.wrapping_offset(self.of.row(i, sums.from_ld));
                for (v, sum) in row.iter_mut().enumerate() {
                    // SAFETY: an accumulator.
                    *sum = unsafe { E::Vector::load(from.wrapping_add(v * E::LANES)) };
                }
            }
        }
        // SAFETY: the contract of `tile`.
        unsafe { self.of.accumulate::<C, R, V>(&mut acc, &mut least) };
        // By reference: what is moved out of an array that a bounds check may leave is in memory.
        for (i, row) in acc.iter().enumerate() {
            // SAFETY: as above, for a row.
            unsafe { finish::<E::Vector, C, V, ROUNDED>(&sums, *row, self.of.row(i, sums.ld)) };
        }
        C::least(least)
    }
}

/// True if the engine has a kernel of that size.
const fn has_tile<E: Engine>(by_column: bool, rows: usize, vectors: usize) -> bool {
    if by_column {
        return vectors <= 2 && rows <= E::SPOTS || vectors == 1 && rows <= E::SPOTS_ALONE;
    }
    let (few, all) = (rows <= E::FEW, vectors * E::LANES <= E::WIDTH);
    rows <= E::ROWS && (few || all)
}

impl<E: Engine, O: Outer<E::Vector>, C: Cell<E::Vector>, const ROUNDED: bool> Microkernel
    for Tile<'_, E, O, C, ROUNDED>
{
    type Out = u16;

    #[inline(always)]
    unsafe fn run(self) -> u16 {
        macro_rules! sum {
            ($([$rows:literal $vectors:literal])*) => {
                match self.sizes {
                    // A guard instead would make a chain of comparisons, not a jump.
                    $([$rows, $vectors] => {
                        if const { has_tile::<E>(O::BY_COLUMN, $rows, $vectors) } {
                            self.sum::<$rows, $vectors>()
                        } else {
                            unreachable!("no such tile")
                        }
                    })*
                    sizes => unreachable!("no tile of {sizes:?}"),
                }
            };
        }
        sum!(
            [1 1] [1 2] [1 3] [1 4] [2 1] [2 2] [2 3] [2 4] [3 1] [3 2] [3 3] [3 4] [4 1] [4 2]
            [4 3] [4 4] [5 1] [5 2] [5 3] [5 4] [6 1] [6 2] [6 3] [6 4] [7 1] [7 2] [7 3] [8 1]
            [8 2] [8 3] [9 1] [9 2] [10 1] [10 2] [11 1] [11 2] [12 1] [12 2] [13 1] [13 2] [14 1]
            [14 2] [15 1] [16 1]
        )
    }
}

/// Computes a tile of `[rows, vectors]`, of one sort of cells. Returns what [`Engine::pack`] does
/// for columns read in place.
///
/// # Safety
///
/// The CPU must be the engine's. What the tile spans must be readable, and its sums writable.
#[inline(always)]
unsafe fn tile<E: Engine, O: Outer<E::Vector>, C: Cell<E::Vector>>(
    sizes: [usize; 2],
    of: &O,
) -> u16 {
    let (sizes, kind) = (sizes.map(|size| size as u32), PhantomData::<(E, C)>);
    if E::ROUNDS && of.sums().rounded {
        // SAFETY: the caller's contract.
        unsafe { E::run(Tile::<E, O, C, true> { sizes, of, kind }) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { E::run(Tile::<E, O, C, false> { sizes, of, kind }) }
    }
}

/// [`tile`], by the dtype of the columns in memory.
///
/// # Safety
///
/// The CPU must be the engine's, which must read such cells. What the tile spans must be readable,
/// and its sums writable.
unsafe fn by_cell<E: Engine, O: Outer<E::Vector>>(sizes: [usize; 2], of: &O) -> u16 {
    match of.cell() {
        // SAFETY: the caller's contract.
        Some(DType::BF16) => unsafe { tile::<E, O, E::Bf16>(sizes, of) },
        // SAFETY: the caller's contract.
        Some(DType::F16) => unsafe { tile::<E, O, E::F16>(sizes, of) },
        // SAFETY: the caller's contract.
        _ => unsafe { tile::<E, O, Same>(sizes, of) },
    }
}

/// Computes a tile of rows by vectors of columns: of a [`Strip`] up to [`Engine::ROWS`] by
/// [`Engine::columns`], and so of [`Taps`]; of [`Spots`] up to [`Engine::SPOTS`] columns by two
/// vectors of rows, or [`Engine::SPOTS_ALONE`] by one. Returns what [`Engine::pack`] does for
/// columns read in place. Where sums may be subnormal, tiles are of one row by one vector.
///
/// # Safety
///
/// The CPU must be the engine's, which must read such cells. What the tile spans must be readable,
/// and its sums writable.
pub(in crate::contract) unsafe fn outer<E: Engine, O>([rows, vectors]: [usize; 2], of: &O) -> u16
where
    O: Outer<E::Vector> + Outer<<E::Careful as Engine>::Vector>,
{
    if !(E::IS_CARELESS && <O as Outer<E::Vector>>::sums(of).tiny) {
        // SAFETY: the caller's contract.
        return unsafe { by_cell::<E, O>([rows, vectors], of) };
    }
    for (row, v) in (0..rows).flat_map(|row| (0..vectors).map(move |v| (row, v))) {
        let one = <O as Outer<E::Vector>>::part(of, row, v * E::LANES);
        // SAFETY: the caller's contract, for a vector of a row.
        unsafe { by_cell::<E::Careful, O>([1, 1], &one) };
    }
    u16::MAX
}
