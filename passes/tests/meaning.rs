//! Random programs mean after every pass what they meant before, bit by bit.

#[path = "../../tests/support/dice.rs"]
mod dice;
#[path = "../../tests/support/random.rs"]
mod random;

use dice::Dice;
use random::INDEX_LIMIT;
use std::collections::HashMap;
use tracecast_ir::eval::{self, Outputs, Value};
use tracecast_ir::{DType, Graph};
use tracecast_passes::{Autocast, PassOptions, Pipeline, standard};

fn inputs(graph: &Graph, seed: u64) -> HashMap<String, Value> {
    let mut dice = Dice::new(seed ^ 0xabcd);
    let make = |ty: &tracecast_ir::TensorType, name: &str, dice: &mut Dice| {
        let numbers: Vec<f64> = (0..ty.numel().get())
            .map(|_| match ty.dtype {
                _ if name.starts_with("index") => dice.below(INDEX_LIMIT) as f64,
                d if d.is_float() => dice.unit() * 2.0,
                DType::Bool => dice.below(2) as f64,
                _ => dice.below(9) as f64,
            })
            .collect();
        Value::from_f64s(ty.clone(), &numbers).expect("a computable type")
    };
    graph.ports().iter().map(|p| (p.name.clone(), make(&p.ty, &p.name, &mut dice))).collect()
}

/// The first difference between two runs, any two NaNs being equal.
fn difference(found: &Outputs, wanted: &Outputs) -> Option<String> {
    let all = |o: &Outputs| -> Vec<(String, Value)> {
        o.outputs.iter().chain(&o.updates).cloned().collect()
    };
    all(found).iter().zip(&all(wanted)).find_map(|((name, a), (_, b))| {
        let at = a.first_difference(b)?;
        Some(format!("{name}[{at}] is {:?}, expected {:?}", a.to_f64s()[at], b.to_f64s()[at]))
    })
}

/// Compares the meaning after every pass from differentiation on with that after differentiation.
fn check(seed: u64) -> Result<(), String> {
    let graph = random::program(seed, 12);
    let inputs = inputs(&graph, seed);
    let mut reference = None;
    let mut failure = None;
    let result = standard(&PassOptions::default()).run(graph, |pass, graph, _| {
        if failure.is_some() || matches!(pass, Pipeline::TRACED | Autocast::NAME) {
            return;
        }
        match (eval::graph(graph, &inputs), &reference) {
            (Ok(out), None) => reference = Some(out),
            (Ok(out), Some(wanted)) => {
                failure = difference(&out, wanted).map(|d| format!("after {pass}: {d}"))
            }
            (Err(e), _) => failure = Some(format!("after {pass}: {e}")),
        }
    });
    result.map_err(|e| e.to_string())?;
    failure.map_or(Ok(()), Err)
}

#[test]
fn passes_keep_the_meaning_of_random_programs() {
    let failures: Vec<String> = (0..500)
        .filter_map(|seed| check(seed).err().map(|e| format!("seed {seed}: {e}")))
        .take(10)
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
