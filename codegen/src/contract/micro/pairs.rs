//! Microkernels of bf16 pairs with AVX512-BF16, whose `vdpbf16ps` does the work of two FMAs.
//!
//! A packed number holds two steps of `k`. `vdpbf16ps` adds the product of the high halves, then
//! that of the low halves, each like an FMA: it continues the chain that defines a contraction. But
//! it treats subnormals as zero: where one could occur ([`tiny`](super::gemm::Sums::tiny)), FMAs
//! take over. Intel's reference describes that order; the bits depend on it, so [`available`] tries
//! it out.

use super::super::pack::avx512::{Two, join_pairs, larger_negated, least_magnitude};
use super::super::pack::vectors::RoundedToBf16;
use super::super::pack::{Grid, Half, Packing, interleave};
use super::avx512::Avx512F32;
use super::cell::{Bf16, Cell, Same};
use super::engine::Engine;
use super::vector::{Microkernel, Vector};
use crate::routines::to_bf16;
use core::arch::x86_64 as x86;
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tracecast_ir::DType;
use tracecast_ir::kernel::math::fma;

/// Two bf16 in each lane, or sums in f32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::contract) struct Pairs(x86::__m512);

/// The same, multiplied by fused multiply-adds.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::contract) struct Slowly(x86::__m512);

macro_rules! pair_vector {
    ($ty:ident, $fma:ident, $round:ident, $features:literal) => {
        impl Vector for $ty {
            type Num = f32;
            #[target_feature(enable = $features)]
            unsafe fn run<K: Microkernel>(kernel: K) -> K::Out {
                // SAFETY: the caller's contract.
                unsafe { kernel.run() }
            }
            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: used by this engine only, whose callers have checked for the CPU.
                $ty(unsafe { x86::_mm512_set1_ps(x) })
            }
            #[inline(always)]
            fn fma(self, b: Self, acc: Self) -> Self {
                // SAFETY: as for `splat`.
                $ty(unsafe { $fma(self.0, b.0, acc.0) })
            }
            #[inline(always)]
            fn add(self, o: Self) -> Self {
                // SAFETY: as for `splat`.
                $ty(unsafe { x86::_mm512_add_ps(self.0, o.0) })
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn round(self, p: *mut u16) {
                let rounded = $round(self.0);
                // SAFETY: the caller vouches for the places of sixteen sums.
                unsafe { x86::_mm256_storeu_si256(p.cast(), rounded) };
            }
        }
    };
}

