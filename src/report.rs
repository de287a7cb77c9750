//! [`CompileReport`]: what became of a program, in numbers.

use std::collections::BTreeMap;
use std::time::Duration;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::op::{Body, Lower};
use tracecast_ir::{Attr, Graph, NodeId, Stage, ValueId, Verified};
use tracecast_passes::explain::Warning;
use tracecast_runtime::Program;

/// What became of a program on its way to an executable.
#[derive(Clone, Debug, Default)]
pub struct CompileReport {
    /// The time it took to record the program; zero if it came as a graph.
    pub trace: Duration,
    /// The time of each pass with the verifier after it, in order; the first entry is the verification of the traced program.
    pub passes: Vec<(String, Duration)>,
    /// The time it took to plan memory.
    pub plan: Duration,
    /// The time it took the device to compile the kernels.
    pub load: Duration,
    /// The number of kernels.
    pub kernels: usize,
    /// The number of kernels of each form: `map`, `rows`, `contraction`, `scatter`.
    pub forms: BTreeMap<&'static str, usize>,
    /// The kernels that do nothing but change the dtype of one value.
    pub standalone_casts: usize,
    /// The bytes that the backward pass needs of the forward pass: of all distinct values that are computed forward and read by
    /// gradient ops. Ports do not count, they are there anyway; neither do casts and views, but what they were made of.
    pub saved_bytes: usize,
    /// The memory of all values between kernels, with reuse.
    pub peak_bytes: usize,
    /// The text of the program after each pass, if [`Options::keep_history`](crate::Options::keep_history) asked for it.
    pub history: Vec<(String, String)>,
    /// What was odd but no error: what tracing noticed, and numbers that do not fit the precision chosen for them.
    pub warnings: Vec<Warning>,
}

impl CompileReport {
    /// From the first recorded op to code that can run.
    pub fn total(&self) -> Duration {
        self.trace
            + self.passes.iter().map(|(_, time)| *time).sum::<Duration>()
            + self.plan
            + self.load
    }

    pub(crate) fn passed(&mut self, pass: &str, graph: &Verified, time: Duration, keep: bool) {
        self.passes.push((pass.to_owned(), time));
        if graph.stage() == Stage::Core {
            self.saved_bytes = saved_bytes(graph);
        }
        if keep {
            self.history.push((pass.to_owned(), graph.to_string()));
        }
    }

    pub(crate) fn planned(&mut self, graph: &Verified, program: &Program, time: Duration) {
        self.plan = time;
        self.peak_bytes = program.peak_bytes();
        for kernel in kernels(graph) {
            self.kernels += 1;
            *self.forms.entry(kernel.form_name()).or_default() += 1;
            self.standalone_casts += usize::from(kernel.only_casts());
        }
    }
}

/// The kernels of a fused program.
fn kernels(graph: &Graph) -> impl Iterator<Item = &Kernel> {
    graph.nodes().filter_map(|id| match graph.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => Some(kernel.as_ref()),
        _ => None,
    })
}

/// The bytes of the distinct forward values that gradient ops of a core program read: behind casts and views, without ports and
/// constants. What every one of them rounds is held rounded.
fn saved_bytes(graph: &Graph) -> usize {
    let mut saved: BTreeMap<ValueId, usize> = BTreeMap::new();
    for id in graph.nodes().filter(|id| is_gradient(graph, *id)) {
        for (value, width) in graph.args(id).into_iter().map(|value| behind_moves(graph, value)) {
            let body = &graph.node(value.node).op.def().body;
            if !is_gradient(graph, value.node) && !matches!(body, Body::Source(_)) {
                let known = saved.entry(value).or_default();
                *known = width.max(*known);
            }
        }
    }
    saved.iter().map(|(value, width)| graph.ty(*value).numel() * width).sum()
}

/// The value that casts and views were made of, and the bytes of an element where it is narrowest.
fn behind_moves(graph: &Graph, value: ValueId) -> (ValueId, usize) {
    let (mut value, mut width) = (value, usize::MAX);
    loop {
        width = width.min(graph.ty(value).dtype.bytes());
        let node = graph.node(value.node);
        let is_view = matches!(node.op.def().body, Body::Core { kernel: Lower::View(_), .. });
        if !is_view && node.op.name() != "cast" {
            return (value, width);
        }
        value = graph.args(value.node)[0];
    }
}

/// True if differentiation recorded a node.
fn is_gradient(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).origin.backward
}
