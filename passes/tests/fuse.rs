//! Fused programs mean what the ops meant, bit by bit.

#[path = "../../tests/support/random.rs"]
mod random;

use random::{Dice, INDEX_LIMIT};
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::{DType, Graph};
use tracecast_passes::{PassOptions, standard};

fn inputs(graph: &Graph, seed: u64) -> HashMap<String, Value> {
    let mut dice = Dice::new(seed ^ 0xabcd);
    let make = |ty: &tracecast_ir::TensorType, name: &str, dice: &mut Dice| {
        let numbers: Vec<f64> = (0..ty.numel())
            .map(|_| match ty.dtype {
                _ if name.starts_with("index") => dice.below(INDEX_LIMIT) as f64,
                d if d.is_float() => dice.unit() * 2.0,
                DType::Bool => dice.below(2) as f64,
                _ => dice.below(9) as f64,
            })
            .collect();
        Value::from_f64s(ty.clone(), &numbers).unwrap()
    };
    graph.ports().iter().map(|p| (p.name.clone(), make(&p.ty, &p.name, &mut dice))).collect()
}

fn same(a: &Value, b: &Value) -> bool {
    a.ty == b.ty && (a.bytes == b.bytes || a.to_f64s().iter().zip(b.to_f64s()).all(|(x, y)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()))
}

#[test]
fn random_programs_keep_their_meaning() {
    let count: u64 = std::env::var("N").ok().and_then(|v| v.parse().ok()).unwrap_or(200);
    let first: u64 = std::env::var("FIRST").ok().and_then(|v| v.parse().ok()).unwrap_or(0);
    let mut failed = 0;
    for seed in first..first + count {
        let graph = random::program(seed, 12);
        let inputs = inputs(&graph, seed);
        let mut reference = None;
        let mut bad: Option<String> = None;
        let result = standard(&PassOptions::default()).run(graph, |pass, graph, _| {
            if matches!(pass, "trace" | "autocast") || bad.is_some() {
                return;
            }
            match (eval::graph(graph, &inputs), &reference) {
                (Ok(out), None) => reference = Some(out),
                (Ok(out), Some(want)) => {
                    for ((name, a), (_, b)) in out.outputs.iter().zip(&want.outputs) {
                        if !same(a, b) {
                            bad = Some(format!("after {pass}: {name} differs\n{:?}\n{:?}", &a.to_f64s()[..a.ty.numel().min(8)], &b.to_f64s()[..b.ty.numel().min(8)]));
                        }
                    }
                }
                (Err(e), _) => bad = Some(format!("after {pass}: {e}")),
            }
        });
        if let Err(e) = result {
            bad = Some(e.to_string());
        }
        if let Some(message) = bad {
            failed += 1;
            eprintln!("seed {seed}: {message}");
            if failed > 8 { break; }
        }
    }
    assert_eq!(failed, 0);
}
