//! Graphs that break one invariant each, and what the verifier says of them. [`Tracer`] does not
//! record such graphs, so each is spoilt behind its back.

use super::*;
use crate::kernel::build;
use crate::ops::prelude::*;
use crate::policy::{DeviceType, Region};
use crate::{Attrs, Tracer, Var};
use std::sync::Arc;

fn ty(dtype: DType, sizes: &[usize]) -> TensorType {
    TensorType::new(dtype, sizes)
}

/// `y` of `x: f32[4, 4]`, recorded under a region of bf16.
fn traced(body: impl for<'t> FnOnce(&'t Tracer, Var<'t>) -> Var<'t>) -> Graph {
    recorded(Tracer::new("traced"), |t, x| {
        let region =
            Region::default().with_device(DeviceType::Cpu, true, DType::BF16).with_scope(1);
        t.in_region(&region, || body(t, x))
    })
}

/// `y` of `x: f32[4, 4]`, recorded as a pass does.
fn explicit(body: impl for<'t> FnOnce(&'t Tracer, Var<'t>) -> Var<'t>) -> Graph {
    recorded(Tracer::explicit("explicit"), body)
}

fn recorded(t: Tracer, body: impl for<'t> FnOnce(&'t Tracer, Var<'t>) -> Var<'t>) -> Graph {
    let y = body(&t, t.input("x", ty(DType::F32, &[4, 4])));
    t.output("y", y);
    t.finish().expect("well formed before it is spoilt")
}

/// The first node of that op.
fn find(graph: &Graph, op: &str) -> NodeId {
    graph.nodes().find(|id| graph.node(*id).op.name().text() == op).expect("was recorded")
}

/// All that is wrong with a graph that was right before it was spoilt.
fn wrong(mut graph: Graph, stage: Stage, spoil: impl FnOnce(&mut Graph)) -> String {
    verify(graph.clone(), stage).expect("right before it is spoilt");
    spoil(&mut graph);
    verify(graph, stage).expect_err("wrong now").to_string()
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts.iter().chain(&["verify/tests.rs:"]) {
        assert!(message.contains(part), "expected `{part}` in: {message}");
    }
}

#[test]
fn v1_nothing_is_promoted_silently() {
    let graph = traced(|_, x| x.cast(DType::F16).add(x));
    let message = verify(graph, Stage::Cast).expect_err("an implicit promotion").to_string();
    says(
        &message,
        &["add: operands f16[4, 4], f32[4, 4] need a cast or an expansion of their own"],
    );
}

#[test]
fn v2_an_op_has_the_type_its_rule_gives() {
    let graph = explicit(|_, x| x.cast(DType::BF16).exp());
    let message = wrong(graph, Stage::Cast, |g| {
        let exp = find(g, "exp");
        g.dag[exp].results[0] = ty(DType::F32, &[4, 4]);
    });
    says(&message, &["exp: has type f32[4, 4], expected bf16[4, 4]"]);
}

#[test]
fn v3_a_cast_keeps_the_shape() {
    let graph = explicit(|_, x| x.cast(DType::BF16));
    let message = wrong(graph, Stage::Cast, |g| {
        let cast = find(g, "cast");
        g.dag[cast].results[0] = ty(DType::BF16, &[4, 4, 4]);
    });
    says(&message, &["cast: has type bf16[4, 4, 4], expected bf16[4, 4]"]);
}

#[test]
fn v3_autocast_casts_floats_only() {
    let graph = traced(|_, x| x.matmul(x));
    let message = wrong(graph, Stage::Traced, |g| {
        let x = g.ports[0].node;
        g.dag[x].results[0].dtype = DType::I64;
        g.ports[0].ty.dtype = DType::I64;
    });
    says(&message, &["matmul: autocast casts operand 0, i64[4, 4], to bf16: it casts floats only"]);
}

#[test]
fn v4_autocast_casts_to_the_dtype_of_the_region() {
    let graph = traced(|_, x| x.matmul(x));
    let message = wrong(graph, Stage::Traced, |g| {
        let matmul = find(g, "matmul");
        let decision = g.dag[matmul].decision.as_mut().expect("both operands are cast");
        decision.casts.fill(Some(DType::F16));
        g.dag[matmul].results[0].dtype = DType::F16;
    });
    says(&message, &["matmul: autocast casts operand 0, f32[4, 4], to f16", "{cpu: bf16}"]);
}

