//! P14 of mixed precision: whatever rounding is taken out of a program, or put into it, somebody
//! notices.
//!
//! A rounding may only be left out where the algebra of casts leaves it out itself: where
//! `simplify` removes it from the value, or makes one program of the two.

mod canonical;
#[path = "../../tests/support/dice.rs"]
mod dice;
mod programs;
#[path = "../../tests/support/random.rs"]
mod random;

use canonical::canonical;
use programs::{count, inputs, once, pass, run, seeds, up_to};
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::op::{Body, Lower};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{
    Args, DType, Graph, NodeId, Promise, Stage, Tracer, ValueId, Var, Verified, compare, verify,
};
use tracecast_passes::{Autocast, Decompose, Fuse, Place, Simplify, names};

/// How many roundings were taken out, and what became of them.
#[derive(Debug, Default)]
struct Lost {
    /// The verifier missed them.
    refused: usize,
    /// Without them the program is the same by the algebra of casts.
    equivalent: usize,
    /// The verifier did not miss them; the numbers did.
    noticed: usize,
    /// Nor did the numbers.
    unnoticed: usize,
}

/// The verifier misses every rounding that the program before a pass had and the one after it has
/// not: where a pass may only add code, all of them; where it may move casts, all that the algebra
/// would not leave out.
#[test]
fn a_rounding_lost_before_a_pass_is_refused() {
    for (before, name) in [(Decompose::NAME, Simplify::NAME), (Simplify::NAME, Place::NAME)] {
        let mut lost = Lost::default();
        for seed in seeds(300) {
            let graph = run(&up_to(before), Stage::Traced, random::program(seed, 14));
            for cast in graph.nodes().filter(|id| can_be_lost(&graph, *id)) {
                let Some(without) = without_rounding(&graph, graph.stage(), cast) else { continue };
                let what = || format!("seed {seed} %{}, {name}\n{}", cast.index(), *graph);
                assert!(is_missed(&graph, &without, Promise::Adds), "{}", what());
                if is_missed(&graph, &without, Promise::Moves) {
                    lost.refused += 1;
                } else {
                    assert!(is_equivalent(&graph, &without, cast), "{}", what());
                    lost.equivalent += 1;
                }
            }
        }
        println!("{name}: {lost:?}");
        assert!(lost.refused > count(300) as usize / 2, "{lost:?}");
        assert!(lost.equivalent * 10 < lost.refused, "{lost:?}");
    }
}

/// The same for roundings that a pass itself loses, but for very few.
#[test]
fn a_rounding_that_a_pass_loses_is_noticed() {
    for name in names().into_iter().filter(|name| *name != Fuse::NAME) {
        let mut lost = Lost::default();
        for seed in seeds(300) {
            let graph = verify(random::program(seed, 14), Stage::Traced).expect("well formed");
            let graph = match names().into_iter().take_while(|n| *n != name).last() {
                Some(before) => run(&up_to(before), Stage::Traced, graph.into_graph()),
                None => graph,
            };
            let pass = pass(name);
            let next = pass.run(&graph).expect("runs");
            let is_old = |id: NodeId| {
                let points = &next.node(id).origin.points;
                points.iter().any(|p| (*p as usize) < graph.points().len())
            };
            for cast in next.nodes().filter(|id| can_be_lost(&next, *id) && is_old(*id)) {
                let stage = pass.ensures(graph.stage());
                let Some(without) = without_rounding(&next, stage, cast) else { continue };
                if is_missed(&graph, &without, pass.promise()) {
                    lost.refused += 1;
                    continue;
                }
                if is_equivalent(&next, &without, cast) {
                    lost.equivalent += 1;
                } else {
                    let mut values = (0..3).map(|n| inputs(&graph, seed + 1000 * n));
                    let is_noticed = values.any(|v| differs(&next, &without, &v));
                    *(if is_noticed { &mut lost.noticed } else { &mut lost.unnoticed }) += 1;
                }
            }
        }
        println!("{name}: {lost:?}");
        assert!(lost.refused > count(300) as usize / 8, "{name}: {lost:?}");
        assert!(lost.equivalent * 10 < lost.refused, "{name}: {lost:?}");
        assert!((lost.noticed + lost.unnoticed) * 1000 <= lost.refused, "{name}: {lost:?}");
    }
}

