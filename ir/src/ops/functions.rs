//! Functions of one number beyond the elementwise core: powers and logarithms, trigonometric and
//! hyperbolic functions, and those around the error function and the gamma function.
//!
//! Most call a scalar function whose bits [`math`](crate::kernel::math) defines; the others are
//! made of these.

use super::elementwise::Elementwise;
use super::infer;
use crate::kernel::{Cmp, Function, ScalarOp, Val};
use crate::op::{
    Domain, FLOATS, Facts, GradCx, Grads, MapCx, Rounding, composite, core, map, rule,
};
use crate::{Attrs, Var};
use smallvec::smallvec;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10, PI, SQRT_2};

/// The rounding points of most functions here.
const IN_STEPS: Rounding = Rounding::result("the result; each step of the gradient");

crate::ops! { trait Functions;

/// Two to the power of the operand.
EXP2 = exp2(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, cx.out().mul(LN_2))), map(&|cx, x| call(cx, Function::Exp2, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// `e` to the power of the operand, less one, precise where the operand is small.
EXPM1 = expm1(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, cx.out().add(1.0))), map(&|cx, x| call(cx, Function::Expm1, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The natural logarithm of one more than the operand, precise where the operand is small.
LOG1P = log1p(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| over(cx, cx.args[0].add(1.0))), map(&|cx, x| call(cx, Function::Log1p, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] in -0.9 2"] },
}

/// The logarithm to base two.
LOG2 = log2(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| over(cx, cx.args[0].mul(LN_2))), map(&|cx, x| call(cx, Function::Log2, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] > 0"] },
}

/// The logarithm to base ten.
LOG10 = log10(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| over(cx, cx.args[0].mul(LN_10))), map(&|cx, x| call(cx, Function::Log10, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] > 0"] },
}

/// The tangent.
TAN = tan(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| times(cx, cx.out().mul(cx.out()).add(1.0))),
        map(&|cx, x| call(cx, Function::Tan, x[0])),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in -1.2 1.2", "T[40] in -1.2 1.2"] },
}

/// The inverse sine, NaN outside of -1 to 1.
ASIN = asin(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, beside_one(cx, -1.0).rsqrt())), map(&|cx, x| call(cx, Function::Asin, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in -0.9 0.9", "T[40] in -0.9 0.9"] },
}

/// The inverse cosine, NaN outside of -1 to 1.
ACOS = acos(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, beside_one(cx, -1.0).rsqrt().neg())), map(&|cx, x| call(cx, Function::Acos, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in -0.9 0.9", "T[40] in -0.9 0.9"] },
}

/// The inverse tangent.
ATAN = atan(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| over(cx, beside_one(cx, 1.0))), map(&|cx, x| call(cx, Function::Atan, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The hyperbolic sine.
SINH = sinh(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, cx.args[0].cosh())), map(&|cx, x| call(cx, Function::Sinh, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The hyperbolic cosine.
COSH = cosh(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, cx.args[0].sinh())), map(&|cx, x| call(cx, Function::Cosh, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The inverse hyperbolic sine.
ASINH = asinh(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, beside_one(cx, 1.0).rsqrt())), map(&|cx, x| call(cx, Function::Asinh, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The inverse hyperbolic cosine, NaN below 1.
ACOSH = acosh(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let x = cx.args[0];
            times(cx, x.mul(x).add(-1.0).rsqrt())
        }),
        map(&|cx, x| call(cx, Function::Acosh, x[0])),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in 1.25 4", "T[40] in 1.25 4"] },
}

/// The inverse hyperbolic tangent, infinite at -1 and 1, NaN outside.
ATANH = atanh(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| over(cx, beside_one(cx, -1.0))), map(&|cx, x| call(cx, Function::Atanh, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in -0.9 0.9", "T[40] in -0.9 0.9"] },
}

/// One less the error function, precise where that is small.
ERFC = erfc(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let x = cx.args[0];
            times(cx, x.mul(x).neg().exp().mul(-FRAC_2_SQRT_PI))
        }),
        map(&|cx, x| call(cx, Function::Erfc, x[0])),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// `exp(x * x) * erfc(x)`, which is neither infinite nor zero where the factors are.
ERFCX = erfcx as "special_erfcx"(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| times(cx, cx.args[0].mul(2.0).mul(cx.out()).add(-FRAC_2_SQRT_PI))),
        map(&|cx, x| call(cx, Function::Erfcx, x[0])),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The inverse of the error function: infinite at -1 and 1, NaN outside.
ERFINV = erfinv(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let y = cx.out();
            times(cx, y.mul(y).exp().mul(1.0 / FRAC_2_SQRT_PI))
        }),
        map(&|cx, x| call(cx, Function::Erfinv, x[0])),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in -0.9 0.9", "T[40] in -0.9 0.9"] },
}

/// The probability that a normal number is below the operand.
NDTR = ndtr as "special_ndtr"(x) -> (y) {
    infer:    &infer::float,
    body:     composite(
        Some(rule(&|cx| {
            let x = cx.args[0];
            times(cx, x.mul(x).mul(-0.5).exp().mul(FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5))
        })),
        &|cx| smallvec![cx.args[0].mul(-FRAC_1_SQRT_2).erfc().mul(0.5)],
    ),
    rounding: IN_STEPS,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The number that a normal number is below with the operand as probability: infinite at 0 and 1,
/// NaN outside.
NDTRI = ndtri as "special_ndtri"(p) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let y = cx.out();
            times(cx, y.mul(y).mul(0.5).exp().mul(2.0 * SQRT_2 / FRAC_2_SQRT_PI))
        }),
        map(&|cx, x| call(cx, Function::Ndtri, x[0])),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in 0.1 0.9", "T[40] in 0.1 0.9"] },
}

/// The logarithm of [`NDTR`], precise where that is small.
LOG_NDTR = log_ndtr as "special_log_ndtr"(x) -> (y) {
    infer:    &infer::float,
    body:     composite(
        Some(rule(&|cx| {
            over(cx, cx.args[0].mul(-FRAC_1_SQRT_2).erfcx().mul(SQRT_2 / FRAC_2_SQRT_PI))
        })),
        &|cx| {
            let x = cx.args[0];
            let scaled = x.mul(-FRAC_1_SQRT_2).erfcx().mul(0.5).log();
            let below = scaled.sub(x.mul(0.5).mul(x));
            let above = x.mul(FRAC_1_SQRT_2).erfc().mul(-0.5).log1p();
            smallvec![x.lt(-1.0).choose(below, above)]
        },
    ),
    rounding: IN_STEPS,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40] in -4 4"] },
}

