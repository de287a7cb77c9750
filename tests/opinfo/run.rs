//! What our ops answer to a recorded call, interpreted and compiled. Calls of one signature share
//! one compiled program.

use crate::arguments::Arguments;
use crate::calls;
use crate::cases::{Arg, Argument, Case};
use crate::layers;
use crate::support;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tracecast_codegen::{CpuDevice, CpuOptions, Vectors};
use tracecast_ir::eval::{Outputs, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{Graph, Role, Tracer, Var, Verified};
use tracecast_runtime::{Device, Executable, Program, Store, Tensor};

/// What came of a call.
pub(crate) enum Ran {
    /// There is no such call here, and why.
    NoCall(String),
    /// It was refused, with this message.
    Refused(String),
    /// Our paths differ, or one of them panicked.
    Broken(String),
    /// Results, and gradients in the order of the case.
    Answered { out: Vec<Value>, grads: Vec<Value> },
}

/// Runs calls, and keeps their programs.
pub(crate) struct Runner {
    cpus: Vec<(Vectors, Arc<dyn Device>)>,
    /// By signature: the text of what was recorded.
    programs: HashMap<String, Result<Made, String>>,
    calls: usize,
}

/// A program of a signature.
struct Made {
    reference: Verified,
    fused: Verified,
    /// For each kind of vectors that it was asked for.
    loaded: HashMap<usize, Executable>,
}

impl Runner {
    pub(crate) fn new() -> Self {
        let cpu = |vectors| {
            let options = CpuOptions { threads: Some(1), vectors, ..CpuOptions::default() };
            let device: Arc<dyn Device> =
                Arc::new(CpuDevice::new(options).expect("a host that compiles"));
            (vectors, device)
        };
        let cpus = Vectors::ALL.into_iter().map(cpu).collect();
        Runner { cpus, programs: HashMap::new(), calls: 0 }
    }

    /// How many programs were compiled.
    pub(crate) fn programs(&self) -> usize {
        self.programs.values().filter(|made| made.is_ok()).count()
    }

    /// Runs a recorded call.
    pub(crate) fn run_recorded(&mut self, case: &Case, graph: Graph, count: usize) -> Ran {
        let run = catch_unwind(AssertUnwindSafe(|| self.answer(case, graph, count)));
        run.unwrap_or_else(|_| Ran::Broken("panicked".to_owned()))
    }

    /// Runs a call in the interpreter and compiled: calls of special numbers with every kind of
    /// vectors, others with one after the other.
    pub(crate) fn run(&mut self, case: &Case) -> Ran {
        let run = catch_unwind(AssertUnwindSafe(|| self.try_run(case)));
        run.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Ran::Broken(format!("panicked: {}", text.unwrap_or_default()))
        })
    }

    fn try_run(&mut self, case: &Case) -> Ran {
        match recorded(case) {
            Ok((graph, count)) => self.answer(case, graph, count),
            Err(ran) => ran,
        }
    }

    fn answer(&mut self, case: &Case, graph: Graph, count: usize) -> Ran {
        let inputs = inputs(case, &graph);
        let made = self.programs.entry(graph.to_string()).or_insert_with(|| {
            let lowered = support::lowered(graph);
            lowered.map(|(reference, fused)| Made { reference, fused, loaded: HashMap::new() })
        });
        let made = match made {
            Ok(made) => made,
            Err(error) => return Ran::Refused(error.clone()),
        };
        let mut wanted = match support::expected(&made.reference, &inputs) {
            Ok(wanted) => wanted,
            Err(error) => return Ran::Refused(error),
        };
        // The generator of a layer that draws.
        wanted.updates.clear();
        self.calls += 1;
        for (kind, (vectors, cpu)) in self.cpus.iter().enumerate() {
            if !case.id.contains("/special/") && kind != self.calls % self.cpus.len() {
                continue;
            }
            let wrong = match made.computed(kind, cpu, &inputs) {
                Err(error) => Some(error),
                Ok(found) => support::difference(&found, &wanted),
            };
            if let Some(wrong) = wrong {
                return Ran::Broken(format!("{vectors}, against the interpreter: {wrong}"));
            }
        }
        let mut out: Vec<Value> = wanted.outputs.into_iter().map(|(_, value)| value).collect();
        let grads = out.split_off(count);
        Ran::Answered { out, grads }
    }
}

