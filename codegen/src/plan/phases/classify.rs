//! What computes each instruction of a stage: vectors, a scalar loop, a tile routine, or once per row. This is where it is said what
//! vectors can do.
//!
//! Lanes are all of one size in a loop. So a stage is of 64-bit numbers and truth values as a whole, or its 64-bit numbers go one by one; so
//! do functions of f64, which are calls.

use super::{Class, Has, is_vector};
use crate::plan::canonical::uniform;
use crate::plan::{Place, Plan, Sink, Source, Stage};
use tracecast_ir::DType;
use tracecast_ir::kernel::{Code, Inst, Reduction, Scalar, ScalarOp, Val};

/// The classes of a stage's instructions.
pub(super) struct Classified {
    pub(super) class: Vec<Class>,
    /// Vectors have lanes of 64 bits.
    pub(super) doubles: bool,
}

/// Says for every instruction of a stage what computes it.
pub(super) fn classify(plan: &Plan, stage: &Stage, has: Has) -> Classified {
    let body = &stage.body;
    let row = plan.row_axis();
    let still = uniform(body, &plan.loads, |i| plan.positions[i as usize].strides[row] == 0);
    let kept: Vec<usize> = stage
        .sinks
        .iter()
        .filter_map(|s| if let Sink::Keep { buffer, .. } = s { Some(*buffer) } else { None })
        .collect();
    let doubles = has.doubles && fits_doubles(plan, stage, &still);
    let class_of = |(at, inst): (usize, &Inst)| {
        if still[at] {
            return Class::Uniform;
        }
        if doubles {
            return class_of_doubles(plan, inst);
        }
        match inst.op {
            ScalarOp::Load(l) => load_class(plan, &plan.loads[l as usize], inst, &still, has.wide),
            ScalarOp::Index(_) => Class::Free,
            ScalarOp::Row(b) if is_vector(inst.ty) => {
                if kept.contains(&(b as usize)) {
                    Class::Vector
                } else {
                    Class::Free
                }
            }
            ScalarOp::Floor if !has.floor => Class::Scalar,
            _ => {
                let types = inst.args.iter().all(|a| is_vector(body.ty(*a)));
                computed_class(plan, inst, (types, has.wide), |v: Val| {
                    (&body.insts[v as usize], still[v as usize])
                })
            }
        }
    };
    let class = body.insts.iter().enumerate().map(class_of).collect();
    Classified { class, doubles }
}

/// The class of a load. Wide loops read on when a guard of the row fails, and so need as many elements as the row has.
fn load_class(plan: &Plan, source: &Source, inst: &Inst, still: &[bool], wide: bool) -> Class {
    let dense = source.place.row_stride() == 1
        && inst.args.iter().all(|a| still[*a as usize])
        && match &source.place {
            Place::At(access) => {
                access.guards.iter().all(|g| g.strides.last().copied().unwrap_or(0) == 0)
            }
            Place::Stream | Place::Brought(_) => true,
        };
    let guarded = matches!(&source.place, Place::At(a) if !a.guards.is_empty());
    match source.dtype {
        _ if !dense || wide && guarded && source.elements < plan.row() => Class::Scalar,
        DType::F16 if wide => Class::Vector,
        DType::F32 | DType::I32 if source.fixed && !guarded => Class::Free,
        DType::F32 | DType::I32 | DType::BF16 | DType::U8 | DType::Bool => Class::Vector,
        DType::F16 if !guarded => Class::Tile,
        _ => Class::Scalar,
    }
}

