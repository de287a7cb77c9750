//! [`compile`]: the one page from a graph to an executable.

use crate::error::Result;
use crate::options::Options;
use crate::report::CompileReport;
use std::time::Instant;
use tracecast_ir::Graph;
use tracecast_passes::explain::warnings;
use tracecast_passes::{Autocast, standard};
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
    let mut report = CompileReport::default();
    let device = options.target()?;
    let traced = graph.clone();
    let kernels = standard(&options.passes()).run(graph, |pass, graph, time| {
        report.passed(pass, graph, time, options.keeps_history());
        if pass == Autocast::NAME {
            report.warnings = warnings(&traced, graph, &options.policies());
        }
        options.observe(pass, graph);
    })?;
    let start = Instant::now();
    let program = Program::plan(&kernels)?; // order, buffers, lifetimes
    report.planned(&kernels, &program, start.elapsed());
    let start = Instant::now();
    let executable = program.load(device)?; // compile each kernel, allocate
    report.loaded(&executable, start.elapsed());
    Ok((executable, report))
}
