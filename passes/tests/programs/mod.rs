//! The random programs that properties are tried on, passes run on them, and numbers for them.
//!
//! `TRACECAST_RANDOM_PROGRAMS` sets how many programs there are, `TRACECAST_RANDOM_SEED` which is
//! the first.

use super::dice::Dice;
use super::random::INDEX_LIMIT;
use std::collections::HashMap;
use std::ops::Range;
use tracecast_ir::eval::Value;
use tracecast_ir::{DType, Graph, Stage, TensorType, Verified, verify};
use tracecast_passes::{Pass, PassOptions, Pipeline, find, standard};

pub(crate) fn count(default: u64) -> u64 {
    let set = std::env::var("TRACECAST_RANDOM_PROGRAMS").ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// The seeds of the programs that a property is tried on: from `TRACECAST_RANDOM_SEED` on, as many
/// as `TRACECAST_RANDOM_PROGRAMS`.
pub(crate) fn seeds(default: u64) -> Range<u64> {
    let set = std::env::var("TRACECAST_RANDOM_SEED").ok();
    let first = set.and_then(|n| n.parse().ok()).unwrap_or(0);
    first..first + count(default)
}

pub(crate) fn up_to(last: &str) -> Pipeline {
    standard(&PassOptions::default()).up_to(last).expect("a standard pass")
}

pub(crate) fn run(pipeline: &Pipeline, stage: Stage, graph: Graph) -> Verified {
    pipeline.run_from(stage, graph, |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn pass(name: &str) -> Box<dyn Pass> {
    find(name, &PassOptions::default()).expect("a standard pass")
}

pub(crate) fn once(pass: &dyn Pass, graph: &Verified) -> Verified {
    let next = pass.run(graph).unwrap_or_else(|e| panic!("{}: {e}", pass.name()));
    verify(next, pass.ensures(graph.stage())).unwrap_or_else(|e| panic!("{}: {e}", pass.name()))
}

pub(crate) fn inputs(graph: &Graph, seed: u64) -> HashMap<String, Value> {
    let mut dice = Dice::new(seed ^ 0xabcd);
    let make = |ty: &TensorType, name: &str, dice: &mut Dice| {
        let number = |dice: &mut Dice| match ty.dtype {
            _ if name.starts_with("index") => dice.below(INDEX_LIMIT) as f64,
            d if d.is_float() => dice.unit() * 2.0,
            DType::Bool => dice.below(2) as f64,
            _ => dice.below(9) as f64,
        };
        let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| number(dice)).collect();
        Value::from_f64s(ty.clone(), &numbers).expect("a computable type")
    };
    graph.ports().iter().map(|p| (p.name.clone(), make(&p.ty, &p.name, &mut dice))).collect()
}
