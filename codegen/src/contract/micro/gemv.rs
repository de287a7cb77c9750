//! Skinny GEMM: a few rows times unpacked columns that are contiguous along `k`.
//!
//! Vectors run across columns, because every sum is one chain along `k`. So squares of columns by
//! units are transposed in registers; packing would store and reload them. A unit has 32 bits: an
//! f32 or two 16-bit floats.

use super::super::pack::Lines;
use super::super::pack::avx512::transpose;
use super::super::pack::vectors::{Element, first};
use super::avx2::{Avx2F32, widened};
use super::avx512::Avx512F32;
use super::cell::{Bf16, F16, Same};
use super::engine::Engine;
use super::vector::{Microkernel, Vector};
use core::arch::x86_64 as x86;
use std::marker::PhantomData;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// The most rows where bf16 pairs would do: these are twice as fast once they are packed.
pub(in crate::contract) const ROWS_OF_PAIRS: usize = 2;

/// Prefetch distance along a column, in bytes.
const AHEAD: usize = 512;

/// 16-bit halves of a unit.
const HALVES: usize = 2;

/// Rows of A that are contiguous along `k`; `row` is their stride in elements.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Rows {
    pub(in crate::contract) base: *const f32,
    pub(in crate::contract) row: isize,
}

/// Part of the columns: their stride in bytes, their count, and the 16-bit halves of each.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Columns {
    from: *const u8,
    across: isize,
    count: usize,
    halves: usize,
}

/// Units of one dtype, and the steps in them.
pub(in crate::contract) trait Units<T> {
    const STEPS: usize;
    /// Splits units into f32, step by step.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector.
    unsafe fn split(units: T) -> [T; 2];
}

impl<T: Copy> Units<T> for Same {
    const STEPS: usize = 1;
    #[inline(always)]
    unsafe fn split(units: T) -> [T; 2] {
        [units; 2]
    }
}

impl<C: Element> Units<x86::__m512> for C {
    const STEPS: usize = 2;
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn split(units: x86::__m512) -> [x86::__m512; 2] {
        let units = x86::_mm512_castps_si512(units);
        [C::evens(units), C::evens(x86::_mm512_srli_epi32::<16>(units))]
    }
}

impl Units<x86::__m256> for Bf16 {
    const STEPS: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn split(units: x86::__m256) -> [x86::__m256; 2] {
        widened(x86::_mm256_castps_si256(units))
    }
}

/// Engines that transpose squares of columns in registers.
pub(in crate::contract) trait Gemv:
    Engine<Num = f32, Bf16: Units<<Self as Engine>::Vector>>
{
    /// How f16 are split, if they are read.
    type Half: Units<Self::Vector>;
    /// The units of a square, each of all its columns.
    type Square: IntoIterator<Item = Self::Vector>;
    /// Vectors of columns in flight for each number of rows, so that one's FMAs overlap another's
    /// transposition. With more rows packing is worth its stores.
    const VECTORS: &'static [usize];
    /// The fewest columns.
    const COLUMNS: usize;

    /// True if columns of that dtype can be read.
    fn transposes(dtype: DType) -> bool;

    /// Columns that are accumulated together with this many rows.
    fn together(rows: usize) -> usize {
        Self::VECTORS[rows - 1] * Self::LANES
    }

    /// Transposes a square, zeros where columns or units are missing.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's, and the columns readable. There are [`Gemv::COLUMNS`] or more.
    unsafe fn square(of: Columns) -> Self::Square;
}

impl Gemv for Avx512F32 {
    type Half = F16;
    type Square = [x86::__m512; 16];
    const VECTORS: &'static [usize] = &[2; 12];
    const COLUMNS: usize = 1;

    fn transposes(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn square(of: Columns) -> [x86::__m512; 16] {
        let mut square = [x86::_mm512_setzero_si512(); 16];
        let (mut from, halves) = (of.from, first(of.halves) as u32);
        for column in square.iter_mut().take(of.count) {
            x86::_mm_prefetch::<{ x86::_MM_HINT_T1 }>(from.wrapping_add(AHEAD).cast());
            // SAFETY: the caller vouches for these halves of a column.
            *column = unsafe { x86::_mm512_maskz_loadu_epi16(halves, from.cast()) };
            from = from.wrapping_offset(of.across);
        }
        let mut units = [x86::_mm512_setzero_ps(); 16];
        for (unit, bits) in units.iter_mut().zip(transpose(square)) {
            *unit = x86::_mm512_castsi512_ps(bits);
        }
        units
    }
}

impl Gemv for Avx2F32 {
    type Half = Same;
    type Square = [x86::__m256; 8];
    const VECTORS: &'static [usize] = &[4, 2, 2, 1];
    const COLUMNS: usize = 8;

