//! Runs with wrong inputs, wrong state and data without meaning; and runs of one program by several
//! threads.

use crate::outcome::{caught, devices};
use crate::support;
use crate::support::dice::Dice;
use crate::support::random::program;
use std::sync::Arc;
use tracecast_ir::text::{self, ParseOptions};
use tracecast_ir::{DType, Graph, Role, TensorType};
use tracecast_runtime::{Device, Executable, Outputs, Program, Store, Tensor};

/// The graph of a text, whose lines come from `step.tc`.
pub(crate) fn graph(text: &str) -> Graph {
    let options = ParseOptions { file: Some("step.tc".to_owned()), ..ParseOptions::default() };
    text::parse_with(text, &options).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub(crate) fn load(graph: &Graph, device: Arc<dyn Device>) -> Executable {
    let (_, fused) = support::lowered(graph.clone()).unwrap();
    Program::plan(&fused).and_then(|p| p.load(device)).unwrap()
}

/// Names and current values.
pub(crate) fn contents(store: &Store) -> Vec<(String, Tensor)> {
    store.iter().map(|entry| entry.map(|(name, value)| (name.to_owned(), value)).unwrap()).collect()
}

/// Values for the ports of a graph: those given, and those that live in the store.
pub(crate) fn given(graph: &Graph, seed: u64) -> (Vec<(String, Tensor)>, Store) {
    let mut values = support::inputs(graph, seed);
    let (mut inputs, mut store) = (Vec::new(), Store::new());
    for port in graph.ports() {
        let value = Tensor::from(values.remove(&port.name).unwrap());
        match port.role {
            Role::Input => inputs.push((port.name.clone(), value)),
            _ => store.insert(&port.name, value),
        }
    }
    (inputs, store)
}

pub(crate) fn run(
    executable: &Executable,
    store: &mut Store,
    inputs: &[(String, Tensor)],
) -> tracecast_runtime::Result<Outputs> {
    let inputs: Vec<(&str, &Tensor)> =
        inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
    executable.run(store, &inputs)
}

/// A tensor of another type.
fn another(dice: &mut Dice, ty: &TensorType) -> Tensor {
    let mut other = ty.clone();
    while other == *ty {
        let mut sizes: Vec<usize> = ty.shape.numbers().to_vec();
        match dice.below(4) {
            0 => other.dtype = dice.pick(&DType::COMPUTABLE),
            1 => sizes.insert(dice.below(sizes.len() + 1), dice.pick(&[0, 1, 2])),
            2 if !sizes.is_empty() => drop(sizes.remove(dice.below(sizes.len()))),
            _ if !sizes.is_empty() => {
                let at = dice.below(sizes.len());
                sizes[at] = dice.pick(&[0, 1, sizes[at] + 1]);
            }
            _ => {}
        }
        other = TensorType::new(other.dtype, &sizes[..]);
    }
    Tensor::zeros(other).unwrap()
}

/// Breaks one thing about a run and says which name the error is to have.
fn broken(
    dice: &mut Dice,
    inputs: &mut Vec<(String, Tensor)>,
    store: &mut Store,
) -> Option<String> {
    let names: Vec<String> = store.names().map(str::to_owned).collect();
    match dice.below(7) {
        0 if !inputs.is_empty() => Some(inputs.remove(dice.below(inputs.len())).0),
        1 if !inputs.is_empty() => {
            let at = dice.below(inputs.len());
            inputs[at].1 = another(dice, inputs[at].1.ty());
            Some(inputs[at].0.clone())
        }
        2 => {
            let name = ["", "x", "é\"\\", "y0"][dice.below(4)];
            inputs.push((name.to_owned(), Tensor::scalar(1f32)));
            Some(name.to_owned())
        }
        3 if !inputs.is_empty() => {
            inputs.push(inputs[dice.below(inputs.len())].clone());
            inputs.last().map(|(name, _)| name.clone())
        }
        4 if !names.is_empty() => {
            let name = &names[dice.below(names.len())];
            inputs.push((name.clone(), store.get(name).unwrap()));
            Some(name.clone())
        }
        5 if !names.is_empty() => {
            let name = &names[dice.below(names.len())];
            store.remove(name).unwrap();
            Some(name.clone())
        }
        6 if !names.is_empty() => {
            let name = &names[dice.below(names.len())];
            let other = another(dice, store.ty(name).unwrap());
            store.insert(name, other);
            Some(name.clone())
        }
        _ => None,
    }
}

/// One random program, run with one thing wrong, then as it should be: the error names the thing,
/// the state stays, and the run that follows is as if nothing had happened.
pub(crate) fn wrong_run(seed: u64, device: &Arc<dyn Device>) -> Result<bool, String> {
    let graph = program(seed, 8);
    let executable = load(&graph, device.clone()).strict(true);
    let needed: Vec<String> = executable.program().ports().iter().map(|p| p.name.clone()).collect();
    let dice = &mut Dice::new(seed);
    let (inputs, mut store) = given(&graph, seed);
    let (_, mut fresh) = given(&graph, seed);
    let expected = run(&executable, &mut fresh, &inputs).map_err(|e| e.to_string())?;
    let (mut wrong, before) = (inputs.clone(), contents(&store));
    let Some(name) = broken(dice, &mut wrong, &mut store) else { return Ok(false) };
    let kept = contents(&store);
    let result = caught(|| run(&executable, &mut store, &wrong))?;
    let is_state = before.iter().any(|(n, _)| *n == name) && wrong.len() == inputs.len();
    match result {
        Err(error) if error.to_string().contains(&format!("`{name}`")) => {}
        Err(error) => return Err(format!("expected an error about `{name}`, found {error}")),
        // State that no result needs may be anything.
        Ok(_) if is_state && needed.contains(&name) => {}
        Ok(_) => return Err(format!("no error about `{name}`")),
    }
    if contents(&store) != kept {
        return Err(format!("an error about `{name}` changed the state"));
    }
    for (name, value) in before {
        store.insert(&name, value);
    }
    let found = run(&executable, &mut store, &inputs).map_err(|e| e.to_string())?;
    let same = found
        .iter()
        .zip(expected.iter())
        .all(|((_, a), (_, b))| a.value().first_difference(b.value()).is_none());
    if same { Ok(true) } else { Err("the run after an error gives something else".to_owned()) }
}

/// A training step with an embedding, a gather, a scatter and a loss over labels: each can meet
/// data without meaning, and each has a line.
const STEP: &str = "
graph @step(%token: i64[4], %place: i32[4, 3], %label: i64[4], %by: i64[4], %table: f32[5, 3] param, %sums: f32[6, 3] state, %count: i64[] state) {
  %0 = embedding %table, %token : f32[4, 3]
  %1 = gather %0, %place {dim = 0} : f32[4, 3]
  %2 = cross_entropy_loss %1, %label : f32[]
  %3 = grad %2, [%table] : f32[5, 3]
  %4 = mul %3 {scalar = 0.5} : f32[5, 3]
  %5 = sub %table, %4 : f32[5, 3]
  %6 = scatter_add %sums, %place, %0 {dim = 0} : f32[6, 3]
  %7 = add %count {scalar = 1.0} : i64[]
  %8 = div_trunc %label, %by : i64[4]
  update %table = %5
  update %sums = %6
  update %count = %7
  return loss = %2, part = %8
}
";

/// Data without meaning: the input, a bad element, and what the error says: op, cause, line.
const MEANINGLESS: [(&str, f64, &str, &str, &str); 9] = [
    ("token", 5.0, "embedding", "index out of range: expected 0..5, found 5", "step.tc:3"),
    ("token", -1.0, "embedding", "index out of range: expected 0..5, found -1", "step.tc:3"),
    ("token", 9.3e18, "embedding", "index out of range: expected 0..5", "step.tc:3"),
    ("place", 6.0, "gather", "index out of range: expected 0..4", "step.tc:4"),
    ("place", -2147483648.0, "gather", "expected 0..4, found -2147483648", "step.tc:4"),
    ("label", 3.0, "cross_entropy_loss", "out of range: expected 0..3, found 3", "step.tc:5"),
    ("label", -1.0, "cross_entropy_loss", "out of range", "step.tc:5"),
    ("label", -9.3e18, "cross_entropy_loss", "out of range", "step.tc:5"),
    ("by", 0.0, "div_trunc", "integer division by zero", "step.tc:11"),
];

#[test]
fn data_without_meaning_names_op_line_and_cause() {
    let graph = graph(STEP);
    for device in devices() {
        let executable = load(&graph, device.clone());
        let (inputs, mut store) = given(&graph, 7);
        let good: Vec<(String, Tensor)> = inputs
            .iter()
            .map(|(name, t)| {
                let numbers: Vec<f64> =
                    (0..t.ty().numel().get()).map(|i| 1.0 + (i % 2) as f64).collect();
                (name.clone(), Tensor::from_f64s(t.ty().clone(), &numbers).unwrap())
            })
            .collect();
        for (name, number, op, cause, line) in MEANINGLESS {
            for at in [0, 2, 3] {
                let mut bad = good.clone();
                let (_, tensor) = bad.iter_mut().find(|(n, _)| n == name).unwrap();
                let mut numbers = tensor.to_f64s();
                numbers[at] = number;
                *tensor = Tensor::from_f64s(tensor.ty().clone(), &numbers).unwrap();
                let before = contents(&store);
                let error = run(&executable, &mut store, &bad).unwrap_err().to_string();
                let says = error.starts_with(&format!("{op}: "))
                    && error.contains(cause)
                    && error.contains(line);
                assert!(says, "{} with {name}[{at}] = {number}: {error}", device.name());
                assert!(
                    contents(&store) == before,
                    "{} with {name}[{at}] = {number} changed the state",
                    device.name()
                );
            }
            run(&executable, &mut store, &good).unwrap();
        }
        assert_eq!(
            store.get("count").unwrap().to_f64s()[0] as usize,
            before_count(7) + MEANINGLESS.len()
        );
    }
}

/// What the counter starts with.
fn before_count(seed: u64) -> usize {
    given(&graph(STEP), seed).1.get("count").unwrap().to_f64s()[0] as usize
}

/// The losses and the last state of a few steps on a store of its own.
fn trained(
    executable: &Executable,
    graph: &Graph,
    seed: u64,
) -> (Vec<Tensor>, Vec<(String, Tensor)>) {
    let (mut inputs, mut store) = given(graph, seed);
    for (name, tensor) in &mut inputs {
        if ["token", "place", "label"].contains(&name.as_str()) {
            *tensor = Tensor::full(tensor.ty().clone(), (seed % 3) as f64).unwrap();
        }
    }
    let mut results = Vec::new();
    let mut bad = inputs.clone();
    for (_, tensor) in bad.iter_mut().filter(|(name, _)| name == "token") {
        *tensor = Tensor::full(tensor.ty().clone(), 99.0).unwrap();
    }
    for _ in 0..10 {
        if bad != inputs {
            run(executable, &mut store, &bad).unwrap_err();
        }
        let out = run(executable, &mut store, &inputs).unwrap();
        results.extend(out.iter().map(|(_, t)| t.clone()));
    }
    (results, contents(&store))
}

#[test]
fn threads_with_stores_of_their_own_do_not_disturb_each_other() {
    let text = STEP.replace("%8 = div_trunc %label, %by : i64[4]", "%8 = add %label, %by : i64[4]");
    let graphs = [graph(&text), program(11, 12), program(29, 20)];
    for device in devices() {
        for graph in &graphs {
            let executable = load(graph, device.clone());
            let alone: Vec<_> = (0..8).map(|seed| trained(&executable, graph, seed)).collect();
            let together: Vec<_> = std::thread::scope(|scope| {
                let start = |seed| {
                    scope.spawn({
                        let executable = &executable;
                        move || trained(executable, graph, seed)
                    })
                };
                let threads: Vec<_> = (0..8).map(start).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            for (seed, (alone, together)) in alone.iter().zip(&together).enumerate() {
                assert!(
                    bits(alone) == bits(together),
                    "{} differs for seed {seed} on {device:?}",
                    graph.name()
                );
            }
        }
    }
}

fn bits((results, state): &(Vec<Tensor>, Vec<(String, Tensor)>)) -> Vec<&[u8]> {
    results.iter().chain(state.iter().map(|(_, t)| t)).map(Tensor::bytes).collect()
}

#[test]
fn a_store_may_change_devices_between_runs() {
    let graph = program(29, 20);
    let all: Vec<Executable> = devices().into_iter().map(|d| load(&graph, d)).collect();
    let (inputs, mut store) = given(&graph, 3);
    let (_, mut other) = given(&graph, 3);
    for step in 0..9 {
        let found = run(&all[step % 3], &mut store, &inputs).unwrap();
        let wanted = run(&all[2], &mut other, &inputs).unwrap();
        for ((name, a), (_, b)) in found.iter().zip(wanted.iter()) {
            assert_eq!(a.value().first_difference(b.value()), None, "{name} of step {step}");
        }
    }
}