/// The logarithm of the magnitude of the gamma function.
LGAMMA = lgamma(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, cx.args[0].digamma())), map(&|cx, x| {
        // At 1 and 2 it is zero, and never `-0.0`.
        let (y, zero) = (call(cx, Function::Lgamma, x[0]), cx.constant(0.0));
        cx.body.binary(ScalarOp::Add, y, zero)
    })),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] in -1.9 -1.1"] },
}

/// The derivative of [`LGAMMA`].
DIGAMMA = digamma(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| times(cx, cx.args[0].polygamma(1))), map(&|cx, x| call(cx, Function::Digamma, x[0]))),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] in 0.5 9"] },
}

/// The derivative of [`DIGAMMA`] of order `n`, from 0 to 20; from 2 on it is NaN below zero.
POLYGAMMA = polygamma(x; n: Int) -> (y) {
    infer:    &|cx| {
        let n = cx.attrs.int("n").unwrap_or(0);
        if (0..=MOST_DERIVATIVES).contains(&n) {
            infer::float(cx)
        } else {
            Err(format!("`n` is {n}, expected an order from 0 to {MOST_DERIVATIVES}"))
        }
    },
    body:     core(
        rule(&|cx| times(cx, cx.args[0].polygamma(cx.attrs.int("n").unwrap_or(0) + 1))),
        map(&|cx, x| match order(cx.attrs) {
            0 => call(cx, Function::Digamma, x[0]),
            1 => trigamma(cx, x[0]),
            n => derivative(cx, n, x[0]),
        }),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0 {n = 1}", "T[40] in 0.5 9 {n = 0}", "T[7] in 0.8 4 {n = 2}"] },
}

/// `sin(πx) / πx`, and 1 at zero.
SINC = sinc(x) -> (y) {
    infer:    &infer::float,
    body:     composite(
        Some(rule(&|cx| {
            let x = cx.args[0];
            let turned = x.mul(PI);
            let above = turned.mul(turned.cos()).sub(turned.sin());
            let below = x.mul(x).mul(PI);
            let zero = cx.tracer.zeros_like(x);
            // Next to zero the square is zero, too.
            times(cx, below.eq(0.0).choose(zero, above.div(below)))
        })),
        &|cx| {
            let turned = cx.args[0].mul(PI);
            let is_zero = cx.args[0].eq(0.0);
            let one = cx.tracer.zeros_like(turned).add(1.0);
            smallvec![is_zero.choose(one, turned.sin().div(turned))]
        },
    ),
    rounding: IN_STEPS,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in 0.2 3", "T[40] in -3 -0.2"] },
}

/// `log(x / (1 - x))`; with `eps`, of the operand brought to between `eps` and `1 - eps`.
LOGIT = logit(x; eps: OptFloat) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let x = cx.args[0];
            let zero = cx.tracer.zeros_like(x);
            let slope = cx.dy().div(x.mul(x.rsub(1.0)));
            let eps = cx.attrs.float("eps");
            let outside = if eps.is_some() { zero } else { zero.add(f64::NAN) };
            let low = x.lt(eps.unwrap_or(0.0));
            let high = x.gt(1.0 - eps.unwrap_or(0.0));
            smallvec![Some(low.logical_or(high).choose(outside, slope))]
        }),
        map(&|cx, x| {
            let mut x = x[0];
            if let Some(eps) = cx.attrs.float("eps") {
                let (low, high) = (cx.constant(eps), cx.constant(1.0 - eps));
                // The lower bound first, as PyTorch asks, also where it is the larger one.
                let (below, above) = (cx.body.cmp(Cmp::Lt, x, low), cx.body.cmp(Cmp::Lt, high, x));
                let bounded = cx.body.select(above, high, x);
                x = cx.body.select(below, low, bounded);
            }
            let one = cx.constant(1.0);
            let other = cx.body.binary(ScalarOp::Sub, one, x);
            let odds = cx.body.binary(ScalarOp::Div, x, other);
            call(cx, Function::Log, odds)
        }),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in 0.1 0.9", "T[40] in 0.3 0.7 {eps = 0.25}"] },
}

