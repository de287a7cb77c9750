//! Skinny GEMM with AVX2, as [`super::few`] with AVX-512: eight columns by eight units at a time.

use super::super::pack::Lines;
use super::few::Rows;
use core::arch::x86_64 as x86;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// The most rows, and the fewest columns.
pub(in crate::contract) const ROWS: usize = 4;
pub(in crate::contract) const COLUMNS: usize = SIDE;

/// Columns of a vector, and units of a square.
pub(in crate::contract) const SIDE: usize = 8;

/// Vectors of columns in flight, for each number of rows.
pub(in crate::contract) const VECTORS: [usize; ROWS] = [4, 2, 2, 1];

/// The bytes of a unit.
const UNIT: usize = 4;

/// Prefetch distance along a column, in bytes.
const AHEAD: usize = 512;

/// Elements of a unit: an f32, or two bf16.
trait Units {
    const STEPS: usize;
    /// Splits eight units into f32, step by step.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2.
    unsafe fn split(units: x86::__m256) -> [x86::__m256; 2];
    /// One element.
    ///
    /// # Safety
    ///
    /// It must be readable.
    unsafe fn one(p: *const u8) -> f32;
}

struct F32;
struct Bf16;

impl Units for F32 {
    const STEPS: usize = 1;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn split(units: x86::__m256) -> [x86::__m256; 2] {
        [units; 2]
    }
    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<f32>().read_unaligned() }
    }
}

impl Units for Bf16 {
    const STEPS: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn split(units: x86::__m256) -> [x86::__m256; 2] {
        let units = x86::_mm256_castps_si256(units);
        let last = x86::_mm256_and_si256(units, x86::_mm256_set1_epi32(0xffff << 16));
        [x86::_mm256_slli_epi32::<16>(units), last].map(|x| x86::_mm256_castsi256_ps(x))
    }
    #[inline(always)]
    unsafe fn one(p: *const u8) -> f32 {
        // SAFETY: the caller's contract.
        f32::from_bits(u32::from(unsafe { p.cast::<u16>().read_unaligned() }) << 16)
    }
}

/// True if columns of that dtype can be read.
pub(in crate::contract) fn reads(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16)
}

/// [`super::few::product`] of `rows` (1 to [`ROWS`]) by `columns` ([`COLUMNS`] or more).
///
/// # Safety
///
/// The CPU must have AVX2 and FMA. Operands must be readable, the `k` stride of columns one,
/// [`reads`] true of the dtype, and sums writable.
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
                $($r => unsafe { all::<$units, $r, { VECTORS[$r - 1] }>(columns, k, a, b, sums, ld) },)*
                _ => unreachable!("{rows} rows are not few"),
            }
        };
    }
    match b.dtype {
        DType::BF16 => run!(Bf16: 1 2 3 4),
        _ => run!(F32: 1 2 3 4),
    }
}

