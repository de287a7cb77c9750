//! The inverse trigonometric and hyperbolic functions of an f64. The inverse sine and tangent are
//! fdlibm's approximations, the others are made of these and of the logarithm.

use super::{Double, LOG_2, log_and, poly};
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// What π/2 has beyond the nearest number.
const HALF_PI_LOW: f64 = f64::from_bits(0x3c91_a626_3314_5c07);

/// `(asin x - x) / x³` in `x²`: one polynomial over another.
const ARC: [[f64; 6]; 2] = [
    [
        1.666_666_666_666_666_6e-1,
        -3.255_658_186_224_009e-1,
        2.012_125_321_348_629_3e-1,
        -4.005_553_450_067_941e-2,
        7.915_349_942_898_145e-4,
        3.479_331_075_960_212e-5,
    ],
    [
        1.0,
        -2.403_394_911_734_414,
        2.020_945_760_233_505_7,
        -6.882_839_716_054_533e-1,
        7.703_815_055_590_194e-2,
        0.0,
    ],
];

/// `(x - atan x) / x³` in `x²`.
const ARC_TANGENT: [f64; 11] = [
    3.333_333_333_333_293e-1,
    -1.999_999_999_987_648_3e-1,
    1.428_571_427_250_346_6e-1,
    -1.111_111_040_546_235_6e-1,
    9.090_887_133_436_507e-2,
    -7.691_876_205_044_83e-2,
    6.661_073_137_387_531e-2,
    -5.833_570_133_790_573_5e-2,
    4.976_877_994_615_932_4e-2,
    -3.653_157_274_421_691_6e-2,
    1.628_582_011_536_578_2e-2,
];

/// The inverse tangents of 1/2, 1, 3/2 and infinity in two parts.
const ARCS: [[f64; 2]; 4] = [
    [4.636_476_090_008_061e-1, 2.269_877_745_296_168_7e-17],
    [FRAC_PI_4, 3.061_616_997_868_383e-17],
    [9.827_937_232_473_29e-1, 1.390_331_103_123_099_8e-17],
    [FRAC_PI_2, HALF_PI_LOW],
];

/// What the inverse sine and cosine of `a`, which is not negative, are made of: whether it is below
/// a half, then `(asin y - y) / y` of `y = a`, else of `y = sqrt((1 - a) / 2)`; this root, and it
/// as a short number and the rest.
#[inline(always)]
fn arc<D: Double>(a: D) -> (D::Mask, D, [D; 3]) {
    let (half, one) = (D::splat(0.5), D::splat(1.0));
    let is_small = a.lt(half);
    let t = one.sub(a).mul(half);
    let z = D::select(is_small, a.mul(a), t);
    let [over, [q0, q1, q2, q3, q4, _]] = ARC;
    let r = z.mul(poly(z, over)).div(poly(z, [q0, q1, q2, q3, q4]));
    let root = t.sqrt();
    let short = root.short();
    let sum = D::select(D::splat(0.0).lt(root), root.add(short), one);
    (is_small, r, [root, short, t.sub(short.mul(short)).div(sum)])
}

/// The inverse sine: NaN beyond 1.
#[inline(always)]
pub fn asin_f64<D: Double>(x: D) -> D {
    let a = x.abs();
    let (is_small, r, [root, short, rest]) = arc(a);
    // π/2 - 2 asin(root), in parts.
    let low = root.add(root).mul(r).sub(D::splat(HALF_PI_LOW).sub(rest.add(rest)));
    let quarter = D::splat(FRAC_PI_4);
    let large = quarter.sub(low.sub(quarter.sub(short.add(short))));
    D::select(is_small, a.add(a.mul(r)), large).with_sign(x)
}

/// The inverse cosine: NaN beyond 1.
#[inline(always)]
pub fn acos_f64<D: Double>(x: D) -> D {
    let (is_small, r, [root, short, rest]) = arc(x.abs());
    let low = D::splat(HALF_PI_LOW);
    let small = D::splat(FRAC_PI_2).sub(x.sub(low.sub(x.mul(r))));
    let above = short.add(root.mul(r).add(rest));
    let below = root.add(root.mul(r).sub(low));
    let below = D::splat(PI).sub(below.add(below));
    let large = D::select(x.lt(D::splat(0.0)), below, above.add(above));
    D::select(is_small, small, large)
}

