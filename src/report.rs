//! What becomes of a program: [`Progress`] while it is compiled, then [`CompileReport`], in
//! numbers.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::{Attr, Graph, NodeId, ValueId, Verified};
use tracecast_passes::Pipeline;
use tracecast_passes::explain::Warning;
use tracecast_runtime::{Executable, FallbackLaunch, Made, MadeFrom, Program};

/// What became of a program on its way to an executable.
#[derive(Clone, Debug, Default)]
pub struct CompileReport {
    /// The time it took to record the program; zero if it came as a graph.
    pub trace: Duration,
    /// The time of each pass with the verifier after it, in order; the first entry is the
    /// verification of the traced program.
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
    /// The bytes that the backward pass needs of the forward pass: of the values that kernels of
    /// the forward part write and later kernels read, as many as are needed at one time. They are
    /// part of [`peak_bytes`](Self::peak_bytes). Ports do not count, they are there anyway. A
    /// kernel that gives something of the forward part and something later, such as a loss and its
    /// gradient, is one of the forward part.
    pub saved_bytes: usize,
    /// The memory of all values between kernels, with reuse.
    pub peak_bytes: usize,
    /// The memory in which the device keeps what it makes of state that the program only reads,
    /// such as packed weights; see [`Options::keep_weights`](crate::Options::keep_weights).
    pub kept_bytes: usize,
    /// The text of the program after each pass, if
    /// [`Options::keep_history`](crate::Options::keep_history) asked for it.
    pub history: Vec<(String, String)>,
    /// The launches of a run on the [fallback](crate::Options::fallback), in order.
    pub fallback: Vec<FallbackLaunch>,
    /// What was odd but no error: what tracing noticed, and numbers that do not fit the precision
    /// chosen for them.
    pub warnings: Vec<Warning>,
}

/// How far the compilation of a program is: what [`Options::progress`](crate::Options::progress) is
/// told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The name of the program.
    pub program: &'a str,
    /// What begins now: a pass by its name, `plan`, or `load`, in which the device compiles
    /// kernels; `ready` at the end.
    pub phase: &'a str,
    /// How many phases are done.
    pub done: usize,
    /// How many there are.
    pub total: usize,
}

/// The code of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode {
    /// The name of the kernel.
    pub name: String,
    /// The form, such as `map`, `rows` or `contraction`.
    pub form: &'static str,
    /// Where the code comes from, how long that took and how long it is; `None` if the device does
    /// not tell.
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

    /// Tells a logger of everything that was odd, but for what it was told before.
    pub(crate) fn log(&self, program: &str, mut is_new: impl FnMut(&str) -> bool) {
        let warnings = self.warnings.iter().map(Warning::to_string);
        let of_cache = self.warnings_of_cache().map(str::to_owned);
        for warning in warnings.chain(of_cache).filter(|warning| is_new(warning)) {
            log::warn!(target: "tracecast", "@{program}: {warning}");
        }
    }

    pub(crate) fn loaded(&mut self, executable: &Executable, time: Duration) {
        self.load = time;
        self.kept_bytes = executable.kept_bytes();
        self.fallback = executable.fallback_launches().collect();
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
        // The first is called `trace` where the program as it came is shown; what takes time is its
        // verification.
        let timed = if pass == Pipeline::TRACED { "verify" } else { pass };
        self.passes.push((timed.to_owned(), time));
        if keep {
            self.history.push((pass.to_owned(), graph.to_string()));
        }
    }

    pub(crate) fn planned(&mut self, graph: &Verified, program: &Program, time: Duration) {
        self.plan = time;
        self.peak_bytes = program.peak_bytes();
        self.saved_bytes = saved_bytes(graph, program);
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
        for FallbackLaunch { kernel, reason, bytes } in &self.fallback {
            writeln!(f, "fallback: @{kernel}, {bytes} bytes copied: {reason}")?;
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

/// The most bytes at one time that kernels behind the forward part still have to read of what it
/// wrote: of a value from the kernel that writes it to the last of them that reads it. What becomes
/// state is none of the memory between kernels.
fn saved_bytes(graph: &Graph, program: &Program) -> usize {
    let steps = program.kernels().enumerate().map(|(at, (name, _))| (name, at));
    let steps: HashMap<&str, usize> = steps.collect();
    let step = |id: NodeId| match graph.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => steps.get(kernel.name.as_str()).copied(),
        _ => None,
    };
    let is_state = |value: &ValueId| graph.updates().iter().any(|(_, next)| next == value);
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    for id in graph.nodes().filter(|id| is_later(graph, *id)) {
        let Some(now) = step(id) else { continue };
        for value in graph.args(id) {
            if !is_later(graph, value.node) && !is_state(&value) {
                let known = last.entry(value).or_default();
                *known = now.max(*known);
            }
        }
    }
    let mut held = vec![0usize; steps.len()];
    for (value, until) in last {
        // Ports are written by no kernel.
        let Some(from) = step(value.node) else { continue };
        held[from..=until].iter_mut().for_each(|held| *held += graph.hint(graph.ty(value).bytes()));
    }
    held.into_iter().max().unwrap_or(0)
}

/// True for a kernel that gives nothing but gradients and what is made of them.
fn is_later(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).origin.backward
}
