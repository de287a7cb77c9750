//! Properties of the passes over random well-typed programs: rounding points, idempotence, independence of order, bytes, programs
//! outside of regions, mutations, and state carried from step to step.
//!
//! `TRACECAST_RANDOM_PROGRAMS` sets how many programs each property is tried on.

#[path = "../../tests/support/random.rs"]
#[allow(dead_code, reason = "each test uses its own part of this module")]
mod random;

mod canonical;

use canonical::{canonical, reordered};
use random::{Dice, INDEX_LIMIT};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::ops::grad::GRAD;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, PolicySet, Region};
use tracecast_ir::{
    Args, DType, Graph, NodeId, Promise, Reason, Stage, TensorType, Tracer, Var, Verified, compare,
    verify,
};
use tracecast_passes::{Pass, PassOptions, Pipeline, find, names, standard};

fn count(default: u64) -> u64 {
    let set = std::env::var("TRACECAST_RANDOM_PROGRAMS").ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// The seeds of the programs that a property is tried on: from `TRACECAST_RANDOM_SEED` on, as many as `TRACECAST_RANDOM_PROGRAMS`.
fn seeds(default: u64) -> Range<u64> {
    let set = std::env::var("TRACECAST_RANDOM_SEED").ok();
    let first = set.and_then(|n| n.parse().ok()).unwrap_or(0);
    first..first + count(default)
}

fn up_to(last: &str) -> Pipeline {
    standard(&PassOptions::default()).up_to(last).expect("a standard pass")
}

fn run(pipeline: &Pipeline, stage: Stage, graph: Graph) -> Verified {
    pipeline.run_from(stage, graph, |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

fn pass(name: &str) -> Box<dyn Pass> {
    find(name, &PassOptions::default()).expect("a standard pass")
}

fn once(pass: &dyn Pass, graph: &Verified) -> Verified {
    let next = pass.run(graph).unwrap_or_else(|e| panic!("{}: {e}", pass.name()));
    verify(next, pass.ensures(graph.stage())).unwrap_or_else(|e| panic!("{}: {e}", pass.name()))
}

fn inputs(graph: &Graph, seed: u64) -> HashMap<String, Value> {
    let mut dice = Dice::new(seed ^ 0xabcd);
    let make = |ty: &TensorType, name: &str, dice: &mut Dice| {
        let number = |dice: &mut Dice| match ty.dtype {
            _ if name.starts_with("index") => dice.below(INDEX_LIMIT) as f64,
            d if d.is_float() => dice.unit() * 2.0,
            DType::Bool => dice.below(2) as f64,
            _ => dice.below(9) as f64,
        };
        let numbers: Vec<f64> = (0..ty.numel()).map(|_| number(dice)).collect();
        Value::from_f64s(ty.clone(), &numbers).expect("a computable type")
    };
    graph.ports().iter().map(|p| (p.name.clone(), make(&p.ty, &p.name, &mut dice))).collect()
}

/// P4: the pipeline compares only in debug builds; this does so always.
#[test]
fn no_pass_loses_or_adds_a_rounding() {
    for seed in seeds(300) {
        let mut graph = verify(random::program(seed, 14), Stage::Traced).expect("well formed");
        for name in names() {
            let pass = pass(name);
            let next = once(&*pass, &graph);
            compare(&graph, &next, pass.promise())
                .unwrap_or_else(|e| panic!("seed {seed}, {name}: {e}\n{}\n{}", *graph, *next));
            graph = next;
        }
    }
}

/// P5.
#[test]
fn a_second_run_changes_nothing() {
    for seed in seeds(300) {
        let mut graph = verify(random::program(seed, 14), Stage::Traced).expect("well formed");
        for name in names() {
            let pass = pass(name);
            graph = once(&*pass, &graph);
            let again = once(&*pass, &graph);
            assert_eq!(
                canonical(&again),
                canonical(&graph),
                "seed {seed}, {name} twice\n{}\n{}",
                *graph,
                *again
            );
        }
        let placed = run(&up_to("place"), Stage::Traced, random::program(seed, 14));
        let again = run(&up_to("place"), Stage::Core, Graph::clone(&placed));
        assert_eq!(
            canonical(&again),
            canonical(&placed),
            "seed {seed}, all twice\n{}\n{}",
            *placed,
            *again
        );
    }
}

/// P6. Gradients are added up in the order of the uses of a value, which is part of the program; all else may be recorded in any order.
#[test]
fn the_order_of_recording_does_not_matter() {
    let (mut compared, mut with_gradients) = (0, 0);
    for seed in seeds(300) {
        let graph = random::program(seed, 14);
        let other = reordered(&graph, &mut Dice::new(seed));
        compared += usize::from(order(&graph) != order(&other));
        with_gradients += usize::from(graph.nodes().any(|id| graph.node(id).op.is(&GRAD)));
        assert_eq!(canonical(&graph), canonical(&other), "seed {seed}: the same program");
        for last in ["autocast", "autodiff", "decompose", "simplify", "place"] {
            let (a, b) = (
                run(&up_to(last), Stage::Traced, graph.clone()),
                run(&up_to(last), Stage::Traced, other.clone()),
            );
            assert_eq!(canonical(&a), canonical(&b), "seed {seed}, {last}\n{}\n{}", *a, *b);
        }
    }
    let all = count(300) as usize;
    assert!(compared > all / 2, "{compared} programs of {all} could be recorded in another order");
    assert!(with_gradients > all / 4, "{with_gradients} programs of {all} have gradients");
}

/// The ops of a program, one after the other.
fn order(graph: &Graph) -> Vec<String> {
    let line = |id: NodeId| format!("{} {:?}", graph.node(id).op.name(), graph.args(id));
    graph.nodes().map(line).collect()
}

/// P8.
#[test]
fn outside_of_regions_nothing_is_cast() {
    let off = Region::default().with_device(DeviceType::Cpu, false, DType::BF16).with_scope(7);
    for seed in seeds(300) {
        let graph = random::program(seed, 14);
        if graph.nodes().any(|id| !graph.region(id).is_off()) {
            continue;
        }
        let in_island =
            graph.retrace_under(Arc::new(PolicySet::standard()), &off).expect("records");
        for last in ["autocast", "place", "fuse"] {
            let (plain, island) = (
                run(&up_to(last), Stage::Traced, graph.clone()),
                run(&up_to(last), Stage::Traced, in_island.clone()),
            );
            assert_eq!(plain.to_string(), island.to_string(), "seed {seed}, {last}");
            let by_policy = |reason: Reason| matches!(reason, Reason::Policy { .. });
            assert!(!plain.points().iter().any(|p| by_policy(p.reason)), "seed {seed}, {last}");
        }
    }
}

/// P14: of whatever rounding is taken out, the verifier misses the number where a pass may only add code. Where a pass may simplify as
/// well, it misses nearly all that matter, and the result shows others; the rest it cannot tell from roundings that nothing depends on.
#[test]
fn a_lost_rounding_is_noticed() {
    let (mut lost, mut missed, mut unnoticed) = (0, 0, 0);
    for seed in seeds(300) {
        let graph = run(&up_to("decompose"), Stage::Traced, random::program(seed, 14));
        let values: Vec<_> = (0..3).map(|n| inputs(&graph, seed + 1000 * n)).collect();
        for cast in graph.nodes().filter(|id| can_be_lost(&graph, *id)) {
            let Some(without) = without_rounding(&graph, cast) else { continue };
            let misses = |promise| {
                let errors = compare(&graph, &without, promise).err();
                errors.is_some_and(|errors| errors.to_string().contains("nothing does so any more"))
            };
            assert!(misses(Promise::Adds), "seed {seed} %{}\n{}", cast.index(), *graph);
            if misses(Promise::Moves) {
                missed += 1;
            } else if values.iter().any(|v| rounds(&graph, cast, v)) {
                unnoticed += usize::from(!values.iter().any(|v| differs(&graph, &without, v)));
            } else {
                continue;
            }
            lost += 1;
        }
    }
    assert!(lost > count(300) as usize / 2, "{lost} roundings were taken out");
    assert!(missed * 10 > lost * 9, "{missed} of {lost} were missed");
    assert!(unnoticed * 15 < lost, "{unnoticed} of {lost} were not noticed");
}

/// True if some result is another.
fn differs(graph: &Graph, other: &Graph, inputs: &HashMap<String, Value>) -> bool {
    let outputs = |graph| eval::graph(graph, inputs).expect("runs").outputs;
    let (wanted, found) = (outputs(graph), outputs(other));
    wanted.iter().zip(&found).any(|((_, a), (_, b))| a.first_difference(b).is_some())
}

/// True if a rounding changes some number that it is given.
fn rounds(graph: &Graph, cast: NodeId, inputs: &HashMap<String, Value>) -> bool {
    let t = Tracer::explicit("rounded");
    graph
        .retrace_into(&t, |t, id, node, args| {
            let x = args.vars.first().copied();
            let results = t.again(node, args);
            if let Some(x) = x.filter(|_| id == cast) {
                t.output("before", x);
                t.output("rounded", results[0].to(x.dtype()));
            }
            results
        })
        .expect("records");
    let out = eval::graph(&t.finish().expect("records"), inputs).expect("runs");
    let value = |name| out.get(name).expect("an output");
    value("before").first_difference(value("rounded")).is_some()
}

/// True for a rounding of the program that something but a result uses.
fn can_be_lost(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let Some(from) = graph.args(id).first().map(|a| graph.ty(*a).dtype) else { return false };
    let Some(to) = node.attrs.dtype("to") else { return false };
    let rounds = matches!(node.op.name(), "cast" | "round_to")
        && from.is_float()
        && to.is_float()
        && !from.fits_in(to);
    rounds && graph.live()[id.index()] && graph.roots().all(|v| v.node != id)
}

/// The program with one rounding taken out: what used the rounded value computes with the wide one, and its result is rounded to the
/// type that it had.
///
/// None if the ops that used it do not take the wide one.
fn without_rounding(graph: &Verified, lost: NodeId) -> Option<Verified> {
    let next = graph.retrace(|t, id, node, args| {
        if id == lost {
            return args.vars[0].results();
        }
        let old: Vec<DType> = graph.args(id).iter().map(|a| graph.ty(*a).dtype).collect();
        if args.vars.iter().zip(&old).all(|(v, old)| v.dtype() == *old) {
            return t.again(node, args);
        }
        let wide =
            args.vars.iter().zip(&old).find(|(v, old)| v.dtype() != **old).map(|(v, _)| v.dtype());
        let wide = wide.expect("there is one");
        if node.op.name() == "cast" {
            return args.vars[0].to(node.results[0].dtype).results();
        }
        let vars: Vec<Var<'_>> =
            args.vars.iter().map(|v| if v.dtype().is_float() { v.to(wide) } else { *v }).collect();
        let results = t.again(node, Args::grouped(&vars, &args.groups));
        results.iter().zip(&node.results).map(|(v, ty)| v.to(ty.dtype)).collect()
    });
    Some(verify(next.ok()?, graph.stage()).expect("well formed"))
}

type Body = for<'t> fn(&'t Tracer, Var<'t>, Var<'t>) -> Var<'t>;

/// P15: there are no loops in a program; what a loop would carry is state, given back to the next run.
#[test]
fn steps_one_after_another_are_the_unrolled_program() {
    let bodies: [Body; 4] = [
        |_, s, x| s.matmul(x).to(s.dtype()),
        |_, s, x| s.mul(x, None).add(s, None).tanh().to(s.dtype()),
        |_, s, x| s.matmul(x).softmax(-1, None).add(s, None).to(s.dtype()),
        |_, s, x| s.cast(DType::F16).mul(x, None).sum(&[0], true, None).add(s, None).to(s.dtype()),
    ];
    const STEPS: u32 = 4;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (number, body) in bodies.into_iter().enumerate() {
            let what = format!("body {number} in {dtype}");
            let ty = TensorType::new(dtype, [4, 4]);
            let region = |scope| {
                Region::default()
                    .with_device(
                        DeviceType::Cpu,
                        true,
                        if dtype == DType::F16 { dtype } else { DType::BF16 },
                    )
                    .with_scope(scope)
            };
            let t = Tracer::new("step");
            let (s, x) = (t.state("s", ty.clone()), t.input("x", ty.clone()));
            t.update(s, t.in_region(&region(1), || body(&t, s, x)));
            let step = run(&up_to("fuse"), Stage::Traced, t.finish().expect("records"));
            let t = Tracer::new("unrolled");
            let (s, x) = (t.state("s", ty.clone()), t.input("x", ty.clone()));
            let last =
                (1..=STEPS).fold(s, |s, scope| t.in_region(&region(scope), || body(&t, s, x)));
            assert_eq!(last.ty(), ty, "{what}: the carried type is a fixpoint");
            t.update(s, last);
            let unrolled = run(&up_to("fuse"), Stage::Traced, t.finish().expect("records"));
            let mut values = inputs(&step, 7);
            let wanted = eval::graph(&unrolled, &values).expect("runs");
            for _ in 0..STEPS {
                let next = eval::graph(&step, &values)
                    .expect("runs")
                    .update("s")
                    .expect("updated")
                    .clone();
                values.insert("s".to_owned(), next);
            }
            assert_eq!(
                values["s"].first_difference(wanted.update("s").expect("updated")),
                None,
                "{what}"
            );
        }
    }
}
