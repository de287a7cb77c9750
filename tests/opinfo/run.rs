//! What our ops answer to a recorded call, on every path: interpreted, and compiled with wide vectors, with those of AVX2 and without.

use crate::calls::Call;
use crate::cases::{Arg, Argument, Case};
use crate::support;
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_codegen::{CpuDevice, CpuOptions, Vectors};
use tracecast_ir::eval::Value;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Graph, Tracer};
use tracecast_runtime::Device;

/// What came of a call.
pub(crate) enum Ran {
    /// There is no such call here, and why.
    NoCall(String),
    /// It was refused, with this message.
    Refused(String),
    /// Results, and gradients in the order of the case.
    Answered { out: Vec<Value>, grads: Vec<Value> },
}

/// The CPU with each kind of vectors.
pub(crate) fn cpus() -> Vec<(Vectors, Arc<dyn Device>)> {
    let cpu = |vectors| {
        let options = CpuOptions { threads: Some(1), vectors, ..CpuOptions::default() };
        let device: Arc<dyn Device> =
            Arc::new(CpuDevice::new(options).expect("a host that compiles"));
        (vectors, device)
    };
    Vectors::ALL.into_iter().map(cpu).collect()
}

/// Runs a call on every path.
///
/// # Panics
/// If paths differ.
pub(crate) fn run(case: &Case, cpus: &[(Vectors, Arc<dyn Device>)]) -> Ran {
    let tracer = Tracer::new("case");
    let count = match record(&tracer, case) {
        Ok(count) => count,
        Err(reason) => return Ran::NoCall(reason),
    };
    let graph = match tracer.finish() {
        Ok(graph) => graph,
        Err(error) => return Ran::Refused(error.to_string()),
    };
    let inputs = inputs(case, &graph);
    let (reference, fused) = support::lowered(graph).unwrap_or_else(|e| panic!("{}: {e}", case.id));
    let wanted = match support::expected(&reference, &inputs) {
        Ok(wanted) => wanted,
        Err(error) => return Ran::Refused(error),
    };
    for (vectors, cpu) in cpus {
        let found = support::computed(&fused, cpu.clone(), &inputs);
        let found = found.unwrap_or_else(|e| panic!("{} with {vectors}: {e}", case.id));
        let difference = support::difference(&found, &wanted);
        assert_eq!(difference, None, "{} with {vectors}, against the interpreter", case.id);
    }
    let mut out: Vec<Value> = wanted.outputs.into_iter().map(|(_, value)| value).collect();
    let grads = out.split_off(count);
    Ran::Answered { out, grads }
}

/// Records the call and its gradients; returns the number of results.
fn record(t: &Tracer, case: &Case) -> Result<usize, String> {
    let mut call = Call::new(t, case);
    let results = call.record()?;
    if t.error().is_some() {
        return Ok(results.len());
    }
    for (i, y) in results.iter().enumerate() {
        t.output(&format!("out/{i}"), *y);
    }
    if case.is_refused || case.grads.is_empty() {
        return Ok(results.len());
    }
    let weighed = results.iter().zip(&case.cotangents).enumerate().filter_map(|(i, (y, cot))| {
        let cot = t.input(&format!("cot/{i}"), cot.as_ref()?.ty.clone());
        Some(y.mul(cot, None).sum(&[], false, None))
    });
    let loss = weighed.reduce(|a, b| a + b).ok_or("nothing to differentiate")?;
    let leaf = |path: &String| {
        let found = call.leaves.iter().find(|(leaf, _)| leaf == path).map(|(_, v)| *v);
        found.ok_or_else(|| format!("no tensor `{path}`"))
    };
    let leaves = case.grads.iter().map(|(path, _)| leaf(path)).collect::<Result<Vec<_>, _>>()?;
    for (i, grad) in t.grad(loss, &leaves).into_iter().enumerate() {
        t.output(&format!("grad/{i}"), grad);
    }
    Ok(results.len())
}

/// The tensors of the call and the cotangents, by the names of their ports.
fn inputs(case: &Case, graph: &Graph) -> HashMap<String, Value> {
    let mut all = HashMap::new();
    for Argument { path, is, .. } in &case.args {
        collect(path, is, &mut all);
    }
    for (i, cot) in case.cotangents.iter().enumerate() {
        all.extend(cot.clone().map(|cot| (format!("cot/{i}"), cot)));
    }
    all.retain(|name, _| graph.ports().iter().any(|port| port.name == *name));
    all
}

fn collect(path: &str, arg: &Arg, to: &mut HashMap<String, Value>) {
    match arg {
        Arg::Tensor(value, _) => drop(to.insert(path.to_owned(), value.clone())),
        Arg::List(list) => {
            list.iter().enumerate().for_each(|(i, arg)| collect(&format!("{path}/{i}"), arg, to))
        }
        _ => {}
    }
}
