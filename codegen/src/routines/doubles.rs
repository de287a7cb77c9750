//! Functions of an f64 over a tile, four at a time, with AVX2: the generic definitions of
//! `tracecast_ir::kernel::math` on [`Wide`].
//!
//! Machines with AVX-512 have vector loops of most of them, and come here for those that need a
//! patch.

use super::arithmetic::{arithmetic, instructions, patch};
use super::{TileFn, portable};
use core::arch::x86_64 as x86;
use tracecast_ir::kernel::Definition;
use tracecast_ir::kernel::math::{Double, SHORT};

/// The routine of a function: over vectors if it has a sequence.
pub(super) fn tile<F: Definition>() -> TileFn {
    if F::FUNCTION.has_doubles() { vectors::<F> } else { portable::function_f64_tile::<F> }
}

/// A function over a tile of f64. The last, incomplete vector is padded.
///
/// # Safety
///
/// As [`TileFn`], on a CPU with AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn vectors<F: Definition>(src: *const u8, dst: *mut u8, n: usize) {
    let (src, dst) = (src.cast::<f64>(), dst.cast::<f64>());
    let of = |x: Wide| F::of_doubles(x).unwrap_or(x).0;
    let whole = n / 4 * 4;
    for i in (0..whole).step_by(4) {
        // SAFETY: elements `i` to `i + 3` are in range.
        let x = unsafe { x86::_mm256_loadu_pd(src.wrapping_add(i)) };
        // SAFETY: as above.
        unsafe { x86::_mm256_storeu_pd(dst.wrapping_add(i), of(Wide(x))) };
    }
    if whole < n {
        let (mut rest, bytes) = ([0.0; 4], (n - whole) * size_of::<f64>());
        let from = src.wrapping_add(whole).cast::<u8>();
        // SAFETY: `n - whole` elements remain, fewer than the four that `rest` holds.
        unsafe { rest.as_mut_ptr().cast::<u8>().copy_from(from, bytes) };
        // SAFETY: four numbers are in range.
        let x = unsafe { x86::_mm256_loadu_pd(rest.as_ptr()) };
        // SAFETY: as above.
        unsafe { x86::_mm256_storeu_pd(rest.as_mut_ptr(), of(Wide(x))) };
        let to = dst.wrapping_add(whole).cast::<u8>();
        // SAFETY: as for the copy before.
        unsafe { to.copy_from(rest.as_ptr().cast(), bytes) };
    }
}

/// Four f64. Made and used only inside routines whose caller has checked the CPU.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Wide(x86::__m256d);

type Mask = x86::__m256d;

/// `self` cannot be named in a macro's body, so the methods that take it go through these.
struct Op;

impl Op {
    instructions! {
        splat(v: f64) -> Mask = x86::_mm256_set1_pd(v);
        add(a: Wide, b: Wide) -> Mask = x86::_mm256_add_pd(a.0, b.0);
        sub(a: Wide, b: Wide) -> Mask = x86::_mm256_sub_pd(a.0, b.0);
        mul(a: Wide, b: Wide) -> Mask = x86::_mm256_mul_pd(a.0, b.0);
        div(a: Wide, b: Wide) -> Mask = x86::_mm256_div_pd(a.0, b.0);
        sqrt(a: Wide) -> Mask = x86::_mm256_sqrt_pd(a.0);
        max(a: Wide, b: Wide) -> Mask = x86::_mm256_max_pd(a.0, b.0);
        min(a: Wide, b: Wide) -> Mask = x86::_mm256_min_pd(a.0, b.0);
        floor(a: Wide) -> Mask = x86::_mm256_floor_pd(a.0);
        lt(a: Wide, b: Wide) -> Mask = x86::_mm256_cmp_pd::<{ x86::_CMP_LT_OQ }>(a.0, b.0);
        eq(a: Wide, b: Wide) -> Mask = x86::_mm256_cmp_pd::<{ x86::_CMP_EQ_OQ }>(a.0, b.0);
        blend(a: Wide, b: Wide, m: Mask) -> Mask = x86::_mm256_blendv_pd(a.0, b.0, m);
        and(a: Wide, b: Wide) -> Mask = x86::_mm256_and_pd(a.0, b.0);
        or(a: Wide, b: Wide) -> Mask = x86::_mm256_or_pd(a.0, b.0);
        signs(m: Mask) -> i32 = x86::_mm256_movemask_pd(m);
        bits(a: Wide) -> x86::__m256i = x86::_mm256_castpd_si256(a.0);
        from_bits(a: x86::__m256i) -> Mask = x86::_mm256_castsi256_pd(a);
        to_exponent(a: x86::__m256i) -> x86::__m256i = x86::_mm256_slli_epi64::<52>(a);
        of_exponent(a: x86::__m256i) -> x86::__m256i = x86::_mm256_srli_epi64::<52>(a);
    }
}

