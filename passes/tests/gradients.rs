//! Every op's gradient, and the gradient of its gradient, against central differences in f64.

#[path = "../../tests/support/dice.rs"]
mod dice;

use dice::Dice;
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::op::Body;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::sample::{Range, Sample, parse_sample};
use tracecast_ir::{DType, Graph, OpDef, TensorType, Tracer, Var};
use tracecast_passes::{Autodiff, PassOptions, standard};

/// Ops whose gradient is by definition not the derivative of what they compute.
const BY_DEFINITION: [&str; 3] = ["detach", "round_to", "custom_grad"];

/// Operands that PyTorch takes as constants: class weights and running statistics.
const CONSTANT: [(&str, usize); 4] =
    [("nll_loss", 2), ("cross_entropy_loss", 2), ("batch_norm", 3), ("batch_norm", 4)];

fn value(ty: &TensorType, range: Range, dice: &mut Dice) -> Value {
    let float = ty.dtype.is_float();
    let mut one = || match (range, float) {
        (Range::Positive, true) => dice.unit().abs() + 0.2,
        (Range::Positive, false) => 1.0 + dice.below(5) as f64,
        (Range::NonZero, true) => (dice.unit().abs() + 0.2) * dice.pick(&[1.0, -1.0]),
        (Range::NonZero, false) => 1.0 + dice.below(5) as f64,
        (Range::Between(low, high), true) => low + (high - low) * (dice.unit() + 1.0) / 2.0,
        (Range::Between(low, high), false) => low + dice.below((high - low) as usize) as f64,
        (Range::Any, true) => dice.unit() * 1.5,
        (Range::Any, false) => f64::from(dice.chance(50)),
    };
    let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| one()).collect();
    Value::from_f64s(ty.clone(), &numbers).expect("a computable type")
}

/// Σ over the floating point results of Σ result · weight, the weights fixed by the seed.
fn weighted<'t>(t: &'t Tracer, results: &[Var<'t>]) -> Option<Var<'t>> {
    let mut dice = Dice::new(99);
    let mut total: Option<Var<'t>> = None;
    for y in results.iter().filter(|y| y.dtype().is_float()) {
        let weights: Vec<f64> = (0..y.ty().numel().get()).map(|_| dice.unit()).collect();
        let w = t.constant(DType::F64, &y.shape().numbers(), &weights);
        let part = y.to(DType::F64).mul(w).sum(());
        total = Some(total.map_or(part, |s| s.add(part)));
    }
    total
}

fn loss<'t>(
    t: &'t Tracer,
    op: &'static OpDef,
    sample: &Sample,
    order: usize,
) -> Option<(Var<'t>, Vec<Var<'t>>)> {
    let args = sample.inputs(t);
    let wrt: Vec<_> = args.vars.iter().copied().filter(|v| v.dtype() == DType::F64).collect();
    let mut loss = weighted(t, &t.apply(op, args, sample.attrs.clone()))?;
    for _ in 1..order {
        let grads = t.grad(loss, &wrt);
        loss = weighted(t, &grads)?;
    }
    Some((loss, wrt))
}

fn differentiated(
    op: &'static OpDef,
    sample: &Sample,
    order: usize,
    gradients: bool,
) -> Option<Graph> {
    let tracer = Tracer::new("g");
    let (value, wrt) = loss(&tracer, op, sample, order)?;
    tracer.output("loss", value);
    if gradients {
        for (i, g) in tracer.grad(value, &wrt).into_iter().enumerate() {
            tracer.output(&format!("g{i}"), g);
        }
    }
    let graph = tracer.finish().unwrap_or_else(|e| panic!("{e}"));
    let passes = standard(&PassOptions::default()).up_to(Autodiff::NAME).expect("a pass");
    Some(
        passes.run(graph, |_, _, _| {}).unwrap_or_else(|e| panic!("{}: {e}", op.name)).into_graph(),
    )
}

fn run(graph: &Graph, inputs: &HashMap<String, Value>) -> Vec<Value> {
    eval::graph(graph, inputs)
        .unwrap_or_else(|e| panic!("{e}"))
        .outputs
        .into_iter()
        .map(|(_, v)| v)
        .collect()
}

