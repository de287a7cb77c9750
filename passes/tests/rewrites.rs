//! What filetests do not show of the passes: refusals, origins, cost, and that choices do not
//! change results.

use std::collections::HashMap;
use std::sync::Arc;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::op::{Body, Dispatch, Domain, FLOATS, Rounding, composite, core, map, rule};
use tracecast_ir::ops::infer;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, PolicySet, Region};
use tracecast_ir::{DType, Graph, PassError, Source, Stage, TensorType, Tracer, Var, verify};
use tracecast_passes::{
    Autocast, Autodiff, Decompose, Fuse, Pass, PassOptions, Pipeline, Place, Scaler, Simplify,
    names, standard,
};

tracecast_ir::ops! { trait Wrong;

/// An op whose gradient has another type than its operand.
LEAKY = leaky(x) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::float,
    body:     core(
        rule(&|cx| [Some(cx.dy().cast(DType::F64))].into_iter().collect()),
        map(&|_, x| x[0]),
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}

/// An op whose rule forgets the second operand.
FORGETFUL = forgetful(x, other) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::float,
    body:     core(rule(&|cx| [Some(cx.dy())].into_iter().collect()), map(&|_, x| x[0])),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3], T[3]"] },
}

/// A composite whose parts have another shape than it says.
MISSHAPEN = misshapen(x) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::float,
    body:     composite(None, &|cx| [cx.args[0].sum(())].into_iter().collect()),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}

/// A composite that is made of itself as soon as it is recorded.
ENDLESS_AT_ONCE = endless_at_once(x) -> (y) {
    dispatch: Dispatch::Expands,
    infer:    &infer::float,
    body:     composite(None, &|cx| [cx.args[0].endless_at_once()].into_iter().collect()),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}

/// A composite that is made of itself.
ENDLESS = endless(x) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::float,
    body:     composite(None, &|cx| [cx.args[0].endless()].into_iter().collect()),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}

fn f32s(sizes: &[usize]) -> TensorType {
    TensorType::new(DType::F32, sizes)
}

fn bf16_region() -> Region {
    Region::default().with_device(DeviceType::Cpu, true, DType::BF16).with_scope(1)
}

/// A graph with one parameter `x: f32[3]`, from which `body` makes a result.
fn with_param(body: impl for<'t> FnOnce(&'t Tracer, Var<'t>) -> Var<'t>) -> Graph {
    let t = Tracer::new("test");
    let x = t.param("x", f32s(&[3]));
    let y = body(&t, x);
    t.output("y", y);
    t.finish().expect("a test program is well formed")
}

fn gradient_of(body: impl for<'t> Fn(Var<'t>) -> Var<'t>) -> Graph {
    with_param(|t, x| t.grad(body(x).sum(()), &[x])[0])
}

fn refusal(pass: impl Pass + 'static, graph: Graph) -> String {
    Pipeline::new().then(pass).run(graph, |_, _, _| ()).expect_err("the pass refuses").to_string()
}

fn values(numbers: &[(&str, &[f64])]) -> HashMap<String, Value> {
    let value = |n: &[f64]| {
        Value::from_f64s(f32s(if n.len() == 1 { &[] } else { std::slice::from_ref(&3) }), n)
            .expect("as many numbers as elements")
    };
    numbers.iter().map(|(name, n)| ((*name).to_owned(), value(n))).collect()
}

#[test]
fn autocast_refuses_other_policies() {
    let traced = || with_param(|t, x| t.in_region(&bf16_region(), || x.reshape([1, 3]).matmul(x)));
    let mut others = PolicySet::standard();
    others.add_rule(
        tracecast_ir::policy::Target::Op("matmul".into()),
        None,
        tracecast_ir::policy::Policy::Fp32,
    );
    let message = refusal(Autocast::under(Arc::new(others)), traced());
    assert!(
        message.contains("autocast") && message.contains("@test was traced under policy set"),
        "{message}"
    );
    Pipeline::new()
        .then(Autocast::under(Arc::new(PolicySet::standard())))
        .run(traced(), |_, _, _| ())
        .unwrap();
}

#[test]
fn other_passes_refuse_open_decisions() {
    let traced = || with_param(|t, x| t.in_region(&bf16_region(), || x.reshape([1, 3]).matmul(x)));
    for message in [
        refusal(Autodiff, traced()),
        refusal(Decompose::default(), traced()),
        refusal(Scaler::default(), traced()),
    ] {
        assert!(message.contains("matmul: its autocast decision is still open"), "{message}");
        assert!(message.contains("rewrites.rs"), "{message}");
    }
}

#[test]
fn wrong_gradient_rules_are_named_with_op_and_line() {
    let message = refusal(Autodiff, gradient_of(|x| x.leaky()));
    assert!(
        message.contains("leaky: the gradient of operand 0 is f64[3], expected f32[3]"),
        "{message}"
    );
    assert!(message.contains("grad of") && message.contains("rewrites.rs"), "{message}");
    let message = refusal(Autodiff, gradient_of(|x| x.forgetful(x)));
    assert!(
        message.contains("forgetful: its gradient rule answers for 1 operands of 2"),
        "{message}"
    );
}

