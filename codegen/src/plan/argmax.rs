//! The position of a row's largest or smallest value, in two passes that vector loops can do: the
//! value, then the first position that has it. Of the largest:
//!
//! ```text
//! along the row: r0 = argmax x  ->  along the row: r1 = max x
//!                                   along the row: r2 = min(if x == r1 or x is NaN { position } else { 2^31 - 1 })
//!                                   once: r0 = r2 as i64
//! ```
//!
//! NaN lies beyond both ends and makes `r1` NaN. Then nothing is equal to it, and the second pass
//! finds the first NaN.

use super::facts::Facts;
use super::{Affine, Plan, Sink, Stage};
use smallvec::SmallVec;
use tracecast_ir::Size;
use tracecast_ir::kernel::{Body, Cmp, Combine, Extreme, Reduction, Scalar, ScalarOp, Val};

/// Shorter rows are not worth another loop.
const LEAST: i64 = 16;

/// A search for the position of an extreme value of a row.
struct Search {
    /// The stage that does it.
    stage: usize,
    /// Its sink.
    sink: usize,
    /// The value at which end.
    extreme: Extreme,
    value: Val,
    /// Where the position goes.
    register: usize,
}

/// Finds positions of extreme values of types that vectors have in two passes.
pub(super) fn in_two_passes(plan: &mut Plan, facts: &Facts) {
    let row = plan.row();
    if facts.proves(Size::from(LEAST - 1).at_least(row)) {
        return;
    }
    while let Some(search) = first(plan) {
        if !facts.asks(Size::from(i32::MAX - 1).at_least(row)) {
            return;
        }
        let stage = &plan.stages[search.stage];
        let ty = stage.body.ty(search.value);
        let [best, place] = [0, 1].map(|n| free_register(plan) + n);
        let again = again(plan, &search);
        let position = position(plan);
        let set = set(place, search.register, row.has_names());
        let found = [found(again, ty, position, best, place), set];
        let (reduction, value) = (search.extreme.value(), search.value);
        let sink = Sink::Reduce { reduction, value, register: best };
        plan.stages[search.stage].sinks[search.sink] = sink;
        plan.stages.splice(search.stage + 1..search.stage + 1, found);
    }
}

fn first(plan: &Plan) -> Option<Search> {
    let of_stage = |(number, stage): (usize, &Stage)| {
        let is_search = |(sink, at): (usize, &Sink)| {
            let Sink::Reduce { reduction, value, register } = *at else { return None };
            let Combine::Position(extreme) = reduction.combines() else { return None };
            let has_lanes = matches!(stage.body.ty(value), Scalar::F32 | Scalar::I32);
            has_lanes.then_some(Search { stage: number, sink, extreme, value, register })
        };
        stage.sinks.iter().enumerate().find_map(is_search)
    };
    plan.stages.iter().enumerate().find_map(of_stage)
}

/// A register that nothing uses, and neither any above it.
fn free_register(plan: &Plan) -> usize {
    let used = |sink: &Sink| match sink {
        Sink::Reduce { register, .. } | Sink::Set { register, .. } => register + 1,
        _ => 0,
    };
    plan.stages.iter().flat_map(|s| &s.sinks).map(used).max().unwrap_or(0)
}

/// How the second pass has the values: it loads them once more, or they are kept for it.
fn again(plan: &mut Plan, search: &Search) -> ScalarOp {
    let stage = &mut plan.stages[search.stage];
    let inst = &stage.body.insts[search.value as usize];
    if let (ScalarOp::Load(load), true) = (inst.op, inst.args.is_empty())
        && plan.loads[load as usize].read_only
    {
        return inst.op;
    }
    plan.buffers.push(inst.ty);
    let buffer = plan.buffers.len() - 1;
    stage.sinks.push(Sink::Keep { value: search.value, buffer });
    ScalarOp::Row(buffer as u32)
}

/// The number of the position along the row among the plan's positions.
fn position(plan: &mut Plan) -> u32 {
    let mut strides: SmallVec<[Size; 4]> = plan.extents.iter().map(|_| Size::from(0)).collect();
    strides[plan.row_axis()] = Size::from(1);
    let along = Affine { offset: Size::from(0), strides };
    let at = plan.positions.iter().position(|p| *p == along).unwrap_or_else(|| {
        plan.positions.push(along);
        plan.positions.len() - 1
    });
    at as u32
}

/// The pass that finds the first position of the best value.
fn found(again: ScalarOp, ty: Scalar, position: u32, best: usize, place: usize) -> Stage {
    let mut body = Body::default();
    let value = body.push(again, &[], ty);
    let best = body.push(ScalarOp::Register(best as u32), &[], ty);
    let mut is_best = body.cmp(Cmp::Eq, value, best);
    if ty.is_float() {
        let is_nan = body.cmp(Cmp::Ne, value, value);
        is_best = body.binary(ScalarOp::Or, is_best, is_nan);
    }
    let position = body.push(ScalarOp::Index(position), &[], Scalar::I32);
    let beyond = body.push(ScalarOp::Const(i32::MAX as u64), &[], Scalar::I32);
    let value = body.select(is_best, position, beyond);
    let sink = Sink::Reduce { reduction: Reduction::Min, value, register: place };
    Stage { once: false, first: false, body, sinks: vec![sink] }
}

/// Puts a position where the kernel expects it; 0 if the row may be empty and is.
fn set(place: usize, register: usize, may_be_empty: bool) -> Stage {
    let mut body = Body::default();
    let mut place = body.push(ScalarOp::Register(place as u32), &[], Scalar::I32);
    if may_be_empty {
        let beyond = body.push(ScalarOp::Const(i32::MAX as u64), &[], Scalar::I32);
        let is_empty = body.cmp(Cmp::Eq, place, beyond);
        let zero = body.push(ScalarOp::Const(0), &[], Scalar::I32);
        place = body.select(is_empty, zero, place);
    }
    let value = body.convert(place, Scalar::I64);
    Stage { once: true, first: false, body, sinks: vec![Sink::Set { value, register }] }
}
