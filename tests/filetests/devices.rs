//! The commands that compile: `run`, `plan` and `clif`.

use crate::commands::{pipeline_options, traced};
use crate::values;
use crate::{Case, TestFile};
use std::fmt::Write;
use std::sync::Arc;
use tracecast_codegen::{
    CpuDevice, CpuOptions, Machine, PlanStage, PlanTarget, Vectors, plan_stages, plan_text,
    schedule_text,
};
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::{Attr, Graph, Role, Verified};
use tracecast_passes::standard;
use tracecast_runtime::{Device, Error, Executable, Program, ReferenceDevice, Store, Tensor};

/// `test run [on=cpu,avx2,portable,reference] [steps=N] [device=cpu dtype=bf16] [no-fold]
/// [optimised]`: outputs and new state for the `; input` lines, the same on each device. With
/// `steps`, each run is made so often on one store. Sizes with names have the numbers of the head.
pub(crate) fn run(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["on", "steps", "device", "dtype", "no-fold", "optimised"])?;
    let graph = traced(file, case, Some("text"))?;
    let fused = fused(file, &graph)?;
    let steps: usize = match file.option("steps") {
        Some(steps) => {
            steps.parse().map_err(|_| format!("`steps` is a number, found `{steps}`"))?
        }
        None => 1,
    };
    let hints = graph.sizes().hints();
    let at = graph.at(&hints).map_err(|e| e.to_string())?;
    let mut devices = Vec::new();
    for name in file.option("on").unwrap_or("cpu,avx2,portable,reference").split(',') {
        let program = Program::plan(&fused).map_err(|e| e.to_string())?;
        let loaded = match graph.sizes().names().is_empty() {
            true => program.load(device(name)?),
            false => program.load_sized(device(name)?).and_then(|family| family.at(&hints)),
        };
        devices.push((name, loaded.map_err(|e| e.to_string())?));
    }
    let mut out = String::new();
    for run in values::runs(case, &at)? {
        let mut first: Option<Vec<String>> = None;
        for (name, executable) in &devices {
            let found = results(executable, &graph, &run, steps)?;
            match &first {
                Some(wanted) if *wanted != found => {
                    return Err(format!("{name} gives {found:?}, expected {wanted:?}"));
                }
                _ => first = Some(found),
            }
        }
        for (step, found) in first.unwrap_or_default().iter().enumerate() {
            let head = if step == 0 { format!("run: {}", run.text) } else { "then".to_owned() };
            writeln!(out, "{head} => {found}").map_err(|e| e.to_string())?;
        }
    }
    Ok(out)
}

/// What each step gives; an error leaves the state as it is.
fn results(
    executable: &Executable,
    graph: &Graph,
    run: &values::Run,
    steps: usize,
) -> Result<Vec<String>, String> {
    let (mut store, mut inputs) = (Store::new(), Vec::new());
    for port in graph.ports() {
        let value = Tensor::from(run.inputs[&port.name].clone());
        match port.role {
            Role::Input => inputs.push((port.name.as_str(), value)),
            _ => store.insert(&port.name, value),
        }
    }
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
    let mut all = Vec::new();
    for _ in 0..steps {
        let before = contents(&store)?;
        all.push(match executable.run(&mut store, &inputs) {
            Ok(outputs) => {
                let named = |(n, t): (&str, &Tensor)| (n.to_owned(), t.value().clone());
                let outputs: Vec<(String, Value)> = outputs.iter().map(named).collect();
                let mut updates = contents(&store)?;
                updates.retain(|(n, _)| {
                    graph.updates().iter().any(|(p, _)| graph.ports()[*p].name == *n)
                });
                values::show(&outputs, &updates)
            }
            Err(Error::Data { op, message, source_line, .. }) => {
                if contents(&store)? != before {
                    return Err("an error changed the state".to_owned());
                }
                format!("error: {op}: {message}, at {source_line}")
            }
            Err(error) => return Err(error.to_string()),
        });
    }
    Ok(all)
}

fn contents(store: &Store) -> Result<Vec<(String, Value)>, String> {
    let entry = |e: tracecast_runtime::Result<(&str, Tensor)>| {
        e.map(|(name, tensor)| (name.to_owned(), tensor.value().clone())).map_err(|e| e.to_string())
    };
    store.iter().map(entry).collect()
}

