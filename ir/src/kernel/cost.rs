//! What a run of a kernel takes at least: the bytes that cross memory and the arithmetic.

use super::{Body, Contract, Form, Kernel, Load, Nest, Over, Scatter, Sink, Stage};
use std::collections::BTreeMap;

/// A count of bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the inputs that are read, each counted once.
    pub read: u64,
    /// Bytes of the outputs.
    pub written: u64,
    /// Arithmetic on numbers: one for an operation or a function of floats, two for a multiplication with addition; moves,
    /// comparisons, conversions and index arithmetic count nothing.
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
    pub fn cost(&self) -> Cost {
        let mut reads = Reads::default();
        let flops = match &self.form {
            Form::Nest(nest) => of_nest(nest, &mut reads),
            Form::Contract(contract) => of_contract(contract, &mut reads),
            Form::Scatter(scatter) => of_scatter(scatter, &mut reads),
        };
        let sizes = self.inputs.iter().map(|ty| ty.bytes() as u64);
        let read = sizes.enumerate().map(|(input, size)| {
            let touched = reads.0.get(&input).copied().unwrap_or(0);
            touched.min(size)
        });
        let base = match &self.form {
            Form::Scatter(Scatter { base: Some(base), .. }) => self.inputs[*base].bytes() as u64,
            _ => 0,
        };
        Cost {
            read: read.fold(base, u64::saturating_add),
            written: self.outputs.iter().map(|output| output.ty.bytes() as u64).sum(),
            flops,
        }
    }
}

/// For each input, the bytes of the elements that are loaded from it.
#[derive(Default)]
struct Reads(BTreeMap<usize, u64>);

impl Reads {
    /// A load over loops of these extents, from that input.
    fn add(&mut self, load: &Load, input: usize, extents: &[usize]) {
        let moving = |axis: usize| {
            !load.access.indirect.is_empty()
                || load.access.strides.get(axis).is_some_and(|stride| *stride != 0)
        };
        let elements = (0..extents.len())
            .filter(|axis| moving(*axis))
            .fold(1u64, |count, axis| count.saturating_mul(extents[axis] as u64));
        let bytes = elements.saturating_mul(load.dtype.bytes() as u64);
        let known = self.0.entry(input).or_default();
        *known = known.saturating_add(bytes);
    }
}

fn of_nest(nest: &Nest, reads: &mut Reads) -> u64 {
    let mut flops = 0u64;
    for segment in &nest.segments {
        for load in &nest.loads {
            if let Some(input) = segment.inputs.get(load.input) {
                reads.add(load, *input, &segment.extents);
            }
        }
        let rows = product(&segment.extents[..segment.extents.len().saturating_sub(1)]);
        let positions = product(&segment.extents);
        for stage in &nest.stages {
            let times = if stage.over == Over::Row { positions } else { rows };
            flops = flops.saturating_add(of_stage(stage).saturating_mul(times));
        }
    }
    flops
}

fn of_contract(contract: &Contract, reads: &mut Reads) -> u64 {
    let Contract { batch, m, n, k, a, b, loads, epilogue, .. } = contract;
    let over = |ends: [usize; 2]| [batch.as_slice(), &ends].concat();
    a.loads.iter().for_each(|load| reads.add(load, load.input, &over([*m, *k])));
    b.loads.iter().for_each(|load| reads.add(load, load.input, &over([*k, *n])));
    loads.iter().for_each(|load| reads.add(load, load.input, &over([*m, *n])));
    let results = product(&over([*m, *n]));
    let factors = arithmetic(&a.body)
        .saturating_mul(product(&over([*m, *k])))
        .saturating_add(arithmetic(&b.body).saturating_mul(product(&over([*k, *n]))));
    let each = (2 * *k as u64).saturating_add(of_stage(epilogue));
    results.saturating_mul(each).saturating_add(factors)
}

fn of_scatter(scatter: &Scatter, reads: &mut Reads) -> u64 {
    scatter.loads.iter().for_each(|load| reads.add(load, load.input, &scatter.extents));
    (arithmetic(&scatter.body) + 1).saturating_mul(product(&scatter.extents))
}

/// The operations of a stage at one position, its sums included.
fn of_stage(stage: &Stage) -> u64 {
    let is_sum = |sink: &&Sink| matches!(sink, Sink::Reduce { .. } | Sink::Column { .. });
    arithmetic(&stage.body) + stage.sinks.iter().filter(is_sum).count() as u64
}

/// The operations of a body that compute with numbers.
fn arithmetic(body: &Body) -> u64 {
    let floats = body.insts.iter().filter(|inst| inst.op.is_arithmetic() && inst.ty.is_float());
    floats.count() as u64
}

fn product(extents: &[usize]) -> u64 {
    extents.iter().fold(1, |all, extent| all.saturating_mul(*extent as u64))
}
