//! `barrier`: a value as it is, that passes take for another one.

use super::infer;
use crate::op::{
    ANY, AttrDef, AttrKind, Body, Dispatch, Domain, Facts, Func, Grad, Lower, OpDef, OpName,
    Operand, OperandKind, Rounding, Schema, View,
};
use crate::{Args, Attrs, Var};
use smallvec::smallvec;

/// A value that later code is made of as if it were a value of its own.
pub static BARRIER: OpDef = OpDef {
    name: OpName::new("barrier"),
    doc: "`x` as it is. What is computed from it is neither shared with what is computed from `x` itself nor computed before `barrier` \
          is recorded: what backward recomputes stands behind barriers (as behind XLA's `optimization_barrier`). Of barriers of one \
          value, those of one `number` are one.",
    schema: Schema {
        operands: &[Operand { name: "x", kind: OperandKind::One }],
        attrs: &[AttrDef { name: "number", kind: AttrKind::Int }],
        results: &["y"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&infer::same),
    body: Body::Core {
        grad: Grad::Rule(Func::Static(&|cx| smallvec![Some(cx.dy())])),
        kernel: Lower::View(View::Barrier),
    },
    rounding: Rounding::NOWHERE,
    facts: Facts::new(),
    domain: Domain { dtypes: ANY, samples: &["T[3] {number = 1}"] },
};

/// The ops of this family.
pub static OPS: &[&OpDef] = &[&BARRIER];

/// `x` behind the barrier of that number.
#[track_caller]
pub fn barrier(x: Var<'_>, number: i64) -> Var<'_> {
    x.tracer().apply(&BARRIER, Args::of(&[x]), Attrs::new().with("number", number))[0]
}