impl Made {
    /// What a device computes, which loads the program if it has not.
    fn computed(
        &mut self,
        kind: usize,
        device: &Arc<dyn Device>,
        inputs: &HashMap<String, Value>,
    ) -> Result<Outputs, String> {
        let executable = match self.loaded.entry(kind) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(free) => {
                let program = Program::plan(&self.fused).map_err(|e| e.to_string())?;
                free.insert(program.load(device.clone()).map_err(|e| e.to_string())?)
            }
        };
        let tensor = |value: &Value| Tensor::from_bytes(value.ty.clone(), value.bytes.clone());
        let (mut given, mut store): (Vec<(&str, Tensor)>, Store) = Default::default();
        for port in self.fused.ports() {
            let value = tensor(&inputs[&port.name]).map_err(|e| e.to_string())?;
            match port.role {
                Role::Input => given.push((&port.name, value)),
                _ => store.insert(&port.name, value),
            }
        }
        let given: Vec<(&str, &Tensor)> = given.iter().map(|(name, t)| (*name, t)).collect();
        let out = executable.run(&mut store, &given).map_err(|e| e.to_string())?;
        let outputs = out.iter().map(|(name, t)| (name.to_owned(), t.value().clone())).collect();
        Ok(Outputs { outputs, updates: Vec::new() })
    }
}

/// The program of a call and of its gradients, and the number of results.
pub(crate) fn recorded(case: &Case) -> Result<(Graph, usize), Ran> {
    if let Some(layer) = &case.layer {
        return layers::recorded(case, layer);
    }
    let tracer = Tracer::new("case");
    let count = record(&tracer, case).map_err(Ran::NoCall)?;
    let graph = tracer.finish().map_err(|error| Ran::Refused(error.to_string()))?;
    Ok((graph, count))
}

/// Records the call and its gradients; returns the number of results.
fn record(t: &Tracer, case: &Case) -> Result<usize, String> {
    let arguments = Arguments::new(t, case);
    let results = match case.autocast {
        None => calls::record(&arguments)?,
        Some(low) => {
            let region = Region::default().with_device(DeviceType::Cpu, true, low);
            t.in_region(&region, || calls::record(&arguments))?
        }
    };
    record_outputs(t, case, &results, &arguments.leaves)
}

/// Names the results and records the gradients that the case asks for, of leaves by their paths;
/// returns the number of results.
pub(crate) fn record_outputs<'t>(
    t: &'t Tracer,
    case: &Case,
    results: &[Var<'t>],
    leaves: &[(String, Var<'t>)],
) -> Result<usize, String> {
    if t.error().is_some() {
        return Ok(results.len());
    }
    for (i, y) in results.iter().enumerate() {
        t.output(&format!("out/{i}"), *y);
    }
    if case.refusal.is_some() || case.grads.is_empty() {
        return Ok(results.len());
    }
    let weighed = results.iter().zip(&case.cotangents).enumerate().filter_map(|(i, (y, cot))| {
        let cot = t.input(&format!("cot/{i}"), cot.as_ref()?.ty.clone());
        Some(y.mul(cot).sum(()))
    });
    let loss = weighed.reduce(|a, b| a + b).ok_or("nothing to differentiate")?;
    let leaf = |path: &String| {
        let found = leaves.iter().find(|(leaf, _)| leaf == path).map(|(_, v)| *v);
        found.ok_or_else(|| format!("no tensor `{path}`"))
    };
    let leaves: Vec<Var<'_>> =
        case.grads.iter().map(|(path, _)| leaf(path)).collect::<Result<_, _>>()?;
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
    all.extend(case.layer.iter().flat_map(|layer| layer.state.clone()));
    for port in graph.ports().iter().filter(|port| port.role == Role::State) {
        let zeros = || Value::zeros(port.ty.clone()).unwrap();
        all.entry(port.name.clone()).or_insert_with(zeros);
    }
    all.retain(|name, _| graph.ports().iter().any(|port| port.name == *name));
    all
}

fn collect(path: &str, arg: &Arg, to: &mut HashMap<String, Value>) {
    match arg {
        Arg::Tensor(value) => drop(to.insert(path.to_owned(), value.clone())),
        Arg::List(list) | Arg::Tuple(list) | Arg::Slice(list) => {
            list.iter().enumerate().for_each(|(i, arg)| collect(&format!("{path}/{i}"), arg, to))
        }
        _ => {}
    }
}