/// # Safety
///
/// The CPU must have AVX2 and FMA. `R` rows and the columns must be readable, these of such units
/// along `k`, and sums writable.
#[target_feature(enable = "avx2,fma")]
unsafe fn all<U: Units, const R: usize, const V: usize>(
    columns: usize,
    k: usize,
    a: Rows,
    b: Lines,
    sums: *mut f32,
    ld: usize,
) {
    let across = b.across * b.dtype.bytes() as isize;
    let place = |first: usize, p: usize| Place {
        from: b.from(first, p).base,
        across,
        x: a.base.wrapping_add(p),
        row: a.row,
    };
    for start in (0..columns).step_by(V * SIDE) {
        // A remainder is recomputed with the last columns of the vector before it.
        let firsts: [usize; V] = std::array::from_fn(|v| (start + v * SIDE).min(columns - SIDE));
        let mut totals = [[x86::_mm256_setzero_ps(); R]; V];
        for from in (0..k).step_by(CONTRACT_BLOCK) {
            let end = k.min(from + CONTRACT_BLOCK);
            let whole = from + (end - from) / (SIDE * U::STEPS) * (SIDE * U::STEPS);
            let mut acc = [[x86::_mm256_setzero_ps(); R]; V];
            for p in (from..whole).step_by(SIDE * U::STEPS) {
                for (first, acc) in firsts.iter().zip(&mut acc) {
                    // SAFETY: these columns and steps.
                    unsafe { square::<U, R>(place(*first, p), acc) };
                }
            }
            for p in whole..end {
                for (first, acc) in firsts.iter().zip(&mut acc) {
                    // SAFETY: these columns and this step.
                    unsafe { singly::<U, R>(place(*first, p), acc) };
                }
            }
            for (total, sum) in totals.iter_mut().flatten().zip(acc.iter().flatten()) {
                *total = if from == 0 { *sum } else { x86::_mm256_add_ps(*total, *sum) };
            }
        }
        for (first, totals) in firsts.into_iter().zip(totals) {
            for (r, total) in totals.into_iter().enumerate() {
                // SAFETY: the caller's contract.
                unsafe { x86::_mm256_storeu_ps(sums.wrapping_add(r * ld + first), total) };
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

impl Place {
    /// Broadcasts a row's number of a step.
    ///
    /// # Safety
    ///
    /// It must be readable, and the CPU have AVX.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn left(&self, step: usize, row: usize) -> x86::__m256 {
        let x = self.x.wrapping_add(step).wrapping_offset(row as isize * self.row);
        // SAFETY: the caller's contract.
        x86::_mm256_set1_ps(unsafe { x.read_unaligned() })
    }
}

/// Adds the products of eight columns and units.
///
/// # Safety
///
/// The columns and the rows must be readable for as many steps.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn square<U: Units, const R: usize>(at: Place, acc: &mut [x86::__m256; R]) {
    // Units of columns `c` and `c + 4` share a register: transposing stays in 128-bit halves.
    let four = |i: usize, units: usize| {
        let from = at.from.wrapping_offset(i as isize * at.across).wrapping_add(units * UNIT);
        // SAFETY: the caller's contract.
        let low = unsafe { x86::_mm_loadu_ps(from.cast()) };
        let from = from.wrapping_offset(4 * at.across);
        // SAFETY: as above.
        x86::_mm256_set_m128(unsafe { x86::_mm_loadu_ps(from.cast()) }, low)
    };
    for i in 0..SIDE {
        let from = at.from.wrapping_offset(i as isize * at.across);
        x86::_mm_prefetch::<{ x86::_MM_HINT_T0 }>(from.wrapping_add(AHEAD).cast());
    }
    let mut sums = *acc;
    for units in [0, SIDE / 2] {
        let turned = turn([four(0, units), four(1, units), four(2, units), four(3, units)]);
        for (p, some) in turned.into_iter().enumerate() {
            // SAFETY: the CPU has AVX2.
            let elements = unsafe { U::split(some) };
            for (s, columns) in elements.into_iter().take(U::STEPS).enumerate() {
                let step = (units + p) * U::STEPS + s;
                for (r, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a step of the left operand.
                    *sum = x86::_mm256_fmadd_ps(unsafe { at.left(step, r) }, columns, *sum);
                }
            }
        }
    }
    *acc = sums;
}

/// The same of a single step.
///
/// # Safety
///
/// The CPU must have AVX2 and FMA. The columns and the rows must be readable for this step.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn singly<U: Units, const R: usize>(at: Place, acc: &mut [x86::__m256; R]) {
    let all: [f32; SIDE] = std::array::from_fn(|i| {
        // SAFETY: the caller's contract.
        unsafe { U::one(at.from.wrapping_offset(i as isize * at.across)) }
    });
    // SAFETY: eight numbers.
    let columns = unsafe { x86::_mm256_loadu_ps(all.as_ptr()) };
    for (r, sum) in acc.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        *sum = x86::_mm256_fmadd_ps(unsafe { at.left(0, r) }, columns, *sum);
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
