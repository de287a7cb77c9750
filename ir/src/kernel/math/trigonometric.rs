//! The trigonometric functions and their inverses.
//!
//! Up to 2^17 arguments are reduced in f32; what is further away goes through f64, number by
//! number.

use super::{Lane, SHIFTER, abs, cos_f64, poly, sin_f64, tan_f64, with_sign};
use std::f32::consts::FRAC_2_PI;

/// Where the reductions of f32 end.
const FAR: f32 = 131_072.0;

/// `sin r = r + r³ p(r²)`, `r` to π/4.
const SINE: [f32; 4] = [-1.666_666_7e-1, 8.333_329e-3, -1.983_925_6e-4, 2.717_564e-6];

/// `cos r = 1 - r²/2 + r⁴ p(r²)`, `r` to π/4.
const COSINE: [f32; 4] = [4.166_666_8e-2, -1.388_888_3e-3, 2.479_943_6e-5, -2.720_330_5e-7];

/// π/2 as the nearest number and what it lacks.
const HALF_PI: f32 = std::f32::consts::FRAC_PI_2;
const HALF_PI_LOW: f32 = f32::from_bits(0xb33b_bd2e);

/// `tan r = r + r³ p(r²)`, `r` to π/4.
const TAN: [f32; 7] = [
    3.333_335e-1,
    1.333_267_7e-1,
    5.405_868_6e-2,
    2.128_749e-2,
    1.082_404_8e-2,
    1.025_256_06e-4,
    4.370_625_6e-3,
];

/// `asin r = r + r³ p(r²)`, `r` to 1/2.
const ASIN: [f32; 6] =
    [1.666_666e-1, 7.500_518e-2, 4.451_46e-2, 3.182_549_8e-2, 1.437_678_6e-2, 3.759_719e-2];

/// `atan r = r + r³ p(r²)`, `r` to 1.
const ATAN: [f32; 9] = [
    -3.333_330_2e-1,
    1.999_860_9e-1,
    -1.426_479_4e-1,
    1.095_475_7e-1,
    -8.410_289e-2,
    5.806_59e-2,
    -3.127_889_3e-2,
    1.096_588_4e-2,
    -1.804_539_8e-3,
];

/// The sine, NaN at the infinities.
#[inline(always)]
pub fn sin<L: Lane>(x: L) -> L {
    let (r, low, quadrant) = less_quarter_turns(x);
    let y = quarter_turn(r, low, quadrant);
    // Where the sine is its argument it also keeps the sign of zero.
    let y = L::select(abs(x).lt(L::splat(2.0e-4)), x, y);
    y.or_exact(abs(x).lt(L::splat(FAR)), x, |x| sin_f64::<f64>(x.into()) as f32)
}

/// The cosine, NaN at the infinities.
#[inline(always)]
pub fn cos<L: Lane>(x: L) -> L {
    let (r, low, quadrant) = less_quarter_turns(x);
    let y = quarter_turn(r, low, L::int_add(quadrant, L::splat_bits(1)));
    y.or_exact(abs(x).lt(L::splat(FAR)), x, |x| cos_f64::<f64>(x.into()) as f32)
}

/// The sine of `r + low + quadrant * π/2` for `r` within about π/4 of zero.
#[inline(always)]
fn quarter_turn<L: Lane>(r: L, low: L, quadrant: L::Bits) -> L {
    let z = r.mul(r);
    let sine = r.add(poly(z, SINE).mul(z).fma(r, low));
    let half = z.mul(L::splat(0.5));
    let one = L::splat(1.0);
    let w = one.sub(half);
    let rest = poly(z, COSINE).mul(z).fma(z, L::splat(0.0).sub(r.mul(low)));
    let cosine = w.add(one.sub(w).sub(half).add(rest));
    let even = L::int_eq(L::and(quadrant, L::splat_bits(1)), L::splat_bits(0));
    let sign = L::shl::<30>(L::and(quadrant, L::splat_bits(2)));
    L::from_bits(L::xor(L::select(even, sine, cosine).bits(), sign))
}

