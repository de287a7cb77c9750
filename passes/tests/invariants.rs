//! Passes that each break one invariant of mixed precision, and what the verifier says of them.
//! Graphs that break an invariant by themselves are in the tests of the verifier.

use tracecast_ir::ops::cast::{CAST, Cast};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{
    Args, DType, Graph, Node, NodeId, Promise, Reason, Results, Stage, TensorType, TraceError,
    Tracer, ValueId, Var, Verified,
};
use tracecast_passes::{Autocast, Autodiff, Decompose, Pass, Pipeline, Simplify};

/// What a broken pass records in the place of a node.
type Rule = for<'t> fn(&'t Tracer, &Graph, NodeId, &Node, Args<'t>) -> Results<'t>;

/// A pass that promises what it does not keep.
struct Broken {
    promise: Promise,
    rule: Rule,
}

impl Pass for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn ensures(&self, before: Stage) -> Stage {
        before.max(Stage::Cast)
    }

    fn promise(&self) -> Promise {
        self.promise
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        graph.retrace(|t, id, node, args| (self.rule)(t, graph, id, node, args))
    }
}

/// A program of f32 tensors under a region of bf16.
fn traced(body: impl for<'t> FnOnce(&'t Tracer, Var<'t>, Var<'t>) -> Var<'t>) -> Graph {
    let square = TensorType::new(DType::F32, [4, 4]);
    let t = Tracer::new("test");
    let (x, w) = (t.input("x", square.clone()), t.param("w", square));
    let region = Region::default().with_device(DeviceType::Cpu, true, DType::BF16).with_scope(1);
    let y = t.in_region(&region, || body(&t, x, w));
    t.output("y", y);
    t.finish().expect("a test program is well formed")
}

/// What the verifier says of a broken pass behind some right ones.
fn refused(graph: Graph, before: Pipeline, promise: Promise, rule: Rule) -> String {
    let error = before.then(Broken { promise, rule }).run(graph, |_, _, _| ());
    let message = error.expect_err("the verifier notices").to_string();
    assert!(message.contains("after pass `broken`"), "{message}");
    message
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "expected `{part}` in: {message}");
    }
}

/// How a recorded value was cast, if it was: the operand.
fn below_cast<'t>(t: &'t Tracer, x: Var<'t>) -> Option<Var<'t>> {
    let below = t.with_graph(|g| {
        let is_cast = g.node(x.id().node).op.name() == CAST.name;
        is_cast.then(|| g.args(x.id().node)[0])
    });
    below.map(|id| t.var(id))
}

fn again<'t>(t: &'t Tracer, _: &Graph, _: NodeId, node: &Node, args: Args<'t>) -> Results<'t> {
    t.again(node, args)
}

fn core() -> Pipeline {
    Pipeline::new().then(Autocast::new()).then(Autodiff).then(Decompose::default())
}

#[test]
fn right_passes_are_not_refused() {
    let graph = traced(|_, x, w| x.matmul(w).relu().cast(DType::F32));
    let right = Broken { promise: Promise::Moves, rule: again };
    core().then(right).run(graph, |_, _, _| ()).unwrap();
}

#[test]
fn v2_a_result_of_another_type() {
    let graph = traced(|_, x, w| x.matmul(w));
    let message = refused(
        graph,
        Pipeline::new().then(Autocast::new()),
        Promise::Adds,
        |t, _, _, node, args| {
            let results = t.again(node, args);
            if node.op.name().text() == "matmul" {
                results[0].cast(DType::F32).results()
            } else {
                results
            }
        },
    );
    says(
        &message,
        &["matmul: expected result `y`: bf16[4, 4], found result `y`: f32[4, 4]", "invariants.rs:"],
    );
}

/// An autocast that casts to `low`, sharing casts of a value or not.
fn casts_to<'t>(
    t: &'t Tracer,
    graph: &Graph,
    id: NodeId,
    mut args: Args<'t>,
    low: DType,
    share: bool,
) -> Results<'t> {
    let node = graph.node(id);
    let Some(decision) = &node.decision else { return t.again(node, args) };
    for (i, cast) in decision.casts.iter().enumerate().filter(|(_, cast)| cast.is_some()) {
        let (x, wide) = (args.vars[i], cast.is_some_and(|to| to == DType::F32));
        let to = if wide { DType::F32 } else { low };
        args.vars[i] = t.because(Reason::Policy { operand: i as u16 }, || {
            let known = t.with_graph(|g| {
                let equal = |n: &NodeId| {
                    g.node(*n).op.name() == CAST.name
                        && g.args(*n)[0] == x.id()
                        && g.node(*n).results[0].dtype == to
                };
                g.nodes().find(equal)
            });
            match known.filter(|_| share) {
                Some(node) => {
                    let cast = t.var(ValueId { node, result: 0 });
                    t.also_stands(cast);
                    cast
                }
                None => x.cast(to),
            }
        });
    }
    t.again(node, args)
}

