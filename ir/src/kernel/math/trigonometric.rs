//! The tangent and the inverse trigonometric functions; [`sin`](super::sin) and [`cos`](super::cos) stand beside their reduction.

use super::{Lane, abs, poly, reduce, reduce_far, with_sign};

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

/// The tangent, NaN at the infinities.
#[inline(always)]
pub fn tan<L: Lane>(x: L) -> L {
    let (r, low, quadrant, good) = reduce(x);
    let y = quarter(r, low, quadrant);
    let y = L::select(abs(x).lt(L::splat(2.0e-4)), x, y);
    y.or_exact(good, x, tan_far)
}

/// The tangent of `r + low + quadrant * π/2` for `r` within about π/4 of zero.
#[inline(always)]
fn quarter<L: Lane>(r: L, low: L, quadrant: L::Bits) -> L {
    let z = r.mul(r);
    let p = poly(z, TAN);
    let y = r.add(p.mul(z).fma(r, low));
    let even = L::int_eq(L::and(quadrant, L::splat_bits(1)), L::splat_bits(0));
    L::select(even, y, L::splat(-1.0).div(y))
}

fn tan_far(x: f32) -> f32 {
    let (r, low, quadrant) = reduce_far(x);
    let y = quarter(r, low, quadrant);
    if x < 0.0 { -y } else { y }
}

/// For `a` from 0 to 1: a number `s` and `rest` with `asin a = s + rest`; above one half with `asin a = π/2 - 2 (s + rest)`,
/// from the half angle. The mask tells which.
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
