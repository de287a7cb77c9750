//! Maps and rows: stages that run along rows.

use super::loops::{
    Grouping, Joins, Loops, Operands, column_accumulator, numbers, scalar, sizes_of_loads,
    sizes_of_stores,
};
use crate::Size;
use crate::kernel::build;
use crate::kernel::code::Code;
use crate::kernel::cost::{Reads, of_stage, product};
use crate::kernel::interpret::reduce::{Column, column, finish, kept_place, row};
use crate::kernel::interpret::scalar::{Bits, write};
use crate::kernel::interpret::{
    Failed, Machine, Stopped, each_position, malformed, of, repeated, room,
};
use crate::kernel::scalar_text::commas;
use crate::kernel::{Body, Kernel, Load, Over, Reduction, Scalar, Sink, Stage};
use crate::op::Lower;
use std::collections::BTreeMap;
use std::fmt::{self, Formatter, Write};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::SameDomain,
    operands: Operands::AtPosition,
    domain: |graph, node| match build::lowering(graph, node) {
        Some(Lower::ReduceRow | Lower::ReduceColumn) => &graph.ty(graph.args(node)[0]).shape,
        _ => &graph.node(node).results[0].shape,
    },
    build: build::nest,
};

/// Parallel outer axes and one inner axis, the row, over which stages run in order.
///
/// A scalar result has no outer axes and a row of one position. Every segment runs the same code
/// over its own extents and operands; more than one segment is allowed only for maps with no outer
/// axes (multi-tensor kernels). In a map with segments each access has stride 1 or 0 along the row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nest {
    /// What differs between the tensors of a multi-tensor kernel; never empty.
    pub segments: Vec<Segment>,
    /// The places that stages load from.
    pub loads: Vec<Load>,
    /// The types of the registers: one value per row each.
    pub registers: Vec<Scalar>,
    /// The types of the row buffers: one value per position each, alive for one row.
    pub buffers: Vec<Scalar>,
    /// Run in order for each row.
    pub stages: Vec<Stage>,
}

impl Nest {
    /// True if it has a single stage, and no reduction but of all positions.
    pub fn is_map(&self) -> bool {
        self.stages.len() == 1
            && self.stages[0].over == Over::Row
            && self.stages[0]
                .sinks
                .iter()
                .all(|s| matches!(s, Sink::Store { .. } | Sink::Largest { .. }))
    }

    /// The number of axes; the last one is the row.
    pub fn rank(&self) -> usize {
        self.segments[0].extents.len()
    }
}

/// The extents and operands of one run of a nest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Sizes of the outer axes, then of the row.
    pub extents: Vec<Size>,
    /// For each input slot of the code, the kernel's input.
    pub inputs: Vec<usize>,
    /// For each output slot of the code, the kernel's output.
    pub outputs: Vec<usize>,
}

