//! Ops from outside: written with `ops!` in another crate, or made at run time with closures that
//! capture. They are traced, autocast by the policy they bring along, differentiated, fused,
//! compiled and read from text like any other.

use smallvec::smallvec;
use std::sync::Arc;
use tracecast::prelude::*;
use tracecast::{Error, compile, trace_with};
use tracecast_ir::kernel::ScalarOp;
use tracecast_ir::op::{
    Body, Dispatch, Domain, FLOATS, Facts, Func, Grad, Inferred, Lower, Map, OpName, Operand,
    OperandKind, Rounding, Schema, composite, core, map, rule,
};
use tracecast_ir::ops::infer;
use tracecast_ir::policy::{DeviceType, Policy, PolicySet, Target};
use tracecast_ir::text::{ParseOptions, parse_with};
use tracecast_ir::{Args, Attrs, OpDef, OpRef};

tracecast_ir::ops! { trait Outside;

/// The cube of the operand.
CUBE = cube(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy() * (cx.args[0] * cx.args[0] * 3.0))]),
        map(&|cx, x| {
            let square = cx.body.binary(ScalarOp::Mul, x[0], x[0]);
            cx.body.binary(ScalarOp::Mul, square, x[0])
        }),
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}

/// The sum of the squares along the last axis, in f32: other ops, whose gradient is its own.
SQUARED_NORM = squared_norm(x) -> (y) {
    dispatch: Dispatch::Declares(Policy::Fp32),
    infer:    &|cx| {
        let mut ty = cx.operand(0).clone();
        ty.shape = ty.shape[..ty.shape.rank().saturating_sub(1)].iter().copied().collect();
        Ok(Inferred::one(ty))
    },
    body:     composite(None, &|cx| smallvec![(cx.args[0] * cx.args[0]).sum(-1)]),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3]"] },
}

/// The square, made of other ops, with a gradient that is given: half of the right one.
HALF_TAUGHT = half_taught(x) -> (y) {
    dispatch: Dispatch::Declares(Policy::LowerPrecisionFp),
    infer:    &infer::float,
    body:     composite(
        Some(rule(&|cx| smallvec![Some(cx.dy() * cx.args[0])])),
        &|cx| smallvec![cx.args[0] * cx.args[0]],
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}

/// `x` times a number that the closures carry with them; the gradient is clipped to 1 on purpose.
fn clipped(factor: f64) -> OpRef {
    OpRef::Shared(clipped_record(factor))
}

fn clipped_record(factor: f64) -> Arc<OpDef> {
    Arc::new(OpDef {
        name: OpName::new("clipped_scale"),
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
            kernel: Lower::Map(Map::new(Func::Shared(Arc::new(move |cx, x| {
                let by = cx.constant(factor);
                cx.body.binary(ScalarOp::Mul, x[0], by)
            })))),
        },
        rounding: Rounding::result("the result; the gradient"),
        facts: Facts::new(),
        domain: Domain { dtypes: FLOATS, samples: &["T[3]"] },
    })
}

