//! The op that `fuse` leaves: a kernel.

use crate::Attr;
use crate::op::{
    AttrDef, AttrKind, Body, Dispatch, Domain, Facts, Func, Grad, Inferred, Lower, OpDef, OpName,
    Operand, OperandKind, Rounding, Schema,
};

/// A fused kernel: its operands are the kernel's inputs, its results the kernel's outputs.
pub static KERNEL: OpDef = OpDef {
    name: OpName::new("kernel"),
    doc: "A fused kernel: its operands are the kernel's inputs, its results the kernel's outputs.",
    schema: Schema {
        operands: &[Operand { name: "inputs", kind: OperandKind::List }],
        attrs: &[AttrDef { name: "kernel", kind: AttrKind::Kernel }],
        results: &["outputs"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&|cx| {
        let Some(Attr::Kernel(kernel)) = cx.attrs.get("kernel") else {
            return Err("has no kernel".to_owned());
        };
        if kernel.inputs != cx.types {
            return Err(format!("the operands are not those of @{}", kernel.name));
        }
        Ok(Inferred::many(kernel.outputs.iter().map(|o| o.ty.clone())))
    }),
    body: Body::Core { grad: Grad::Zero, kernel: Lower::Fused },
    rounding: Rounding::parts("where its scalar code says"),
    facts: Facts::new(),
    domain: Domain { dtypes: &[], samples: &[] },
};

/// The ops of this family.
pub static OPS: &[&OpDef] = &[&KERNEL];
