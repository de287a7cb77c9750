//! Skinny GEMM with AVX-512: a few rows times unpacked columns that are contiguous along `k`.
//!
//! Vectors run across columns, because every sum is one chain along `k`. So sixteen columns by
//! sixteen units, cache lines of f32, are transposed in registers; packing would store and reload
//! them. A unit is an f32 or two 16-bit floats.

use super::super::pack::Lines;
use super::super::pack::avx512::transpose;
use super::super::pack::loads::{Bf16, F16, F32, Numbers, One, Two};
use core::arch::x86_64 as x86;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// The most rows: with more of them packing is worth its stores.
pub(in crate::contract) const ROWS: usize = 12;

/// The most rows where bf16 pairs would do: these are twice as fast once they are packed.
pub(in crate::contract) const ROWS_OF_PAIRS: usize = 2;

/// Columns of a vector, and units of a square.
const SIDE: usize = 16;

/// Vectors of columns in flight, so that one's FMAs overlap the other's transposition.
const TOGETHER: usize = 2;

/// Columns that are accumulated together.
pub(in crate::contract) const COLUMNS: usize = TOGETHER * SIDE;

/// Prefetch distance along a column, in bytes.
const AHEAD: usize = 512;

/// Rows of A that are contiguous along `k`; `row` is their stride in elements.
#[derive(Clone, Copy)]
pub(in crate::contract) struct Rows {
    pub(in crate::contract) base: *const f32,
    pub(in crate::contract) row: isize,
}

/// Units of one dtype, and the steps in them.
trait Units: Numbers {
    /// Splits sixteen units into f32, step by step.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512F.
    unsafe fn split(units: x86::__m512i) -> [x86::__m512; 2];
}

impl Units for One<F32> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn split(units: x86::__m512i) -> [x86::__m512; 2] {
        [x86::_mm512_castsi512_ps(units); 2]
    }
}

impl Units for Two<Bf16> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn split(units: x86::__m512i) -> [x86::__m512; 2] {
        let high = x86::_mm512_and_si512(units, x86::_mm512_set1_epi32(0xffff << 16));
        [high, x86::_mm512_slli_epi32::<16>(units)].map(|x| x86::_mm512_castsi512_ps(x))
    }
}

impl Units for Two<F16> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn split(units: x86::__m512i) -> [x86::__m512; 2] {
        [x86::_mm512_srli_epi32::<16>(units), units]
            .map(|x| x86::_mm512_cvtph_ps(x86::_mm512_cvtepi32_epi16(x)))
    }
}

/// True if columns of that dtype can be read.
pub(in crate::contract) fn reads(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

/// Computes `rows` (1 to [`ROWS`]) by `columns` sums over `k`; `ld` is the row stride of `sums`.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. The operands must be readable, and the sums writable for
/// whole vectors of columns. The `k` stride of columns must be one, and [`reads`] true of the
/// dtype.
pub(in crate::contract) unsafe fn product(
    [rows, columns, k]: [usize; 3],
    a: Rows,
    b: Lines,
    sums: *mut f32,
    ld: usize,
) {
    macro_rules! run {
        ($units:ty: $($r:literal)*) => {
            match rows {
                // SAFETY: the caller's contract.
                $($r => unsafe { all::<$units, $r>(columns, k, a, b, sums, ld) },)*
                _ => unreachable!("{rows} rows are not few"),
            }
        };
    }
    match b.dtype {
        DType::BF16 => run!(Two<Bf16>: 1 2 3 4 5 6 7 8 9 10 11 12),
        DType::F16 => run!(Two<F16>: 1 2 3 4 5 6 7 8 9 10 11 12),
        _ => run!(One<F32>: 1 2 3 4 5 6 7 8 9 10 11 12),
    }
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. `R` rows and the columns must be readable, these of such
/// units along `k`, and sums writable for whole vectors of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn all<U: Units, const R: usize>(
    columns: usize,
    k: usize,
    a: Rows,
    b: Lines,
    sums: *mut f32,
    ld: usize,
) {
    for start in (0..columns).step_by(COLUMNS) {
        for from in (0..k).step_by(CONTRACT_BLOCK) {
            let mut acc = [[x86::_mm512_setzero_ps(); R]; TOGETHER];
            for p in (from..k.min(from + CONTRACT_BLOCK)).step_by(SIDE * U::STEPS) {
                let steps = (SIDE * U::STEPS).min(k - p);
                for (v, acc) in acc.iter_mut().enumerate() {
                    let column = start + v * SIDE;
                    if column >= columns {
                        break;
                    }
                    let place = Place {
                        from: b.from(column, p).base,
                        across: b.across * U::BYTES as isize,
                        x: a.base.wrapping_add(p),
                        row: a.row,
                    };
                    let count = SIDE.min(columns - column);
                    if count == SIDE && steps == SIDE * U::STEPS {
                        // SAFETY: these columns and steps.
                        unsafe { square::<U, R>(place, SIDE, SIDE * U::STEPS, acc) };
                    } else {
                        // SAFETY: as above.
                        unsafe { square::<U, R>(place, count, steps, acc) };
                    }
                }
            }
            for (v, acc) in acc.iter().enumerate() {
                for (r, sum) in acc.iter().enumerate() {
                    let column = start + v * SIDE;
                    if column >= columns {
                        break;
                    }
                    let to = sums.wrapping_add(r * ld + column);
                    let mut total = *sum;
                    if from > 0 {
                        // SAFETY: the sums of the blocks before.
                        total = x86::_mm512_add_ps(unsafe { x86::_mm512_loadu_ps(to) }, total);
                    }
                    // SAFETY: the caller's contract.
                    unsafe { x86::_mm512_storeu_ps(to, total) };
                }
            }
        }
    }
}

/// Start of a square: its first column, the stride of columns in bytes, and the first row's number.
#[derive(Clone, Copy)]
struct Place {
    from: *const u8,
    across: isize,
    x: *const f32,
    row: isize,
}

/// Adds the products of up to sixteen columns and units.
///
/// # Safety
///
/// `columns` columns and the rows must be readable for `steps` steps.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn square<U: Units, const R: usize>(
    at: Place,
    columns: usize,
    steps: usize,
    acc: &mut [x86::__m512; R],
) {
    let mut square = [x86::_mm512_setzero_si512(); SIDE];
    let mut from = at.from;
    for column in square.iter_mut().take(columns) {
        x86::_mm_prefetch::<{ x86::_MM_HINT_T1 }>(from.wrapping_add(AHEAD).cast());
        // SAFETY: these steps of a column.
        *column = unsafe { U::along(from, steps) };
        from = from.wrapping_offset(at.across);
    }
    let mut sums = *acc;
    for (p, units) in transpose(square).into_iter().enumerate() {
        // SAFETY: the CPU has AVX-512F.
        let elements = unsafe { U::split(units) };
        for (s, columns) in elements.into_iter().take(U::STEPS).enumerate() {
            let step = p * U::STEPS + s;
            if step >= steps {
                break;
            }
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = at.x.wrapping_add(step).wrapping_offset(r as isize * at.row);
                // SAFETY: a step of the left operand.
                let x = x86::_mm512_set1_ps(unsafe { x.read_unaligned() });
                *sum = x86::_mm512_fmadd_ps(x, columns, *sum);
            }
        }
    }
    *acc = sums;
}
