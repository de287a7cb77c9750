//! Equations that ops state of numbers, signs, and a value met twice.
//!
//! No rule names an op: each asks for one fact. What no op states is left alone: `x + 0.0` (it
//! makes `-0.0` positive), `x * 0.0` and `x - x` of floats (NaN, infinities, signs), chains of
//! factors (each product rounds), and whatever reassociates.

use super::recorder::{Draft, Recorder};
use tracecast_ir::op::{Compares, Facts, Intrinsic, Signs, WithItself};
use tracecast_ir::ops::elementwise::NEG;
use tracecast_ir::{Attrs, DType, Var};

/// Simplifies an elementwise op of which something is known.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    match d.args.vars[..] {
        [x] => match d.scalar() {
            Some(c) => with_number(r, d, x, c),
            None => alone(r, d, x),
        },
        [x, y] => of_two(r, d, x, y),
        _ => None,
    }
}

/// An op with a number in the place of its second operand.
fn with_number<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, x: Var<'t>, c: f64) -> Option<Var<'t>> {
    let (facts, dtype) = (d.op.facts(), x.dtype());
    let is = |number: Option<f64>| number.is_some_and(|number| is_number(dtype, c, number));
    if is(facts.neutral) {
        return Some(x);
    }
    if is(facts.absorbing) && !dtype.is_float() {
        return Some(r.full(x.ty(), c));
    }
    if is(facts.negating) {
        return Some(r.apply(&NEG, &[x], Attrs::new()));
    }
    if is(facts.settling) {
        let is_settled = |below: &Draft<'t>| below.op == d.op && below.scalar() == Some(c);
        return r.made(x).filter(is_settled).map(|_| x);
    }
    if !dtype.is_float() {
        return None;
    }
    if let Some(x) = below_negation(r, x).filter(|_| facts.passes_signs) {
        return Some(r.with_scalar(&d.op, x, -c));
    }
    let other = facts.by_inverse?;
    inverse(c, dtype).map(|c| r.with_scalar(&other.into(), x, c))
}

/// True if the number is this one to the bit, as the dtype has numbers: integers have one zero.
fn is_number(dtype: DType, number: f64, this: f64) -> bool {
    number == this && (!dtype.is_float() || number.to_bits() == this.to_bits())
}

/// One over a power of two, if the scalar type holds it as a normal number: then quotient and
/// product are the same number, rounded the same way.
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

/// An op of one operand.
fn alone<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, x: Var<'t>) -> Option<Var<'t>> {
    let facts = d.op.facts();
    if facts.keeps_nonnegative && is_nonnegative(r, x) {
        return Some(x);
    }
    let is_sign = d.op.intrinsic() == Some(Intrinsic::Negation);
    if !is_sign && !facts.is_involution && !facts.ignores_sign {
        return None;
    }
    let below = r.made(x)?;
    if facts.is_involution && below.op == d.op {
        return Some(below.x());
    }
    if facts.ignores_sign && below.op.intrinsic() == Some(Intrinsic::Negation) {
        return Some(r.again(d, &[below.x()]));
    }
    // The negation of a product with a number, or of a quotient by one.
    let c = below.scalar().filter(|_| is_sign && x.dtype().is_float())?;
    below.op.facts().passes_signs.then(|| r.with_scalar(&below.op, below.x(), -c))
}

/// True if no element is below zero or `-0.0`.
fn is_nonnegative<'t>(r: &Recorder<'_, 't>, x: Var<'t>) -> bool {
    match x.dtype() {
        DType::U8 | DType::Bool => true,
        dtype => dtype.is_float() && r.is_made(x, |facts| facts.signs != Signs::Any),
    }
}

/// The operand of a negation.
fn below_negation<'t>(r: &Recorder<'_, 't>, x: Var<'t>) -> Option<Var<'t>> {
    r.made_as(x, Intrinsic::Negation).map(|d| d.x())
}

/// An op of two operands.
fn of_two<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, x: Var<'t>, y: Var<'t>) -> Option<Var<'t>> {
    let facts = d.op.facts();
    if let Some(gives) = facts.with_itself.filter(|_| x.id() == y.id()) {
        return with_itself(r, d, facts, gives);
    }
    if let Some(other) = facts.subtracts {
        if let Some(y) = below_negation(r, y) {
            return Some(r.apply(other, &[x, y], Attrs::new()));
        }
        let x = below_negation(r, x).filter(|_| d.op.commutes())?;
        return Some(r.apply(other, &[y, x], Attrs::new()));
    }
    if !facts.passes_signs {
        return None;
    }
    let (x, y) = (below_negation(r, x)?, below_negation(r, y)?);
    Some(r.again(d, &[x, y]))
}

/// An op of one value twice.
fn with_itself<'t>(
    r: &mut Recorder<'_, 't>,
    d: &Draft<'t>,
    facts: &Facts,
    gives: WithItself,
) -> Option<Var<'t>> {
    let x = d.x();
    let number = match gives {
        WithItself::Operand => return Some(x),
        WithItself::Number(number) => number,
        WithItself::NumberExceptFloats(_) if x.dtype().is_float() => return None,
        WithItself::NumberExceptFloats(number) => number,
    };
    let is_truth = matches!(facts.compares, Some(Compares::Equality | Compares::Order));
    let dtype = if is_truth { DType::Bool } else { x.dtype() };
    Some(r.full(x.ty().with_dtype(dtype), number))
}
