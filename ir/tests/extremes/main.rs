//! Functions that are several ops take everything: each call is recorded, or refused with the
//! function, the operand's type and the line; and what is recorded runs.

mod calls;
mod numbers;
mod operands;

use calls::{Call, IMAGES, INDICES, VALUES, VIEWS};
use numbers::{DTYPES, Numbers};
use operands::TENSORS;
use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::unknown::{Ended, guarded};
use tracecast_ir::{Graph, Port, TensorType, Tracer};

/// Functions that make tensors of numbers have no operand.
const CREATED: [&str; 5] = ["arange", "eye", "linspace", "logspace", "triangle_indices"];

/// What is public in `src/functions` and records nothing, is a part of another call, or has its
/// op's name in errors.
const OTHERS: [&str; 4] = ["new", "mixed", "scalar", "choose"];

/// Methods of a layer's step. The layer names itself in errors, in `nn` and for exported models,
/// whose tests call it.
const STEPS: &str = "recurrent.rs";

/// Runs a program whose tensors are all small.
fn run(graph: &Graph, name: &str) {
    let few = |ty: &TensorType| ty.shape.checked_numel().is_some_and(|n| n < 20_000);
    let mut types = graph.nodes().flat_map(|id| &graph.node(id).results);
    if graph.len() > 2_000 || !types.all(few) {
        return;
    }
    let given = |port: &Port| {
        let numbers: Vec<f64> = (0..port.ty.numel().get()).map(|i| (i % 2) as f64).collect();
        let value = Value::from_f64s(port.ty.clone(), &numbers).expect("the count fits");
        (port.name.to_string(), value)
    };
    let inputs: HashMap<String, Value> = graph.ports().iter().map(given).collect();
    if let Err(error) = eval::graph(graph, &inputs) {
        let told = error.to_string();
        let known = ["out of range", "too many elements", "integer division by zero"];
        assert!(known.iter().any(|known| told.contains(known)), "{name}: {told}");
    }
}

/// One call with numbers of that seed.
fn attempt((name, call): (&'static str, Call), seed: u64) -> Result<(), String> {
    let mut numbers = Numbers::new(seed);
    let tracer = Tracer::new("extreme");
    let x = tracer.input("x", numbers.ty());
    let all = call(x, &mut numbers);
    if let Some(error) = tracer.error().filter(|error| error.op != "input") {
        let told = error.to_string();
        let is_of_none = CREATED.contains(&name);
        let names_type = is_of_none || DTYPES.iter().any(|dtype| told.contains(dtype.name()));
        let names_place = error.source_line.contains("extremes");
        let names_function = name.split(' ').next() == Some(&error.op);
        let is_told = names_type && names_place && names_function;
        return if is_told { Ok(()) } else { Err(told) };
    }
    if tracer.error().is_some() {
        return Ok(());
    }
    for (i, y) in all.into_iter().enumerate() {
        tracer.output(&format!("y{i}"), y);
    }
    run(&tracer.finish().map_err(|e| e.to_string())?, name);
    Ok(())
}

fn all_calls() -> impl Iterator<Item = (&'static str, Call)> {
    [VIEWS, INDICES, VALUES, IMAGES, TENSORS].into_iter().flatten().copied()
}

/// A function without a call here could blame its parts, or panic.
#[test]
fn every_function_is_called() {
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/functions")];
    let mut missing = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let files = fs::read_dir(path).expect("the functions");
            left.extend(files.map(|file| file.expect("a file").path()));
            continue;
        }
        if path.ends_with(STEPS) {
            continue;
        }
        let text = fs::read_to_string(path).expect("text");
        let lines = text.lines().filter(|line| line.trim_start().starts_with("pub fn "));
        let names = lines.filter_map(|line| {
            line.split("pub fn ").nth(1)?.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
        });
        let is_called = |name: &str| {
            let called =
                |of: &str| of.split(' ').next().map(|of| of.trim_start_matches('_')) == Some(name);
            all_calls().any(|(of, _)| called(of)) || OTHERS.contains(&name)
        };
        missing.extend(names.filter(|name| !is_called(name)).map(str::to_owned));
    }
    assert!(missing.is_empty(), "no call of {missing:?}");
}

#[test]
fn every_call_is_taken_or_refused() {
    let mut wrong = String::new();
    for (name, call) in all_calls() {
        for seed in 0..400 {
            let end = catch_unwind(AssertUnwindSafe(|| attempt((name, call), seed)));
            let told = match end {
                Ok(Ok(())) => continue,
                Ok(Err(told)) => told,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or(panic.downcast_ref::<&str>().map(|s| s.to_string()));
                    format!("panics: {}", text.unwrap_or_default())
                }
            };
            wrong += &format!("{name}, seed {seed}: {told}\n");
            break;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// What is given to a function may have no type yet: only a list whose length follows from sizes
/// asks for it.
#[test]
fn every_call_takes_a_value_of_no_type() {
    const LISTS: [&str; 3] = ["split", "unbind", "chunk"];
    let mut wrong = String::new();
    for (name, call) in all_calls() {
        for seed in 0..40 {
            let tracer = Tracer::new("unknown");
            let ended = guarded(|| call(tracer.unknown(), &mut Numbers::new(seed)));
            match ended {
                // The calls here look at the axes of what they are given.
                Err(Ended::Asked(at)) if at.file().contains("extremes") => {}
                Err(Ended::Asked(at)) => wrong += &format!("{name}, seed {seed}: asks at {at}\n"),
                Err(Ended::Panicked(_)) => wrong += &format!("{name}, seed {seed}: panics\n"),
                Ok(_) => continue,
            }
            break;
        }
    }
    let is_list = |line: &&str| LISTS.iter().any(|list| line.starts_with(list));
    let wrong: Vec<&str> = wrong.lines().filter(|line| !is_list(line)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