fn device(name: &str) -> Result<Arc<dyn Device>, String> {
    let cpu = |vectors, threads| {
        let options = CpuOptions { threads: Some(threads), vectors, ..CpuOptions::default() };
        CpuDevice::new(options).map(Arc::new).map_err(|e| e.to_string())
    };
    Ok(match name {
        "cpu" => cpu(Vectors::Native, 2)?,
        "avx2" => cpu(Vectors::Avx2, 1)?,
        "portable" => cpu(Vectors::Portable, 1)?,
        "reference" => Arc::new(ReferenceDevice),
        other => {
            return Err(format!("`on` knows cpu, avx2, portable and reference, found `{other}`"));
        }
    })
}

fn fused(file: &TestFile, graph: &Graph) -> Result<Verified, String> {
    standard(&pipeline_options(file)).run(graph.clone(), |_, _, _| ()).map_err(|e| e.to_string())
}

/// `test plan of=TRANSFORMATION [no-fold] [optimised]`: the plans of each kernel before and after a
/// transformation of plans, or once if it changes nothing. `test plan [on=portable,avx2,avx512]`:
/// the finished plans with their phases for such a CPU, whatever CPU this is.
/// `test plan machine=NAME,NAME [threads=2]`: the schedule that is chosen for each product on such
/// a machine, in the same way; only x86-64 has them all.
pub(crate) fn plan(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["of", "on", "machine", "threads", "device", "dtype", "no-fold", "optimised"])?;
    if file.option("machine").is_some() && !cfg!(target_arch = "x86_64") {
        return Ok(case.expected.join("\n"));
    }
    let fused = fused(file, &traced(file, case, None)?)?;
    let mut kernels: Vec<&Kernel> = Vec::new();
    for id in fused.nodes() {
        match fused.node(id).attrs.get("kernel") {
            Some(Attr::Kernel(kernel)) if !kernels.contains(&&**kernel) => kernels.push(kernel),
            _ => {}
        }
    }
    let text = |kernel, stage| plan_text(kernel, stage).map_err(|e| e.to_string());
    let mut out = String::new();
    for kernel in kernels {
        if let Some(name) = file.option("of") {
            let at = plan_stages().position(|known| known == name);
            let before = at.and_then(|at| plan_stages().nth(at.checked_sub(1)?));
            let before = before.ok_or_else(|| format!("no transformation is named `{name}`"))?;
            let before = text(kernel, PlanStage::Until(before))?;
            let after = text(kernel, PlanStage::Until(name))?;
            out += &match before == after {
                true => format!("{name} changes nothing:\n{after}"),
                false => format!("before {name}:\n{before}after {name}:\n{after}"),
            };
            continue;
        }
        if let Some(machines) = file.option("machine") {
            let threads = file.option("threads").unwrap_or("2");
            let threads = threads.parse().map_err(|_| format!("found `{threads}` threads"))?;
            for name in machines.split(',') {
                let machine = Machine::named(name, threads);
                let machine = machine.ok_or_else(|| format!("no machine is named `{name}`"))?;
                let line = schedule_text(kernel, &machine).map_err(|e| e.to_string())?;
                out += &line.map_or(String::new(), |line| format!("{name}: {line}\n"));
            }
            continue;
        }
        let mut last = (String::new(), "");
        for name in file.option("on").unwrap_or("avx2").split(',') {
            let plans = text(kernel, PlanStage::Finished(plan_target(name)?))?;
            if plans == last.0 {
                out += &format!("on {name}: as on {}\n", last.1);
            } else {
                out += &format!("on {name}:\n{plans}");
                last = (plans, name);
            }
        }
    }
    Ok(out)
}

fn plan_target(name: &str) -> Result<PlanTarget, String> {
    Ok(match name {
        "portable" => PlanTarget::Portable,
        "avx2" => PlanTarget::Avx2,
        "avx512" => PlanTarget::Avx512,
        other => return Err(format!("`on` knows portable, avx2 and avx512, found `{other}`")),
    })
}

/// `test clif [device=cpu dtype=bf16]`: the code of each kernel for Cranelift, without wide
/// vectors. Only x86-64 is compared: other machines have other calling conventions.
pub(crate) fn clif(file: &TestFile, case: &Case) -> Result<String, String> {
    file.knows(&["device", "dtype", "no-fold"])?;
    if !cfg!(target_arch = "x86_64") {
        return Ok(case.expected.join("\n"));
    }
    let fused = fused(file, &traced(file, case, None)?)?;
    let device = device("portable")?;
    let executable =
        Program::plan(&fused).and_then(|p| p.load(device)).map_err(|e| e.to_string())?;
    let mut out = String::new();
    for (kernel, text) in executable.code() {
        let text = text.ok_or_else(|| format!("@{} has no text", kernel.name))?;
        writeln!(out, "@{}\n{}", kernel.name, text.trim_end()).map_err(|e| e.to_string())?;
    }
    Ok(out)
}