    fn transposes(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn square(Columns { mut from, mut across, halves, .. }: Columns) -> [x86::__m256; 8] {
        let mut copies = [[0u16; 16]; 8];
        if halves < copies[0].len() {
            for (i, copy) in copies.iter_mut().enumerate() {
                let from = from.wrapping_offset(i as isize * across).cast();
                // SAFETY: the caller vouches for these halves of a column, which a copy has.
                unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(from, halves) };
            }
            (from, across) = (copies.as_ptr().cast(), size_of_val(&copies[0]) as isize);
        }
        for i in 0..8 {
            let from = from.wrapping_offset(i * across);
            x86::_mm_prefetch::<{ x86::_MM_HINT_T0 }>(from.wrapping_add(AHEAD).cast());
        }
        // Units of columns `c` and `c + 4` share a register: transposing stays in 128-bit halves.
        let four = |i: isize, bytes: usize| {
            let from = from.wrapping_offset(i * across).wrapping_add(bytes);
            // SAFETY: four units of a column.
            let low = unsafe { x86::_mm_loadu_ps(from.cast()) };
            let from = from.wrapping_offset(4 * across);
            // SAFETY: as above.
            x86::_mm256_set_m128(unsafe { x86::_mm_loadu_ps(from.cast()) }, low)
        };
        let [a, b, c, d] = turn([four(0, 0), four(1, 0), four(2, 0), four(3, 0)]);
        let [e, f, g, h] = turn([four(0, 16), four(1, 16), four(2, 16), four(3, 16)]);
        [a, b, c, d, e, f, g, h]
    }
}

/// Transposes four by four numbers in both 128-bit halves.
#[inline]
#[target_feature(enable = "avx2")]
fn turn([a, b, c, d]: [x86::__m256; 4]) -> [x86::__m256; 4] {
    let (low, high) = (x86::_mm256_unpacklo_ps(a, b), x86::_mm256_unpackhi_ps(a, b));
    let (low_2, high_2) = (x86::_mm256_unpacklo_ps(c, d), x86::_mm256_unpackhi_ps(c, d));
    [
        x86::_mm256_shuffle_ps::<0x44>(low, low_2),
        x86::_mm256_shuffle_ps::<0xee>(low, low_2),
        x86::_mm256_shuffle_ps::<0x44>(high, high_2),
        x86::_mm256_shuffle_ps::<0xee>(high, high_2),
    ]
}

/// `[rows, columns, k]`, the operands, the sums and their row stride. [`product`] alone makes them.
struct Product<E, U> {
    sizes: [usize; 3],
    a: Rows,
    b: Lines,
    sums: *mut f32,
    ld: usize,
    kind: PhantomData<(E, U)>,
}

impl<E: Gemv, U: Units<E::Vector>> Product<E, U> {
    /// Computes all sums of `R` rows, `V` vectors of columns in flight.
    #[inline(always)]
    fn sum<const R: usize, const V: usize>(&self) {
        let ([_, columns, k], side) = (self.sizes, E::LANES * U::STEPS);
        let zeros = [[E::Vector::splat(0.0); R]; V];
        for start in (0..columns).step_by(V * E::LANES) {
            // A remainder is recomputed with the last columns of the vector before it.
            let column = |v: usize| (start + v * E::LANES).min(columns.saturating_sub(E::LANES));
            let vectors = (columns - start).div_ceil(E::LANES).min(V);
            let mut totals = zeros;
            for from in (0..k).step_by(CONTRACT_BLOCK) {
                let (mut acc, end) = (zeros, k.min(from + CONTRACT_BLOCK));
                for p in (from..end).step_by(side) {
                    let steps = side.min(end - p);
                    for (v, acc) in acc.iter_mut().enumerate().take(vectors) {
                        if columns >= E::LANES && steps == side {
                            self.add(column(v), p, [E::LANES, side], acc);
                        } else {
                            self.add(column(v), p, [columns.min(E::LANES), steps], acc);
                        }
                    }
                }
                for (total, sum) in totals.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
                    *total = if from == 0 { *sum } else { total.add(*sum) };
                }
            }
            for (v, totals) in totals.iter().enumerate().take(vectors) {
                for (r, total) in totals.iter().enumerate() {
                    // SAFETY: `product`'s contract.
                    unsafe { total.store(self.sums.wrapping_add(r * self.ld + column(v))) };
                }
            }
        }
    }