/// `-x log x`, zero at zero and -inf below.
ENTR = entr as "special_entr"(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| times(cx, cx.args[0].log().add(1.0).neg())),
        map(&|cx, x| {
            let (zero, infinite) = (cx.constant(0.0), cx.constant(f64::NEG_INFINITY));
            let log = call(cx, Function::Log, x[0]);
            let minus = cx.body.unary(ScalarOp::Neg, x[0]);
            let product = cx.body.binary(ScalarOp::Mul, minus, log);
            let below = cx.body.cmp(Cmp::Lt, x[0], zero);
            let is_zero = cx.body.cmp(Cmp::Eq, x[0], zero);
            let y = cx.body.select(below, infinite, product);
            cx.body.select(is_zero, zero, y)
        }),
    ),
    rounding: IN_STEPS,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] > 0"] },
}
}

/// The order up to which [`POLYGAMMA`] is computed; its gradient is one order higher.
const MOST_DERIVATIVES: i64 = 20;

fn call(cx: &mut MapCx<'_>, f: Function, x: Val) -> Val {
    cx.body.unary(ScalarOp::Call(f), x)
}

/// The first derivative of digamma. There is no limit towards minus infinity: it has poles all the
/// way.
fn trigamma(cx: &mut MapCx<'_>, x: Val) -> Val {
    let y = call(cx, Function::Trigamma, x);
    let (end, none) = (cx.constant(f64::NEG_INFINITY), cx.constant(f64::NAN));
    let is_end = cx.body.cmp(Cmp::Eq, x, end);
    cx.body.select(is_end, none, y)
}

