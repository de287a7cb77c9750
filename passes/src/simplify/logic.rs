//! Truth values and choices.
//!
//! `not (x < y)` of floats is not `x >= y`: with a NaN neither comparison holds. `x == x` of floats is a test for NaN and stays.

use super::constants::splat;
use super::{Draft, Recorder};
use tracecast_ir::ops::elementwise::{
    EQ, GE, GT, LE, LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, LT, NE, WHERE,
};
use tracecast_ir::{Attrs, DType, OpDef, Var};

/// Simplifies a comparison, a logical op or `where`.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    match d.name() {
        "logical_not" => not(r, d.x()),
        "logical_and" | "logical_or" => connected(r, d),
        "where" => chosen(r, d),
        _ => compared(r, d),
    }
}

/// The number of a tensor of one truth value.
fn known<'t>(r: &Recorder<'_, 't>, x: Var<'t>) -> Option<bool> {
    splat(r.tracer, x).map(|v| v != 0.0)
}

/// A comparison of a value with itself.
fn compared<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, y) = (d.x(), d.y()?);
    let holds = match d.name() {
        "lt" | "gt" => false,
        "ne" if !x.dtype().is_float() => false,
        "eq" | "le" | "ge" if !x.dtype().is_float() => true,
        _ => return None,
    };
    (x.id() == y.id()).then(|| truth(r, x, holds))
}

fn truth<'t>(r: &mut Recorder<'_, 't>, like: Var<'t>, holds: bool) -> Var<'t> {
    r.full(like.ty().with_dtype(DType::Bool), f64::from(u8::from(holds)))
}

fn not<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>) -> Option<Var<'t>> {
    let below = r.made(x)?;
    let is_float = below.args.vars.first().is_some_and(|v| v.dtype().is_float());
    let opposite: &'static OpDef = match below.name() {
        "logical_not" => return Some(below.x()),
        "eq" => &NE,
        "ne" => &EQ,
        "lt" if !is_float => &GE,
        "le" if !is_float => &GT,
        "gt" if !is_float => &LE,
        "ge" if !is_float => &LT,
        _ => return None,
    };
    Some(r.record(opposite.into(), below.args, below.attrs)[0])
}

fn connected<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, y) = (d.x(), d.y()?);
    let is_and = d.op.is(&LOGICAL_AND);
    if x.id() == y.id() {
        return Some(x);
    }
    for (this, other) in [(x, y), (y, x)] {
        if let Some(value) = known(r, this) {
            return Some(if value == is_and { other } else { this });
        }
        if r.made_by(this, &LOGICAL_NOT).is_some_and(|below| below.x().id() == other.id()) {
            return Some(truth(r, x, !is_and));
        }
        // x and (x and y), x or (x or y)
        let nested = r.made_by(this, if is_and { &LOGICAL_AND } else { &LOGICAL_OR });
        if nested.is_some_and(|below| below.args.vars.iter().any(|v| v.id() == other.id())) {
            return Some(this);
        }
    }
    None
}

fn chosen<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let [c, x, y] = d.args.vars[..] else { return None };
    if x.id() == y.id() {
        return Some(x);
    }
    if let Some(holds) = known(r, c) {
        return Some(if holds { x } else { y });
    }
    if let Some(below) = r.made_by(c, &LOGICAL_NOT) {
        return Some(r.apply(&WHERE, &[below.x(), y, x], Attrs::new()));
    }
    if x.dtype() == DType::Bool {
        match (known(r, x), known(r, y)) {
            (Some(true), Some(false)) => return Some(c),
            (Some(false), Some(true)) => return Some(r.apply(&LOGICAL_NOT, &[c], Attrs::new())),
            _ => {}
        }
    }
    let same = |inner: &Draft<'t>| inner.x().id() == c.id();
    if let Some(inner) = r.made_by(x, &WHERE).filter(same) {
        return Some(r.apply(&WHERE, &[c, inner.args.vars[1], y], Attrs::new()));
    }
    let inner = r.made_by(y, &WHERE).filter(same)?;
    Some(r.apply(&WHERE, &[c, x, inner.args.vars[2]], Attrs::new()))
}