/// Compares the gradients of a sample with central differences; returns how many derivatives were
/// compared.
fn check(op: &'static OpDef, text: &str, sample: &Sample, order: usize) -> usize {
    let Some(with_gradients) = differentiated(op, sample, order, true) else { return 0 };
    let plain = differentiated(op, sample, order, false).expect("has a loss");
    let mut dice = Dice::new(7);
    let mut inputs: HashMap<String, Value> = HashMap::new();
    for (i, (ty, range)) in sample.operands.iter().enumerate() {
        inputs.insert(format!("x{i}"), value(ty, *range, &mut dice));
    }
    let gradients = run(&with_gradients, &inputs);
    let (mut compared, mut number) = (0, 1);
    for i in 0..sample.operands.len() {
        if sample.operands[i].0.dtype != DType::F64 {
            continue;
        }
        let name = format!("x{i}");
        let gradient = gradients[number].to_f64s();
        number += 1;
        let at = inputs[&name].to_f64s();
        if CONSTANT.contains(&(op.name.text(), i)) {
            continue;
        }
        for k in (0..at.len()).step_by(at.len().div_ceil(5).max(1)) {
            let mut shifted = |h: f64| {
                let mut numbers = at.clone();
                numbers[k] += h;
                let moved =
                    Value::from_f64s(inputs[&name].ty.clone(), &numbers).expect("same type");
                let before = inputs.insert(name.clone(), moved).expect("present");
                let loss = run(&plain, &inputs)[0].to_f64s()[0];
                inputs.insert(name.clone(), before);
                loss
            };
            let h = 1e-5;
            let slope = (shifted(h) - shifted(-h)) / (2.0 * h);
            let error = (slope - gradient[k]).abs();
            assert!(
                error <= 2e-5 * (1.0 + slope.abs()),
                "{} {text} order {order}: d/dx{i}[{k}] is {slope}, found {}",
                op.name,
                gradient[k]
            );
            compared += 1;
        }
    }
    compared
}

fn all(order: usize) -> usize {
    let mut compared = 0;
    for op in tracecast_ir::ops::all() {
        let symbolic = matches!(op.body, Body::Symbolic(_) | Body::Source(_));
        if symbolic
            || !op.domain.dtypes.contains(&DType::F64)
            || BY_DEFINITION.contains(&op.name.text())
        {
            continue;
        }
        for text in op.domain.samples {
            let sample = parse_sample(op, text, DType::F64).unwrap_or_else(|e| panic!("{e}"));
            let narrows = sample
                .attrs
                .dtype("to")
                .or(sample.attrs.dtype("dtype"))
                .is_some_and(|d| d != DType::F64);
            let numel: usize = sample.operands.iter().map(|(t, _)| t.numel().get()).sum();
            if !narrows && numel < 3000 {
                compared += check(op, text, &sample, order);
            }
        }
    }
    compared
}

#[test]
fn gradients_are_derivatives() {
    let compared = all(1);
    assert!(compared > 400, "only {compared} derivatives were compared");
}

#[test]
fn gradients_of_gradients_are_second_derivatives() {
    let compared = all(2);
    assert!(compared > 300, "only {compared} derivatives were compared");
}

/// What the page about `grad` says of its cost.
#[test]
fn each_order_of_a_gradient_makes_a_program_three_times_as_large() {
    let ops = |order: usize| {
        let tracer = Tracer::new("nested");
        {
            let x = tracer.param("x", TensorType::new(DType::F32, [3]));
            let mut y = x.mul(x).tanh().mul(x).exp();
            for _ in 0..order {
                y = tracer.grad(y.sum(()), &[x])[0];
            }
            tracer.output("y", y);
        }
        let graph = tracer.finish().unwrap_or_else(|e| panic!("{e}"));
        let mut found = 0;
        let passes = standard(&PassOptions::default());
        let result = passes.run(graph, |pass, graph, _| {
            if pass == Autodiff::NAME {
                found = graph.nodes().count();
            }
        });
        result.unwrap_or_else(|e| panic!("{e}"));
        found
    };
    let counts: Vec<usize> = (1..=6).map(ops).collect();
    for pair in counts.windows(2).skip(1) {
        let factor = pair[1] as f64 / pair[0] as f64;
        assert!((2.0..=4.0).contains(&factor), "{counts:?}");
    }
}