/// The inverse tangent.
#[inline(always)]
pub fn atan_f64<D: Double>(x: D) -> D {
    let (a, zero, one, near) = (x.abs(), D::splat(0.0), D::splat(1.0), D::splat(1.5));
    // atan a is atan c and atan of (a - c) / (1 + a c), for the c next to it.
    let mut all = [a, one, zero, zero];
    let choices = [
        (0.4375, [a.add(a).sub(one), a.add(D::splat(2.0))], ARCS[0]),
        (0.6875, [a.sub(one), a.add(one)], ARCS[1]),
        (1.1875, [a.sub(near), one.add(near.mul(a))], ARCS[2]),
        (2.4375, [D::splat(-1.0), a], ARCS[3]),
    ];
    for (from, [over, under], [high, low]) in choices {
        let is_below = a.lt(D::splat(from));
        let other = [over, under, D::splat(high), D::splat(low)];
        let mut at = 0;
        while at < 4 {
            all[at] = D::select(is_below, all[at], other[at]);
            at += 1;
        }
    }
    let [over, under, high, low] = all;
    let t = over.div(under);
    let z = t.mul(t);
    let y = high.sub(t.mul(z.mul(poly(z, ARC_TANGENT))).sub(low).sub(t));
    y.with_sign(x)
}

/// `1 + x`, and what its rounding has lost as a part of it.
#[inline(always)]
fn one_and<D: Double>(x: D) -> (D, D) {
    let one = D::splat(1.0);
    let sum = x.add(one);
    (sum, x.sub(sum.sub(one)).div(sum))
}

/// Whether a number is so large that one is nothing beside its square, and ln 2 there, else 0.
#[inline(always)]
fn doubled<D: Double>(a: D) -> (D::Mask, D) {
    let is_huge = D::splat(1.0e9).lt(a);
    (is_huge, D::select(is_huge, D::splat(LOG_2[0] + LOG_2[1]), D::splat(0.0)))
}

/// The inverse hyperbolic sine.
#[inline(always)]
pub fn asinh_f64<D: Double>(x: D) -> D {
    let (a, one) = (x.abs(), D::splat(1.0));
    let square = a.mul(a);
    let root = square.add(one).sqrt();
    let (sum, lost) = one_and(a.add(square.div(root.add(one))));
    let large = a.add(a).add(one.div(root.add(a)));
    let (is_huge, more) = doubled(a);
    let is_small = a.lt(D::splat(2.0));
    let of = D::select(is_small, sum, D::select(is_huge, a, large));
    let y = log_and(of, D::select(is_small, lost, D::splat(0.0))).add(more);
    D::select(a.lt(D::splat(1.0e-9)), a, y).with_sign(x)
}

/// The inverse hyperbolic cosine: NaN below 1.
#[inline(always)]
pub fn acosh_f64<D: Double>(x: D) -> D {
    let (one, two) = (D::splat(1.0), D::splat(2.0));
    let t = x.sub(one);
    let (sum, lost) = one_and(t.add(t.add(t).add(t.mul(t)).sqrt()));
    let root = x.mul(x).sub(one).sqrt();
    let large = x.add(x).sub(one.div(x.add(root)));
    let (is_huge, more) = doubled(x);
    let is_small = x.lt(two);
    let of = D::select(is_small, sum, D::select(is_huge, x, large));
    let of = D::select(x.lt(one), D::splat(f64::NAN), of);
    log_and(of, D::select(is_small, lost, D::splat(0.0))).add(more)
}

/// The inverse hyperbolic tangent: infinite at 1, NaN beyond.
#[inline(always)]
pub fn atanh_f64<D: Double>(x: D) -> D {
    let (a, one) = (x.abs(), D::splat(1.0));
    let twice = a.add(a);
    let rest = one.sub(a);
    let small = twice.add(twice.mul(a).div(rest));
    let of = D::select(a.lt(D::splat(0.5)), small, twice.div(rest));
    let y = super::log1p_f64(of).mul(D::splat(0.5));
    D::select(a.lt(D::splat(1.0e-9)), a, y).with_sign(x)
}