/// 2^52: in the low bits of a number from it to twice as much stands an integer.
const WHOLE: f64 = 4_503_599_627_370_496.0;
const SIGN: u64 = 1 << 63;
const FRACTION: u64 = (1 << 52) - 1;

impl Wide {
    #[inline(always)]
    fn of_bits(bits: u64) -> Wide {
        Wide::splat(f64::from_bits(bits))
    }

    /// Two to the power of an integer between -1022 and 1023.
    #[inline(always)]
    fn power_of_two(self) -> Wide {
        let biased = self.add(Wide::splat(WHOLE + 1023.0));
        Wide(Op::from_bits(Op::to_exponent(Op::bits(biased))))
    }
}

impl Double for Wide {
    type Mask = Mask;

    arithmetic!(f64);

    #[inline(always)]
    fn lt(self, o: Self) -> Mask {
        Op::lt(self, o)
    }
    #[inline(always)]
    fn select(mask: Mask, a: Self, b: Self) -> Self {
        Wide(Op::blend(b, a, mask))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Wide(Op::and(self, Wide::of_bits(!SIGN)))
    }
    #[inline(always)]
    fn with_sign(self, x: Self) -> Self {
        let sign = Wide(Op::and(x, Wide::of_bits(SIGN)));
        Wide(Op::or(self, sign))
    }
    #[inline(always)]
    fn short(self) -> Self {
        Wide(Op::and(self, Wide::of_bits(SHORT)))
    }
    #[inline(always)]
    fn scale(self, n: Self) -> Self {
        // Of two factors, as that of one f64.
        let half = Wide(Op::floor(n.mul(Wide::splat(0.5))));
        self.mul(half.power_of_two()).mul(n.sub(half).power_of_two())
    }
    #[inline(always)]
    fn parts(self) -> (Self, Self) {
        let (zero, one) = (Wide::splat(0.0), Wide::splat(1.0));
        let is_tiny = self.lt(Wide::splat(f64::MIN_POSITIVE));
        // 2^54.
        let larger = self.mul(Wide::splat(18_014_398_509_481_984.0));
        let y = Self::select(is_tiny, larger, self);
        let e = Wide(Op::from_bits(Op::of_exponent(Op::bits(y))));
        let e = Wide(Op::or(e, Wide::splat(WHOLE))).sub(Wide::splat(WHOLE));
        let e = e.sub(Self::select(is_tiny, Wide::splat(1077.0), Wide::splat(1023.0)));
        let m = Wide(Op::or(Wide(Op::and(y, Wide::of_bits(FRACTION))), one));
        let e = Self::select(self.lt(Wide::splat(f64::INFINITY)), e, self);
        let e = Self::select(Op::eq(self, zero), Wide::splat(f64::NEG_INFINITY), e);
        (e, Self::select(self.lt(zero), Wide::splat(f64::NAN), m))
    }
    #[inline(always)]
    fn or_exact(self, good: Mask, x: Self, exact: fn(f64) -> f64) -> Self {
        let signs = Op::signs(good);
        if signs == 0xf {
            return self;
        }
        // SAFETY: a vector is four f64.
        unsafe { patch::<Self, f64, 4>(&self, |lane| signs & (1 << lane) != 0, &x, exact) }
    }
}
