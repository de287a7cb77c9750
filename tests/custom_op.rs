//! Ops from outside: one written with `ops!` in another crate, one made at run time with closures that capture. Both are traced,
//! autocast, differentiated, fused, compiled and read from text like any other.

use smallvec::smallvec;
use std::sync::Arc;
use tracecast::prelude::*;
use tracecast::{Error, compile, trace_with};
use tracecast_ir::kernel::ScalarOp;
use tracecast_ir::op::{
    Body, Dispatch, Domain, FLOATS, Func, Grad, Lower, Operand, OperandKind, Schema, core, map,
    rule,
};
use tracecast_ir::ops::infer;
use tracecast_ir::policy::{Policy, PolicySet, Target};
use tracecast_ir::text::{ParseOptions, parse_with};
use tracecast_ir::{Args, Attrs, OpDef, OpRef};

tracecast_ir::ops! { trait Outside;

/// The cube of the operand.
CUBE = cube(x) -> (y) {
    dispatch: Dispatch::Listed { overload: "" },
    infer:    &infer::float,
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy() * (cx.args[0] * cx.args[0] * 3.0))]),
        map(&|cx, x| {
            let square = cx.body.binary(ScalarOp::Mul, x[0], x[0]);
            cx.body.binary(ScalarOp::Mul, square, x[0])
        }),
    ),
    rounding: "the result; each step of the gradient",
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}

/// `x` times a number that the closures carry with them; the gradient is clipped to 1 on purpose.
fn clipped(factor: f64) -> OpRef {
    OpRef::Shared(Arc::new(OpDef {
        name: "clipped_scale",
        doc: "The operand times a number, with a gradient of at most 1.",
        schema: Schema {
            operands: &[Operand { name: "x", kind: OperandKind::One }],
            attrs: &[],
            results: &["y"],
        },
        dispatch: Dispatch::Listed { overload: "" },
        infer: Func::Static(&infer::float),
        body: Body::Core {
            grad: Grad::Rule(Func::Shared(Arc::new(move |cx| {
                let slope = factor.min(1.0);
                smallvec![Some(cx.dy() * slope)]
            }))),
            kernel: Lower::Map(Func::Shared(Arc::new(move |cx, x| {
                let by = cx.constant(factor);
                cx.body.binary(ScalarOp::Mul, x[0], by)
            }))),
        },
        rounding: "the result; the gradient",
        domain: Domain { dtypes: FLOATS, samples: &["T[3]"] },
    }))
}

#[test]
fn an_op_of_another_crate_goes_all_the_way() -> Result<(), Error> {
    let graph = tracecast::trace("cubes", |t| {
        let x = t.param_of("x", TensorType::new(DType::F32, [3]));
        let loss = x.cube().sum_all();
        t.output("dx", t.grad(loss, &[x])[0]);
        t.output("loss", loss);
    })?;
    let program = compile(graph, &Options::new())?;
    let mut store = Store::new().with("x", Tensor::new([3], &[1.0f32, 2.0, -3.0])?);
    let out = program.run(&mut store, &[])?;
    assert_eq!(out["loss"].item::<f32>()?, -18.0);
    assert_eq!(out["dx"].to_vec::<f32>()?, [3.0, 12.0, 27.0]);
    Ok(())
}

#[test]
fn an_op_made_at_run_time_goes_all_the_way() -> Result<(), Error> {
    let op = clipped(4.0);
    let graph = tracecast::trace("scaled", |t| {
        let x = t.param_of("x", TensorType::new(DType::F32, [2]));
        let y = t.apply(op.clone(), Args::of(&[x]), Attrs::new())[0];
        t.output("dx", t.grad(y.sum_all(), &[x])[0]);
        t.output("y", y);
    })?;
    let printed = graph.to_string();
    let again = parse_with(&printed, &ParseOptions { ops: vec![op], ..ParseOptions::default() })
        .expect("reads what it printed");
    assert_eq!(again.to_string(), printed);
    let program = compile(graph, &Options::new())?;
    let mut store = Store::new().with("x", Tensor::new([2], &[1.0f32, -2.0])?);
    let out = program.run(&mut store, &[])?;
    assert_eq!(out["y"].to_vec::<f32>()?, [4.0, -8.0]);
    assert_eq!(out["dx"].to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn a_policy_rule_casts_an_op_of_another_crate() -> Result<(), Error> {
    let mut policies = PolicySet::standard();
    policies.add_rule(Target::Op("cube".to_owned()), None, Policy::LowerPrecisionFp);
    let options = Options::new().with_policies(policies);
    let graph = trace_with("cubes", &options, |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [3]));
        autocast(t, "cpu", DType::BF16, || t.output("y", x.cube()));
    })?;
    assert_eq!(graph.ty(graph.outputs()[0].1).dtype, DType::BF16);
    compile(graph, &options)?;
    Ok(())
}

#[test]
fn one_name_stands_for_one_op() {
    let (first, second) = (clipped(4.0), clipped(0.5));
    let refused = tracecast::trace("two", |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [2]));
        t.output("a", t.apply(first.clone(), Args::of(&[x]), Attrs::new())[0]);
        t.output("b", t.apply(second.clone(), Args::of(&[x]), Attrs::new())[0]);
    });
    let message = refused.expect_err("the same name").to_string();
    assert!(
        message.contains("clipped_scale: is the name of another op of this trace"),
        "{message}"
    );
}
