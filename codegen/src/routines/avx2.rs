//! The routines for x86-64 with AVX2, FMA and F16C: eight f32 at a time.
//!
//! Functions are the generic definitions of `tracecast_ir::kernel::math` on [`Wide`], instantiated
//! for every function of the list. The last, incomplete vector of a tile is padded and run through
//! the same instructions.

use super::arithmetic::{arithmetic, instructions, patch, single};
use super::portable::function_f64;
use super::{FunctionRoutines, OneF16, Tiles, doubles, gather_rows, random, sum_rows};
use core::arch::x86_64 as x86;
use tracecast_ir::kernel::math::Lane;
use tracecast_ir::kernel::{Definition, PerFunction};

/// Routines for AVX2, FMA and F16C.
pub(super) static TILES: Tiles = Tiles {
    functions: |function| function.with(Functions),
    f16_to_f32: tile!(from_f16),
    f32_to_f16: tile!(to_f16),
    bf16_to_f32: tile!(from_bf16),
    f32_to_bf16: tile!(to_bf16),
    round_f16: tile!(round_f16),
    round_bf16: tile!(round_bf16),
    one_f16: OneF16 { widen: widen_one, narrow: narrow_one, round: round_one },
    random: random::avx2::in_a_row,
    sum_rows: sum_rows::avx2,
    gather_rows: gather_rows::avx2::of_size,
};

/// Maps `n` elements, eight at a time.
///
/// # Safety
///
/// The CPU must have AVX2, FMA and F16C. `T` and `U` must be eight elements each; `src` must be
/// readable for `n` of them, `dst` writable; they may be the same memory if `T` and `U` are of one
/// size.
#[inline(always)]
unsafe fn map<T: Copy, U: Copy>(src: *const u8, dst: *mut u8, n: usize, f: impl Fn(T) -> U) {
    let (from, to) = (size_of::<T>() / 8, size_of::<U>() / 8);
    let mut i = 0;
    while i + 8 <= n {
        // SAFETY: elements `i` to `i + 7` are in range.
        let x = unsafe { src.wrapping_add(i * from).cast::<T>().read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.wrapping_add(i * to).cast::<U>().write_unaligned(f(x)) };
        i += 8;
    }
    if i < n {
        let mut input = [0u8; 32];
        let rest = n - i;
        // SAFETY: `rest` elements remain, fewer than the eight that `input` holds.
        unsafe {
            input.as_mut_ptr().copy_from_nonoverlapping(src.wrapping_add(i * from), rest * from)
        };
        // SAFETY: `T` is at most 32 bytes, any of which are valid.
        let y = f(unsafe { input.as_ptr().cast::<T>().read_unaligned() });
        let y = (&raw const y).cast::<u8>();
        // SAFETY: `rest` elements remain, fewer than the eight of `y`.
        unsafe { dst.wrapping_add(i * to).copy_from_nonoverlapping(y, rest * to) };
    }
}

#[inline(always)]
fn from_f16(x: x86::__m128i) -> Wide {
    // SAFETY: called from F16C routines only.
    Wide(unsafe { x86::_mm256_cvtph_ps(x) })
}

/// As [`OneF16`], on a CPU with F16C.
#[target_feature(enable = "f16c")]
extern "C" fn widen_one(bits: u32) -> f32 {
    x86::_mm_cvtss_f32(x86::_mm_cvtph_ps(x86::_mm_cvtsi32_si128(bits as i32)))
}

/// As [`OneF16`], on a CPU with F16C.
#[target_feature(enable = "f16c")]
extern "C" fn narrow_one(x: f32) -> u32 {
    let bits = x86::_mm_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x86::_mm_set_ss(x));
    x86::_mm_cvtsi128_si32(bits) as u32
}

/// As [`OneF16`], on a CPU with F16C.
#[target_feature(enable = "f16c")]
extern "C" fn round_one(x: f32) -> f32 {
    widen_one(narrow_one(x))
}

#[inline(always)]
fn round_f16(x: Wide) -> Wide {
    from_f16(to_f16(x))
}

