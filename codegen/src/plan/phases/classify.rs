//! What computes each instruction of a stage: a vector loop, a scalar loop, a tile routine, or once
//! per row.
//!
//! What vectors can do is said by `capability`; here is what depends on the stage: which values are
//! the same along the row, which loads are of neighbours, and the size of lanes. Lanes are all of
//! one size in a loop. So a stage is of 64-bit numbers and truth values as a whole, or its 64-bit
//! numbers go one by one, but for functions of f64, which routines compute over a tile.

use super::{Capability, Class, Lanes, VectorLoops};
use crate::plan::canonical::uniform;
use crate::plan::{Place, Plan, Sink, Source, Stage};
use tracecast_ir::kernel::{Inst, ScalarOp, Val};
use tracecast_ir::{DType, Size};

/// The classes of a stage's instructions.
pub(super) struct Classified {
    pub(super) class: Vec<Class>,
    /// The lanes of its vector loops.
    pub(super) lanes: Lanes,
}

/// Says for every instruction of a stage what computes it.
pub(super) fn classify(plan: &Plan, stage: &Stage, loops: VectorLoops) -> Classified {
    let body = &stage.body;
    let row = plan.row_axis();
    let is_uniform = uniform(body, &plan.loads, |i| plan.positions[i as usize].strides[row] == 0);
    let kept: Vec<usize> = stage
        .sinks
        .iter()
        .filter_map(|s| if let Sink::Keep { buffer, .. } = s { Some(*buffer) } else { None })
        .collect();
    let wide = Capability { loops, lanes: Lanes::Bits64 };
    let lanes = match fits(plan, stage, &is_uniform, wide) {
        true => Lanes::Bits64,
        false => Lanes::Bits32,
    };
    let can = Capability { loops, lanes };
    let class_of = |(at, inst): (usize, &Inst)| {
        if is_uniform[at] {
            return Class::Uniform;
        }
        match inst.op {
            ScalarOp::Load(l) => load_class(plan, &plan.loads[l as usize], inst, &is_uniform, can),
            ScalarOp::Row(_) if !can.keeps(inst.ty) => Class::Scalar,
            // A buffer that the stage itself writes is read before it is written.
            ScalarOp::Row(b) if lanes == Lanes::Bits32 && !kept.contains(&(b as usize)) => {
                Class::Free
            }
            ScalarOp::Row(_) => Class::Vector,
            ScalarOp::Random { .. } if !counts_up(plan, stage, inst, &is_uniform) => Class::Scalar,
            // Vectors count in steps that are immediates.
            ScalarOp::Index(p) if step_of(plan, p).is_none_or(Size::has_names) => Class::Scalar,
            _ => can.computes(inst, |v| body.ty(v)),
        }
    };
    let mut class: Vec<Class> = body.insts.iter().enumerate().map(class_of).collect();
    let for_tiles: Vec<usize> =
        (0..class.len()).filter(|at| is_for_tiles(plan, stage, &class, &is_uniform, *at)).collect();
    for_tiles.into_iter().for_each(|at| class[at] = Class::Free);
    Classified { class, lanes }
}

/// True for a load of f64 that only routines use: they read it in place.
fn is_for_tiles(
    plan: &Plan,
    stage: &Stage,
    class: &[Class],
    is_uniform: &[bool],
    at: usize,
) -> bool {
    let body = &stage.body;
    let ScalarOp::Load(l) = body.insts[at].op else { return false };
    let source = &plan.loads[l as usize];
    let is_row = source.dtype == DType::F64 && is_dense(source, &body.insts[at], is_uniform);
    let uses = |inst: &Inst| inst.args.contains(&(at as Val));
    let mut users = (0..class.len()).filter(|user| uses(&body.insts[*user]));
    let is_stored = stage.sinks.iter().any(|sink| sink.values().contains(&(at as Val)));
    is_row
        && source.read_only
        && !is_guarded(source)
        && class[at] == Class::Scalar
        && users.all(|user| class[user] == Class::Tile)
        && !is_stored
}

