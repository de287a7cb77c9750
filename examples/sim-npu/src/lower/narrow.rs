//! Numbers that a kernel computes in f64 and the chip in f32, with the same results.
//!
//! Loss scaling asks for `1 / scale` in f64, rounded to f32. Of a sum, a difference, a product, a
//! quotient or a root of f32 numbers the f64, rounded to f32, is what f32 gives at once: 53 bits
//! are more than twice 24 and two, so rounding twice shows nowhere.

use tracecast_runtime::ir::DType;
use tracecast_runtime::ir::kernel::{Body, Inst, Scalar, ScalarOp};

/// What the f32 in a register says about a value of f64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Narrow {
    /// Nothing: the chip has no such number.
    No,
    /// It is the number.
    Exact,
    /// It is the number rounded to f32, of use only to whoever rounds it.
    Rounded,
}

/// For each value of a body that is an f64, what an f32 is good for in its place; `Exact` for
/// others.
pub(super) fn narrow(body: &Body) -> Vec<Narrow> {
    let mut all: Vec<Narrow> = Vec::with_capacity(body.insts.len());
    for inst in &body.insts {
        let of = |i: usize| {
            let arg = inst.args.get(i);
            arg.and_then(|arg| all.get(*arg as usize)).copied().unwrap_or(Narrow::No)
        };
        let made = result(body, inst, &of);
        all.push(made);
    }
    all
}

fn result(body: &Body, inst: &Inst, of: &dyn Fn(usize) -> Narrow) -> Narrow {
    let args: Vec<Narrow> = (0..inst.args.len()).map(of).collect();
    let are_exact = args.iter().all(|arg| *arg == Narrow::Exact);
    let is_known = !args.contains(&Narrow::No);
    let from = inst.args.first().map_or(inst.ty, |arg| body.ty(*arg));
    if inst.ty != Scalar::F64 {
        // Whoever makes an f32 of it rounds; all others have to see the number.
        let rounds = inst.op == ScalarOp::Convert && inst.ty == Scalar::F32 && is_known;
        return if are_exact || rounds { Narrow::Exact } else { Narrow::No };
    }
    match inst.op {
        ScalarOp::Const(bits) => {
            let number = f64::from_bits(bits);
            let holds = f64::from(number as f32).to_bits() == bits;
            if holds { Narrow::Exact } else { Narrow::No }
        }
        ScalarOp::Convert if from == Scalar::F32 || from == Scalar::Bool => of(0),
        ScalarOp::Round(DType::F32) if is_known => Narrow::Exact,
        ScalarOp::Max | ScalarOp::Min if are_exact => Narrow::Exact,
        ScalarOp::Neg | ScalarOp::Abs => of(0),
        ScalarOp::Select if are_exact => Narrow::Exact,
        ScalarOp::Select if is_known && of(0) == Narrow::Exact => Narrow::Rounded,
        ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul | ScalarOp::Div | ScalarOp::Sqrt
            if are_exact =>
        {
            Narrow::Rounded
        }
        _ => Narrow::No,
    }
}
