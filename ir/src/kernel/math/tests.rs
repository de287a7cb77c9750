//! What functions are at the ends of their ranges: zeros with their signs, subnormal numbers,
//! infinities and NaN; and reductions of arguments.

use super::*;

const INF: f32 = f32::INFINITY;

/// A function of one f32.
type Single = fn(f32) -> f32;

/// Bit for bit, but for NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Each function with arguments and what it is there.
fn is_at(name: &str, f: Single, ends: &[(f32, f32)]) {
    assert!(f(f32::NAN).is_nan() && f(-f32::NAN).is_nan(), "{name}");
    for (x, want) in ends {
        assert!(same(f(*x), *want), "{name}({x:e}) is {:e}, not {want:e}", f(*x));
    }
}

#[test]
fn powers_and_logarithms() {
    let least = f32::from_bits(1);
    is_at("exp2", exp2, &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (-149.0, least)]);
    is_at("exp2", exp2, &[(127.0, 1.701_411_8e38), (128.0, INF), (-151.0, 0.0), (10.0, 1024.0)]);
    is_at("expm1", expm1, &[(0.0, 0.0), (-0.0, -0.0), (least, least), (INF, INF), (-INF, -1.0)]);
    is_at("expm1", expm1, &[(88.722_84, INF), (-20.0, -1.0)]);
    assert!(expm1(88.7f32).is_finite());
    let ends = [(0.0, 0.0), (-0.0, -0.0), (-least, -least), (-1.0, -INF), (INF, INF)];
    is_at("log1p", log1p, &ends);
    is_at("log1p", log1p, &[(-1.000_000_1, f32::NAN), (-INF, f32::NAN), (f32::MAX, 88.722_84)]);
    for (name, f) in [("log2", log2 as Single), ("log10", log10)] {
        is_at(name, f, &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, f32::NAN)]);
    }
    is_at("log2", log2, &[(8.0, 3.0), (least, -149.0), (1024.0, 10.0)]);
    is_at("log10", log10, &[(10.0, 1.0), (1.0e10, 10.0)]);
}

#[test]
fn the_exponential_of_what_is_not_above_zero_has_the_bits_of_any_exponential() {
    let below = (0x8000_0000..=u32::MAX).step_by(997).map(f32::from_bits);
    // Where results are subnormal, and where they end.
    let small = (0..200_000).map(|i| -87.0 - i as f32 * 1e-4);
    for x in below.chain(small).chain([0.0, f32::NAN, -INF, -104.0, -103.97]) {
        assert!(same(exp_of_negative(x), exp(x)), "{x:e}");
    }
}

#[test]
fn trigonometric_and_hyperbolic_functions() {
    let (half, whole) = (std::f32::consts::FRAC_PI_2, std::f32::consts::PI);
    let least = f32::from_bits(1);
    let odd: [(&str, Single); 6] = [
        ("tan", tan),
        ("asin", asin),
        ("atan", atan),
        ("sinh", sinh),
        ("asinh", asinh),
        ("atanh", atanh),
    ];
    for (name, f) in odd {
        is_at(name, f, &[(0.0, 0.0), (-0.0, -0.0), (least, least), (-least, -least)]);
    }
    is_at("tan", tan, &[(INF, f32::NAN), (-INF, f32::NAN)]);
    is_at("asin", asin, &[(1.0, half), (-1.0, -half), (1.000_000_1, f32::NAN), (INF, f32::NAN)]);
    is_at(
        "acos",
        acos,
        &[(1.0, 0.0), (-1.0, whole), (0.0, half), (1.5, f32::NAN), (-INF, f32::NAN)],
    );
    is_at("atan", atan, &[(INF, half), (-INF, -half), (f32::MAX, half)]);
    is_at("sinh", sinh, &[(INF, INF), (-INF, -INF), (89.5, INF)]);
    is_at("cosh", cosh, &[(INF, INF), (-INF, INF), (0.0, 1.0), (-0.0, 1.0), (-89.5, INF)]);
    assert!(sinh(89.4f32).is_finite() && cosh(-89.4f32).is_finite());
    is_at("asinh", asinh, &[(INF, INF), (-INF, -INF)]);
    is_at("acosh", acosh, &[(1.0, 0.0), (0.999_999_9, f32::NAN), (INF, INF), (-INF, f32::NAN)]);
    is_at("atanh", atanh, &[(1.0, INF), (-1.0, -INF), (1.000_000_1, f32::NAN), (INF, f32::NAN)]);
    assert!(acosh_f64(-6.7e7).is_nan() && acosh_f64(1.0) == 0.0);
}