#[test]
fn v4_the_dtype_of_the_region_reaches_the_cast() {
    let graph = traced(|_, x, w| x.matmul(w).cast(DType::F32));
    let message = refused(graph, Pipeline::new(), Promise::Casts, |t, graph, id, _, args| {
        casts_to(t, graph, id, args, DType::F16, true)
    });
    says(
        &message,
        &[
            "cast: casts f32 to f16, expected bf16, the dtype of the region {cpu: bf16}",
            "invariants.rs:",
        ],
    );
}

#[test]
fn v4_no_operand_is_forgotten() {
    let graph = traced(|_, x, w| x.matmul(w).cast(DType::F32));
    let message = refused(graph, Pipeline::new(), Promise::Casts, again);
    says(&message, &["matmul: operand 0, f32[4, 4], is to be cast to bf16 and is not"]);
}

#[test]
fn v9_casts_of_activations_are_not_shared() {
    let graph = traced(|_, x, w| {
        let h = x.exp();
        h.matmul(w).add(h.matmul(w.mul(2.0)))
    });
    let message = refused(graph, Pipeline::new(), Promise::Casts, |t, graph, id, _, args| {
        casts_to(t, graph, id, args, DType::BF16, true)
    });
    says(
        &message,
        &[
            "cast: one cast from f32 to bf16 stands for several uses",
            "gradients would be summed in bf16",
        ],
    );
}

#[test]
fn v9_casts_of_weights_are_shared() {
    let graph = traced(|_, x, w| x.matmul(w).matmul(w));
    let message = refused(graph, Pipeline::new(), Promise::Casts, |t, graph, id, _, args| {
        casts_to(t, graph, id, args, DType::BF16, false)
    });
    says(&message, &["cast: is a second cast of one weight from f32 to bf16 in one scope"]);
}

/// A widening of a narrowing taken for the value itself: excess precision.
fn cancels_roundings<'t>(t: &'t Tracer, node: &Node, args: Args<'t>) -> Results<'t> {
    if node.op.name() == CAST.name {
        let original = below_cast(t, args.vars[0]);
        if let Some(x) = original.filter(|x| x.dtype() == node.results[0].dtype) {
            return x.results();
        }
    }
    t.again(node, args)
}

#[test]
fn v6_what_the_program_rounds_stays_rounded() {
    let graph = traced(|_, x, _| x.exp().cast(DType::BF16).cast(DType::F32).tanh());
    let message = refused(graph, core(), Promise::Moves, |t, _, _, node, args| {
        cancels_roundings(t, node, args)
    });
    says(
        &message,
        &[
            "cast: the program rounds here, f32 to bf16, and nothing does so any more",
            "invariants.rs:",
        ],
    );
}

#[test]
fn v7_no_rounding_is_dropped() {
    let graph = traced(|_, x, w| x.exp().matmul(w).cast(DType::F32));
    let message = refused(graph, core(), Promise::Moves, |t, _, _, node, mut args| {
        if node.op.name().text() != "contract" {
            return t.again(node, args);
        }
        for x in &mut args.vars {
            *x = below_cast(t, *x).unwrap_or(*x);
        }
        t.again(node, args)[0].cast(DType::BF16).results()
    });
    says(
        &message,
        &["cast: a result depends on this rounding, f32 to bf16, and nothing does so any more"],
    );
}

/// A product of a value, computed twice, and of what rounds it.
fn of_twins() -> Graph {
    traced(|_, x, _| {
        let (a, b) = (x.exp(), x.exp());
        let rounded = a.cast(DType::BF16).cast(DType::F32);
        b.mul(rounded).add(rounded.tanh())
    })
}

/// The first `exp` in the place of each.
fn shares_exp<'t>(t: &'t Tracer, node: &Node, args: Args<'t>) -> Results<'t> {
    let is_exp = |g: &Graph, id: &NodeId| g.node(*id).op.name().text() == "exp";
    let first = t.with_graph(|g| g.nodes().find(|id| is_exp(g, id)));
    match first.filter(|_| node.op.name().text() == "exp") {
        Some(node) => {
            let value = t.var(ValueId { node, result: 0 });
            t.also_stands(value);
            value.results()
        }
        None => t.again(node, args),
    }
}

