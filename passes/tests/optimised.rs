//! What the precision `optimised` promises: no rounding that `exact` does not make, none that the
//! program writes left away, no more bytes in memory, and results nearer to those of real
//! arithmetic.

mod canonical;
#[path = "../../tests/support/dice.rs"]
mod dice;
#[path = "../../tests/support/random.rs"]
mod random;

use canonical::canonical;
use dice::Dice;
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Attr, DType, Graph, TensorType, Tracer, Var, Verified};
use tracecast_passes::{PassOptions, Place, Precision, standard};

const WIDTH: usize = 64;

/// The program behind every pass, each of which is held to what it promises.
fn fused(graph: &Graph, precision: Precision) -> Verified {
    let options = PassOptions { precision, ..PassOptions::default() };
    let fused = standard(&options).run(graph.clone(), |_, _, _| ());
    fused.unwrap_or_else(|e| panic!("{precision}: {e}\n{graph}"))
}

/// What the kernels of a fused program read and write, in bytes.
fn moved(graph: &Graph) -> usize {
    let kernels = graph.nodes().filter_map(|id| match graph.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => Some(kernel),
        _ => None,
    });
    let moved = kernels.map(|kernel| {
        let read: usize = kernel.inputs.iter().map(|ty| ty.bytes().get()).sum();
        read + kernel.outputs.iter().map(|o| o.ty.bytes().get()).sum::<usize>()
    });
    moved.sum()
}

/// A random program of ops between numbers, in that dtype.
fn arithmetic(seed: u64, dtype: DType) -> Graph {
    let mut dice = Dice::new(seed);
    let t = Tracer::new("arithmetic");
    let mut pool: Vec<Var<'_>> =
        (0..3).map(|i| t.input(&format!("x{i}"), TensorType::new(dtype, [4, WIDTH]))).collect();
    for _ in 0..4 + dice.below(12) {
        let [x, y] = [0, 1].map(|_| pool[pool.len() - 1 - dice.below(pool.len().min(4))]);
        pool.push(match dice.below(12) {
            0 | 1 => x + y,
            2 => x - y,
            3 => x * y,
            4 => x.tanh(),
            5 => x.sigmoid(),
            6 => x.gelu(None),
            7 => x.relu() + 0.5,
            8 => x * 0.3,
            9 => (x * 0.1).exp(),
            10 => x.softmax(-1),
            _ => x.maximum(y),
        });
    }
    let y = *pool.last().expect("there are inputs");
    let slope = t.grad(y.sum(()), &pool[..1])[0];
    t.output("y", y);
    t.output("dx", slope);
    t.finish().expect("records")
}

fn result(graph: &Graph, numbers: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let value = |(port, numbers): (&tracecast_ir::Port, &Vec<f64>)| {
        (port.name.clone(), Value::from_f64s(port.ty.clone(), numbers).expect("as many"))
    };
    let inputs: HashMap<String, Value> = graph.ports().iter().zip(numbers).map(value).collect();
    let outputs = eval::graph(graph, &inputs).expect("runs").outputs;
    outputs.iter().map(|(_, value)| value.to_f64s()).collect()
}

/// The root of the mean squared difference, in units of the largest number but not of less than
/// 0.01; the sum of those of result and gradient.
fn error(found: &[Vec<f64>], wanted: &[Vec<f64>]) -> f64 {
    let of = |(found, wanted): (&Vec<f64>, &Vec<f64>)| {
        let largest = wanted.iter().fold(1e-2, |m: f64, x| m.max(x.abs()));
        let squares = found.iter().zip(wanted).map(|(a, b)| ((a - b) / largest).powi(2));
        (squares.sum::<f64>() / wanted.len() as f64).sqrt()
    };
    found.iter().zip(wanted).map(of).sum()
}

#[test]
fn results_are_nearer_to_real_arithmetic() {
    for low in [DType::BF16, DType::F16] {
        let (mut sums, mut nearer, mut changed) = ([0.0; 2], 0, 0);
        for seed in 0..100 {
            let mut dice = Dice::new(seed ^ 0x5eed);
            let ty = TensorType::new(low, [4, WIDTH]);
            let numbers: Vec<Vec<f64>> = (0..3)
                .map(|_| {
                    let any: Vec<f64> = (0..4 * WIDTH).map(|_| dice.unit()).collect();
                    Value::from_f64s(ty.clone(), &any).expect("as many").to_f64s()
                })
                .collect();
            let wanted = result(&fused(&arithmetic(seed, DType::F64), Precision::Exact), &numbers);
            let graph = arithmetic(seed, low);
            let errors = Precision::ALL
                .map(|precision| error(&result(&fused(&graph, precision), &numbers), &wanted));
            sums = [sums[0] + errors[0], sums[1] + errors[1]];
            nearer += usize::from(errors[1] <= errors[0]);
            changed += usize::from(errors[1] != errors[0]);
        }
        let [exact, optimised] = sums;
        assert!(optimised < exact * 0.9, "{low}: {optimised} and {exact}");
        assert!(nearer > 85 && changed > 70, "{low}: {nearer} programs nearer, {changed} changed");
    }
}

#[test]
fn no_program_reads_or_writes_more_bytes() {
    let mut fewer_roundings = 0;
    for seed in 0..300 {
        let graph = random::program(seed, 5 + seed as usize % 40);
        let [exact, optimised] = Precision::ALL.map(|precision| fused(&graph, precision));
        let (before, now) = (moved(&exact), moved(&optimised));
        assert!(now <= before, "seed {seed}: {now} bytes, not {before}\n{graph}");
        fewer_roundings += usize::from(exact.to_string() != optimised.to_string());
    }
    assert!(fewer_roundings > 30, "{fewer_roundings} programs are different");
}

#[test]
fn placing_twice_is_placing_once() {
    let options = PassOptions { precision: Precision::Optimised, ..PassOptions::default() };
    for seed in 0..100 {
        let graph = arithmetic(seed, DType::BF16);
        let once = standard(&options).up_to(Place::NAME).expect("a pass").run(graph, |_, _, _| ());
        let once = once.expect("runs");
        let place = tracecast_passes::find(Place::NAME, &options).expect("a pass");
        let twice = place.run(&once).expect("runs");
        assert_eq!(canonical(&once), canonical(&twice), "seed {seed}");
    }
}
