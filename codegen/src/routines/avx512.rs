//! Sixteen f32 at a time: for the rows of attention, and functions that generated code calls. What
//! else there is has the routines of AVX2.

use super::arithmetic::{arithmetic, instructions, patch, single};
use super::{FunctionRoutines, Tiles, avx2, sum_rows};
use core::arch::x86_64 as x86;
use tracecast_ir::kernel::math::Lane;
use tracecast_ir::kernel::{Code, Definition, PerFunction};

/// Routines for AVX-512.
pub(super) static TILES: Tiles = Tiles {
    functions: |function| function.with(Functions),
    f32_to_bf16,
    f32_to_f16,
    sum_rows: sum_rows::avx512,
    ..avx2::TILES
};

/// Makes the routines of a function from its definition.
struct Functions;

impl PerFunction for Functions {
    type Output = FunctionRoutines;

    fn make<F: Definition>(self) -> FunctionRoutines {
        let routines = avx2::Functions.make::<F>();
        match F::FUNCTION.code() {
            Code::Patched => FunctionRoutines { tile: function_tile::<F>, ..routines },
            // Vector loops have its instructions.
            Code::StraightLine => routines,
        }
    }
}

/// A function over a tile, two vectors at a time, which hide each other's latencies.
///
/// # Safety
///
/// As [`TileFn`](super::TileFn), on a CPU with AVX-512F.
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe extern "C" fn function_tile<F: Definition>(src: *const u8, dst: *mut u8, n: usize) {
    let (src, dst) = (src.cast::<f32>(), dst.cast::<f32>());
    for i in (0..n).step_by(32) {
        let [low, high] = [n - i, (n - i).saturating_sub(16)].map(|left| {
            let lanes = left.min(16) as u32;
            (1u32 << lanes).wrapping_sub(1) as Mask
        });
        let (from, to) = (src.wrapping_add(i), dst.wrapping_add(i));
        // SAFETY: a mask has only lanes below `n`, and the others are not read.
        let x = unsafe { x86::_mm512_maskz_loadu_ps(low, from) };
        // SAFETY: as above.
        let y = unsafe { x86::_mm512_maskz_loadu_ps(high, from.wrapping_add(16)) };
        let (x, y) = (F::of_lanes(Wide(x)), F::of_lanes(Wide(y)));
        // SAFETY: as above; they are not written either.
        unsafe { x86::_mm512_mask_storeu_ps(to, low, x.0) };
        // SAFETY: as above.
        unsafe { x86::_mm512_mask_storeu_ps(to.wrapping_add(16), high, y.0) };
    }
}

/// f32 to bf16.
///
/// # Safety
///
/// As [`TileFn`](super::TileFn), on a CPU with AVX-512F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe extern "C" fn f32_to_bf16(src: *const u8, dst: *mut u8, n: usize) {
    let narrow = |x: x86::__m512| to_bf16(x);
    // SAFETY: the caller's contract.
    unsafe { narrowed(src, dst, n, narrow) }
}

/// f32 to f16.
///
/// # Safety
///
/// As [`f32_to_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe extern "C" fn f32_to_f16(src: *const u8, dst: *mut u8, n: usize) {
    const NEAREST: i32 = x86::_MM_FROUND_TO_NEAREST_INT | x86::_MM_FROUND_NO_EXC;
    let narrow = |x: x86::__m512| x86::_mm512_cvtps_ph::<NEAREST>(x);
    // SAFETY: the caller's contract.
    unsafe { narrowed(src, dst, n, narrow) }
}

/// Sixteen elements at a time, the last ones under a mask.
///
/// # Safety
///
/// As [`f32_to_bf16`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn narrowed(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    narrow: impl Fn(x86::__m512) -> x86::__m256i,
) {
    let (src, dst) = (src.cast::<f32>(), dst.cast::<i16>());
    let whole = n / 16 * 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: sixteen elements below `n`.
        let x = unsafe { x86::_mm512_loadu_ps(src.wrapping_add(i)) };
        // SAFETY: as above.
        unsafe { x86::_mm256_storeu_si256(dst.wrapping_add(i).cast(), narrow(x)) };
    }
    if whole < n {
        let mask = ((1u32 << (n - whole)) - 1) as Mask;
        // SAFETY: a mask has only lanes below `n`, and the others are not read.
        let x = unsafe { x86::_mm512_maskz_loadu_ps(mask, src.wrapping_add(whole)) };
        // SAFETY: as above; they are not written either.
        unsafe { x86::_mm256_mask_storeu_epi16(dst.wrapping_add(whole), mask, narrow(x)) };
    }
}

/// The nearest bf16 in the high halves, ties to even; a NaN stays one. What is in the low halves
/// means nothing.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn nearest_bf16(x: x86::__m512) -> x86::__m512i {
    let nan = x86::_mm512_cmp_ps_mask::<{ x86::_CMP_UNORD_Q }>(x, x);
    let x = x86::_mm512_castps_si512(x);
    let odd = x86::_mm512_and_si512(x86::_mm512_srli_epi32::<16>(x), x86::_mm512_set1_epi32(1));
    let up = x86::_mm512_add_epi32(odd, x86::_mm512_set1_epi32(0x7fff));
    let up = x86::_mm512_add_epi32(x, up);
    x86::_mm512_mask_or_epi32(up, nan, x, x86::_mm512_set1_epi32(0x40 << 16))
}