/// The tangent, NaN at the infinities.
#[inline(always)]
pub fn tan<L: Lane>(x: L) -> L {
    let (r, low, quadrant) = less_quarter_turns(x);
    let z = r.mul(r);
    let rest = poly(z, TAN).mul(z).fma(r, low);
    let y = r.add(rest);
    // -1 / y, corrected by what y lacks and by what is left of the division.
    let y_low = r.sub(y).add(rest);
    let v = L::splat(-1.0).div(y);
    let left = v.fma(y_low, v.fma(y, L::splat(1.0)));
    let even = L::int_eq(L::and(quadrant, L::splat_bits(1)), L::splat_bits(0));
    let y = L::select(even, y, left.fma(v, v));
    // Where the tangent is its argument it also keeps the sign of zero.
    let y = L::select(abs(x).lt(L::splat(2.0e-4)), x, y);
    y.or_exact(abs(x).lt(L::splat(FAR)), x, |x| tan_f64::<f64>(x.into()) as f32)
}

/// `x` less the nearest multiple of π/2, as a number and its correction, and the multiple.
#[inline(always)]
fn less_quarter_turns<L: Lane>(x: L) -> (L, L, L::Bits) {
    const PARTS: [f32; 3] =
        [f32::from_bits(0x3fc9_0fdb), f32::from_bits(0xb33b_bd2e), f32::from_bits(0xa6f7_2ced)];
    let t = x.fma(L::splat(FRAC_2_PI), L::splat(SHIFTER));
    let n = t.sub(L::splat(SHIFTER));
    // Exact: a multiple of the last place of the first part (or of x) below 1.
    let r = n.fma(L::splat(-PARTS[0]), x);
    // The second product is split exactly, and its difference from r as well (Knuth's two-sum).
    let p = n.mul(L::splat(PARTS[1]));
    let p_low = n.fma(L::splat(PARTS[1]), L::splat(0.0).sub(p));
    let d = r.sub(p);
    let back = d.sub(r);
    let d_low = r.sub(d.sub(back)).sub(p.add(back));
    let low = n.fma(L::splat(-PARTS[2]), d_low.sub(p_low));
    let high = d.add(low);
    (high, d.sub(high).add(low), t.bits())
}

/// For `a` from 0 to 1: a number `s` and `rest` with `asin a = s + rest`; above one half with
/// `asin a = π/2 - 2 (s + rest)`, from the half angle. The mask tells which.
#[inline(always)]
fn arc<L: Lane>(a: L) -> (L, L, L::Bits) {
    let half = L::splat(0.5);
    let large = half.lt(a);
    let z = L::select(large, L::splat(1.0).sub(a).mul(half), a.mul(a));
    let s = L::select(large, z.sqrt(), a);
    (s, poly(z, ASIN).mul(z).mul(s), large)
}

/// The inverse sine, NaN outside of -1 to 1.
#[inline(always)]
pub fn asin<L: Lane>(x: L) -> L {
    let (s, rest, large) = arc(abs(x));
    let low = rest.add(rest).sub(L::splat(HALF_PI_LOW));
    let above = L::splat(HALF_PI).sub(s.add(s).add(low));
    with_sign(L::select(large, above, s.add(rest)), x)
}

/// The inverse cosine, NaN outside of -1 to 1.
#[inline(always)]
pub fn acos<L: Lane>(x: L) -> L {
    let (s, rest, large) = arc(abs(x));
    let (s2, rest2) = (s.add(s), rest.add(rest));
    let negative = x.lt(L::splat(0.0));
    let behind = L::splat(2.0 * HALF_PI).sub(s2.add(rest2.sub(L::splat(2.0 * HALF_PI_LOW))));
    let outer = L::select(negative, behind, s2.add(rest2));
    let low = with_sign(rest, x).sub(L::splat(HALF_PI_LOW));
    let inner = L::splat(HALF_PI).sub(x.add(low));
    L::select(large, outer, inner)
}

/// The inverse tangent.
#[inline(always)]
pub fn atan<L: Lane>(x: L) -> L {
    let a = abs(x);
    let one = L::splat(1.0);
    let large = one.lt(a);
    let t = L::select(large, one.div(a), a);
    let z = t.mul(t);
    let low = L::select(large, L::splat(-HALF_PI_LOW), L::splat(0.0));
    let y = t.add(poly(z, ATAN).mul(z).fma(t, low));
    with_sign(L::select(large, L::splat(HALF_PI).sub(y), y), x)
}
