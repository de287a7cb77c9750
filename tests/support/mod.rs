//! What the table and property tests share: devices to compare, inputs, and running one program
//! everywhere.

#![allow(dead_code, unreachable_pub, reason = "each test uses its own part of this module")]

pub mod dice;
pub mod eager_tape;
#[cfg(target_os = "linux")]
pub mod guard;
pub mod layers;
pub mod random;

use dice::Dice;
use random::INDEX_LIMIT;
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_codegen::{CpuDevice, CpuOptions, Vectors};
use tracecast_ir::eval::{self, Outputs, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::sample::{Range, Sample};
use tracecast_ir::{DType, Graph, OpDef, Role, TensorType, Tracer, Var, Verified};
use tracecast_passes::{Autodiff, PassOptions, standard};
use tracecast_runtime::{Device, Program, Store, Tensor};

/// The CPU with 1, 2 and 8 threads, with its widest vectors, with those of AVX2, and without.
pub fn cpus() -> Vec<(String, Arc<dyn Device>)> {
    let mut all: Vec<(String, Arc<dyn Device>)> = Vec::new();
    for vectors in Vectors::ALL {
        for threads in [1, 2, 8] {
            all.push((format!("{threads} threads, {vectors} vectors"), cpu_with(threads, vectors)));
        }
    }
    all
}

/// The CPU with that many threads.
pub fn cpu(threads: usize) -> Arc<dyn Device> {
    cpu_with(threads, Vectors::default())
}

/// The CPU with that many threads and these vectors.
pub fn cpu_with(threads: usize, vectors: Vectors) -> Arc<dyn Device> {
    let options = CpuOptions { threads: Some(threads), vectors, ..CpuOptions::default() };
    guarded(CpuDevice::new(options).expect("a host that compiles"))
}

#[cfg(target_os = "linux")]
use guard::guarded;

#[cfg(not(target_os = "linux"))]
fn guarded(device: CpuDevice) -> Arc<dyn Device> {
    Arc::new(device)
}

/// Random elements for a type.
pub fn value(ty: &TensorType, range: Range, dice: &mut Dice) -> Value {
    let float = ty.dtype.is_float();
    let mut one = || match (range, float) {
        (Range::Positive, true) => dice.unit().abs() + 0.2,
        (Range::Positive | Range::NonZero, false) => 1.0 + dice.below(5) as f64,
        (Range::NonZero, true) => {
            (dice.unit().abs() + 0.2) * if dice.chance(50) { 1.0 } else { -1.0 }
        }
        (Range::Between(low, high), true) => low + (high - low) * (dice.unit() + 1.0) / 2.0,
        (Range::Between(low, high), false) => low + dice.below((high - low) as usize) as f64,
        (Range::Any, true) => dice.unit() * 2.0,
        (Range::Any, false) if ty.dtype == DType::Bool => dice.below(2) as f64,
        (Range::Any, false) => dice.below(9) as f64,
    };
    let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| one()).collect();
    Value::from_f64s(ty.clone(), &numbers).expect("a computable type")
}

/// A value for every port; ports named `index…` get numbers below [`INDEX_LIMIT`].
pub fn inputs(graph: &Graph, seed: u64) -> HashMap<String, Value> {
    let mut dice = Dice::new(seed ^ 0xabcd);
    let range = |name: &str| {
        if name.starts_with("index") { Range::Between(0.0, INDEX_LIMIT as f64) } else { Range::Any }
    };
    graph
        .ports()
        .iter()
        .map(|p| (p.name.clone(), value(&p.ty, range(&p.name), &mut dice)))
        .collect()
}

