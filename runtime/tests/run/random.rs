//! Random programs: planned and run step by step, they give what the interpreter gives for the
//! graph, and a failed step changes nothing.

use crate::support::{Map, launch, load, vector};
use std::collections::HashMap;
use tracecast_ir::eval::{self, EvalError, Value};
use tracecast_ir::kernel::{Kernel, ScalarOp};
use tracecast_ir::{DType, Role, Stage, TensorType, Tracer, Var, Verified, verify};
use tracecast_runtime::{Error, Executable, Store, Tensor};

/// A small generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

fn program(random: &mut Random) -> Verified {
    let n = 1 + random.below(3);
    let t = Tracer::explicit("random");
    let mut values: Vec<Var<'_>> =
        (0..1 + random.below(3)).map(|i| t.input(&format!("x{i}"), vector(n))).collect();
    let states: Vec<Var<'_>> =
        (0..random.below(6)).map(|i| t.state(&format!("s{i}"), vector(n))).collect();
    values.extend(&states);
    let flag = t.input("skip", TensorType::scalar(DType::F32));
    for _ in 0..random.below(12) {
        let recent = values.len().min(5);
        let mut pick = || {
            if random.chance(70) {
                values[values.len() - 1 - random.below(recent)]
            } else {
                values[random.below(values.len())]
            }
        };
        let (mut a, b) = (pick(), pick());
        if !states.is_empty() && random.chance(40) {
            a = states[random.below(states.len())];
        }
        let kernel = kernel(random, n);
        let mut inputs = vec![a, b];
        inputs.extend(kernel.when.map(|_| flag));
        values.extend(launch(&t, kernel, &inputs));
    }
    for state in states.iter().enumerate().filter_map(|(i, s)| (i % 4 != 3).then_some(s)) {
        let recent = values.len().min(6);
        let next = if random.chance(80) {
            values[values.len() - 1 - random.below(recent)]
        } else {
            values[random.below(values.len())]
        };
        t.update(*state, next);
    }
    for i in 0..random.below(4) {
        t.output(&format!("y{i}"), values[random.below(values.len())]);
    }
    verify(t.finish().unwrap(), Stage::Fused).unwrap()
}

fn kernel(random: &mut Random, n: usize) -> Kernel {
    let update = random.chance(50).then_some(0);
    let map = Map::new("map", n, 2);
    if random.chance(20) {
        return map.output(Some(0), |b, v| b.binary(ScalarOp::Sub, v[0], v[1])).when().build();
    }
    let scale = [0.5, 0.25, -0.5][random.below(3)];
    let mut map = map.output(update, |b, v| {
        let by = b.constant(b.ty(v[0]), scale);
        let half = b.binary(ScalarOp::Mul, v[1], by);
        b.binary(ScalarOp::Add, v[0], half)
    });
    if random.chance(30) {
        map = map.output(None, |b, v| b.binary(ScalarOp::Max, v[0], v[1]));
    }
    if random.chance(15) { map.checked().build() } else { map.build() }
}

/// Runs one step on both sides; afterwards the state agrees bit by bit.
fn step(
    program: &Verified,
    executable: &Executable,
    store: &mut Store,
    values: &mut HashMap<String, Value>,
) -> bool {
    let tensors: Vec<(String, Tensor)> = program
        .ports()
        .iter()
        .filter(|p| p.role == Role::Input)
        .map(|p| (p.name.clone(), Tensor::from(values[&p.name].clone())))
        .collect();
    let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let want = eval::graph(program, values);
    let found = executable.run(store, &inputs);
    let failed = match (want, found) {
        (Ok(want), Ok(found)) => {
            for ((name, want), (_, found)) in want.outputs.iter().zip(found.iter()) {
                assert_eq!(
                    want.first_difference(found.value()),
                    None,
                    "{name}\n{}",
                    executable.program()
                );
            }
            values.extend(want.updates);
            false
        }
        (Err(EvalError::Data(_)), Err(Error::Data { .. })) => true,
        (want, found) => panic!("{want:?} {found:?}"),
    };
    for (name, current) in store.iter().map(Result::unwrap) {
        let same = values[name].first_difference(current.value()).is_none();
        assert!(
            same,
            "{name} is {current}, expected {:?}\n{}",
            values[name].to_f64s(),
            executable.program()
        );
    }
    failed
}

#[test]
fn planned_programs_do_what_their_graphs_mean() {
    let (mut failures, mut in_place, mut copies) = (0, 0, 0);
    for seed in 0..600 {
        let mut random = Random(seed);
        let graph = program(&mut random);
        for infallible in [true, false] {
            let executable = load(&graph, infallible);
            copies += executable.program().copies();
            in_place += executable.program().to_string().matches("<>state").count();
            let mut values: HashMap<String, Value> = HashMap::new();
            let mut store = Store::new();
            for port in graph.ports() {
                let numbers: Vec<f64> =
                    (0..port.ty.numel().get()).map(|_| random.below(100) as f64).collect();
                let value = Value::from_f64s(port.ty.clone(), &numbers).unwrap();
                if port.role != Role::Input && graph_needs(&graph, &port.name) {
                    store.insert(&port.name, value.clone().into());
                }
                values.insert(port.name.clone(), value);
            }
            for _ in 0..4 {
                for port in graph.ports().iter().filter(|p| p.role == Role::Input) {
                    let top = if random.chance(20) { 3000 } else { 100 };
                    let count = port.ty.numel().get();
                    let numbers: Vec<f64> = match port.name.as_str() {
                        "skip" => vec![f64::from(random.below(2) as u32)],
                        _ => (0..count).map(|_| random.below(top) as f64).collect(),
                    };
                    values.insert(
                        port.name.clone(),
                        Value::from_f64s(port.ty.clone(), &numbers).unwrap(),
                    );
                }
                failures += usize::from(step(&graph, &executable, &mut store, &mut values));
            }
        }
    }
    assert!(failures > 50 && in_place > 100 && copies > 500, "{failures} {in_place} {copies}");
}

/// State that no part of the program needs may be missing from the store.
fn graph_needs(graph: &Verified, name: &str) -> bool {
    let Some(port) = graph.ports().iter().position(|p| p.name == name) else { return false };
    let node = graph.ports()[port].node;
    graph.updates().iter().any(|(p, _)| *p == port)
        || graph.roots().any(|v| v.node == node)
        || graph.nodes().any(|id| graph.args(id).iter().any(|v| v.node == node))
}
