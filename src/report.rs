//! [`CompileReport`]: what became of a program, in numbers.

use std::collections::BTreeMap;
use std::time::Duration;
use tracecast_ir::kernel::{Form, Kernel, ScalarOp, Sink};
use tracecast_ir::{Attr, Graph, NodeId, Source, Verified};
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
    /// The bytes saved for the backward pass: of all values that a forward kernel writes and a gradient kernel reads. Ports do
    /// not count: they are there anyway.
    pub saved_bytes: usize,
    /// The memory of all values between kernels, with reuse.
    pub peak_bytes: usize,
    /// The text of the program after each pass, if [`Options::keep_history`](crate::Options::keep_history) asked for it.
    pub history: Vec<(String, String)>,
    /// What was odd but no error.
    pub warnings: Vec<String>,
}

impl CompileReport {
    /// From the first recorded op to code that can run.
    pub fn total(&self) -> Duration {
        self.trace + self.passes.iter().map(|(_, time)| *time).sum::<Duration>() + self.plan + self.load
    }

    pub(crate) fn passed(&mut self, pass: &str, graph: &Verified, time: Duration, keep: bool) {
        self.passes.push((pass.to_owned(), time));
        if keep {
            self.history.push((pass.to_owned(), graph.to_string()));
        }
    }

    pub(crate) fn planned(&mut self, graph: &Verified, program: &Program, time: Duration) {
        self.plan = time;
        self.peak_bytes = program.peak_bytes();
        self.saved_bytes = saved_bytes(graph);
        for (_, kernel) in kernels(graph) {
            self.kernels += 1;
            *self.forms.entry(kernel.form_name()).or_default() += 1;
            self.standalone_casts += usize::from(only_casts(kernel));
        }
    }
}

/// The kernels of a fused program.
fn kernels(graph: &Graph) -> impl Iterator<Item = (NodeId, &Kernel)> {
    graph.nodes().filter_map(|id| match graph.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => Some((id, kernel.as_ref())),
        _ => None,
    })
}

/// True if a kernel moves one value from one dtype to another and does nothing else.
fn only_casts(kernel: &Kernel) -> bool {
    let Form::Nest(nest) = &kernel.form else { return false };
    let changes = kernel.outputs.len() == 1 && kernel.inputs.len() == 1 && kernel.inputs[0].dtype != kernel.outputs[0].ty.dtype;
    let is_move = |op: &ScalarOp| matches!(op, ScalarOp::Load(_) | ScalarOp::Convert | ScalarOp::Round(_));
    changes
        && nest.is_map()
        && nest.stages.iter().all(|stage| {
            stage.body.insts.iter().all(|inst| is_move(&inst.op))
                && stage.sinks.iter().all(|sink| matches!(sink, Sink::Store { .. }))
        })
}

/// The bytes of all values that a forward kernel writes and a gradient kernel reads.
fn saved_bytes(graph: &Graph) -> usize {
    let users = graph.users();
    kernels(graph)
        .filter(|(id, _)| !is_gradient(graph, *id))
        .flat_map(|(id, _)| (0..graph.node(id).results.len() as u16).map(move |result| (id, result)))
        .filter(|(id, result)| {
            users[id.index()].iter().any(|(user, edge)| edge.result == *result && is_gradient(graph, *user))
        })
        .map(|(id, result)| graph.node(id).results[usize::from(result)].bytes())
        .sum()
}

/// True if a kernel was recorded by differentiation.
fn is_gradient(graph: &Graph, id: NodeId) -> bool {
    matches!(&graph.node(id).source, Source::Text(text) if text.starts_with("grad of"))
}