#[inline(always)]
fn round_bf16(x: Wide) -> Wide {
    Wide::from_bits(Wide::and(bf16_in_high_half(x), Wide::splat_bits(0xffff_0000)))
}

#[inline(always)]
fn to_f16(x: Wide) -> x86::__m128i {
    // SAFETY: a `Wide` exists only where F16C is present.
    unsafe { x86::_mm256_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(x.0) }
}

#[inline(always)]
fn from_bf16(x: x86::__m128i) -> Wide {
    // SAFETY: called from AVX2 routines only.
    let wide = unsafe { x86::_mm256_cvtepu16_epi32(x) };
    Wide::from_bits(Wide::shl::<16>(wide))
}

/// The nearest bf16 in the high half of each lane, with anything below.
#[inline(always)]
fn bf16_in_high_half(x: Wide) -> x86::__m256i {
    let bits = x.bits();
    // SAFETY: a `Wide` exists only where AVX2 is present.
    let high = unsafe { x86::_mm256_srli_epi32::<16>(bits) };
    let odd = Wide::and(high, Wide::splat_bits(1));
    let rounded = Wide::int_add(bits, Wide::int_add(odd, Wide::splat_bits(0x7fff)));
    let quiet = Wide::or(bits, Wide::splat_bits(0x0040_0000));
    Wide::select(Wide::unordered(x), Wide::from_bits(quiet), Wide::from_bits(rounded)).bits()
}

/// The nearest bf16 in the high halves, ties to even; a NaN stays one. What is in the low halves
/// means nothing.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn nearest_bf16(x: x86::__m256) -> x86::__m256i {
    bf16_in_high_half(Wide(x))
}

#[inline(always)]
fn to_bf16(x: Wide) -> x86::__m128i {
    let bits = bf16_in_high_half(x);
    // SAFETY: a `Wide` exists only where AVX2 is present.
    let low = unsafe { x86::_mm256_srli_epi32::<16>(bits) };
    // SAFETY: as above.
    let packed = unsafe { x86::_mm256_packus_epi32(low, low) };
    // SAFETY: as above.
    let ordered = unsafe { x86::_mm256_permute4x64_epi64::<0b1000>(packed) };
    // SAFETY: as above.
    unsafe { x86::_mm256_castsi256_si128(ordered) }
}

/// Eight f32. Made and used only inside routines whose caller has checked the CPU.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Wide(pub(super) x86::__m256);

impl Wide {
    /// The mask of the lanes that are NaN.
    #[inline(always)]
    fn unordered(x: Wide) -> x86::__m256i {
        // SAFETY: a `Wide` exists only where AVX2 is present.
        let mask = unsafe { x86::_mm256_cmp_ps::<{ x86::_CMP_UNORD_Q }>(x.0, x.0) };
        Wide(mask).bits()
    }
}

type Bits = x86::__m256i;

/// `self` cannot be named in a macro's body, so the methods that take it go through these.
struct Op;