/// True for a load that only stores of the same dtype take: its elements are moved unconverted.
/// Truth values are not, of which memory may hold any byte.
pub(super) fn is_moved(plan: &Plan, stage: &Stage, at: usize) -> bool {
    let body = &stage.body;
    let ScalarOp::Load(l) = body.insts[at].op else { return false };
    let source = &plan.loads[l as usize];
    let value = at as Val;
    let moves = |sink: &Sink| match sink {
        Sink::Store { dtype, .. } => *dtype == source.dtype,
        _ => false,
    };
    source.dtype != DType::Bool
        && !is_guarded(source)
        && !body.insts.iter().any(|inst| inst.args.contains(&value))
        && stage.sinks.iter().filter(|sink| sink.values().contains(&value)).all(moves)
}

/// From a position to the next, of a position of the plan.
fn step_of(plan: &Plan, position: u32) -> Option<Size> {
    plan.positions[position as usize].strides.last().copied()
}

/// True if everything in a stage can be done by vector loops of that kind.
fn fits(plan: &Plan, stage: &Stage, is_uniform: &[bool], can: Capability) -> bool {
    let body = &stage.body;
    let computes = |(at, inst): (usize, &Inst)| {
        is_uniform[at]
            || match inst.op {
                ScalarOp::Load(l) => {
                    let source = &plan.loads[l as usize];
                    !is_guarded(source)
                        && is_dense(source, inst, is_uniform)
                        && can.loads(source.dtype) != Class::Scalar
                }
                ScalarOp::Row(b) => can.keeps(plan.buffers[b as usize]),
                ScalarOp::Index(p) if step_of(plan, p).is_none_or(Size::has_names) => false,
                _ => can.computes(inst, |v| body.ty(v)) == Class::Vector,
            }
    };
    let takes = |sink: &Sink| {
        let dense = match sink {
            Sink::Store { place, .. } => place.row_stride() == 1,
            Sink::Reduce { .. } | Sink::Keep { .. } => true,
            Sink::Set { .. } | Sink::Column { .. } | Sink::Combine { .. } => false,
        };
        let fits = |v: Val| can.takes(sink, body.ty(v), is_uniform[v as usize]) == Class::Vector;
        dense && sink.values().into_iter().all(fits)
    };
    can.exists() && body.insts.iter().enumerate().all(computes) && stage.sinks.iter().all(takes)
}

/// True if the elements at the positions of a row are neighbours.
fn is_dense(source: &Source, inst: &Inst, is_uniform: &[bool]) -> bool {
    source.place.row_stride() == 1 && inst.args.iter().all(|a| is_uniform[*a as usize])
}

fn is_guarded(source: &Source) -> bool {
    matches!(&source.place, Place::At(access) if !access.guards.is_empty())
}

/// The class of a load. The loops of `x86` read on when a guard of the row fails, and so need as
/// many elements as the row has.
fn load_class(
    plan: &Plan,
    source: &Source,
    inst: &Inst,
    is_uniform: &[bool],
    can: Capability,
) -> Class {
    let guarded = is_guarded(source);
    let by_row = match &source.place {
        Place::At(access) => {
            access.guards.iter().all(|g| g.strides.last().is_none_or(|stride| *stride == 0))
        }
        Place::Stream | Place::Gathered { .. } => true,
    };
    if !by_row || !is_dense(source, inst, is_uniform) {
        return Class::Scalar;
    }
    if can.loops.are_own() && guarded && !plan.spans_row(source) {
        return Class::Scalar;
    }
    match can.loads(source.dtype) {
        Class::Free if source.read_only && !guarded => Class::Free,
        Class::Free | Class::Vector => Class::Vector,
        Class::Tile if !guarded => Class::Tile,
        Class::Tile | Class::Scalar | Class::Uniform => Class::Scalar,
    }
}

/// True if random words are of elements in a row, of one stream of numbers.
fn counts_up(plan: &Plan, stage: &Stage, inst: &Inst, is_uniform: &[bool]) -> bool {
    let one_by_one = match stage.body.insts[inst.args[2] as usize].op {
        ScalarOp::Index(p) => step_of(plan, p).is_some_and(|step| step == 1),
        _ => false,
    };
    one_by_one && inst.args[..2].iter().all(|a| is_uniform[*a as usize])
}