/// The class of an instruction that computes with varying operands; `types` says that all of them are vector types.
fn computed_class<'a>(
    plan: &Plan,
    inst: &Inst,
    (types, wide): (bool, bool),
    of: impl Fn(Val) -> (&'a Inst, bool),
) -> Class {
    if let ScalarOp::Random { .. } = inst.op {
        let still = |i: usize| of(inst.args[i]).1;
        let one_by_one = match of(inst.args[2]).0.op {
            ScalarOp::Index(p) => plan.positions[p as usize].strides.last() == Some(&1),
            _ => false,
        };
        return if one_by_one && still(0) && still(1) { Class::Tile } else { Class::Scalar };
    }
    if !types || !is_vector(inst.ty) {
        return Class::Scalar;
    }
    match inst.op {
        ScalarOp::Call(function) if function.code() == Code::Patched => Class::Tile,
        ScalarOp::Call(_) | ScalarOp::Round(DType::F16) if !wide => Class::Tile,
        ScalarOp::Check(_) if wide || inst.args.len() > 1 => Class::Scalar,
        ScalarOp::Div if inst.ty != Scalar::F32 => Class::Scalar,
        ScalarOp::Rem | ScalarOp::Load(_) | ScalarOp::Row(_) => Class::Scalar,
        _ => Class::Vector,
    }
}

/// True if everything in a stage can be done in such lanes; `still` says what is the same along the row.
fn fits_doubles(plan: &Plan, stage: &Stage, still: &[bool]) -> bool {
    let body = &stage.body;
    let wide = |v: Val| is_wide(body.ty(v));
    let computes = |(at, inst): (usize, &Inst)| {
        still[at]
            || match inst.op {
                ScalarOp::Load(l) => loads_doubles(&plan.loads[l as usize], inst, still),
                ScalarOp::Row(b) => is_wide(plan.buffers[b as usize]),
                _ => {
                    let types = inst.args.iter().all(|a| wide(*a) || body.ty(*a) == Scalar::Bool);
                    types && has_doubles(inst)
                }
            }
    };
    let sinks = |sink: &Sink| match sink {
        Sink::Store { dtype, place, value, .. } => {
            let ty = body.ty(*value);
            let plain = is_wide(ty) || ty == Scalar::Bool && !still[*value as usize];
            plain && place.row_stride() == 1 && Scalar::of(*dtype) == Some(ty)
        }
        Sink::Reduce { reduction: Reduction::ArgMax, .. } => false,
        Sink::Reduce { value, .. } | Sink::Keep { value, .. } => wide(*value),
        Sink::Set { .. } | Sink::Column { .. } | Sink::Add { .. } => false,
    };
    body.insts.iter().enumerate().all(computes) && stage.sinks.iter().all(sinks)
}

fn is_wide(ty: Scalar) -> bool {
    matches!(ty, Scalar::F64 | Scalar::I64)
}

/// True if the load is of neighbours that lanes can hold.
fn loads_doubles(source: &Source, inst: &Inst, still: &[bool]) -> bool {
    let plain = match &source.place {
        Place::At(access) => access.guards.is_empty(),
        Place::Stream | Place::Brought(_) => true,
    };
    plain
        && source.place.row_stride() == 1
        && inst.args.iter().all(|a| still[*a as usize])
        && matches!(source.dtype, DType::F64 | DType::I64 | DType::Bool)
}

/// True if there is an instruction for it, whose operands are 64-bit numbers or truth values.
fn has_doubles(inst: &Inst) -> bool {
    match (inst.op, inst.ty) {
        (_, Scalar::F32 | Scalar::I32) => false,
        (ScalarOp::Sqrt | ScalarOp::Floor | ScalarOp::MulAdd | ScalarOp::Div, Scalar::F64) => true,
        (ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg | ScalarOp::Abs, ty) => is_wide(ty),
        (ScalarOp::Mul | ScalarOp::Max | ScalarOp::Min | ScalarOp::Select, _) => true,
        (ScalarOp::Cmp(_) | ScalarOp::Convert, _) => true,
        (ScalarOp::And | ScalarOp::Or | ScalarOp::Not, Scalar::I64 | Scalar::Bool) => true,
        _ => false,
    }
}

/// The class of an instruction of such a stage that is not the same along the row.
fn class_of_doubles(plan: &Plan, inst: &Inst) -> Class {
    match inst.op {
        ScalarOp::Load(l) => {
            let source = &plan.loads[l as usize];
            match source.fixed && source.dtype != DType::Bool {
                true => Class::Free,
                false => Class::Vector,
            }
        }
        _ => Class::Vector,
    }
}
