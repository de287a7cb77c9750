//! What a run of a kernel takes at least: the bytes that cross memory and the arithmetic.

use super::{Body, Kernel, Load, Sink, Stage};
use std::collections::BTreeMap;

/// A count of bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the inputs that are read, each counted once.
    pub read: u64,
    /// Bytes of the outputs.
    pub written: u64,
    /// Arithmetic on numbers: one for an operation or a function of floats, two for a
    /// multiplication with addition; moves, comparisons, conversions and index arithmetic count
    /// nothing.
    pub flops: u64,
}

impl Cost {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }
}

impl Kernel {
    /// The bytes and operations of one run. What a cache saves or costs is not in it.
    ///
    /// ```
    /// use tracecast_ir::kernel::Cost;
    ///
    /// let cost = Cost { read: 8, written: 4, flops: 1 };
    /// assert_eq!(cost.bytes(), 12);
    /// ```
    ///
    /// Of a kernel with names, those of a run with the values that it was traced with.
    pub fn cost(&self) -> Cost {
        if !self.names.is_empty() {
            return self.at(&self.hints()).map_or(Cost::default(), |kernel| kernel.cost());
        }
        let mut reads = Reads::default();
        let flops = self.form.as_loops().cost(self, &mut reads);
        let sizes = self.inputs.iter().map(|ty| ty.bytes().get() as u64);
        let read = sizes.enumerate().map(|(input, size)| {
            let touched = reads.loaded.get(&input).copied().unwrap_or(0);
            touched.min(size)
        });
        Cost {
            read: read.fold(reads.whole, u64::saturating_add),
            written: self.outputs.iter().map(|output| output.ty.bytes().get() as u64).sum(),
            flops,
        }
    }
}

/// What is read.
#[derive(Default)]
pub(crate) struct Reads {
    /// For each input, the bytes of the elements that are loaded from it.
    loaded: BTreeMap<usize, u64>,
    /// The bytes of operands that are read as a whole besides.
    whole: u64,
}

impl Reads {
    /// A load over loops of these extents, from that input.
    pub(crate) fn add(&mut self, load: &Load, input: usize, extents: &[usize]) {
        let moving = |axis: usize| {
            !load.access.indirect.is_empty()
                || load.access.strides.get(axis).is_some_and(|stride| *stride != 0)
        };
        let elements = (0..extents.len())
            .filter(|axis| moving(*axis))
            .fold(1u64, |count, axis| count.saturating_mul(extents[axis] as u64));
        let bytes = elements.saturating_mul(load.dtype.bytes() as u64);
        let known = self.loaded.entry(input).or_default();
        *known = known.saturating_add(bytes);
    }

    /// An operand of `bytes` bytes, all of them.
    pub(crate) fn add_whole(&mut self, bytes: usize) {
        self.whole = self.whole.saturating_add(bytes as u64);
    }
}

/// The operations of a stage at one position, its sums included.
pub(crate) fn of_stage(stage: &Stage) -> u64 {
    let is_sum = |sink: &&Sink| matches!(sink, Sink::Reduce { .. } | Sink::Column { .. });
    arithmetic(&stage.body) + stage.sinks.iter().filter(is_sum).count() as u64
}

/// The operations of a body that compute with numbers.
pub(crate) fn arithmetic(body: &Body) -> u64 {
    let floats = body.insts.iter().filter(|inst| inst.op.is_arithmetic() && inst.ty.is_float());
    floats.count() as u64
}

/// The number of positions of loops.
pub(crate) fn product(extents: &[usize]) -> u64 {
    extents.iter().fold(1, |all, extent| all.saturating_mul(*extent as u64))
}
