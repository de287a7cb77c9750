//! Arithmetic that changes nothing, or changes a sign.
//!
//! What is left alone: `x + 0.0` (it makes `-0.0` positive), `x * 0.0` and `x - x` of floats (NaN, infinities, signs), chains of
//! factors (each product rounds), and whatever reassociates.

use super::{Draft, Recorder};
use tracecast_ir::ops::elementwise::{ABS, ADD, DIV, MUL, NEG, RELU, SUB};
use tracecast_ir::{Args, Attrs, DType, OpDef, Var};

/// Simplifies an elementwise op of numbers.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let x = d.x();
    match d.name() {
        "add" | "sub" | "rsub" => sum(r, d),
        "mul" | "div" | "div_trunc" => product(r, d),
        "neg" => negated(r, x),
        "abs" if x.dtype() == DType::U8 || is_positive(r, x) => Some(x),
        "abs" => below_neg(r, x).map(|y| r.apply(&ABS, &[y], Attrs::new())),
        "relu" if is_positive(r, x) => Some(x),
        "maximum" | "minimum" if d.y().is_some_and(|y| y.id() == x.id()) => Some(x),
        _ => None,
    }
}

/// True for what `relu` or `abs` left: no sign, not even a zero's.
fn is_positive<'t>(r: &Recorder<'_, 't>, x: Var<'t>) -> bool {
    x.dtype().is_float() && (r.made_by(x, &RELU).is_some() || r.made_by(x, &ABS).is_some())
}

/// The operand of a negation.
fn below_neg<'t>(r: &Recorder<'_, 't>, x: Var<'t>) -> Option<Var<'t>> {
    r.made_by(x, &NEG).map(|d| d.x())
}

/// True for the zero that sums ignore: the negative one, and the positive one if subtracted. Integers have one zero.
fn is_nothing(dtype: DType, number: f64, zero: f64) -> bool {
    number == 0.0 && (!dtype.is_float() || number.to_bits() == zero.to_bits())
}

fn sum<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, dtype) = (d.x(), d.x().dtype());
    let Some(y) = d.y() else {
        let c = d.scalar()?;
        return match d.name() {
            "add" if is_nothing(dtype, c, -0.0) => Some(x),
            "sub" if is_nothing(dtype, c, 0.0) => Some(x),
            "rsub" if is_nothing(dtype, c, -0.0) => Some(r.apply(&NEG, &[x], Attrs::new())),
            // What has passed `+ 0.0` once has no negative zeros left.
            "add" if c == 0.0 => {
                r.made_by(x, &ADD).filter(|below| below.scalar() == Some(0.0)).map(|_| x)
            }
            _ => None,
        };
    };
    match (d.name(), below_neg(r, x), below_neg(r, y)) {
        ("add", _, Some(y)) => Some(binary(r, &SUB, x, y)),
        ("add", Some(x), None) => Some(binary(r, &SUB, y, x)),
        ("sub", _, Some(y)) => Some(binary(r, &ADD, x, y)),
        ("sub", ..) if x.id() == y.id() && !dtype.is_float() => Some(r.full(x.ty(), 0.0)),
        _ => None,
    }
}

fn product<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, dtype) = (d.x(), d.x().dtype());
    let Some(y) = d.y() else {
        let c = d.scalar()?;
        if c == 1.0 {
            return Some(x);
        }
        if !dtype.is_float() {
            return (c == 0.0 && d.name() == "mul").then(|| r.full(x.ty(), 0.0));
        }
        if c == -1.0 {
            return Some(r.apply(&NEG, &[x], Attrs::new()));
        }
        if let Some(x) = below_neg(r, x) {
            return Some(r.with_scalar(&d.op, x, -c));
        }
        let factor = if d.name() == "div" { inverse(c, dtype) } else { None };
        return factor.map(|c| r.with_scalar(&(&MUL).into(), x, c));
    };
    let (Some(x), Some(y)) = (below_neg(r, x), below_neg(r, y)) else { return None };
    (d.name() != "div_trunc").then(|| binary(r, if d.name() == "mul" { &MUL } else { &DIV }, x, y))
}

/// One over a power of two, if the scalar type holds it as a normal number: then quotient and product are the same number, rounded
/// the same way.
fn inverse(number: f64, dtype: DType) -> Option<f64> {
    let (number, normal) = match dtype {
        DType::F64 => (number, f64::MIN_POSITIVE..=f64::MAX),
        _ => (f64::from(number as f32), f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)),
    };
    let is_power = number.to_bits() & ((1 << 52) - 1) == 0;
    let inverse = 1.0 / number;
    (is_power && normal.contains(&number.abs()) && normal.contains(&inverse.abs()))
        .then_some(inverse)
}

/// A negation of a negation, of a product with a number, or of a quotient by a number.
fn negated<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>) -> Option<Var<'t>> {
    let below = r.made(x)?;
    match below.name() {
        "neg" => Some(below.x()),
        "mul" | "div" if x.dtype().is_float() => {
            let c = below.scalar()?;
            Some(r.with_scalar(&below.op, below.x(), -c))
        }
        _ => None,
    }
}

fn binary<'t>(r: &mut Recorder<'_, 't>, op: &'static OpDef, x: Var<'t>, y: Var<'t>) -> Var<'t> {
    r.record(op.into(), Args::of(&[x, y]), Attrs::new())[0]
}