    /// Adds the products of a square of columns by steps.
    #[inline(always)]
    fn add<const R: usize>(
        &self,
        column: usize,
        p: usize,
        [columns, steps]: [usize; 2],
        acc: &mut [E::Vector; R],
    ) {
        let (from, across) =
            (self.b.from(column, p).base, self.b.across * self.b.dtype.bytes() as isize);
        let halves = steps * HALVES / U::STEPS;
        // SAFETY: `product`'s contract.
        let square = unsafe { E::square(Columns { from, across, count: columns, halves }) };
        let (x, mut sums) = (self.a.base.wrapping_add(p), *acc);
        for (unit, units) in square.into_iter().enumerate() {
            // SAFETY: the CPU is the engine's.
            let elements = unsafe { U::split(units) };
            for (s, columns) in elements.into_iter().take(U::STEPS).enumerate() {
                let step = unit * U::STEPS + s;
                if step >= steps {
                    break;
                }
                for (r, sum) in sums.iter_mut().enumerate() {
                    let x = x.wrapping_add(step).wrapping_offset(r as isize * self.a.row);
                    // SAFETY: a step of the left operand.
                    *sum = E::Vector::splat(unsafe { x.read_unaligned() }).fma(columns, *sum);
                }
            }
        }
        *acc = sums;
    }
}

/// True if the engine has a kernel of that size.
const fn has_kernel<E: Gemv>(rows: usize, vectors: usize) -> bool {
    rows <= E::VECTORS.len() && E::VECTORS[rows - 1] == vectors
}

impl<E: Gemv, U: Units<E::Vector>> Microkernel for Product<E, U> {
    type Out = ();

    #[inline(always)]
    unsafe fn run(self) {
        macro_rules! sum {
            ($([$rows:literal $vectors:literal])*) => {
                match [self.sizes[0], E::VECTORS[self.sizes[0] - 1]] {
                    $([$rows, $vectors] => {
                        if const { has_kernel::<E>($rows, $vectors) } {
                            self.sum::<$rows, $vectors>()
                        }
                    })*
                    sizes => unreachable!("no product of {sizes:?}"),
                }
            };
        }
        sum!(
            [1 2] [1 4] [2 2] [3 2] [4 1] [4 2] [5 2] [6 2] [7 2] [8 2] [9 2] [10 2] [11 2] [12 2]
        )
    }
}

/// Computes `rows` by `columns` sums over `k`; `ld` is the row stride of `sums`.
///
/// # Safety
///
/// The CPU must be the engine's. The operands must be readable, and the sums writable for whole
/// vectors of columns. The `k` stride of columns must be one, [`Gemv::transposes`] true of their
/// dtype, and rows and columns as many as the engine takes.
pub(in crate::contract) unsafe fn product<E: Gemv>(
    sizes: [usize; 3],
    a: Rows,
    b: Lines,
    sums: *mut f32,
    ld: usize,
) {
    match b.dtype {
        DType::BF16 => {
            let kind = PhantomData::<(E, E::Bf16)>;
            // SAFETY: the caller's contract.
            unsafe { E::run(Product { sizes, a, b, sums, ld, kind }) }
        }
        DType::F16 => {
            let kind = PhantomData::<(E, E::Half)>;
            // SAFETY: as above.
            unsafe { E::run(Product { sizes, a, b, sums, ld, kind }) }
        }
        _ => {
            let kind = PhantomData::<(E, Same)>;
            // SAFETY: as above.
            unsafe { E::run(Product { sizes, a, b, sums, ld, kind }) }
        }
    }
}
