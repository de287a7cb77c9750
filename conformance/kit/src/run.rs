//! Runs a case on a device and on the interpreter, and compares.

use crate::case::Case;
use crate::compare::{Agreement, differs};
use crate::numbers::random;
use crate::report::{Outcome, refused};
use crate::shrink::smallest;
use crate::subject::Subject;
use tracecast::runtime::{Error, Input, Store, Tensor};
use tracecast::{Executable, compile};
use tracecast_ir::policy::Target;
use tracecast_ir::{Graph, Port, Role};

/// What a case came to.
pub(crate) fn run(case: &Case, on: &Subject) -> Outcome {
    let is_about_autocast = case.text.contains("DEVICE");
    let Some(amp) = on.amp() else {
        if is_about_autocast {
            return Outcome::Skipped { because: "its kind has no autocast".to_owned() };
        }
        return run_text(case, on, &case.text);
    };
    let own = amp.rules.iter().find_map(|(target, _)| match target {
        Target::DeviceOp(op) | Target::Op(op) => {
            (is_about_autocast && case.text.contains(&format!(" {op} "))).then_some(op)
        }
        _ => None,
    });
    if let Some(op) = own {
        return Outcome::Skipped { because: format!("the device has a rule of its own for {op}") };
    }
    let device = on.device_type().to_string();
    let text = case.text.replace("DEVICE", &device).replace("LOW", amp.default.name());
    run_text(case, on, &text)
}

fn run_text(case: &Case, on: &Subject, text: &str) -> Outcome {
    let graph = match on.parse(text) {
        Ok(graph) => graph,
        Err(why) => {
            return Outcome::Fail {
                why: format!("its autocast decides otherwise: {why}"),
                program: Some(text.trim().to_owned()),
            };
        }
    };
    let wanted = match compile(graph.clone(), &on.reference()) {
        Ok(program) => program,
        Err(error) => return Outcome::failed(format!("the interpreter refuses it: {error}")),
    };
    let program = match compile(graph.clone(), &on.options()) {
        Ok(program) => program,
        Err(error) => return refused(&error),
    };
    let found = match case.raises {
        true => errors(case, &graph, &program, &wanted),
        false => compared(case, &graph, &program, &wanted)
            .and_then(|()| submitted(case, &graph, &program, &wanted)),
    };
    match found {
        Ok(()) => Outcome::Pass,
        Err(why) => Outcome::Fail { why, program: Some(smallest(&graph, case.agreement, on)) },
    }
}

/// Waits for each run, and compares its outputs and the state after it.
fn compared(
    case: &Case,
    graph: &Graph,
    program: &Executable,
    wanted: &Executable,
) -> std::result::Result<(), String> {
    let (mut own, mut known) = (state(case, graph), state(case, graph));
    for step in 0..case.steps {
        let inputs = inputs(case, graph, step);
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let told = |error: Error| format!("step {step}: {error}");
        let found = program.run(&mut own, &given).map_err(told)?;
        let expected = wanted.run(&mut known, &given).map_err(told)?;
        for (name, value) in expected.iter() {
            let differs = differs(&found[name], value, case.agreement);
            differs.map_or(Ok(()), |why| Err(format!("`{name}` of step {step}: {why}")))?;
        }
        same_state(&own, &known, case.agreement).map_err(|why| format!("step {step}: {why}"))?;
    }
    Ok(())
}

/// Gives all runs before it waits for one.
fn submitted(
    case: &Case,
    graph: &Graph,
    program: &Executable,
    wanted: &Executable,
) -> std::result::Result<(), String> {
    let (mut own, mut known) = (state(case, graph), state(case, graph));
    let told = |error: Error| format!("steps submitted without waiting: {error}");
    let mut given = Vec::new();
    for step in 0..case.steps {
        let inputs = inputs(case, graph, step);
        let here: Vec<(&str, Input<'_>)> =
            inputs.iter().map(|(n, t)| (n.as_str(), Input::from(t))).collect();
        let there: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let found = program.submit(&mut own, &here).map_err(told)?;
        given.push((found, wanted.run(&mut known, &there).map_err(told)?));
    }
    for (step, (found, expected)) in given.iter().enumerate() {
        for (name, value) in expected.iter() {
            let found = found.get(name).map_err(told)?;
            let differs = differs(&found, value, case.agreement);
            let told = |why| Err(format!("`{name}` of step {step}, submitted: {why}"));
            differs.map_or(Ok(()), told)?;
        }
    }
    same_state(&own, &known, case.agreement).map_err(|why| format!("submitted: {why}"))
}

/// Each run is an error, and leaves the state as it was.
fn errors(
    case: &Case,
    graph: &Graph,
    program: &Executable,
    wanted: &Executable,
) -> std::result::Result<(), String> {
    let (mut own, known) = (state(case, graph), state(case, graph));
    for step in 0..case.steps {
        let inputs = inputs(case, graph, step);
        let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        if wanted.run(&mut state(case, graph), &given).is_ok() {
            return Err("the interpreter accepts these inputs".to_owned());
        }
        let ended = program.run(&mut own, &given).and_then(|_| own.synchronize());
        if ended.is_ok() {
            return Err(format!("step {step}: expected a data error, found none"));
        }
        same_state(&own, &known, Agreement::Exact)
            .map_err(|why| format!("after a data error: {why}"))?;
    }
    Ok(())
}

fn same_state(own: &Store, known: &Store, agreement: Agreement) -> std::result::Result<(), String> {
    for entry in known.iter() {
        let (name, wanted) = entry.map_err(|error| error.to_string())?;
        let found = own.get(name).map_err(|error| format!("state `{name}`: {error}"))?;
        if let Some(why) = differs(&found, &wanted, agreement) {
            return Err(format!("state `{name}`: {why}"));
        }
    }
    Ok(())
}

/// The inputs of a run.
pub(crate) fn inputs(case: &Case, graph: &Graph, step: u64) -> Vec<(String, Tensor)> {
    let ports = graph.ports().iter().filter(|port| port.role == Role::Input);
    ports.map(|port| (port.name.clone(), value(case, port, step))).collect()
}

/// The state before the first run.
pub(crate) fn state(case: &Case, graph: &Graph) -> Store {
    let mut store = Store::new();
    for port in graph.ports().iter().filter(|port| port.role != Role::Input) {
        store.insert(&port.name, value(case, port, 100));
    }
    store
}

fn value(case: &Case, port: &Port, step: u64) -> Tensor {
    let given = case.inputs.iter().find(|(name, _)| *name == port.name);
    let made = match given {
        Some((_, numbers)) => Tensor::from_f64s(port.ty.clone(), numbers),
        None => random(&port.ty, &port.name, step),
    };
    made.unwrap_or_else(|error| panic!("{}: {error}", port.name))
}