impl Loops for Nest {
    fn name(&self) -> &'static str {
        if self.is_map() { "map" } else { "rows" }
    }

    fn evaluate(
        &self,
        _: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped> {
        let mut failed: Failed = None;
        for segment in &self.segments {
            let mut run = NestRun::new(self, segment, inputs)?;
            let outer = run.extents[..run.extents.len() - 1].to_vec();
            each_position(&outer, |position| {
                run.machine.position[..position.len()].copy_from_slice(position);
                run.row(outputs)
            })?;
            run.columns(outputs)?;
            run.largest(outputs)?;
            failed = [failed, run.machine.failed].into_iter().flatten().min();
        }
        Ok(failed)
    }

    fn cost(&self, _: &Kernel, reads: &mut Reads) -> u64 {
        let mut flops = 0u64;
        for segment in &self.segments {
            let extents = numbers(&segment.extents);
            for load in &self.loads {
                if let Some(input) = segment.inputs.get(load.input) {
                    reads.add(load, *input, &extents);
                }
            }
            let rows = product(&extents[..extents.len().saturating_sub(1)]);
            let positions = product(&extents);
            for stage in &self.stages {
                let times = if stage.over == Over::Row { positions } else { rows };
                flops = flops.saturating_add(of_stage(stage).saturating_mul(times));
            }
        }
        flops
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rank = self.segments.first().map_or(0, |s| s.extents.len());
        let mut axes: Vec<String> = (0..rank.saturating_sub(1)).map(|i| format!("i{i}")).collect();
        axes.push("r".to_owned());
        let single = match self.segments.as_slice() {
            [segment] => Some(segment),
            _ => None,
        };
        for segment in &self.segments {
            f.write_str(if single.is_some() { "  loop " } else { "  segment " })?;
            commas(f, segment.extents.iter().enumerate(), |f, (axis, extent)| {
                let row = if axis + 1 == segment.extents.len() { "row " } else { "" };
                write!(f, "{row}{} {extent}", axes.get(axis).map_or("?", |a| a))
            })?;
            if single.is_none() {
                f.write_str(": ")?;
                commas(f, segment.inputs.iter().enumerate(), |f, (slot, input)| {
                    write!(f, "x{slot} = in{input}")
                })?;
                f.write_str(" -> ")?;
                commas(f, segment.outputs.iter().enumerate(), |f, (slot, output)| {
                    write!(f, "y{slot} = out{output}")
                })?;
            }
            f.write_char('\n')?;
        }
        show_scalars(f, "register g", &self.registers)?;
        show_scalars(f, "buffer w", &self.buffers)?;
        let code = Code {
            axes,
            loads: &self.loads,
            inputs: single.map(|s| s.inputs.as_slice()),
            outputs: single.map(|s| s.outputs.as_slice()),
            letter: 's',
        };
        self.stages.iter().try_for_each(|stage| code.stage(f, stage))
    }

    fn accumulators(&self, _: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
        let sinks = self.stages.iter().flat_map(|s| s.sinks.iter().map(move |k| (s, k)));
        for (stage, sink) in sinks {
            match sink {
                Sink::Reduce { reduction, .. } if !reduction.accumulates() => {}
                Sink::Reduce { value, register, .. } => {
                    let acc = self.registers.get(*register).copied();
                    if let (Some(acc), Some(term)) = (acc, scalar(&stage.body, *value)) {
                        found("a sum along the row", acc, term);
                    }
                }
                Sink::Column { .. } => column_accumulator(stage, sink, found),
                // What is only moved, or picked, is not accumulated.
                Sink::Store { .. }
                | Sink::Keep { .. }
                | Sink::Set { .. }
                | Sink::Largest { .. } => {}
            }
        }
    }

    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        self.segments.iter_mut().flat_map(|s| &mut s.extents).for_each(&mut *each);
        sizes_of_loads(&mut self.loads, each);
        self.stages.iter_mut().for_each(|stage| sizes_of_stores(stage, each));
    }

    fn each_body(&mut self, each: &mut dyn FnMut(&mut Body)) {
        self.stages.iter_mut().for_each(|stage| each(&mut stage.body));
    }
}

fn show_scalars(f: &mut Formatter<'_>, what: &str, scalars: &[Scalar]) -> fmt::Result {
    for (i, scalar) in scalars.iter().enumerate() {
        writeln!(f, "  {what}{i} : {}", scalar.name())?;
    }
    Ok(())
}

/// One segment of a nest.
struct NestRun<'a> {
    nest: &'a Nest,
    segment: &'a Segment,
    extents: Vec<usize>,
    machine: Machine<'a>,
    /// For each column sink in order, what has come down each column, row-major over the kept axes.
    columns: Vec<Vec<Column>>,
    /// By output slot, the type and the largest value so far.
    largest: BTreeMap<usize, (Scalar, Bits)>,
    values: Vec<Bits>,
}