#[test]
fn v7_what_two_operands_have_become_is_taken_for_each_of_them_once() {
    let right =
        Broken { promise: Promise::Moves, rule: |t, _, _, node, args| shares_exp(t, node, args) };
    core().then(right).run(of_twins(), |_, _, _| ()).unwrap();
    let message = refused(of_twins(), core(), Promise::Moves, |t, _, _, node, mut args| {
        if node.op.name().text() == "mul" {
            args.vars[1] = args.vars[0];
        }
        shares_exp(t, node, args)
    });
    says(&message, &["cast: the program rounds here, f32 to bf16, and nothing does so any more"]);
}

/// A choice that is a result as it is, in f64, and rounded to f32 and to f16.
fn choice_rounded_twice() -> Graph {
    traced(|t, x, w| {
        let chosen = x.gt(0.0).choose(x.exp().cast(DType::F64), w.cast(DType::F64));
        let rounded = chosen.cast(DType::F32).round_to(DType::F16);
        t.output("chosen", chosen);
        rounded.tanh()
    })
}

/// The choice in f32 in the place of its narrowing; and, if wanted, one of its parts rounded in the
/// place of all.
fn narrows_choice<'t>(t: &'t Tracer, node: &Node, args: Args<'t>, rounds_one: bool) -> Results<'t> {
    let chosen = args.vars.first().and_then(|x| {
        t.with_graph(|g| {
            let id = x.id().node;
            (g.node(id).op.name().text() == "where").then(|| g.args(id))
        })
    });
    let Some(chosen) = chosen else { return t.again(node, args) };
    let parts = [0, 1, 2].map(|i| t.var(chosen[i]));
    match node.op.name().text() {
        "cast" => {
            let [a, b] = [1, 2].map(|i| below_cast(t, parts[i]).expect("widened"));
            parts[0].choose(a, b).results()
        }
        "round_to" if rounds_one => {
            parts[0].choose(parts[1].round_to(DType::F16), parts[2]).results()
        }
        _ => t.again(node, args),
    }
}

#[test]
fn v7_a_narrowed_choice_is_rounded_as_a_whole() {
    let pipeline = core().then(Simplify);
    let simple = pipeline.run(choice_rounded_twice(), |_, _, _| ()).expect("the choice is exact");
    let is_narrow = |id: &NodeId| {
        let node = simple.node(*id);
        node.op.name().text() == "where" && node.results[0].dtype == DType::F32
    };
    assert_eq!(simple.nodes().filter(is_narrow).count(), 1, "{}", *simple);
    let message = refused(choice_rounded_twice(), core(), Promise::Moves, |t, _, _, node, args| {
        narrows_choice(t, node, args, true)
    });
    says(
        &message,
        &["round_to: the program rounds here, f32 to f16, and nothing does so any more"],
    );
    let right = Broken {
        promise: Promise::Moves,
        rule: |t, _, _, node, args| narrows_choice(t, node, args, false),
    };
    core().then(right).run(choice_rounded_twice(), |_, _, _| ()).unwrap();
}

/// A sum of one number or the other, rounded.
fn one_of_two(other: f64) -> Graph {
    traced(|t, x, _| {
        let full = |number| t.full(x.ty(), number);
        let other = if other == 0.0 { full(1.0).add(full(-1.0)) } else { full(other) };
        x.gt(0.0).choose(full(0.0), other).sum(()).cast(DType::BF16)
    })
}

#[test]
fn v7_a_choice_of_one_number_is_known() {
    core().then(Simplify).run(one_of_two(0.0), |_, _, _| ()).unwrap();
    let drops: Rule = |t, _, _, node, args| {
        if node.op.name() != CAST.name {
            return t.again(node, args);
        }
        t.full(node.results[0].clone(), 0.0).results()
    };
    let message = refused(one_of_two(0.1), core(), Promise::Moves, drops);
    says(&message, &["cast: the program rounds here, f32 to bf16, and nothing does so any more"]);
}

#[test]
fn v7_no_rounding_is_added() {
    let graph = traced(|_, x, _| x.exp().tanh());
    let message = refused(graph, core(), Promise::Moves, |t, _, _, node, args| {
        let results = t.again(node, args);
        if node.op.name().text() == "exp" {
            return results[0].cast(DType::BF16).cast(DType::F32).results();
        }
        results
    });
    says(&message, &["cast: rounds f32 to bf16 where the program before did not"]);
}

#[test]
fn v10_no_cast_is_made_twice_or_for_nothing() {
    let graph = || traced(|_, x, _| x.cast(DType::BF16).add(x.cast(DType::BF16).exp()));
    let message = refused(graph(), core(), Promise::Moves, again);
    says(&message, &["cast: casts f32 to bf16 as %2 does already"]);
    let message =
        refused(traced(|_, x, _| x.exp()), core(), Promise::Moves, |t, _, _, node, args| {
            args.vars[0].cast(DType::F64);
            t.again(node, args)
        });
    says(&message, &["cast: nothing needs this cast of f32 to f64"]);
}