impl Op {
    instructions! {
        splat(v: f32) -> x86::__m256 = x86::_mm256_set1_ps(v);
        add(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_add_ps(a.0, b.0);
        sub(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_sub_ps(a.0, b.0);
        mul(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_mul_ps(a.0, b.0);
        div(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_div_ps(a.0, b.0);
        fma(a: Wide, b: Wide, c: Wide) -> x86::__m256 = x86::_mm256_fmadd_ps(a.0, b.0, c.0);
        sqrt(a: Wide) -> x86::__m256 = x86::_mm256_sqrt_ps(a.0);
        max(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_max_ps(a.0, b.0);
        min(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_min_ps(a.0, b.0);
        lt(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_cmp_ps::<{ x86::_CMP_LT_OQ }>(a.0, b.0);
        eq(a: Wide, b: Wide) -> x86::__m256 = x86::_mm256_cmp_ps::<{ x86::_CMP_EQ_OQ }>(a.0, b.0);
        blend(a: Wide, b: Wide, m: Wide) -> x86::__m256 = x86::_mm256_blendv_ps(a.0, b.0, m.0);
        bits(a: Wide) -> Bits = x86::_mm256_castps_si256(a.0);
        from_bits(a: Bits) -> x86::__m256 = x86::_mm256_castsi256_ps(a);
        signs(a: Bits) -> i32 = x86::_mm256_movemask_epi8(a);
    }
}

impl Lane for Wide {
    type Bits = Bits;

    instructions! {
        splat_bits(v: u32) -> Bits = x86::_mm256_set1_epi32(v as i32);
        int_add(a: Bits, b: Bits) -> Bits = x86::_mm256_add_epi32(a, b);
        int_sub(a: Bits, b: Bits) -> Bits = x86::_mm256_sub_epi32(a, b);
        and(a: Bits, b: Bits) -> Bits = x86::_mm256_and_si256(a, b);
        or(a: Bits, b: Bits) -> Bits = x86::_mm256_or_si256(a, b);
        xor(a: Bits, b: Bits) -> Bits = x86::_mm256_xor_si256(a, b);
        int_eq(a: Bits, b: Bits) -> Bits = x86::_mm256_cmpeq_epi32(a, b);
    }

    single!();

    #[inline(always)]
    fn lt(self, o: Self) -> Bits {
        Wide(Op::lt(self, o)).bits()
    }
    #[inline(always)]
    fn eq(self, o: Self) -> Bits {
        Wide(Op::eq(self, o)).bits()
    }
    #[inline(always)]
    fn select(mask: Bits, a: Self, b: Self) -> Self {
        Wide(Op::blend(b, a, Wide::from_bits(mask)))
    }
    #[inline(always)]
    fn shl<const N: i32>(a: Bits) -> Bits {
        // SAFETY: called only inside routines whose caller has checked for AVX2.
        unsafe { x86::_mm256_slli_epi32::<N>(a) }
    }
    #[inline(always)]
    fn sar<const N: i32>(a: Bits) -> Bits {
        // SAFETY: called only inside routines whose caller has checked for AVX2.
        unsafe { x86::_mm256_srai_epi32::<N>(a) }
    }
    #[inline(always)]
    fn or_exact(self, good: Bits, x: Self, exact: fn(f32) -> f32) -> Self {
        if Op::signs(good) == -1 {
            return self;
        }
        // SAFETY: eight lanes are 32 bytes, and any bits are u32.
        let good = unsafe { std::mem::transmute::<Bits, [u32; 8]>(good) };
        // SAFETY: a vector is eight f32.
        unsafe { patch::<Self, f32, 8>(&self, |lane| good[lane] != 0, &x, exact) }
    }
}

macro_rules! tile {
    ($f:expr) => {{
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe extern "C" fn tile(src: *const u8, dst: *mut u8, n: usize) {
            // The closure has the features of this routine, which a bare function item passed on
            // would not.
            // SAFETY: the contract of `TileFn` is that of `map`, and the features are enabled.
            unsafe { map(src, dst, n, |x| $f(x)) }
        }
        tile
    }};
}

use tile;

/// Makes the routines of a function from its definition.
pub(super) struct Functions;

impl PerFunction for Functions {
    type Output = FunctionRoutines;

    fn make<F: Definition>(self) -> FunctionRoutines {
        FunctionRoutines {
            tile: function_tile::<F>,
            tile_f64: doubles::tile::<F>(),
            one: function::<F>,
            one_f64: function_f64::<F>,
        }
    }
}

/// A function over a tile.
///
/// # Safety
///
/// As [`TileFn`](super::TileFn), on a CPU with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn function_tile<F: Definition>(src: *const u8, dst: *mut u8, n: usize) {
    // The closure has the features of this routine, which a bare function item passed on would not.
    // SAFETY: the contract of `TileFn` is that of `map`, and the features are enabled.
    unsafe { map(src, dst, n, |x: Wide| F::of_lanes(x)) }
}

/// A function of one f32.
///
/// # Safety
///
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn function<F: Definition>(x: f32) -> f32 {
    F::of_lanes(x)
}
