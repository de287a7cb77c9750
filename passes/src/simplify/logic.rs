//! Truth values and choices.
//!
//! `not (x < y)` of floats is not `x >= y`: with a NaN neither comparison holds. `x == x` of floats
//! is a test for NaN and stays.

use super::constants::splat;
use super::recorder::{Draft, Recorder};
use tracecast_ir::kernel::Combiner;
use tracecast_ir::op::{Intrinsic, Lower, View, WithItself};
use tracecast_ir::ops::elementwise::LOGICAL_NOT;
use tracecast_ir::ops::index::GATHER;
use tracecast_ir::ops::source::are_positions;
use tracecast_ir::ops::view::{EXPAND, SLICE};
use tracecast_ir::{Attrs, DType, Size, Var};

/// The number of a tensor of one truth value.
fn known<'t>(r: &Recorder<'_, 't>, x: Var<'t>) -> Option<bool> {
    splat(r.tracer, x).map(|v| v != 0.0)
}

/// Simplifies the opposite of a truth value: that of a comparison is another comparison.
pub(super) fn not<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let below = r.made(d.x())?;
    if d.op.facts().is_involution && below.op == d.op {
        return Some(below.x());
    }
    let is_float = below.args.vars.first().is_some_and(|v| v.dtype().is_float());
    let opposite = below.op.opposite(is_float)?;
    Some(r.record(opposite, below.args, below.attrs)[0])
}

/// Simplifies an op that gives the one truth value that both its operands are, whatever their
/// order: "and" and "or" are all there are of these.
pub(super) fn connected<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, y, facts) = (d.x(), d.y()?, d.op.facts());
    let of_one = facts.with_itself == Some(WithItself::Operand);
    if x.dtype() != DType::Bool || !of_one || !d.op.commutes() {
        return None;
    }
    let absorbing = facts.absorbing?;
    for (this, other) in [(x, y), (y, x)] {
        if let Some(value) = known(r, this) {
            return Some(if value == (absorbing != 0.0) { this } else { other });
        }
        if r.made_as(this, Intrinsic::Not).is_some_and(|below| below.x().id() == other.id()) {
            return Some(r.full(x.ty(), absorbing));
        }
        // x and (x and y), x or (x or y)
        let nested = r.made(this).filter(|below| below.op == d.op);
        if nested.is_some_and(|below| below.args.vars.iter().any(|v| v.id() == other.id())) {
            return Some(this);
        }
    }
    None
}

/// Simplifies a choice between two values.
pub(super) fn chosen<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let [c, x, y] = d.args.vars[..] else { return None };
    if x.id() == y.id() {
        return Some(x);
    }
    if let Some(holds) = known(r, c) {
        return Some(if holds { x } else { y });
    }
    if let Some(below) = r.made_as(c, Intrinsic::Not) {
        return Some(r.again(d, &[below.x(), y, x]));
    }
    if x.dtype() == DType::Bool {
        match (known(r, x), known(r, y)) {
            (Some(true), Some(false)) => return Some(c),
            (Some(false), Some(true)) => return Some(r.apply(&LOGICAL_NOT, &[c], Attrs::new())),
            _ => {}
        }
    }
    let same = |inner: &Draft<'t>| inner.x().id() == c.id();
    if let Some(inner) = r.made_as(x, Intrinsic::Choice).filter(same) {
        return Some(r.again(d, &[c, inner.args.vars[1], y]));
    }
    if let Some(inner) = r.made_as(y, Intrinsic::Choice).filter(same) {
        return Some(r.again(d, &[c, x, inner.args.vars[2]]));
    }
    put(r, d)
}

/// A choice between a value and the same with other elements in some places is one of these
/// elements, and nothing else is touched: `where(c, x, put_slice(x, src))` as
/// `put_slice(x, where(c[..], x[..], src))`, so that a predicated cache is still written row by
/// row. The same of `scatter`, whose sources for one place meet one condition there; but not where
/// an index may lie outside, which is told of the scatter.
fn put<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let [c, x, y] = d.args.vars[..] else { return None };
    for (number, (plain, changed)) in [(x, y), (y, x)].into_iter().enumerate() {
        let is_put =
            |lowering: &Lower| matches!(lowering, Lower::PutSlice | Lower::Scatter(Combiner::Set));
        let Some(below) = r.made_by(changed, is_put).filter(|b| b.x().id() == plain.id()) else {
            continue;
        };
        let (mut operands, dim) = (below.args.vars.clone(), below.attrs.int("dim")?);
        let (src, axis) = (operands.pop()?, plain.shape().axis(dim).ok()?);
        let [condition, old] = match operands.get(1) {
            Some(index) => scattered(r, [c, plain, *index], axis)?,
            None => {
                let start = below.attrs.size("start")?;
                let range = [start, start + src.shape()[axis]];
                [c, plain].map(|x| taken(r, x, axis, range))
            }
        };
        let both = if number == 0 { [condition, old, src] } else { [condition, src, old] };
        let chosen = r.again(d, &both);
        operands.push(chosen);
        return Some(r.again(&below, &operands));
    }
    None
}

/// Positions along an axis.
fn taken<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>, axis: usize, range: [Size; 2]) -> Var<'t> {
    let attrs = Attrs::new().with("dim", axis as i64).with("start", range[0]);
    r.apply(&SLICE, &[x], attrs.with("end", range[1]).with("step", 1i64))
}

/// The condition and the value where sources go, if all of these places are known to exist.
fn scattered<'t>(
    r: &mut Recorder<'_, 't>,
    [c, x, index]: [Var<'t>; 3],
    axis: usize,
) -> Option<[Var<'t>; 2]> {
    let size = *x.shape().get(axis)?;
    if !r.tracer.with_graph(|graph| are_positions(graph, index.id(), size)) {
        return None;
    }
    let attrs = || Attrs::new().with("dim", axis as i64);
    let one = r.made_by(c, |below| matches!(below, Lower::View(View::Expand)));
    let condition = match one.map(|below| below.x()).filter(|one| one.ty().numel() == 1) {
        Some(one) => r.apply(&EXPAND, &[one], Attrs::new().with("shape", &index.shape()[..])),
        None => r.apply(&GATHER, &[c, index], attrs()),
    };
    Some([condition, r.apply(&GATHER, &[x, index], attrs())])
}
