//! [`CompileReport`]: what became of a program, in numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::op::{Body, Intrinsic, Lower};
use tracecast_ir::{Attr, Graph, NodeId, Stage, ValueId, Verified};
use tracecast_passes::explain::Warning;
use tracecast_runtime::{Executable, Made, MadeFrom, Program};

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
    /// The kernels in the order of the program, and how their code came to be.
    pub code: Vec<KernelCode>,
    /// The number of kernels.
    pub kernels: usize,
    /// The number of kernels of each form, such as `map`, `rows` or `contraction`.
    pub forms: BTreeMap<&'static str, usize>,
    /// The kernels that do nothing but change the dtype of one value.
    pub standalone_casts: usize,
    /// The bytes that the backward pass needs of the forward pass: of all distinct values that are computed forward and read by
    /// gradient ops. Ports do not count, they are there anyway; neither do casts and views, but what they were made of.
    pub saved_bytes: usize,
    /// The memory of all values between kernels, with reuse.
    pub peak_bytes: usize,
    /// The memory in which the device keeps what it makes of state that the program only reads, such as packed weights; see
    /// [`Options::keep_weights`](crate::Options::keep_weights).
    pub kept_bytes: usize,
    /// The text of the program after each pass, if [`Options::keep_history`](crate::Options::keep_history) asked for it.
    pub history: Vec<(String, String)>,
    /// What was odd but no error: what tracing noticed, and numbers that do not fit the precision chosen for them.
    pub warnings: Vec<Warning>,
}

/// The code of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode {
    /// The name of the kernel.
    pub name: String,
    /// The form, such as `map`, `rows` or `contraction`.
    pub form: &'static str,
    /// Where the code comes from, how long that took and how long it is; `None` if the device does not tell.
    pub made: Option<Made>,
}

impl CompileReport {
    /// The number of kernels whose code comes from there.
    pub fn made_from(&self, from: MadeFrom) -> usize {
        self.code.iter().filter(|k| k.made.as_ref().is_some_and(|made| made.from == from)).count()
    }

    /// Why files of a [code cache](crate::Options::code_cache) were not used or not written.
    pub fn warnings_of_cache(&self) -> impl Iterator<Item = &str> {
        self.code.iter().filter_map(|k| k.made.as_ref()?.warning.as_deref())
    }

    pub(crate) fn loaded(&mut self, executable: &Executable, time: Duration) {
        self.load = time;
        self.kept_bytes = executable.kept_bytes();
        let code = |(kernel, made): (&Kernel, Option<&Made>)| KernelCode {
            name: kernel.name.clone(),
            form: kernel.form_name(),
            made: made.cloned(),
        };
        self.code = executable.made().map(code).collect();
    }

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

/// A table of what took how long.
impl fmt::Display for CompileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let width = self.code.iter().map(|k| k.name.len()).max().unwrap_or(0).clamp(7, 60);
        let parts = [("trace", self.trace)].into_iter().filter(|(_, time)| !time.is_zero());
        let passes = self.passes.iter().map(|(pass, time)| (pass.as_str(), *time));
        writeln!(f, "{:<width$}  {:>9}", "compile", "µs")?;
        for (part, time) in parts.chain(passes).chain([("plan", self.plan), ("load", self.load)]) {
            writeln!(f, "{part:<width$}  {:>9.1}", us(time))?;
        }
        writeln!(f, "{:<width$}  {:>9.1}", "total", us(self.total()))?;
        for (what, bytes) in [("peak", self.peak_bytes), ("saved", self.saved_bytes)] {
            writeln!(f, "{what:<width$}  {:>9}  {bytes:>7} bytes", "")?;
        }
        if self.kept_bytes > 0 {
            writeln!(f, "{:<width$}  {:>9}  {:>7} bytes", "kept", "", self.kept_bytes)?;
        }
        for kernel in &self.code {
            write!(f, "{:<width$}  ", kernel.name)?;
            match &kernel.made {
                Some(Made { from, time, bytes, .. }) => {
                    let from = from.name();
                    writeln!(f, "{:>9.1}  {bytes:>7} bytes  {}, {from}", us(*time), kernel.form)?;
                }
                None => writeln!(f, "{:>9}  {:>7} bytes  {}", "–", "–", kernel.form)?,
            }
        }
        self.warnings_of_cache().try_for_each(|why| writeln!(f, "code cache: {why}"))
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
        if !is_view && node.op.intrinsic() != Some(Intrinsic::Cast) {
            return (value, width);
        }
        value = graph.args(value.node)[0];
    }
}

/// True if differentiation recorded a node.
fn is_gradient(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).origin.backward
}
