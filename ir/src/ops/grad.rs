//! `grad`: a gradient asked for where it is needed; `autodiff` records it.

use super::infer;
use crate::op::{
    AttrDef, Body, Dispatch, Domain, Facts, Func, Inferred, Intrinsic, OpDef, OpName, Operand,
    OperandKind, Rounding, Schema,
};
use crate::{Args, Attrs, Tracer, Var};
use smallvec::SmallVec;

/// The gradients of a scalar with respect to any values recorded before it.
pub static GRAD: OpDef = OpDef {
    name: OpName::new("grad"),
    doc: "The gradients of the sum of `loss` with respect to each of `wrt`, of their types; zeros where `loss` does not depend on one.",
    schema: Schema {
        operands: &[
            Operand { name: "loss", kind: OperandKind::One },
            Operand { name: "wrt", kind: OperandKind::List },
        ],
        attrs: NONE,
        results: &["gradients"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&|cx| {
        infer::need_float(cx.operand(0))?;
        if !cx.must.equal(cx.operand(0).numel(), 1.into()) {
            return Err(format!("the loss is to be one number, found {}", cx.operand(0)));
        }
        for t in cx.list(1) {
            infer::need_float(t)?;
        }
        Ok(Inferred::many(cx.list(1).iter().cloned()))
    }),
    body: Body::Symbolic("autodiff"),
    rounding: Rounding::parts("as the gradients of the ops between"),
    facts: Facts::new().intrinsic(Intrinsic::Gradient),
    domain: Domain { dtypes: &[], samples: &[] },
};

const NONE: &[AttrDef] = &[];

/// The ops of this family.
pub static OPS: &[&OpDef] = &[&GRAD];

impl Tracer {
    /// The gradients of `loss`, one number, with respect to each of `wrt`.
    #[track_caller]
    pub fn grad<'t>(&'t self, loss: Var<'t>, wrt: &[Var<'t>]) -> Vec<Var<'t>> {
        let mut args = Args::new();
        args.push([loss]);
        args.push(wrt.iter().copied());
        let grads: SmallVec<[Var<'t>; 1]> = self.apply(&GRAD, args, Attrs::new());
        if grads.len() == wrt.len() { grads.into_vec() } else { vec![grads[0]; wrt.len()] }
    }
}