/// The gradient of an op whose derivative is `slope`.
fn times<'t>(cx: &GradCx<'_, 't>, slope: Var<'t>) -> Grads<'t> {
    smallvec![Some(cx.dy().mul(slope))]
}

/// The gradient of an op whose derivative is one over `below`.
fn over<'t>(cx: &GradCx<'_, 't>, below: Var<'t>) -> Grads<'t> {
    smallvec![Some(cx.dy().div(below))]
}

/// `1 + sign * x * x`.
fn beside_one<'t>(cx: &GradCx<'_, 't>, sign: f64) -> Var<'t> {
    let x = cx.args[0];
    x.mul(x).mul(sign).add(1.0)
}

fn order(attrs: &Attrs) -> i64 {
    attrs.int("n").unwrap_or(0)
}

/// `(-1)^(n+1) n! ζ(n + 1, x)` for `n` from 2 on: the first terms of the sum, and the rest by the
/// formula of Euler and Maclaurin.
fn derivative(cx: &mut MapCx<'_>, n: i64, x: Val) -> Val {
    /// How many terms are added one by one.
    const TERMS: i32 = 12;
    /// The Bernoulli numbers of even index, divided by the factorial of the index.
    const BERNOULLI: [f64; 7] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
    ];
    let one = cx.constant(1.0);
    let power = |cx: &mut MapCx<'_>, v: Val, n: i64| {
        (1..n).fold(v, |product, _| cx.body.binary(ScalarOp::Mul, product, v))
    };
    let mut sum = cx.constant(0.0);
    for k in 0..TERMS {
        let shift = cx.constant(f64::from(k));
        let at = cx.body.binary(ScalarOp::Add, x, shift);
        let inverse = cx.body.binary(ScalarOp::Div, one, at);
        let term = power(cx, inverse, n + 1);
        sum = cx.body.binary(ScalarOp::Add, sum, term);
    }
    let shift = cx.constant(f64::from(TERMS));
    let at = cx.body.binary(ScalarOp::Add, x, shift);
    let inverse = cx.body.binary(ScalarOp::Div, one, at);
    let squared = cx.body.binary(ScalarOp::Mul, inverse, inverse);
    // y^-n (1/n + 1/2y + the sum over j of B_2j / (2j)! (n + 1)...(n + 2j - 1) y^-2j).
    let mut rising = 1.0;
    let factors: Vec<f64> = (BERNOULLI.iter().zip(1i32..))
        .map(|(b, j)| {
            let first = n as f64 + f64::from(2 * j - 1);
            rising *= if j == 1 { first } else { first * (first - 1.0) };
            b * rising
        })
        .collect();
    let mut tail = cx.constant(0.0);
    for factor in factors.iter().rev() {
        let factor = cx.constant(*factor);
        tail = cx.body.push(ScalarOp::MulAdd, &[tail, squared, factor], cx.scalar());
    }
    let half = cx.constant(0.5);
    let inner = cx.body.push(ScalarOp::MulAdd, &[tail, inverse, half], cx.scalar());
    let whole = cx.constant(1.0 / n as f64);
    let inner = cx.body.push(ScalarOp::MulAdd, &[inner, inverse, whole], cx.scalar());
    let rest = power(cx, inverse, n);
    let rest = cx.body.binary(ScalarOp::Mul, rest, inner);
    let sum = cx.body.binary(ScalarOp::Add, sum, rest);
    let factorial: f64 = (1..=n).map(|k| k as f64).product();
    let scale = cx.constant(if n % 2 == 0 { -factorial } else { factorial });
    let y = cx.body.binary(ScalarOp::Mul, sum, scale);
    let (zero, none) = (cx.constant(0.0), cx.constant(f64::NAN));
    let below = cx.body.cmp(Cmp::Lt, x, zero);
    cx.body.select(below, none, y)
}
