//! [`compile`]: the one page from a graph to an executable.

mod sized;

pub(crate) use sized::refused;
pub use sized::{SizedProgram, compile_sized, compile_sized_reported};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::report::CompileReport;
use std::time::Instant;
use tracecast_ir::{Graph, Verified};
use tracecast_passes::explain::warnings;
use tracecast_passes::{Autocast, Pipeline, standard};
use tracecast_runtime::{Executable, Program};

/// Compiles a traced program.
///
/// ```
/// use tracecast::prelude::*;
///
/// let graph = trace("double", |t| {
///     let x = t.input_of("x", TensorType::new(DType::F32, [3]));
///     t.output("y", x + x);
/// })?;
/// let program = compile(graph, &Options::new().device("reference"))?;
/// let x = Tensor::new([3], &[1.0f32, 2.0, 3.0])?;
/// let out = program.run(&mut Store::new(), &[("x", &x)])?;
/// assert_eq!(out["y"].to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// A program that is wrong, a pass that could not finish, a device without code for a kernel.
pub fn compile(graph: Graph, options: &Options) -> Result<Executable> {
    compile_reported(graph, options).map(|(executable, _)| executable)
}

/// Compiles a traced program, and tells what became of it.
///
/// # Errors
/// As [`compile`].
pub fn compile_reported(graph: Graph, options: &Options) -> Result<(Executable, CompileReport)> {
    let name = graph.name().to_owned();
    let (executable, report) = compile_quietly(graph, options)?;
    report.log(&name, |_| true);
    Ok((executable, report))
}

/// As [`compile_reported`], and whoever calls it tells the logger of what is odd.
pub(crate) fn compile_quietly(
    graph: Graph,
    options: &Options,
) -> Result<(Executable, CompileReport)> {
    need_numbers(&graph)?;
    let mut report = CompileReport::default();
    options.target()?;
    let traced = graph.clone();
    let pipeline = standard(&options.passes());
    let phases = [pipeline.names(), vec!["plan", "load"]].concat();
    let begins = |phase: usize| {
        let begun = phases.get(phase).copied().unwrap_or("ready");
        options.advance(traced.name(), begun, phase, phases.len());
    };
    let mut done = 0;
    begins(done);
    let kernels = pipeline.run(graph, |pass, graph, time| {
        report.passed(pass, graph, time, options.keeps_history());
        if pass == Autocast::NAME {
            report.warnings = warnings(&traced, graph, &options.policies());
        }
        options.observe(pass, graph);
        if pass != Pipeline::TRACED {
            done += 1;
            begins(done);
        }
    })?;
    let executable = finish(&kernels, options, &mut report, &mut || begins(done + 1))?;
    begins(done + 2);
    Ok((executable, report))
}

/// Plans and loads a program that consists of kernels.
fn finish(
    kernels: &Verified,
    options: &Options,
    report: &mut CompileReport,
    planned: &mut dyn FnMut(),
) -> Result<Executable> {
    let start = Instant::now();
    let program = Program::plan_in_buckets(kernels, options.bucket())?; // order, buffers, lifetimes
    report.planned(kernels, &program, start.elapsed());
    planned();
    options.check_memory(program.name(), program.peak_bytes())?;
    let start = Instant::now();
    let executable = program.load_with(options.target()?, options.fallback_target()?)?; // compile each kernel, allocate
    let executable =
        executable.strict(options.is_strict()).reuse_outputs(options.does_reuse_outputs());
    options.check_run(&executable)?;
    report.loaded(&executable, start.elapsed());
    Ok(executable)
}

/// Refuses a program for more than one set of sizes.
fn need_numbers(graph: &Graph) -> Result<()> {
    let names: Vec<&str> = graph.sizes().names().iter().map(|size| size.name).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::Option {
        option: "sizes",
        message: format!(
            "the sizes {} are names: compile with `compile_sized`, or give them numbers with `Graph::at`",
            names.join(", ")
        ),
    })
}