#[test]
fn wrong_expansions_are_named() {
    let graph = || with_param(|_, x| x.misshapen());
    for message in
        [refusal(Decompose::default(), graph()), refusal(Autodiff, gradient_of(|x| x.misshapen()))]
    {
        assert!(message.contains("misshapen: expands to f32[], expected f32[3]"), "{message}");
    }
    let message = refusal(Decompose::default(), with_param(|_, x| x.endless()));
    assert!(
        message.contains("after pass `decompose`") && message.contains("endless: is composite"),
        "{message}"
    );
    let message = refusal(Autodiff, gradient_of(|x| x.endless()));
    assert!(message.contains("endless: lies inside 32 composites"), "{message}");
    assert!(message.contains("rewrites.rs:"), "{message}");
    let graph = with_param(|_, x| x.endless());
    let inputs = graph
        .ports()
        .iter()
        .map(|p| {
            (
                p.name.clone(),
                Value::from_f64s(p.ty.clone(), &vec![1.0; p.ty.numel().get()]).unwrap(),
            )
        })
        .collect();
    let message = eval::graph(&graph, &inputs).unwrap_err().to_string();
    assert!(message.contains("endless: lies inside 32 composites"), "{message}");
    let t = Tracer::new("endless");
    let x = t.input("x", f32s(&[3]));
    t.output("y", x.endless_at_once());
    let message = t.finish().unwrap_err().to_string();
    assert!(message.contains("endless_at_once: lies inside 32 composites"), "{message}");
    assert!(message.contains("rewrites.rs:"), "{message}");
}

#[test]
fn the_scale_of_the_loss_is_the_one_that_unscales() {
    let graph = |other: bool| {
        with_param(|t, x| {
            let a = t.state("a", f32s(&[]));
            let b = t.state("b", f32s(&[]));
            let loss = x.mul(x).sum(()).mul(a);
            let inv = if other { b } else { a }.reciprocal_scale();
            t.grad(loss, &[x])[0].unscale(inv)
        })
    };
    let run =
        |graph| Pipeline::new().then(Autodiff).then(Scaler::default()).run(graph, |_, _, _| ());
    run(graph(false)).unwrap();
    let message = run(graph(true)).unwrap_err().to_string();
    assert!(message.contains("unscale: the gradient does not depend on `b`"), "{message}");
    assert!(message.contains("rewrites.rs"), "{message}");
}

#[test]
fn gradients_tell_where_they_come_from() {
    let t = Tracer::new("test");
    let x = t.param("x", f32s(&[3]));
    let loss = t.scope("encoder", || x.exp().sum(()));
    t.output("dx", t.grad(loss, &[x])[0]);
    let graph = Pipeline::new().then(Autodiff).run(t.finish().unwrap(), |_, _, _| ()).unwrap();
    let graph = graph.into_graph();
    let backward =
        graph.nodes().map(|id| graph.node(id)).find(|n| n.op.name().text() == "mul").unwrap();
    assert_eq!(&*backward.scope, "encoder");
    let source = backward.source.to_string();
    assert!(source.starts_with("grad of ") && source.contains("rewrites.rs:"), "{source}");
    let forward =
        graph.nodes().map(|id| graph.node(id)).find(|n| n.op.name().text() == "exp").unwrap();
    assert!(matches!(forward.source, Source::Rust(_)));
}

#[test]
fn the_backward_walk_is_linear() {
    let size = |depth: usize| {
        let graph = gradient_of(|x| (0..depth).fold(x, |y, _| y.tanh().mul(y)));
        Pipeline::new().then(Autodiff).run(graph, |_, _, _| ()).unwrap().len()
    };
    let (one, two, three) = (size(20), size(40), size(60));
    assert_eq!(two - one, three - two, "{one} {two} {three}");
}

#[test]
fn a_gradient_of_a_gradient_of_a_cube() {
    let graph = with_param(|t, x| {
        let first = t.grad(x.mul(x).mul(x).sum(()), &[x])[0];
        let second = t.grad(first.sum(()), &[x])[0];
        t.output("first", first);
        second
    });
    let graph = Pipeline::new().then(Autodiff).run(graph, |_, _, _| ()).unwrap();
    let out = eval::graph(&graph, &values(&[("x", &[1.0, -2.0, 3.0])])).unwrap();
    assert_eq!(out.get("first").unwrap().to_f64s(), [3.0, 12.0, 27.0]);
    assert_eq!(out.get("y").unwrap().to_f64s(), [6.0, -12.0, 18.0]);
}