/// A rounding that a pass puts between two ops of the program, or before a result, is refused:
/// nobody asked for it.
#[test]
fn a_rounding_that_a_pass_adds_is_refused() {
    for name in names().into_iter().filter(|name| !matches!(*name, Autocast::NAME | Fuse::NAME)) {
        let mut added = 0;
        for seed in seeds(200) {
            let graph = verify(random::program(seed, 14), Stage::Traced).expect("well formed");
            let before = names().into_iter().take_while(|n| *n != name).last().expect("autocast");
            let graph = run(&up_to(before), Stage::Traced, graph.into_graph());
            let pass = pass(name);
            let next = pass.run(&graph).expect("runs");
            let live = next.live();
            let was_there = |id: NodeId| {
                let node = next.node(id);
                let old = node.origin.stands_for.first().filter(|old| old.index() < graph.len());
                let old = old.map(|old| graph.node(*old));
                node.origin.stands_for.len() == 1
                    && old.is_some_and(|old| {
                        old.op == node.op && old.origin.backward == node.origin.backward
                    })
            };
            // In front of a cast it may be the same rounding once more.
            let takes = |id: &NodeId| live[id.index()] && was_there(*id) && !is_cast(&next, *id);
            for id in next.nodes().filter(takes) {
                let is_wide = |a: &ValueId| matches!(next.ty(*a).dtype, DType::F32 | DType::F64);
                let wide = |a: &ValueId| is_wide(a) && !is_cast(&next, a.node);
                let Some(place) = next.args(id).iter().position(wide) else { continue };
                let with = next.retrace(|t, at, node, mut args| {
                    if at == id {
                        args.vars[place] = args.vars[place].round_to(DType::BF16);
                    }
                    t.again(node, args)
                });
                let stage = pass.ensures(graph.stage());
                let with = verify(with.expect("records"), stage).expect("well formed");
                let errors = compare(&graph, &with, pass.promise()).err();
                let says = |e: &str| e.contains("where the program before did not");
                let is_refused = errors.is_some_and(|errors| says(&errors.to_string()));
                assert!(is_refused, "seed {seed} %{}, {name}\n{next}\n{}", id.index(), *with);
                added += 1;
            }
        }
        println!("{name}: {added} refused");
        assert!(added > count(200), "{name}: {added}");
    }
}

/// True if the verifier says that a rounding is gone.
fn is_missed(before: &Verified, after: &Verified, promise: Promise) -> bool {
    let errors = compare(before, after, promise).err();
    errors.is_some_and(|errors| errors.to_string().contains("nothing does so any more"))
}

/// True if a program is the same without a rounding by what is known of casts: no element of a
/// result depends on it, all that takes the rounded value rounds it the same way itself, it is
/// rounded already, or the passes that move casts make one program of the two.
fn is_equivalent(graph: &Graph, without: &Verified, cast: NodeId) -> bool {
    let stage = without.stage();
    let to = |id: NodeId| graph.node(id).attrs.dtype("to");
    let takes = |id: &NodeId| graph.args(*id).iter().any(|a| a.node == cast);
    let again = |id: NodeId| is_cast(graph, id) && to(id) == to(cast);
    !reaches_a_result(graph, cast)
        || graph.nodes().filter(takes).all(again)
        || stage == Stage::Core
            && (is_left_out(graph, stage, cast)
                || [stage, Stage::Cast].into_iter().any(|stage| {
                    canonical(&moved(graph, stage)) == canonical(&moved(without, stage))
                }))
}

/// True if elements of a result are made of those of a node, directly or not.
fn reaches_a_result(graph: &Graph, from: NodeId) -> bool {
    let mut reached = vec![false; graph.len()];
    reached[from.index()] = true;
    for id in graph.nodes() {
        let has_elements = graph.node(id).results.iter().any(|ty| ty.numel() != 0);
        reached[id.index()] |= graph.args(id).iter().any(|a| reached[a.node.index()]);
        reached[id.index()] &= has_elements;
    }
    graph.roots().any(|root| reached[root.node.index()])
}

