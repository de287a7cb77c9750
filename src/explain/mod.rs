//! [`explain`]: why every op of a program has the precision that it has, and what has become of
//! every cast; as data, as text, as JSON, as a page.
//!
//! ```
//! use tracecast::explain::explain;
//! use tracecast::prelude::*;
//!
//! let graph = trace("head", |t| {
//!     let x = t.input_of("x", TensorType::new(DType::F32, [8, 4]));
//!     let w = t.param_of("w", TensorType::new(DType::F32, [4, 2]));
//!     t.output("y", autocast(t, "cpu", DType::BF16, || x.matmul(w).softmax(1)));
//! })?;
//! let explained = explain(&graph, &Options::new())?;
//! for op in &explained.ops {
//!     println!("{op}");                                   // %0 matmul : bf16[8, 2] … low, bf16: operands are cast to bf16 …
//! }
//! assert_eq!(explained.casts[1].operand.as_deref(), Some("%w"));
//! assert!(explained.casts.iter().all(|cast| !cast.is_standalone()));
//! assert!(explained.warnings.is_empty());
//! let only_matmul = explained.about("matmul#0")?;
//! assert_eq!(only_matmul.ops.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod html;
mod json;

pub use html::html;
pub use json::json;
pub use tracecast_passes::explain::{
    AgainNote, AwayNote, CastNote, CheckpointNote, Explanation, FallbackNote, HomeNote, Keep,
    KernelCost, MadeCast, MemoryNote, OpNote, PeakNote, UnknownNode, Warning, WarningKind, Why,
    Width,
};
pub use tracecast_passes::fuse::Home;

use crate::error::Result;
use crate::options::Options;
use tracecast_ir::Graph;
use tracecast_passes::{PassOptions, standard};
use tracecast_runtime::{FallbackLaunch, Program};

/// Explains a traced program, as it would be compiled with these options.
///
/// # Errors
/// What is wrong with the program, or the pass that could not finish.
pub fn explain(graph: &Graph, options: &Options) -> Result<Explanation> {
    explain_with(graph, options, &options.passes())
}

/// As [`explain`], with passes that are told something else than the options say.
///
/// # Errors
/// As those of [`explain`].
pub fn explain_with(graph: &Graph, options: &Options, passes: &PassOptions) -> Result<Explanation> {
    let mut explained = tracecast_passes::explain::explain(graph, passes)?;
    explained.fallback = fallback(graph, options, passes)?;
    Ok(explained)
}

/// What runs on the fallback of the options: of a program whose sizes are names, with its traced
/// values.
fn fallback(
    graph: &Graph,
    options: &Options,
    passes: &PassOptions,
) -> Result<Option<FallbackNote>> {
    let (Some(name), Some(fallback)) = (options.fallback_name(), options.fallback_target()?) else {
        return Ok(None);
    };
    let graph = match graph.sizes().names().is_empty() {
        true => graph.clone(),
        false => graph.at(&graph.sizes().hints())?,
    };
    let kernels = standard(passes).run(graph, |_, _, _| ())?;
    let program = Program::plan_in_buckets(&kernels, options.bucket())?;
    let program = program.load_with(options.target()?, Some(fallback))?;
    let note = |launch: FallbackLaunch| {
        let FallbackLaunch { kernel, reason, bytes } = launch;
        AwayNote { kernel, bytes, reason }
    };
    let launches = program.fallback_launches().map(note).collect();
    Ok(Some(FallbackNote { device: name.to_owned(), launches }))
}