/// The nearest bf16, one beside the other.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn to_bf16(x: x86::__m512) -> x86::__m256i {
    x86::_mm512_cvtepi32_epi16(x86::_mm512_srli_epi32::<16>(nearest_bf16(x)))
}

/// Sixteen f32. Made and used only inside routines whose caller has checked the CPU.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Wide(pub(super) x86::__m512);

type Bits = x86::__m512i;
type Mask = x86::__mmask16;

/// `self` cannot be named in a macro's body, so the methods that take it go through these.
struct Op;

impl Op {
    instructions! {
        splat(v: f32) -> x86::__m512 = x86::_mm512_set1_ps(v);
        add(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_add_ps(a.0, b.0);
        sub(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_sub_ps(a.0, b.0);
        mul(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_mul_ps(a.0, b.0);
        div(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_div_ps(a.0, b.0);
        fma(a: Wide, b: Wide, c: Wide) -> x86::__m512 = x86::_mm512_fmadd_ps(a.0, b.0, c.0);
        sqrt(a: Wide) -> x86::__m512 = x86::_mm512_sqrt_ps(a.0);
        max(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_max_ps(a.0, b.0);
        min(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_min_ps(a.0, b.0);
        exponent(a: Wide) -> x86::__m512 = x86::_mm512_getexp_ps(a.0);
        fraction(a: Wide) -> x86::__m512 = x86::_mm512_getmant_ps::<{ x86::_MM_MANT_NORM_1_2 }, 3>(a.0);
        scale(a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_scalef_ps(a.0, b.0);
        lt(a: Wide, b: Wide) -> Mask = x86::_mm512_cmp_ps_mask::<{ x86::_CMP_LT_OQ }>(a.0, b.0);
        eq(a: Wide, b: Wide) -> Mask = x86::_mm512_cmp_ps_mask::<{ x86::_CMP_EQ_OQ }>(a.0, b.0);
        blend(m: Mask, a: Wide, b: Wide) -> x86::__m512 = x86::_mm512_mask_blend_ps(m, b.0, a.0);
        bits(a: Wide) -> Bits = x86::_mm512_castps_si512(a.0);
        from_bits(a: Bits) -> x86::__m512 = x86::_mm512_castsi512_ps(a);
        spread(m: Mask) -> Bits = x86::_mm512_maskz_set1_epi32(m, -1);
        mask(a: Bits) -> Mask = x86::_mm512_test_epi32_mask(a, a);
        same(a: Bits, b: Bits) -> Mask = x86::_mm512_cmpeq_epi32_mask(a, b);
        count(n: i32) -> x86::__m128i = x86::_mm_cvtsi32_si128(n);
        left(a: Bits, n: x86::__m128i) -> Bits = x86::_mm512_sll_epi32(a, n);
        right(a: Bits, n: x86::__m128i) -> Bits = x86::_mm512_sra_epi32(a, n);
    }
}

impl Lane for Wide {
    type Bits = Bits;

    instructions! {
        splat_bits(v: u32) -> Bits = x86::_mm512_set1_epi32(v as i32);
        int_add(a: Bits, b: Bits) -> Bits = x86::_mm512_add_epi32(a, b);
        int_sub(a: Bits, b: Bits) -> Bits = x86::_mm512_sub_epi32(a, b);
        and(a: Bits, b: Bits) -> Bits = x86::_mm512_and_si512(a, b);
        or(a: Bits, b: Bits) -> Bits = x86::_mm512_or_si512(a, b);
        xor(a: Bits, b: Bits) -> Bits = x86::_mm512_xor_si512(a, b);
    }

    single!();

    #[inline(always)]
    fn lt(self, o: Self) -> Bits {
        Op::spread(Op::lt(self, o))
    }
    #[inline(always)]
    fn eq(self, o: Self) -> Bits {
        Op::spread(Op::eq(self, o))
    }
    #[inline(always)]
    fn select(mask: Bits, a: Self, b: Self) -> Self {
        Wide(Op::blend(Op::mask(mask), a, b))
    }
    #[inline(always)]
    fn shl<const N: i32>(a: Bits) -> Bits {
        Op::left(a, Op::count(N))
    }
    #[inline(always)]
    fn sar<const N: i32>(a: Bits) -> Bits {
        Op::right(a, Op::count(N))
    }
    #[inline(always)]
    fn int_eq(a: Bits, b: Bits) -> Bits {
        Op::spread(Op::same(a, b))
    }
    #[inline(always)]
    fn scale(self, n: Self, _: Bits) -> Self {
        Wide(Op::scale(self, n))
    }
    #[inline(always)]
    fn scale_down(self, n: Self, _: Bits) -> Self {
        Wide(Op::scale(self, n))
    }
    #[inline(always)]
    fn parts(self) -> (Self, Self) {
        (Wide(Op::exponent(self)), Wide(Op::fraction(self)))
    }
    #[inline(always)]
    fn or_exact(self, good: Bits, x: Self, exact: fn(f32) -> f32) -> Self {
        let good = Op::mask(good);
        if good == Mask::MAX {
            return self;
        }
        // SAFETY: a vector is sixteen f32.
        unsafe { patch::<Self, f32, 16>(&self, |lane| good & (1 << lane) != 0, &x, exact) }
    }
}
