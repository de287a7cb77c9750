//! Canonical loops: index arithmetic becomes affine numbers, axes that can be are merged.
//!
//! ```text
//! axes [8, 16, 32], load strides [512, 32, 1]   ->   axes [4096], load strides [1]
//! index(0) * 512 + index(1)                     ->   one affine number
//! index(1) <= index(0), both i64                ->   the same in i32, if the axes are small enough
//! ```
//!
//! Only the axes of a map are merged into the row; elsewhere the row, and with it the order of
//! accumulation, stays as it is.

use super::facts::Facts;
use super::{Affine, Place, Plan, Sink, Source, Stage, Strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::Size;
use tracecast_ir::kernel::{Access, Body, Inst, Scalar, ScalarOp, Val};

/// Makes index arithmetic affine, in bodies that still speak of axes: afterwards `Index` means a
/// position of the plan.
pub(super) fn affine(plan: &mut Plan, facts: &Facts) {
    let stages = std::mem::take(&mut plan.stages);
    plan.stages = stages.into_iter().map(|s| with_positions(plan, s, facts)).collect();
}

/// The value of every instruction of a body as an affine number of the axes, if it is one.
fn affine_values(body: &Body, rank: usize, sizes: &[Option<Size>]) -> Vec<Option<Affine>> {
    let constant = |offset: Size| Affine { offset, strides: smallvec![Size::from(0); rank] };
    let is_constant = |x: &Affine| x.strides.iter().all(|s| *s == 0);
    let mut values: Vec<Option<Affine>> = Vec::with_capacity(body.insts.len());
    for inst in &body.insts {
        let arg = |i: usize| values[inst.args[i] as usize].as_ref();
        let value = match inst.op {
            _ if inst.ty != Scalar::I64 => None,
            ScalarOp::Const(bits) => Some(constant(Size::from(bits as i64))),
            ScalarOp::Argument(number) => {
                sizes.get(number as usize).copied().flatten().map(constant)
            }
            ScalarOp::Index(axis) => {
                let mut along = constant(Size::from(0));
                along.strides[axis as usize] = Size::from(1);
                Some(along)
            }
            ScalarOp::Add => arg(0).zip(arg(1)).map(|(a, b)| sum(a, b, Size::from(1))),
            ScalarOp::Sub => arg(0).zip(arg(1)).map(|(a, b)| sum(a, b, Size::from(-1))),
            ScalarOp::Mul => {
                arg(0).zip(arg(1)).and_then(|(a, b)| match (is_constant(a), is_constant(b)) {
                    (_, true) => Some(sum(&constant(Size::from(0)), a, b.offset)),
                    (true, _) => Some(sum(&constant(Size::from(0)), b, a.offset)),
                    _ => None,
                })
            }
            _ => None,
        };
        // What leaves the range of sizes wraps around as an i64 does: it is computed where it is
        // needed.
        values.push(value.filter(|affine| affine.numbers().all(is_known)));
    }
    values
}

/// `a + b * by`.
fn sum(a: &Affine, b: &Affine, by: Size) -> Affine {
    let strides = a.strides.iter().zip(&b.strides).map(|(a, b)| *a + *b * by).collect();
    Affine { offset: a.offset + b.offset * by, strides }
}

/// Rewrites a stage so that `Index` means a position of the plan, and compares and converts small
/// positions as i32.
fn with_positions(plan: &mut Plan, stage: Stage, facts: &Facts) -> Stage {
    let Stage { once, first, body, mut sinks } = stage;
    let affine = affine_values(&body, plan.extents.len(), facts.arguments());
    let fixed_in_row = uniform(&body, &plan.loads, |i| i as usize != plan.row_axis());
    let mut new = Body::default();
    let mut map: Vec<Val> = Vec::with_capacity(body.insts.len());
    for (at, inst) in body.insts.iter().enumerate() {
        let args: SmallVec<[Val; 3]> = inst.args.iter().map(|a| map[*a as usize]).collect();
        let wide = |i: usize| body.ty(inst.args[i]) == Scalar::I64;
        let small = |new: &mut Body, plan: &mut Plan, i: usize, other: Option<usize>| {
            let old = inst.args[i] as usize;
            if let Some(a) = affine[old].as_ref().filter(|a| is_small(a, &plan.extents, facts)) {
                return Some(position(plan, new, a, Scalar::I32));
            }
            // A number beyond i32 compares with a small one as the nearest i32 does.
            let other = other.and_then(|o| affine[inst.args[o] as usize].as_ref())?;
            if !is_small(other, &plan.extents, facts) || !fixed_in_row[old] {
                return None;
            }
            let low = new.push(ScalarOp::Const(i64::from(i32::MIN) as u64), &[], Scalar::I64);
            let high = new.push(ScalarOp::Const(i64::from(i32::MAX) as u64), &[], Scalar::I64);
            let x = new.push(ScalarOp::Max, &[args[i], low], Scalar::I64);
            let x = new.push(ScalarOp::Min, &[x, high], Scalar::I64);
            Some(new.push(ScalarOp::Convert, &[x], Scalar::I32))
        };
        let value = match (&affine[at], inst.op) {
            (Some(a), op) if !matches!(op, ScalarOp::Const(_)) => {
                position(plan, &mut new, a, Scalar::I64)
            }
            (_, ScalarOp::Cmp(cmp)) if wide(0) && (!fixed_in_row[at]) => {
                match (small(&mut new, plan, 0, Some(1)), small(&mut new, plan, 1, Some(0))) {
                    (Some(a), Some(b)) => new.push(ScalarOp::Cmp(cmp), &[a, b], Scalar::Bool),
                    _ => new.push(inst.op, &args, inst.ty),
                }
            }
            (_, ScalarOp::Convert) if wide(0) && !fixed_in_row[at] => {
                match small(&mut new, plan, 0, None) {
                    Some(x) if inst.ty == Scalar::I32 => x,
                    Some(x) => new.push(ScalarOp::Convert, &[x], inst.ty),
                    None => new.push(inst.op, &args, inst.ty),
                }
            }
            _ => new.push(inst.op, &args, inst.ty),
        };
        map.push(value);
    }
    for sink in &mut sinks {
        renumber(sink, &map);
    }
    Stage { once, first, body: new, sinks }
}

fn renumber(sink: &mut Sink, map: &[Val]) {
    let new = |v: &mut Val| *v = map[*v as usize];
    match sink {
        Sink::Store { value, .. }
        | Sink::Reduce { value, .. }
        | Sink::Keep { value, .. }
        | Sink::Set { value, .. }
        | Sink::Column { value, .. } => new(value),
        Sink::Combine { value, index, .. } => {
            new(value);
            index.iter_mut().for_each(new);
        }
    }
}

/// An instruction that gives that position; constants stay constants.
fn position(plan: &mut Plan, body: &mut Body, affine: &Affine, ty: Scalar) -> Val {
    let is_constant = affine.strides.iter().all(|s| *s == 0);
    if let Some(offset) = affine.offset.number().filter(|_| is_constant) {
        let bits = if ty == Scalar::I32 { u64::from(offset as i32 as u32) } else { offset as u64 };
        return body.push(ScalarOp::Const(bits), &[], ty);
    }
    let at = plan.positions.iter().position(|p| p == affine).unwrap_or_else(|| {
        plan.positions.push(affine.clone());
        plan.positions.len() - 1
    });
    body.push(ScalarOp::Index(at as u32), &[], ty)
}

/// False if arithmetic has left the range of sizes.
fn is_known(size: Size) -> bool {
    size.number().is_some() || size.has_names()
}

/// True if the number lies strictly inside the range of i32 everywhere.
fn is_small(affine: &Affine, extents: &[Size], facts: &Facts) -> bool {
    let (mut low, mut high) = (affine.offset, affine.offset);
    for (stride, extent) in affine.strides.iter().zip(extents) {
        if *stride == 0 || *extent == 0 {
            continue;
        }
        let reach = *stride * (*extent - 1);
        match facts.proves(stride.at_least(0)) {
            true => high += reach,
            false if facts.proves((-*stride).at_least(0)) => low += reach,
            // The sign of a stride is no class.
            false => return false,
        }
    }
    let (least, most) = (Size::from(i32::MIN), Size::from(i32::MAX));
    is_known(low)
        && is_known(high)
        && facts.asks(low.at_least(least + 1))
        && facts.asks((most - 1).at_least(high))
}

/// For each instruction, whether its value is the same all along a row.
pub(crate) fn uniform(body: &Body, loads: &[Source], index: impl Fn(u32) -> bool) -> Vec<bool> {
    let mut flags: Vec<bool> = Vec::with_capacity(body.insts.len());
    for inst in &body.insts {
        let args = inst.args.iter().all(|a| flags[*a as usize]);
        flags.push(args && is_uniform_source(inst, loads, &index));
    }
    flags
}

fn is_uniform_source(inst: &Inst, loads: &[Source], index: &impl Fn(u32) -> bool) -> bool {
    match inst.op {
        ScalarOp::Load(l) => match &loads[l as usize].place {
            Place::At(access) => {
                let still = |strides: &Strides| strides.last().is_none_or(|stride| *stride == 0);
                still(&access.strides) && access.guards.iter().all(|g| still(&g.strides))
            }
            Place::Stream | Place::Gathered { .. } => false,
        },
        ScalarOp::Index(i) => index(i),
        ScalarOp::Row(_) | ScalarOp::Acc => false,
        _ => true,
    }
}

/// Merges neighbouring axes that every operand steps through as if they were one, and drops axes of
/// size 1. The row may be merged with axes of other sizes only if `row`.
pub(super) fn merge_axes(plan: &mut Plan, row: bool) {
    let mut at = plan.extents.len() - 1;
    while at > 0 {
        let (outer, inner) = (at - 1, at);
        at -= 1;
        let is_row = inner == plan.row_axis();
        if is_row && !row && plan.extents[outer] != 1 {
            continue;
        }
        let (a, b) = (plan.extents[outer], plan.extents[inner]);
        let mut fits = true;
        each_strides(plan, &mut |s| {
            fits &= a == 1 || b == 1 || s[outer] == s[inner] * b;
        });
        if !fits {
            continue;
        }
        each_strides(plan, &mut |s| {
            if b == 1 && a != 1 {
                s[inner] = s[outer];
            }
            s.remove(outer);
        });
        plan.extents[inner] = a * b;
        plan.extents.remove(outer);
    }
}

/// Calls `f` with everything that is one number per axis.
fn each_strides(plan: &mut Plan, f: &mut dyn FnMut(&mut Strides)) {
    let mut access = |a: &mut Access| {
        f(&mut a.strides);
        a.guards.iter_mut().for_each(|g| f(&mut g.strides));
    };
    for load in &mut plan.loads {
        if let Place::At(a) = &mut load.place {
            access(a);
        }
    }
    for sink in plan.stages.iter_mut().flat_map(|s| &mut s.sinks) {
        match sink {
            Sink::Store { place: Place::At(a), .. } | Sink::Combine { access: a, .. } => access(a),
            _ => {}
        }
    }
    for sink in plan.stages.iter_mut().flat_map(|s| &mut s.sinks) {
        if let Sink::Column { keep, count, .. } = sink {
            f(keep);
            f(count);
        }
    }
    plan.positions.iter_mut().for_each(|p| f(&mut p.strides));
}