#[test]
fn v5_a_step_can_follow_itself() {
    let t = Tracer::explicit("step");
    let state = t.state("state", TensorType::scalar(DType::BF16));
    let next = state.add(state);
    t.output("y", next.cast(DType::F32));
    t.update(state, next);
    let message = wrong(t.finish().unwrap(), Stage::Cast, |g| g.updates[0].1 = g.outputs[0].1);
    says(&message, &["the next value of `state` is f32[], expected bf16[]"]);
}

#[test]
fn v8_sums_of_16_bit_numbers_are_not_accumulated_in_16_bits() {
    let graph = explicit(|_, x| x.reduce_row(Some("sum")));
    let message = wrong(graph, Stage::Core, |g| {
        let (x, sum) = (g.ports[0].node, find(g, "reduce_row"));
        g.ports[0].ty.dtype = DType::BF16;
        g.dag[x].results[0].dtype = DType::BF16;
        g.dag[sum].results[0].dtype = DType::BF16;
    });
    says(&message, &["reduce_row: sum takes f32, f64 or integers, found bf16[4, 4]"]);
}

#[test]
fn v8_kernels_accumulate_no_narrower_than_what_they_add() {
    use crate::kernel::{Form, Scalar};
    let spoilt = |op: &str,
                  body: &dyn for<'t> Fn(Var<'t>) -> Var<'t>,
                  spoil: &dyn Fn(&mut Form)| {
        let core = explicit(|_, x| body(x.cast(DType::F64)));
        let mut kernel = build::single(&core, find(&core, op)).expect("a kernel").kernel;
        spoil(&mut kernel.form);
        let types: Vec<TensorType> = kernel.inputs.clone();
        let t = Tracer::explicit("kernels");
        let vars: Vec<Var<'_>> =
            types.iter().enumerate().map(|(i, ty)| t.input(&format!("x{i}"), ty.clone())).collect();
        let mut args = crate::Args::new();
        args.push(vars.iter().copied());
        let attrs = Attrs::new().with("kernel", Attr::Kernel(Arc::new(kernel)));
        t.output("y", t.apply(&crate::ops::fused::KERNEL, args, attrs)[0]);
        verify(t.finish().unwrap(), Stage::Fused).map(|_| ()).map_err(|e| e.to_string())
    };
    type Body = dyn for<'t> Fn(Var<'t>) -> Var<'t>;
    let product: &Body = &|x| x.contract(x, None);
    let sum: &Body = &|x| x.reduce_row(Some("sum"));
    for (op, body) in [("contract", product), ("reduce_row", sum)] {
        assert_eq!(spoilt(op, body, &|_| ()), Ok(()), "{op}");
    }
    let message = spoilt("contract", product, &|form| {
        let Form::Contract(contract) = form else { panic!("a contraction") };
        contract.acc = Scalar::F32;
    });
    says(&message.unwrap_err(), &["a product of f64 is accumulated in f32"]);
    let message = spoilt("reduce_row", sum, &|form| {
        let Form::Nest(nest) = form else { panic!("a nest") };
        nest.registers[0] = Scalar::F32;
    });
    says(&message.unwrap_err(), &["a sum along the row of f64 is accumulated in f32"]);
}

#[test]
fn v10_operands_come_before_uses() {
    let graph = explicit(|_, x| x.exp().neg());
    let message = wrong(graph, Stage::Cast, |g| {
        let (exp, neg) = (find(g, "exp"), find(g, "neg"));
        let edge = g.dag.find_edge(g.ports[0].node, exp).expect("exp takes x");
        let used = g.dag[edge];
        g.dag.remove_edge(edge);
        // The last edge, from exp to neg, has the number of the one removed: both nodes take it for
        // their operand.
        g.dag.add_edge(neg, exp, used);
    });
    says(&message, &["an operand is recorded after its use"]);
}