pair_vector!(Pairs, multiply, nearest, "avx512f,avx512bw,avx512vl,avx512bf16");
pair_vector!(Slowly, multiply_slowly, to_bf16, "avx512f,avx512bw,avx512vl");

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply(a: x86::__m512, b: x86::__m512, acc: x86::__m512) -> x86::__m512 {
    // SAFETY: all 512 bits are numbers in either type.
    let [a, b] = [a, b].map(|x| unsafe { std::mem::transmute::<x86::__m512, x86::__m512bh>(x) });
    x86::_mm512_dpbf16_ps(acc, a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn multiply_slowly(a: x86::__m512, b: x86::__m512, acc: x86::__m512) -> x86::__m512 {
    let halves = |x: x86::__m512| {
        let x = x86::_mm512_castps_si512(x);
        let high = x86::_mm512_and_si512(x, x86::_mm512_set1_epi32(0xffff << 16));
        [high, x86::_mm512_slli_epi32::<16>(x)].map(|x| x86::_mm512_castsi512_ps(x))
    };
    let ([a, c], [b, d]) = (halves(a), halves(b));
    x86::_mm512_fmadd_ps(c, d, x86::_mm512_fmadd_ps(a, b, acc))
}

/// Columns of bf16 whose two steps are separate in memory, as rows of a matrix.
pub(in crate::contract) struct Apart;

impl Cell<Pairs> for Apart {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(p: *const u8, step: isize) -> Pairs {
        // SAFETY: the caller vouches for sixteen elements of both steps.
        let first = x86::_mm512_cvtepu16_epi32(unsafe { x86::_mm256_loadu_si256(p.cast()) });
        let p = p.wrapping_offset(step / 2);
        // SAFETY: as above.
        let second = x86::_mm512_cvtepu16_epi32(unsafe { x86::_mm256_loadu_si256(p.cast()) });
        let both = x86::_mm512_or_si512(x86::_mm512_slli_epi32::<16>(first), second);
        Pairs(x86::_mm512_castsi512_ps(both))
    }
    /// Groups of four columns alternate between the two vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load_two(p: *const u8, step: isize) -> [Pairs; 2] {
        // SAFETY: the caller vouches for 32 elements of both steps.
        let first = unsafe { x86::_mm512_loadu_si512(p.cast()) };
        // SAFETY: as above.
        let second = unsafe { x86::_mm512_loadu_si512(p.wrapping_offset(step / 2).cast()) };
        let even = x86::_mm512_unpacklo_epi16(second, first);
        let odd = x86::_mm512_unpackhi_epi16(second, first);
        [even, odd].map(|both| Pairs(x86::_mm512_castsi512_ps(both)))
    }
    #[inline(always)]
    fn in_order([even, odd]: [Pairs; 2]) -> [Pairs; 2] {
        // SAFETY: as for `splat`.
        let [first, last] = unsafe { fours_in_turn(even.0, odd.0) };
        [Pairs(first), Pairs(last)]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn round_two([even, odd]: [Pairs; 2], p: *mut u16) {
        let order = x86::_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        let rounded = x86::_mm512_permutexvar_epi64(order, nearest_of_two(even.0, odd.0));
        // SAFETY: the caller vouches for the places of 32 sums.
        unsafe { x86::_mm512_storeu_si512(p.cast(), rounded) };
    }
    #[inline(always)]
    fn smaller(least: Pairs, numbers: Pairs) -> Pairs {
        // SAFETY: as for `splat`, and this engine's CPUs have AVX-512BW.
        Pairs(unsafe { least_so_far(least.0, numbers.0) })
    }
    #[inline(always)]
    fn least(Pairs(least): Pairs) -> u16 {
        // SAFETY: as for `splat`.
        let least = unsafe { x86::_mm512_castps_si512(least) };
        // SAFETY: as for `smaller`; these CPUs have SSE4.1 as well.
        unsafe { least_magnitude(least) }
    }
}

/// Interleaves two vectors by groups of four numbers: the low half, then the high half.
#[inline]
#[target_feature(enable = "avx512f")]
fn fours_in_turn(even: x86::__m512, odd: x86::__m512) -> [x86::__m512; 2] {
    let (even, odd) = (x86::_mm512_castps_pd(even), x86::_mm512_castps_pd(odd));
    let first = x86::_mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let first = x86::_mm512_permutex2var_pd(even, first, odd);
    let last = x86::_mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    let last = x86::_mm512_permutex2var_pd(even, last, odd);
    [x86::_mm512_castpd_ps(first), x86::_mm512_castpd_ps(last)]
}

/// [`larger_negated`] of numbers in vectors of f32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn least_so_far(known: x86::__m512, numbers: x86::__m512) -> x86::__m512 {
    let [known, numbers] = [known, numbers].map(|x| x86::_mm512_castps_si512(x));
    x86::_mm512_castsi512_ps(larger_negated(known, numbers))
}

impl Cell<Slowly> for Apart {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(p: *const u8, step: isize) -> Slowly {
        // SAFETY: the caller's contract.
        let Pairs(both) = unsafe { <Apart as Cell<Pairs>>::load(p, step) };
        Slowly(both)
    }
}

/// bf16 in pairs, summed in f32.
pub(in crate::contract) struct PairsF32;

impl Engine for PairsF32 {
    type Num = f32;
    type Vector = Pairs;
    type Singly = Avx512F32;
    type Careful = SlowPairs;
    type Bf16 = Apart;
    type F16 = Same;
    const WIDTH: usize = Avx512F32::WIDTH;
    const ROWS: usize = Avx512F32::ROWS;
    const FEW: usize = Avx512F32::FEW;
    const SPOTS: usize = Avx512F32::SPOTS;
    const DEPTH: usize = 2;
    const IS_CARELESS: bool = true;
    const ROUNDS: bool = true;
    fn reads(cell: DType) -> bool {
        cell == DType::BF16
    }
    fn reads_fast(cell: DType) -> bool {
        cell == DType::BF16
    }
    unsafe fn join(from: *const f32, to: *mut f32, count: usize, apart: isize) -> u16 {
        // SAFETY: the caller's contract; the CPU has what `available` asks for.
        unsafe { join_pairs(from.cast(), to.cast(), count, apart) }
    }
    unsafe fn join_halves(halves: &[Half; 2], grid: Grid, to: *mut f32) -> u16 {
        // SAFETY: the caller vouches for the CPU, both halves and the places of their pairs.
        unsafe { interleave::join_halves(halves, grid)(halves, grid, to.cast()) }
    }
    fn packing(dtype: DType, _: Option<DType>) -> Option<Packing> {
        Some(match dtype {
            DType::BF16 => Packing::of::<Avx512F32, Two<Bf16>>(),
            _ => Packing::of::<Avx512F32, Two<RoundedToBf16>>(),
        })
    }
}

/// The same with fused multiply-adds, where sums may be subnormal: a row and a vector at a time.
pub(in crate::contract) struct SlowPairs;

impl Engine for SlowPairs {
    type Num = f32;
    type Vector = Slowly;
    type Singly = Avx512F32;
    type Careful = Self;
    type Bf16 = Apart;
    type F16 = Same;
    const WIDTH: usize = 16;
    const ROWS: usize = 1;
    const FEW: usize = 0;
    const SPOTS: usize = 1;
    const DEPTH: usize = 2;
    const ROUNDS: bool = true;
}

/// As [`to_bf16`], of numbers that are not subnormal: for the instruction, these are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
fn nearest(x: x86::__m512) -> x86::__m256i {
    let rounded = x86::_mm512_cvtneps_pbh(x);
    // SAFETY: all 256 bits are numbers in either type.
    unsafe { std::mem::transmute::<x86::__m256bh, x86::__m256i>(rounded) }
}

/// The same of two vectors, concatenated.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn nearest_of_two(first: x86::__m512, last: x86::__m512) -> x86::__m512i {
    let rounded = x86::_mm512_cvtne2ps_pbh(last, first);
    // SAFETY: all 512 bits are numbers in either type.
    unsafe { std::mem::transmute::<x86::__m512bh, x86::__m512i>(rounded) }
}