impl<'a> NestRun<'a> {
    fn new(nest: &'a Nest, segment: &'a Segment, inputs: &'a [&'a [u8]]) -> Result<Self, Stopped> {
        let extents = numbers(&segment.extents);
        let Some(row) = extents.last() else { return Err(malformed("a nest has no row")) };
        let mut machine = Machine::new(inputs, extents.len());
        machine.slots = segment.inputs.clone();
        machine.registers = vec![0; nest.registers.len()];
        let rows = nest.buffers.iter().map(|_| repeated(0, *row));
        machine.rows = rows.collect::<Result<_, _>>()?;
        let mut columns = Vec::new();
        let mut largest = BTreeMap::new();
        for stage in &nest.stages {
            for sink in &stage.sinks {
                if let Sink::Largest { value, output } = sink {
                    largest.insert(*output, (stage.body.ty(*value), 0));
                }
                columns.extend(column(&stage.body, sink, &extents)?);
            }
        }
        Ok(NestRun { nest, segment, extents, machine, columns, largest, values: Vec::new() })
    }

    fn output<'o>(
        &self,
        outputs: &'o mut [&mut [u8]],
        slot: usize,
    ) -> Result<&'o mut [u8], Stopped> {
        self.segment
            .outputs
            .get(slot)
            .and_then(|o| outputs.get_mut(*o).map(|bytes| &mut **bytes))
            .ok_or_else(|| malformed("no such output"))
    }

    /// All stages of the row at the current outer position.
    fn row(&mut self, outputs: &mut [&mut [u8]]) -> Result<(), Stopped> {
        let (nest, inner) = (self.nest, self.extents.len() - 1);
        let mut column = 0;
        for stage in &nest.stages {
            let count = if stage.over == Over::Once { 1 } else { self.extents[inner] };
            let values = |sink: &Sink| match sink {
                Sink::Reduce { .. } => room(count),
                _ => Ok(Vec::new()),
            };
            let mut reduced = stage.sinks.iter().map(values).collect::<Result<Vec<_>, _>>()?;
            for position in 0..count {
                self.machine.position[inner] = position as i64;
                let mut values = std::mem::take(&mut self.values);
                self.machine.run(&stage.body, &nest.loads, &mut values)?;
                self.sinks(stage, position, &values, &mut reduced, column, outputs)?;
                self.values = values;
            }
            for (sink, values) in stage.sinks.iter().zip(&reduced) {
                match sink {
                    Sink::Reduce { reduction, value, register } => {
                        let result = row(*reduction, stage.body.ty(*value), values);
                        *self
                            .machine
                            .registers
                            .get_mut(*register)
                            .ok_or_else(|| malformed("no such register"))? = result;
                    }
                    Sink::Column { .. } => column += 1,
                    Sink::Store { .. }
                    | Sink::Keep { .. }
                    | Sink::Set { .. }
                    | Sink::Largest { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn sinks(
        &mut self,
        stage: &Stage,
        position: usize,
        values: &[Bits],
        reduced: &mut [Vec<Bits>],
        mut column: usize,
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Stopped> {
        for (sink, reduced) in stage.sinks.iter().zip(reduced) {
            match sink {
                Sink::Store { output, dtype, access, value } => {
                    let at = self
                        .machine
                        .place(access, &[], &[])
                        .ok_or_else(|| malformed("a store is guarded"))?;
                    let to = self.output(outputs, *output)?;
                    write(to, *dtype, at, stage.body.ty(*value), of(values, *value)?).ok_or_else(
                        || malformed(&format!("element {at} is outside of output {output}")),
                    )?;
                }
                Sink::Reduce { value, .. } => reduced.push(of(values, *value)?),
                Sink::Keep { value, buffer } => {
                    let value = of(values, *value)?;
                    let buffer = self
                        .machine
                        .rows
                        .get_mut(*buffer)
                        .ok_or_else(|| malformed("no such row buffer"))?;
                    buffer[position] = value;
                }
                Sink::Set { value, register } => {
                    let value = of(values, *value)?;
                    *self
                        .machine
                        .registers
                        .get_mut(*register)
                        .ok_or_else(|| malformed("no such register"))? = value;
                }
                Sink::Column { value, kept, .. } => {
                    let at = kept_place(&self.extents, &self.machine.position, kept);
                    self.columns[column][at].push(of(values, *value)?);
                    column += 1;
                }
                Sink::Largest { value, output } => {
                    let value = of(values, *value)?;
                    if let Some((ty, so_far)) = self.largest.get_mut(output) {
                        *so_far = Reduction::Max.combine(*ty, *so_far, value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores the largest values.
    fn largest(&self, outputs: &mut [&mut [u8]]) -> Result<(), Stopped> {
        for (output, (ty, largest)) in &self.largest {
            let to = self.output(outputs, *output)?;
            write(to, ty.dtype(), 0, *ty, *largest)
                .ok_or_else(|| malformed("an output is too small"))?;
        }
        Ok(())
    }

    /// Stores what has come down the columns.
    fn columns(&self, outputs: &mut [&mut [u8]]) -> Result<(), Stopped> {
        let sinks = self
            .nest
            .stages
            .iter()
            .flat_map(|stage| stage.sinks.iter().map(move |sink| (stage, sink)));
        let mut columns = self.columns.iter();
        for (stage, sink) in sinks {
            let Sink::Column { value, output, dtype, .. } = sink else { continue };
            let to = self.output(outputs, *output)?;
            finish(to, (*dtype, stage.body.ty(*value)), columns.next().into_iter().flatten())?;
        }
        Ok(())
    }
}
