//! How far each function of the list is from the exact value, for which its definition over f64
//! stands: every f16 and every bf16, and f32 in steps over all bit patterns. The bounds that
//! `docs/ops.md` states are these.
//!
//! In 16 bits a function is computed in f32 and rounded once, so it is within 0.501 units in the
//! last place of f16, and 0.5001 of bf16, of the exact value: half a unit of rounding, and two
//! units of f32.

use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::kernel::{Function, half};
use tracecast_ir::ops::bounds::{BOUNDS, Bound};
use tracecast_ir::{Args, DType, TensorType, Tracer};

/// A format: how its numbers begin and end, and what a unit in the last place is.
struct Format {
    name: &'static str,
    widen: fn(u16) -> f32,
    narrow: fn(f32) -> u16,
    /// Bits of the fraction.
    fraction: i32,
    /// The exponent of the smallest normal number.
    least: i32,
    /// Where rounding becomes infinite.
    beyond: f64,
    bound: f64,
}

const FORMATS: [Format; 2] = [
    Format {
        name: "f16",
        widen: half::f16_to_f32,
        narrow: half::f32_to_f16,
        fraction: 10,
        least: -14,
        beyond: 65_520.0,
        bound: 0.501,
    },
    Format {
        name: "bf16",
        widen: half::bf16_to_f32,
        narrow: half::f32_to_bf16,
        fraction: 7,
        least: -126,
        beyond: 3.396e38,
        bound: 0.5001,
    },
];

/// The spacing of numbers with that many bits of fraction at the magnitude of `x`.
fn unit(x: f64, fraction: i32, least: i32) -> f64 {
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(least) - fraction)
}

/// The number of whose last place the units are: the exact value. Below zero `lgamma` and `digamma`
/// have zeros of which no number says more than the difference of the two numbers that it comes
/// from, so there it is the larger of these, and at least 1.
fn scale(f: Function, x: f64, want: f64) -> f64 {
    match f {
        Function::Lgamma if x < 0.0 => want.abs().max(f.of_f64(-x).abs()).max(1.0),
        Function::Digamma if x < 0.0 => want.abs().max(f.of_f64(1.0 - x).abs()).max(1.0),
        _ => want,
    }
}

#[test]
fn every_sixteen_bit_number() {
    for format in &FORMATS {
        for f in Function::ALL {
            for bits in 0..=u16::MAX {
                let x = (format.widen)(bits);
                let got = f64::from((format.widen)((format.narrow)(f.of_f32(x))));
                let want = f.of_f64(f64::from(x));
                let name = f.name();
                let at = || format!("{name}({x:e}) in {}: {got:e}, not {want:e}", format.name);
                if want.is_nan() || want.abs() >= format.beyond {
                    let same = got.is_nan() && want.is_nan();
                    assert!(same || got == want.signum() * f64::INFINITY, "{}", at());
                    continue;
                }
                let error = (got - want).abs()
                    / unit(scale(f, f64::from(x), want), format.fraction, format.least);
                assert!(error <= format.bound, "{}: {error} units", at());
            }
        }
    }
}

/// As the documentation of `math` has it.
#[test]
fn f32_over_all_magnitudes() {
    for f in Function::ALL {
        let bound = f.bound();
        for bits in (0..=u32::MAX).step_by(4093) {
            let (x, name) = (f32::from_bits(bits), f.name());
            let (got, want) = (f64::from(f.of_f32(x)), f.of_f64(f64::from(x)));
            if want.is_nan() || want.abs() > f64::from(f32::MAX) {
                let same = got.is_nan() && want.is_nan();
                assert!(same || got == want.signum() * f64::INFINITY, "{name}({x:e}): {got:e}");
                continue;
            }
            let error = (got - want).abs() / unit(scale(f, f64::from(x), want), 23, -126);
            assert!(error <= bound, "{name}({x:e}): {got:e}, not {want:e}: {error} units");
        }
    }
}

/// The spacing of f64 at the magnitude of `x`.
fn unit_of_doubles(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52) & 0x7ff;
    f64::from_bits(if exponent > 52 { (exponent - 52) << 52 } else { 1 << exponent.max(1) >> 1 })
}

/// Half of the numbers are where a function was furthest from the exact value among some thousand.
#[test]
fn functions_of_doubles_beside_more_digits() {
    let mut most: HashMap<&str, f64> = HashMap::new();
    for line in include_str!("data/doubles.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, x, near, rest] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let [x, near] =
            [x, near].map(|bits| f64::from_bits(u64::from_str_radix(bits, 16).expect("bits")));
        let f = Function::ALL.into_iter().find(|f| f.name() == name).expect("a function");
        let bound = f.bound_of_doubles().expect("a bound");
        let (got, rest) = (f.of_f64(x), rest.parse::<f64>().expect("a number"));
        let unit = unit_of_doubles(near);
        let least = if f == Function::Digamma { 1.0 } else { 0.0 };
        let scale = scale(f, x, near).abs().max(least);
        let error = ((got - near) / unit - rest).abs() * (unit / unit_of_doubles(scale));
        assert!(error <= bound, "{name}({x:e}): {got:e}, not {near:e}: {error} units");
        let most = most.entry(f.name()).or_default();
        *most = most.max(error);
    }
    for f in Function::ALL {
        // A bound says something if some number comes near.
        let is_near = f.bound_of_doubles().is_none_or(|bound| most[f.name()] > bound / 4.0);
        assert!(is_near, "{}: {most:?}", f.name());
    }
}

/// What the op makes of these numbers in a dtype.
fn computed(bound: &Bound, dtype: DType, numbers: &[f64]) -> Vec<f64> {
    let (tracer, ty) = (Tracer::new("op"), TensorType::new(dtype, &[numbers.len()][..]));
    let x = tracer.input("x", ty.clone());
    tracer.output("y", tracer.apply(bound.op, Args::new().after(x), bound.attrs())[0]);
    let graph = tracer.finish().expect("an op of one float");
    let inputs = HashMap::from([("x".to_owned(), Value::from_f64s(ty, numbers).expect("numbers"))]);
    eval::graph(&graph, &inputs).expect("evaluates").get("y").expect("an output").to_f64s()
}

/// As `docs/ops.md` has it.
#[test]
fn ops_made_of_several_functions() {
    let all = (0..=u32::MAX).step_by(98_317).map(|bits| f64::from(f32::from_bits(bits)));
    // Beyond, π times a number is no f32, and `sinc` NaN, as in PyTorch.
    let numbers: Vec<f64> = all.filter(|x| !(x.is_finite() && x.abs() > 1e38)).collect();
    for bound in &BOUNDS {
        let got = computed(bound, DType::F32, &numbers);
        let wanted = computed(bound, DType::F64, &numbers);
        let mut most = (0.0, 0.0);
        for ((x, got), want) in numbers.iter().zip(got).zip(wanted) {
            let at =
                || format!("{} {:?} of {x:e}: {got:e}, not {want:e}", bound.op.name, bound.order);
            if want.is_nan() || want.abs() > f64::from(f32::MAX) {
                let same = got.is_nan() && want.is_nan();
                assert!(same || got == want.signum() * f64::INFINITY, "{}", at());
                continue;
            }
            let scale = if bound.of_one { want.abs().max(1.0) } else { want };
            let error = (got - want).abs() / unit(scale, 23, -126);
            if error > most.0 {
                most = (error, *x);
            }
            assert!(error <= bound.units, "{}: {error} units", at());
        }
        // A bound says something if some number comes near.
        assert!(most.0 > bound.units / 4.0, "{}: {most:?} of {}", bound.op.name, bound.units);
    }
}