/// True if the CPU has the instructions, and they round as chains do and to the nearest bf16.
pub(in crate::contract) fn available() -> bool {
    tried()[0]
}

/// True if `vdpbf16ps` is also faster than the two FMAs that it replaces: on AMD it is. Intel's
/// Emerald Rapids multiplies bf16 fast only in AMX tiles.
pub(in crate::contract) fn are_fast() -> bool {
    tried()[1]
}

/// [`available`] and [`are_fast`].
fn tried() -> [bool; 2] {
    static TRIED: LazyLock<[bool; 2]> = LazyLock::new(|| {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bf16");
        // SAFETY: the CPU has AVX512-BF16.
        if has_all { unsafe { try_out() } } else { [false; 2] }
    });
    *TRIED
}

#[target_feature(enable = "avx,avx2,avx512f,avx512vl,avx512bf16")]
fn try_out() -> [bool; 2] {
    let in_pairs = time(|sum, x| multiply(x, x, sum));
    let one_by_one = 2 * time(|sum, x| x86::_mm512_fmadd_ps(x, x, sum));
    let is_as_promised = is_a_chain() && rounds_to_nearest();
    [is_as_promised, is_as_promised && in_pairs < one_by_one]
}

/// The least time of 16 runs, since other work only adds time. Independent sums hide the latency.
#[target_feature(enable = "avx,avx2,avx512f,avx512vl,avx512bf16")]
fn time(step: impl Fn(x86::__m512, x86::__m512) -> x86::__m512) -> Duration {
    let run = || {
        let (start, x) = (Instant::now(), x86::_mm512_set1_ps(1e-3));
        let mut sums = [x; 24];
        for _ in 0..256 {
            let x = black_box(x);
            sums.iter_mut().for_each(|sum| *sum = step(*sum, x));
        }
        black_box(sums);
        start.elapsed()
    };
    std::iter::repeat_with(run).take(16).min().unwrap_or_default()
}

