//! Lines: scans along an axis, and the order of its elements. What is done with a line stands in
//! [`line`](crate::kernel::line).

use super::loops::{Grouping, Joins, Loops, Operands};
use crate::Size;
use crate::kernel::cost::Reads;
use crate::kernel::interpret::{Failed, Stopped, malformed, repeated};
use crate::kernel::line::{Layout, Scan, Work};
use crate::kernel::{Body, Kernel, Scalar, build};
use std::fmt::{self, Formatter};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::Nothing,
    operands: Operands::InMemory { why: "a line is read as a whole" },
    domain: |graph, node| &graph.node(node).results[0].shape,
    build: build::lines,
};

/// `out = work(in0, in1)` for every line of operands of one type, which lie in memory as they are.
/// Of work on two operands, both are the one input if there is no other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lines {
    /// What is done with a line.
    pub work: Work,
    /// Positions before the axis of the lines.
    pub outer: Size,
    /// Elements of a line.
    pub length: Size,
    /// Positions behind the axis.
    pub inner: Size,
    /// Results of a line.
    pub kept: Size,
}

impl Lines {
    /// Where lines lie, for sizes that are numbers.
    pub(crate) fn layout(&self) -> Layout {
        Layout {
            outer: self.outer.get(),
            length: self.length.get(),
            inner: self.inner.get(),
            kept: self.kept.get(),
        }
    }
}

impl Loops for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn evaluate(
        &self,
        kernel: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped> {
        let (Some(x), [output]) = (kernel.inputs.first(), outputs) else {
            return Err(malformed("lines have an operand and one output"));
        };
        let operands = self.work.operands(inputs).map_err(Stopped::Malformed)?;
        let layout = self.layout();
        let mut words = repeated(0, self.work.words(x.dtype, layout))?;
        let done = self.work.run(x.dtype, layout, &operands, output, &mut words);
        done.map_err(Stopped::Malformed)?;
        Ok(None)
    }

    fn cost(&self, kernel: &Kernel, reads: &mut Reads) -> u64 {
        kernel.inputs.iter().for_each(|input| reads.add_whole(input.bytes().get()));
        let Layout { outer, length, inner, .. } = self.layout();
        let steps = match self.work {
            Work::Scan { scan: Scan::Recurrence, .. } => 2,
            Work::Scan { .. } => 1,
            Work::Order { .. } => u64::from(length.max(2).ilog2()),
        };
        ((outer * length * inner) as u64).saturating_mul(steps)
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Lines { work, outer, length, inner, kept } = self;
        writeln!(f, "  lines outer {outer}, length {length}, inner {inner}, kept {kept}")?;
        writeln!(f, "    {work}")
    }

    fn accumulators(&self, kernel: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
        let Some(scalar) = kernel.inputs.first().and_then(|i| Scalar::of(i.dtype)) else { return };
        if matches!(self.work, Work::Scan { .. }) && !self.work.is_position() {
            found("a result so far", scalar, scalar);
        }
    }

    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        [&mut self.outer, &mut self.length, &mut self.inner, &mut self.kept]
            .into_iter()
            .for_each(each);
    }

    fn each_body(&mut self, _: &mut dyn FnMut(&mut Body)) {}
}