/// PyTorch's numbers. Each way back to `x` is rounded to f16 by itself: one rounding of their sum
/// would give -0.703125 and -213.625.
#[test]
fn gradients_of_gradients_promote_operands_anew() {
    let t = Tracer::new("test");
    let x = t.param("x", TensorType::new(DType::F16, [1]));
    let y = t.param("y", f32s(&[3]));
    let product = x.mul(y);
    let first = t.grad(product.mul(product).mul(product).sum(()), &[y])[0];
    t.output("second", t.grad(first.mul(first).sum(()), &[x])[0]);
    let graph = t.finish().expect("a test program is well formed");
    let graph = standard(&PassOptions::default()).run(graph, |_, _, _| ()).expect("runs");
    for (x, y, second) in [
        (-1.0888671875, [-0.265625, 0.1875, -0.21875], -0.70263671875),
        (-1.3359375, [0.875, 0.765625, 0.046875], -213.5),
    ] {
        let mut inputs = values(&[("y", &y)]);
        let x = Value::from_f64s(TensorType::new(DType::F16, [1]), &[x]).expect("one number");
        inputs.insert("x".to_owned(), x);
        let found = eval::graph(&graph, &inputs).expect("runs").get("second").unwrap().to_f64s();
        assert_eq!(found, [second]);
    }
}

/// A predicated step of one weight in f16, its gradient scaled.
fn scaled_step() -> Graph {
    let t = Tracer::new("step");
    let (x, w) = (t.input("x", f32s(&[3])), t.param("w", f32s(&[3])));
    let scale = t.state("scale", f32s(&[]));
    let low = w.cast(DType::F16).mul(x.cast(DType::F16));
    let loss = low.sum(().dtype(DType::F32));
    let gradient = t.grad(loss.mul(scale), &[w])[0];
    let found = gradient.nonfinite().ne(0.0);
    let inv = scale.reciprocal_scale();
    let next = w.sub(gradient.unscale(inv).mul(0.1));
    t.update(w, found.choose(w, next));
    t.update(scale, found.choose(scale.mul(0.5), scale));
    t.finish().expect("a test program is well formed")
}

#[test]
fn folding_changes_no_bit_and_an_overflow_no_weight() {
    let up_to = |last: &str, fold: bool| {
        let options = PassOptions { fold, ..PassOptions::default() };
        let pipeline = standard(&options).up_to(last).unwrap();
        pipeline.run(scaled_step(), |_, _, _| ()).unwrap()
    };
    let graphs: Vec<_> = [Decompose::NAME, Simplify::NAME, Place::NAME, Fuse::NAME]
        .into_iter()
        .flat_map(|last| [up_to(last, true), up_to(last, false)])
        .collect();
    for (x, steps) in [([0.1, -0.2, 0.3], true), ([0.1, 1.0e9, 0.3], false)] {
        let inputs = values(&[("x", &x), ("w", &[0.5, 0.25, -1.5]), ("scale", &[1024.0])]);
        let first = eval::graph(&graphs[0], &inputs).unwrap();
        for graph in &graphs[1..] {
            assert_eq!(first, eval::graph(graph, &inputs).unwrap());
        }
        assert_eq!(*first.update("w").unwrap() != inputs["w"], steps);
        let scale = if steps { 1024.0 } else { 512.0 };
        assert_eq!(first.update("scale").unwrap().to_f64s(), [scale]);
    }
}

#[test]
fn ops_that_a_pass_removes_name_that_pass() {
    let removed = tracecast_ir::ops::all().filter_map(|op| match op.body {
        Body::Symbolic(pass) => Some(pass),
        _ => None,
    });
    let removed: Vec<&str> = removed.collect();
    assert!(removed.contains(&Autodiff::NAME), "{removed:?}");
    assert!(removed.iter().all(|pass| names().contains(pass)), "{removed:?}");
}

#[test]
fn the_pipeline_names_its_passes_and_shows_each_stage() {
    assert_eq!(names()[..4], [Autocast::NAME, Autodiff::NAME, Scaler::NAME, Decompose::NAME]);
    let mut seen = Vec::new();
    let pipeline =
        standard(&PassOptions::default()).up_to(Decompose::NAME).unwrap().without(Scaler::NAME);
    let last = pipeline
        .run(scaled_step(), |name, graph, _| seen.push((name.to_owned(), graph.stage())))
        .unwrap();
    let expected = [
        (Pipeline::TRACED, Stage::Traced),
        (Autocast::NAME, Stage::Cast),
        (Autodiff::NAME, Stage::Cast),
        (Decompose::NAME, Stage::Core),
    ];
    assert_eq!(seen, expected.map(|(name, stage)| (name.to_owned(), stage)));
    verify(last.into_graph(), Stage::Core).unwrap();
    assert!(matches!(
        Pipeline::new().then(Decompose::default()).run(scaled_step(), |_, _, _| ()),
        Err(PassError::AfterPass { pass: Decompose::NAME, .. })
    ));
}