/// Records an op on its sample: its results, and the gradients of the sum of squares of the first
/// float among them that `takes` accepts.
#[track_caller]
pub fn sampled<'t>(
    t: &'t Tracer,
    op: &'static OpDef,
    sample: &Sample,
    takes: impl Fn(Var<'t>) -> bool,
) {
    let args = sample.inputs(t);
    let wrt: Vec<_> = args.vars.iter().copied().filter(|v| v.dtype().is_float()).collect();
    let results = t.apply(op, args, sample.attrs.clone());
    for (i, y) in results.iter().enumerate() {
        t.output(&format!("y{i}"), *y);
    }
    let float = results.iter().copied().find(|y| y.dtype().is_float() && takes(*y));
    if let Some(y) = float.filter(|_| !wrt.is_empty()) {
        let loss = y.mul(y).sum(().dtype(DType::F32));
        for (i, g) in t.grad(loss, &wrt).into_iter().enumerate() {
            t.output(&format!("g{i}"), g);
        }
    }
}

/// The program after differentiation, which still means what it meant, and as kernels.
pub fn lowered(graph: Graph) -> Result<(Verified, Verified), String> {
    let mut differentiated = None;
    let fused = standard(&PassOptions::default())
        .run(graph, |pass, graph, _| {
            if pass == Autodiff::NAME {
                differentiated = Some(graph.clone());
            }
        })
        .map_err(|e| e.to_string())?;
    Ok((differentiated.expect("a pass of the pipeline"), fused))
}

/// What the interpreter says.
pub fn expected(graph: &Graph, inputs: &HashMap<String, Value>) -> Result<Outputs, String> {
    eval::graph(graph, inputs).map_err(|e| e.to_string())
}

/// What a device computes.
pub fn computed(
    fused: &Verified,
    device: Arc<dyn Device>,
    inputs: &HashMap<String, Value>,
) -> Result<Outputs, String> {
    let executable =
        Program::plan(fused).and_then(|p| p.load(device)).map_err(|e| e.to_string())?;
    let mut store = Store::new();
    let mut given: Vec<(&str, Tensor)> = Vec::new();
    for port in fused.ports() {
        let value = &inputs[&port.name];
        let tensor =
            Tensor::from_bytes(value.ty.clone(), value.bytes.clone()).map_err(|e| e.to_string())?;
        if port.role == Role::Input {
            given.push((&port.name, tensor));
        } else {
            store.insert(&port.name, tensor);
        }
    }
    let given: Vec<(&str, &Tensor)> = given.iter().map(|(n, t)| (*n, t)).collect();
    let out = executable.run(&mut store, &given).map_err(|e| e.to_string())?;
    let outputs = out.iter().map(|(n, t)| (n.to_owned(), t.value().clone())).collect();
    let mut updates = Vec::new();
    for (port, _) in fused.updates() {
        let name = &fused.ports()[*port].name;
        updates.push((name.clone(), store.get(name).map_err(|e| e.to_string())?.value().clone()));
    }
    Ok(Outputs { outputs, updates })
}

/// For each device that fails or computes something else: what `case` differs by there.
pub fn differences(
    case: &str,
    devices: &[(String, Arc<dyn Device>)],
    (fused, inputs): (&Verified, &HashMap<String, Value>),
    wanted: &Outputs,
) -> Vec<String> {
    let on = |(name, device): &(String, Arc<dyn Device>)| {
        let why = match computed(fused, device.clone(), inputs) {
            Ok(found) => difference(&found, wanted)?,
            Err(why) => why,
        };
        Some(format!("{case} on {name}: {why}"))
    };
    devices.iter().filter_map(on).collect()
}

/// The first difference between two runs, any two NaNs being equal.
pub fn difference(found: &Outputs, wanted: &Outputs) -> Option<String> {
    let all = |o: &Outputs| -> Vec<(String, Value)> {
        o.outputs.iter().chain(&o.updates).cloned().collect()
    };
    let (found, wanted) = (all(found), all(wanted));
    if found.len() != wanted.len() {
        return Some(format!("{} results, expected {}", found.len(), wanted.len()));
    }
    found.iter().zip(&wanted).find_map(|((name, a), (_, b))| {
        if a.ty != b.ty {
            return Some(format!("{name} is {}, expected {}", a.ty, b.ty));
        }
        let at = a.first_difference(b)?;
        Some(format!("{name}[{at}] is {:?}, expected {:?}", a.to_f64s()[at], b.to_f64s()[at]))
    })
}
