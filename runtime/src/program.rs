//! [`Program`]: a fused graph as steps over places in memory.

use crate::buckets::{Bucket, Work};
use crate::error::{Error, Result};
use crate::layout::{Abilities, Layout, Step, layout};
use crate::parts::Parts;
use crate::schedule::schedule;
use std::fmt;
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::{Port, Source, Stage as Progress, Verified};

/// A fused graph as steps over places in memory, for any device. Sizes may be names: places are
/// then those of the traced values.
pub struct Program {
    pub(crate) parts: Parts,
    pub(crate) layout: Layout,
    /// The contents of [`Parts::data`], until they are memory of a device.
    pub(crate) contents: Vec<Value>,
}

impl Program {
    /// Plans a graph of stage `Fused`: the order of its kernels, the places of its values, what is
    /// updated in place.
    ///
    /// # Errors
    /// If the graph is of another stage.
    pub fn plan(graph: &Verified) -> Result<Self> {
        Program::plan_in_buckets(graph, BUCKET)
    }

    /// As [`plan`](Program::plan), with reductions between ranks put together until they have that
    /// many bytes; more of one kind go one by one. All ranks must say the same number.
    ///
    /// # Errors
    /// As [`plan`](Program::plan).
    pub fn plan_in_buckets(graph: &Verified, bytes: usize) -> Result<Self> {
        if graph.stage() != Progress::Fused {
            return Err(Error::Plan(format!(
                "expected a graph of stage Fused, found {:?}",
                graph.stage()
            )));
        }
        let (parts, contents) = Parts::of(graph, bytes)?;
        let order = schedule(&parts, true);
        let layout = layout(&parts, &order, Abilities { in_place: true, loans: true });
        Ok(Program { parts, layout, contents })
    }

    /// Plans anew for a device with fewer abilities than were planned for.
    pub(crate) fn lay_out(&mut self, able: Abilities) {
        if !(able.in_place && able.loans) {
            let order = schedule(&self.parts, able.in_place);
            self.layout = layout(&self.parts, &order, able);
        }
    }

    /// The name of the graph.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The values that come from outside: inputs, parameters and other state.
    pub fn ports(&self) -> &[Port] {
        &self.parts.ports
    }

    /// The kernels of a step, in order; equal kernels appear as often as they run. Copies are not
    /// among them.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, &Kernel)> {
        let steps = self.layout.steps.iter();
        steps.filter_map(|s| Some((&*s.name, &*self.parts.kernels[s.work.kernel()?])))
    }

    /// The steps of a run with their kernels, in order. Copies have none, and neither has what
    /// begins an exchange between ranks or waits for one.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (&str, Option<&Kernel>)> {
        let kernel = |step: &Step| step.work.kernel().map(|kernel| &*self.parts.kernels[kernel]);
        self.layout.steps.iter().map(move |s| (&*s.name, kernel(s)))
    }

    /// The module path and the source line that recorded what the step of that number computes;
    /// empty for copies and exchanges, and where the program is a text without lines.
    pub fn recorded_at(&self, step: usize) -> (&str, &Source) {
        self.layout
            .steps
            .get(step)
            .map_or(("", &Source::Unknown), |step| (&*step.line.module, &step.line.source))
    }

    /// How many ranks the program is for, if it has collectives.
    pub fn ranks(&self) -> Option<usize> {
        self.parts.buckets.first().map(|bucket| bucket.ranks)
    }

    /// The exchanges between ranks in the order in which they begin: a name, and how many bytes
    /// each rank gives.
    pub fn exchanges(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        let given = |bucket: &Bucket| {
            bucket.members.iter().map(|(operand, _)| self.parts.bytes[*operand]).sum()
        };
        self.parts.buckets.iter().map(move |bucket| (bucket.name.as_str(), given(bucket)))
    }

    /// How many plain copies a step makes besides, of state that cannot be updated in place.
    pub fn copies(&self) -> usize {
        self.layout.steps.iter().filter(|s| s.work == Work::Copy).count()
    }

    /// How many bytes the step of that number copies, if it is a copy.
    pub fn copied_bytes(&self, step: usize) -> Option<usize> {
        let step = self.layout.steps.get(step).filter(|step| step.work == Work::Copy)?;
        step.operands.first().map(|operand| operand.bytes)
    }

    /// The bytes of memory a step needs besides the state and the tensors it is given.
    pub fn peak_bytes(&self) -> usize {
        self.layout.peak_bytes
    }
}

/// One line per step: kernel and places.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "program @{}: {} steps, {} bytes",
            self.parts.name,
            self.layout.steps.len(),
            self.layout.peak_bytes
        )?;
        for step in &self.layout.steps {
            write!(f, "  {}", step.name)?;
            for operand in &step.operands {
                write!(f, " {operand}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(@{}, {} steps)", self.parts.name, self.layout.steps.len())
    }
}

/// The bytes of reductions that are put together, if nobody says otherwise: enough that the time to
/// begin an exchange does not count.
const BUCKET: usize = 1 << 20;