#[test]
fn the_error_function_and_the_gamma_function() {
    is_at("erfc", erfc, &[(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (11.0, 0.0)]);
    is_at("erfcx", erfcx, &[(0.0, 1.0), (INF, 0.0), (-INF, INF), (-9.4, INF)]);
    assert!(erfcx(f32::MAX) > 0.0 && erfc(10.05f32) > 0.0);
    is_at("erfinv", erfinv, &[(1.0, INF), (-1.0, -INF), (1.000_000_1, f32::NAN), (INF, f32::NAN)]);
    is_at(
        "ndtri",
        ndtri,
        &[(0.0, -INF), (1.0, INF), (0.5, 0.0), (-0.1, f32::NAN), (1.1, f32::NAN)],
    );
    let poles = [(0.0, INF), (-0.0, INF), (-1.0, INF), (-8_388_608.0, INF), (-INF, INF)];
    is_at("lgamma", lgamma, &poles);
    is_at("lgamma", lgamma, &[(1.0, -0.0), (2.0, 0.0), (INF, INF), (f32::MAX, INF)]);
    is_at("digamma", digamma, &[(0.0, -INF), (-0.0, INF), (-3.0, f32::NAN), (-INF, f32::NAN)]);
    is_at("digamma", digamma, &[(INF, INF), (-16_777_216.0, f32::NAN)]);
    is_at("trigamma", trigamma, &[(0.0, INF), (-0.0, INF), (-2.0, INF), (INF, 0.0)]);
}

#[test]
fn functions_of_doubles_at_the_ends() {
    const INF: f64 = f64::INFINITY;
    type Ends<'a> = (&'a str, fn(f64) -> f64, &'a [(f64, f64)]);
    let nan = f64::NAN;
    let all: [Ends<'_>; 7] = [
        (
            "lgamma",
            lgamma_f64,
            &[
                (0.0, INF),
                (-0.0, INF),
                (1.0, 0.0),
                (2.0, 0.0),
                (-1.0, INF),
                (-4.0e15, INF),
                (INF, INF),
                (-INF, INF),
                (2.6e305, INF),
            ],
        ),
        ("erfcx", erfcx_f64, &[(0.0, 1.0), (INF, 0.0), (-INF, INF), (-27.0, INF)]),
        ("erfinv", erfinv_f64, &[(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.1, nan)]),
        ("ndtri", ndtri_f64, &[(0.0, -INF), (-0.0, -INF), (1.0, INF), (0.5, 0.0), (-0.1, nan)]),
        ("digamma", digamma_f64, &[(0.0, -INF), (-0.0, INF), (-3.0, nan), (INF, INF), (-INF, nan)]),
        (
            "digamma",
            digamma_f64,
            &[(-1.0e300, nan), (7.458_340_731_200_207e-155, -1.340_780_792_994_259_7e154)],
        ),
        (
            "trigamma",
            trigamma_f64,
            &[(0.0, INF), (-0.0, INF), (-2.0, INF), (INF, 0.0), (-INF, INF)],
        ),
    ];
    for (name, f, ends) in all {
        assert!(f(nan).is_nan(), "{name}");
        for (x, want) in ends {
            let (y, same) = (f(*x), f(*x).to_bits() == want.to_bits());
            assert!(same || y.is_nan() && want.is_nan(), "{name}({x:e}) is {y:e}, not {want:e}");
        }
    }
}

/// Where nothing but `libm` or a slower method could say more: numbers computed with 40 digits.
#[test]
fn functions_of_an_f64_are_those_of_forty_digits() {
    let points = [
        ("erfcx(-1.5)", erfcx_f64(-1.5), 18.653_886_256_262_734),
        ("erfcx(0.3)", erfcx_f64(0.3), 0.734_599_334_567_655_1),
        ("erfcx(9.0)", erfcx_f64(9.0), 0.062_307_724_037_774_68),
        ("erfcx(20.0)", erfcx_f64(20.0), 0.028_174_348_741_051_32),
        ("erfinv(0.1)", erfinv_f64(0.1), 0.088_855_990_494_257_69),
        ("erfinv(-0.75)", erfinv_f64(-0.75), -0.813_419_847_597_618_5),
        ("erfinv(0.999999)", erfinv_f64(0.999999), 3.458_910_737_275_499),
        ("ndtri(1e-30)", ndtri_f64(1e-30), -11.464_024_688_443_615),
        ("ndtri(0.4)", ndtri_f64(0.4), -0.253_347_103_135_799_7),
        ("lgamma(0.7)", lgamma_f64(0.7), 0.260_867_246_531_666_54),
        ("lgamma(-0.3)", lgamma_f64(-0.3), 1.464_840_050_857_602_5),
        ("lgamma(-2.25)", lgamma_f64(-2.25), 0.555_501_545_020_647_5),
        ("lgamma(1.46)", lgamma_f64(1.46), -0.121_485_001_004_007_43),
        ("lgamma(5.5)", lgamma_f64(5.5), 3.957_813_967_618_716_5),
        ("lgamma(30.0)", lgamma_f64(30.0), 71.257_038_967_168_01),
        ("lgamma(-7.9)", lgamma_f64(-7.9), -8.072_039_736_012_833),
        ("digamma(-2.25)", digamma_f64(-2.25), 4.158_583_564_657_972),
        ("digamma(0.7)", digamma_f64(0.7), -1.220_023_553_697_934_7),
        ("digamma(30.0)", digamma_f64(30.0), 3.384_438_132_685_525),
        ("trigamma(-2.25)", trigamma_f64(-2.25), 19.379_410_511_869_136),
        ("trigamma(0.7)", trigamma_f64(0.7), 2.834_049_156_694_611),
    ];
    for (name, got, want) in points {
        assert!((got - want).abs() <= 1e-14 * want.abs(), "{name}: {got:e}, not {want:e}");
    }
}

#[test]
fn ends_of_the_range() {
    assert_eq!((exp(0.0f32), exp(-0.0f32)), (1.0, 1.0));
    assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
    assert_eq!((exp(88.72283f32).is_finite(), exp(88.7229f32)), (true, f32::INFINITY));
    assert_eq!((exp(-103.9f32).to_bits(), exp(-104.0f32).to_bits()), (1, 0));
    assert_eq!((log(0.0f32), log(-0.0f32)), (f32::NEG_INFINITY, f32::NEG_INFINITY));
    assert_eq!((log(1.0f32).to_bits(), log(f32::INFINITY)), (0, f32::INFINITY));
    assert!(log(-1.0f32).is_nan() && log(f32::NEG_INFINITY).is_nan() && log(-1e-45f32).is_nan());
    for f in [tanh, erf] {
        assert_eq!((f(f32::INFINITY), f(f32::NEG_INFINITY)), (1.0, -1.0));
    }
    for f in [tanh, erf, sin] {
        assert_eq!((f(0.0f32).to_bits(), f(-0.0f32).to_bits()), (0, SIGN));
    }
    assert_eq!((tanh(1e-45f32), sin(-1e-45f32), cos(0.0f32)), (1e-45, -1e-45, 1.0));
    for f in [sin, cos] {
        assert!(f(f32::INFINITY).is_nan() && f(f32::NEG_INFINITY).is_nan());
    }
    for f in [exp, log, tanh, erf, sin, cos] {
        assert!(f(f32::NAN).is_nan() && f(-f32::NAN).is_nan());
    }
}

/// Both reductions agree with f64 next to multiples of π/2 and around the border between them.
#[test]
fn reduction_is_exact_near_multiples() {
    let near = |k: f64| (k * std::f64::consts::FRAC_PI_2) as f32;
    let points = (1..90_000)
        .step_by(7)
        .map(|k| near(f64::from(k)))
        .chain((60..127).map(|e| near(2f64.powi(e))));
    for x in points.chain([131_071.99, 131_072.0, 131_072.02, f32::MAX]) {
        for (got, want) in [(sin(x), f64::from(x).sin()), (cos(x), f64::from(x).cos())] {
            assert!(
                (f64::from(got) - want).abs() <= 1.2e-7 * want.abs(),
                "{x:e}: {got:e}, not {want:e}"
            );
        }
    }
}

/// A function of an f64, that of the library, and how many units in the last place lie between them
/// at most, one of which is the library's.
type Beside = (&'static str, fn(f64) -> f64, fn(f64) -> f64, u64);

#[test]
fn functions_of_doubles_are_those_of_the_library() {
    let all: [Beside; 21] = [
        ("sin", sin_f64, libm::sin, 2),
        ("cos", cos_f64, libm::cos, 2),
        ("tan", tan_f64, libm::tan, 3),
        ("asin", asin_f64, libm::asin, 1),
        ("acos", acos_f64, libm::acos, 1),
        ("atan", atan_f64, libm::atan, 1),
        ("asinh", asinh_f64, libm::asinh, 3),
        ("acosh", acosh_f64, |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }, 4),
        ("atanh", atanh_f64, libm::atanh, 3),
        ("log2", log2_f64, libm::log2, 1),
        ("log10", log10_f64, libm::log10, 1),
        ("erf", erf_f64, libm::erf, 3),
        ("erfc", erfc_f64, libm::erfc, 4),
        ("exp", exp_f64, libm::exp, 2),
        ("exp2", exp2_f64, libm::exp2, 2),
        ("expm1", expm1_f64, libm::expm1, 3),
        ("sinh", sinh_f64, libm::sinh, 3),
        ("cosh", cosh_f64, libm::cosh, 3),
        ("tanh", tanh_f64, libm::tanh, 4),
        ("log", log_f64, libm::log, 2),
        ("log1p", log1p_f64, libm::log1p, 2),
    ];
    let ends = [0.0, f64::INFINITY, f64::NAN, 5e-324, 2.3e-308, 1e-300, 1e-9, f64::MAX];
    let ends = ends.into_iter().chain([709.78, 709.79, 710.47, 710.48, 745.1, 745.2, 1024.0, 1.0]);
    let ends = ends.chain([1075.0, 1074.0, 0.1, 20.5, 1.000_000_1]).flat_map(|x| [x, -x]);
    let spread = (0..=u64::MAX).step_by(0x0123_4567_89ab_cdef >> 16).map(f64::from_bits);
    let near = (-40_000..40_000).map(|i| f64::from(i) * 0.001_9 + 1e-5);
    let numbers: Vec<f64> = ends.chain(spread.step_by(64)).chain(near).collect();
    for (name, f, library, units) in all {
        for x in &numbers {
            let (found, want) = (f(*x), library(*x));
            let apart = found.to_bits().abs_diff(want.to_bits());
            assert!(
                apart <= units || found.is_nan() && want.is_nan(),
                "{name}({x:e}): {found:e}, not {want:e}: {apart} units"
            );
        }
    }
}