/// What the passes that move casts make of a program; in [`Stage::Cast`], where there are no
/// kernels yet, whatever bytes that costs.
fn moved(graph: &Graph, stage: Stage) -> Verified {
    once(&Place::default(), &simple(graph, stage))
}

fn simple(graph: &Graph, stage: Stage) -> Verified {
    once(&Simplify, &verify(graph.clone(), stage).expect("well formed"))
}

/// True if `simplify` makes no more roundings for what is rounded than for what is given.
fn is_left_out(graph: &Graph, stage: Stage, cast: NodeId) -> bool {
    let given = graph.args(cast)[0];
    let roundings = |value: ValueId| {
        let t = Tracer::explicit("one value");
        let again = graph.retrace_into(&t, |t, id, node, args| {
            let results = t.again(node, args);
            if id == value.node {
                t.output("the value", results[usize::from(value.result)]);
            }
            results
        });
        again.expect("records");
        let simple = simple(&t.finish().expect("records"), stage);
        let value = simple.outputs().iter().find(|(name, _)| name == "the value");
        let mut needed = vec![false; simple.len()];
        needed[value.expect("an output").1.node.index()] = true;
        for id in simple.nodes().rev() {
            for arg in simple.args(id) {
                needed[arg.node.index()] |= needed[id.index()];
            }
        }
        simple.nodes().filter(|id| needed[id.index()] && rounds(&simple, *id)).count()
    };
    graph.port_of(given.node).is_none()
        && roundings(ValueId { node: cast, result: 0 }) <= roundings(given)
}

/// True if some result is another.
fn differs(graph: &Graph, other: &Graph, inputs: &HashMap<String, Value>) -> bool {
    let outputs = |graph| eval::graph(graph, inputs).expect("runs").outputs;
    let (wanted, found) = (outputs(graph), outputs(other));
    wanted.iter().zip(&found).any(|((_, a), (_, b))| a.first_difference(b).is_some())
}

/// True for a rounding of the program.
fn can_be_lost(graph: &Graph, id: NodeId) -> bool {
    rounds(graph, id) && graph.live()[id.index()]
}

fn rounds(graph: &Graph, id: NodeId) -> bool {
    let to = graph.node(id).attrs.dtype("to").filter(|to| is_cast(graph, id) && to.is_float());
    to.is_some_and(|to| {
        let from = graph.ty(graph.args(id)[0]).dtype;
        from.is_float() && !from.fits_in(to)
    })
}

fn is_cast(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).op.name().text(), "cast" | "round_to")
}

/// The program with one rounding taken out: what used the rounded value, behind views too, computes
/// with the wide one, and its result is rounded to the type that it had.
///
/// None if the ops that used it do not take the wide one, or if a view of it is a result.
fn without_rounding(graph: &Graph, stage: Stage, lost: NodeId) -> Option<Verified> {
    let mut wider = vec![false; graph.len()];
    let next = graph.retrace(|t, id, node, args| {
        if id == lost {
            wider[id.index()] = true;
            return args.vars[0].results();
        }
        let old: Vec<DType> = graph.args(id).iter().map(|a| graph.ty(*a).dtype).collect();
        let wide = args.vars.iter().zip(&old).find(|(v, old)| v.dtype() != **old);
        let Some(wide) = wide.map(|(v, _)| v.dtype()) else { return t.again(node, args) };
        if node.op.name().text() == "cast" {
            return args.vars[0].to(node.results[0].dtype).results();
        }
        let vars: Vec<Var<'_>> =
            args.vars.iter().map(|v| if v.dtype().is_float() { v.to(wide) } else { *v }).collect();
        let results = t.again(node, Args::grouped(&vars, &args.groups));
        if matches!(node.op.def().body, Body::Core { kernel: Lower::View(_), .. }) {
            wider[id.index()] = true;
            return results;
        }
        results.iter().zip(&node.results).map(|(v, ty)| v.to(ty.dtype)).collect()
    });
    if graph.roots().any(|root| wider[root.node.index()]) {
        return None;
    }
    Some(verify(next.ok()?, stage).expect("well formed"))
}
