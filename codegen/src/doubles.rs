//! Stages in vectors whose lanes have 64 bits: those of f64 and i64 alone.
//!
//! Lanes are all of one size in a loop. So a stage is of 64-bit numbers and truth values as a whole, or its 64-bit numbers go one by one; so
//! do functions of f64, which are calls.

use crate::phase::Class;
use crate::plan::{Place, Plan, Sink, Source, Stage};
use tracecast_ir::DType;
use tracecast_ir::kernel::{Inst, Reduction, Scalar, ScalarOp, Val};

/// True if everything in a stage can be done in such lanes; `still` says what is the same along the row.
pub(crate) fn fits(plan: &Plan, stage: &Stage, still: &[bool]) -> bool {
    let body = &stage.body;
    let wide = |v: Val| is_wide(body.ty(v));
    let computes = |(at, inst): (usize, &Inst)| {
        still[at]
            || match inst.op {
                ScalarOp::Load(l) => loads(&plan.loads[l as usize], inst, still),
                ScalarOp::Row(b) => is_wide(plan.buffers[b as usize]),
                _ => {
                    let types = inst.args.iter().all(|a| wide(*a) || body.ty(*a) == Scalar::Bool);
                    types && has(inst)
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
fn loads(source: &Source, inst: &Inst, still: &[bool]) -> bool {
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
fn has(inst: &Inst) -> bool {
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
pub(crate) fn class(plan: &Plan, inst: &Inst) -> Class {
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