#[test]
fn an_op_of_another_crate_goes_all_the_way() -> Result<(), Error> {
    let graph = tracecast::trace("cubes", |t| {
        let x = t.param_of("x", TensorType::new(DType::F32, [3]));
        let loss = x.cube().sum(());
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
        let y = t.tracer().apply(op.clone(), Args::of(&[x]), Attrs::new())[0];
        t.output("dx", t.grad(y.sum(()), &[x])[0]);
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

/// The dtype of each op's result on bf16 and f32 operands in a bf16 region.
fn in_region(policies: PolicySet, op: &'static OpDef) -> Result<[DType; 2], Error> {
    let options = Options::new().with_policies(policies);
    let graph = trace_with("policy", &options, |t| {
        for dtype in [DType::BF16, DType::F32] {
            let x = t.input_of(dtype.name(), TensorType::new(dtype, [2, 3]));
            autocast(t, "cpu", DType::BF16, || {
                t.output(dtype.name(), t.tracer().apply(op, Args::of(&[x]), Attrs::new())[0])
            });
        }
    })?;
    compile(graph.clone(), &options)?;
    let dtypes = graph.outputs().iter().map(|(_, value)| graph.ty(*value).dtype);
    Ok(dtypes.collect::<Vec<_>>().try_into().expect("two outputs"))
}

#[test]
fn an_op_brings_its_policy_along() -> Result<(), Error> {
    use DType::{BF16, F32};
    let mut set = PolicySet::standard();
    assert_eq!(in_region(set.clone(), &SQUARED_NORM)?, [F32, F32]);
    assert_eq!(in_region(set.clone(), &HALF_TAUGHT)?, [BF16, BF16]);
    // A rule is stronger, the last one wins, and removing it brings back what was.
    let op = || Target::Op("half_taught".to_owned());
    let first = set.add_rule(op(), None, Policy::Fallthrough);
    assert_eq!(in_region(set.clone(), &HALF_TAUGHT)?, [BF16, F32]);
    let second = set.add_rule(op(), None, Policy::Fp32);
    assert_eq!(in_region(set.clone(), &HALF_TAUGHT)?, [F32, F32]);
    set.remove_rule(second);
    assert_eq!(in_region(set.clone(), &HALF_TAUGHT)?, [BF16, F32]);
    set.remove_rule(first);
    assert_eq!(in_region(set.clone(), &HALF_TAUGHT)?, [BF16, BF16]);
    // So is a device's own rule, on that device alone.
    let device_op = Target::DeviceOp("half_taught".to_owned());
    set.add_rule(device_op.clone(), Some(DeviceType::Cuda), Policy::Fp32);
    assert_eq!(in_region(set.clone(), &HALF_TAUGHT)?, [BF16, BF16]);
    set.add_rule(device_op, Some(DeviceType::Cpu), Policy::Fp32);
    assert_eq!(in_region(set, &HALF_TAUGHT)?, [F32, F32]);
    Ok(())
}

#[test]
fn rules_name_ops_modules_and_nodes_of_a_trace() -> Result<(), Error> {
    use DType::{BF16, F16, F32};
    let seen = |set: &PolicySet| {
        let mut dtypes = Vec::new();
        trace_with("rules", &Options::new().with_policies(set.clone()), |t| {
            let x = t.input_of("x", TensorType::new(F16, [2, 2]));
            autocast(t, "cpu", BF16, || {
                t.scope("enc", || {
                    t.scope("0", || dtypes.extend([x.matmul(x).dtype(), x.matmul(x).dtype()]));
                });
                dtypes.push(x.matmul(x).dtype());
            });
        })?;
        Ok::<_, Error>(dtypes)
    };
    let mut set = PolicySet::standard();
    assert_eq!(seen(&set)?, [BF16, BF16, BF16]);
    set.add_rule(Target::Op("matmul".to_owned()), None, Policy::Fallthrough);
    assert_eq!(seen(&set)?, [F16, F16, F16]);
    let module = set.add_rule(Target::Module("enc".to_owned()), None, Policy::Fp32);
    assert_eq!(seen(&set)?, [F32, F32, F16]);
    set.add_rule(Target::Node("enc.0/matmul#1".to_owned()), None, Policy::LowerPrecisionFp);
    assert_eq!(seen(&set)?, [F32, BF16, F16]);
    set.add_rule(Target::Op("matmul".to_owned()), None, Policy::Fp32);
    assert_eq!(
        seen(&set)?,
        [F32, BF16, F32],
        "a later rule of a weaker kind changes nothing there"
    );
    set.remove_rule(module);
    assert_eq!(
        seen(&PolicySet::parse(&set.to_toml()).expect("reads what it wrote"))?,
        [F32, BF16, F32]
    );
    Ok(())
}

#[test]
fn a_banned_op_gives_its_advice() {
    let advice = "use `cube` in its place".into();
    let op = OpRef::Shared(Arc::new(OpDef {
        dispatch: Dispatch::Declares(Policy::Banned { advice }),
        ..Arc::into_inner(clipped_record(1.0)).expect("made just now")
    }));
    let refused = tracecast::trace("banned", |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [2]));
        t.tracer().apply(op.clone(), Args::of(&[x]), Attrs::new());
        autocast(t, "cpu", None, || t.tracer().apply(op.clone(), Args::of(&[x]), Attrs::new()));
    });
    let message = refused.expect_err("is banned inside a region").to_string();
    assert!(message.contains("use `cube` in its place") && message.contains(file!()), "{message}");
}

#[test]
fn a_decomposition_and_a_gradient_go_all_the_way() -> Result<(), Error> {
    let graph = tracecast::trace("parts", |t| {
        let x = t.param_of("x", TensorType::new(DType::F32, [1, 2]));
        let taught = t.grad(x.half_taught().sum(()), &[x])[0];
        t.output("norm", x.squared_norm());
        t.output("dnorm", t.grad(x.squared_norm().sum(()), &[x])[0]);
        t.output("dtaught", taught);
        t.output("ddtaught", t.grad(taught.sum(()), &[x])[0]);
    })?;
    let program = compile(graph, &Options::new())?;
    let mut store = Store::new().with("x", Tensor::new([1, 2], &[3.0f32, -4.0])?);
    let out = program.run(&mut store, &[])?;
    assert_eq!(out["norm"].to_vec::<f32>()?, [25.0]);
    assert_eq!(out["dnorm"].to_vec::<f32>()?, [6.0, -8.0]);
    assert_eq!(out["dtaught"].to_vec::<f32>()?, [3.0, -4.0]);
    assert_eq!(out["ddtaught"].to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn one_name_stands_for_one_op() {
    let (first, second) = (clipped(4.0), clipped(0.5));
    let refused = tracecast::trace("two", |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [2]));
        t.output("a", t.tracer().apply(first.clone(), Args::of(&[x]), Attrs::new())[0]);
        t.output("b", t.tracer().apply(second.clone(), Args::of(&[x]), Attrs::new())[0]);
    });
    let message = refused.expect_err("the same name").to_string();
    assert!(
        message.contains("clipped_scale: is the name of another op of this trace"),
        "{message}"
    );
}