/// Compares the rounding instruction with the routine that rounds all f32.
#[target_feature(enable = "avx,avx2,avx512f,avx512vl,avx512bf16")]
fn rounds_to_nearest() -> bool {
    // All signs and exponents but subnormals, with fractions around those that round to even.
    let fractions = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1_7fff, 0x1_8000, 0x1_8001, 0x7f_ffff];
    let all = (1u32..512).filter(|high| high % 256 != 0);
    let mut all = all.flat_map(|high| fractions.map(|low| f32::from_bits(high << 23 | low)));
    all.all(|x| {
        let x = x86::_mm512_set1_ps(x);
        let two = nearest_of_two(x86::_mm512_setzero_ps(), x);
        let (first, last) =
            (x86::_mm512_castsi512_si256(two), x86::_mm512_extracti64x4_epi64::<1>(two));
        let differ = x86::_mm256_xor_si256(nearest(x), to_bf16(x));
        let differ = x86::_mm256_or_si256(differ, x86::_mm256_xor_si256(last, to_bf16(x)));
        let differ = x86::_mm256_or_si256(differ, first);
        x86::_mm256_testz_si256(differ, differ) == 1
    })
}

/// Compares `vdpbf16ps` with two FMAs on numbers that round in all ways.
#[target_feature(enable = "avx512f,avx512bf16")]
fn is_a_chain() -> bool {
    let mut state = 1u32;
    // Exponents from -8 to 7, or those of infinity and NaN.
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let exponent = if state >> 28 == 0 { 255 } else { 119 + (state >> 8 & 15) };
        state & 0x8000_0000 | exponent << 23 | state >> 5 & 0x7f_ffff
    };
    let mut pair = || next() & 0xffff_0000 | next() >> 16;
    (0..256).all(|_| {
        let (mut left, mut right, mut sums) = ([0u32; 16], [0u32; 16], [0f32; 16]);
        for i in 0..16 {
            (left[i], right[i], sums[i]) = (pair(), pair(), f32::from_bits(pair()));
        }
        let chain = |i: usize| {
            let half = |x: u32, shift: u32| f32::from_bits(x << shift & 0xffff_0000);
            let sum = fma(half(left[i], 0), half(right[i], 0), sums[i]);
            fma(half(left[i], 16), half(right[i], 16), sum)
        };
        // SAFETY: sixteen numbers, any bits of which are valid.
        let vector = |x: [u32; 16]| unsafe { std::mem::transmute::<[u32; 16], x86::__m512>(x) };
        let found = multiply(vector(left), vector(right), vector(sums.map(f32::to_bits)));
        // SAFETY: as above.
        let results = unsafe { std::mem::transmute::<x86::__m512, [f32; 16]>(found) };
        (0..16).all(|i| {
            let want = chain(i);
            results[i].to_bits() == want.to_bits() || results[i].is_nan() && want.is_nan()
        })
    })
}
