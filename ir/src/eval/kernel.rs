//! Interprets a [`Kernel`] in the plainest way; `contract` has the contractions.

use super::body::{Failed, Machine, each_position, malformed};
use super::bytes::Bytes;
use super::contract::contract;
use super::reduce::{Column, row};
use super::scalar::{Bits, convert, read, write};
use super::{EvalError, Raised, Value};
use crate::DType;
use crate::kernel::{
    Body, Form, Kernel, Nest, Over, Reduction, Scalar, ScalarOp, Scatter, Segment, Sink, Stage,
};
use std::collections::BTreeMap;

/// What a kernel makes of its inputs: its outputs, in order.
///
/// All inputs are read before an output is written, so outputs that update an input in place are told apart from it.
///
/// # Errors
/// If a check is raised (of several, the one with the lowest number), or the kernel is not well formed.
pub fn kernel(kernel: &Kernel, inputs: &[&[u8]]) -> Result<Vec<Bytes>, EvalError> {
    if inputs.len() != kernel.inputs.len()
        || inputs.iter().zip(&kernel.inputs).any(|(b, t)| b.len() != t.bytes())
    {
        return Err(malformed(&format!("the inputs are not those of @{}", kernel.name)));
    }
    let mut outputs = Vec::with_capacity(kernel.outputs.len());
    for output in &kernel.outputs {
        outputs.push(match output.update.map(|i| inputs.get(i)) {
            Some(Some(old)) if old.len() == output.ty.bytes() => {
                let mut copy = Bytes::to_write(old.len()).map_err(EvalError::Memory)?;
                copy.copy_from_slice(old);
                copy
            }
            Some(_) => return Err(malformed("an output updates an input of another type")),
            None => Value::zeros(output.ty.clone()).map_err(EvalError::Memory)?.bytes,
        });
    }
    if let Some(when) = kernel.when {
        let flag = inputs
            .get(when)
            .and_then(|b| read(b, DType::F32, 0))
            .ok_or_else(|| malformed("no flag"))?;
        if f32::from_bits(flag as u32) != 0.0 {
            return Ok(outputs);
        }
    }
    let failed = match &kernel.form {
        Form::Nest(nest) => run_nest(nest, inputs, &mut outputs)?,
        Form::Contract(form) => contract(form, inputs, &mut outputs)?,
        Form::Scatter(scatter) => run_scatter(scatter, kernel, inputs, &mut outputs)?,
    };
    match failed {
        None => Ok(outputs),
        Some((number, found)) => {
            let check =
                kernel.checks.get(number as usize).ok_or_else(|| malformed("no such check"))?;
            Err(EvalError::Data(Box::new(Raised {
                number: number as usize,
                check: check.clone(),
                found,
                kernel: kernel.name.clone(),
            })))
        }
    }
}

fn run_nest(nest: &Nest, inputs: &[&[u8]], outputs: &mut [Bytes]) -> Result<Failed, EvalError> {
    let mut failed: Failed = None;
    for segment in &nest.segments {
        let mut run = NestRun::new(nest, segment, inputs)?;
        let outer = &segment.extents[..segment.extents.len() - 1];
        each_position(outer, |position| {
            run.machine.position[..position.len()].copy_from_slice(position);
            run.row(outputs)
        })?;
        run.columns(outputs)?;
        run.largest(outputs)?;
        failed = [failed, run.machine.failed].into_iter().flatten().min();
    }
    Ok(failed)
}

/// One segment of a nest.
struct NestRun<'a> {
    nest: &'a Nest,
    segment: &'a Segment,
    machine: Machine<'a>,
    /// For each column sink in order, what has come down each column, row-major over the kept axes.
    columns: Vec<Vec<Column>>,
    /// By output slot, the type and the largest value so far.
    largest: BTreeMap<usize, (Scalar, Bits)>,
    values: Vec<Bits>,
}

impl<'a> NestRun<'a> {
    fn new(
        nest: &'a Nest,
        segment: &'a Segment,
        inputs: &'a [&'a [u8]],
    ) -> Result<Self, EvalError> {
        let Some(row) = segment.extents.last() else { return Err(malformed("a nest has no row")) };
        let mut machine = Machine::new(inputs, segment.extents.len());
        machine.slots = segment.inputs.clone();
        machine.registers = vec![0; nest.registers.len()];
        machine.rows = vec![vec![0; *row]; nest.buffers.len()];
        let mut columns = Vec::new();
        let mut largest = BTreeMap::new();
        for stage in &nest.stages {
            for sink in &stage.sinks {
                if let Sink::Largest { value, output } = sink {
                    largest.insert(*output, (stage.body.ty(*value), 0));
                }
                columns.extend(column(&stage.body, sink, &segment.extents));
            }
        }
        Ok(NestRun { nest, segment, machine, columns, largest, values: Vec::new() })
    }

    fn output<'o>(&self, outputs: &'o mut [Bytes], slot: usize) -> Result<&'o mut [u8], EvalError> {
        self.segment
            .outputs
            .get(slot)
            .and_then(|o| outputs.get_mut(*o).map(|bytes| &mut bytes[..]))
            .ok_or_else(|| malformed("no such output"))
    }

    /// All stages of the row at the current outer position.
    fn row(&mut self, outputs: &mut [Bytes]) -> Result<(), EvalError> {
        let (nest, inner) = (self.nest, self.segment.extents.len() - 1);
        let mut column = 0;
        for stage in &nest.stages {
            let count = if stage.over == Over::Once { 1 } else { self.segment.extents[inner] };
            let mut reduced = vec![Vec::new(); stage.sinks.len()];
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
                    _ => {}
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
        outputs: &mut [Bytes],
    ) -> Result<(), EvalError> {
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
                    let at = kept_place(&self.segment.extents, &self.machine.position, kept);
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
    fn largest(&self, outputs: &mut [Bytes]) -> Result<(), EvalError> {
        for (output, (ty, largest)) in &self.largest {
            let to = self.output(outputs, *output)?;
            write(to, ty.dtype(), 0, *ty, *largest)
                .ok_or_else(|| malformed("an output is too small"))?;
        }
        Ok(())
    }

    /// Stores what has come down the columns.
    fn columns(&self, outputs: &mut [Bytes]) -> Result<(), EvalError> {
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

/// The columns of a sink, if it is one down them.
pub(super) fn column(body: &Body, sink: &Sink, extents: &[usize]) -> Option<Vec<Column>> {
    let Sink::Column { reduction, value, kept, .. } = sink else { return None };
    let count = extents.iter().zip(kept).filter(|(_, k)| **k).map(|(n, _)| n).product();
    Some(vec![Column::new(*reduction, body.ty(*value)); count])
}

/// The number of the column at a position.
pub(super) fn kept_place(extents: &[usize], position: &[i64], kept: &[bool]) -> usize {
    let place = extents.iter().zip(position).zip(kept).filter(|(_, k)| **k);
    place.fold(0, |at, ((n, p), _)| at * n + *p as usize)
}

/// Stores what has come down columns.
pub(super) fn finish<'a>(
    to: &mut [u8],
    (dtype, ty): (DType, Scalar),
    columns: impl Iterator<Item = &'a Column>,
) -> Result<(), EvalError> {
    for (at, column) in columns.enumerate() {
        write(to, dtype, at as i64, ty, column.finish())
            .ok_or_else(|| malformed("a column is outside of its output"))?;
    }
    Ok(())
}

/// A value of a body.
pub(super) fn of(values: &[Bits], value: u32) -> Result<Bits, EvalError> {
    values
        .get(value as usize)
        .copied()
        .ok_or_else(|| malformed("a sink takes a value that is not computed"))
}

fn run_scatter(
    s: &Scatter,
    kernel: &Kernel,
    inputs: &[&[u8]],
    outputs: &mut [Bytes],
) -> Result<Failed, EvalError> {
    let (Some(declared), Some(output)) = (kernel.outputs.first(), outputs.first_mut()) else {
        return Err(malformed("a scatter has no output"));
    };
    let dtype = declared.ty.dtype;
    let scalar = Scalar::of(dtype)
        .ok_or_else(|| malformed("no kernels exist for the dtype of a scatter"))?;
    let base = |i: usize| match s.base {
        None => Ok(0),
        Some(b) => inputs
            .get(b)
            .and_then(|b| read(b, dtype, i as i64))
            .ok_or_else(|| malformed("a base is too small")),
    };
    let mut sums = (0..declared.ty.numel()).map(base).collect::<Result<Vec<Bits>, _>>()?;
    let mut machine = Machine::new(inputs, s.extents.len());
    let mut values = Vec::new();
    each_position(&s.extents, |position| {
        machine.position.copy_from_slice(position);
        machine.run(&s.body, &s.loads, &mut values)?;
        let at = machine
            .place(&s.place, &s.index, &values)
            .ok_or_else(|| malformed("a scatter is guarded"))?;
        let Some(sum) = usize::try_from(at).ok().and_then(|at| sums.get_mut(at)) else {
            return if machine.failed.is_some() {
                Ok(())
            } else {
                Err(malformed("a scatter leads outside of its output"))
            };
        };
        let value = convert(of(&values, s.value)?, s.body.ty(s.value), scalar);
        *sum = super::scalar::apply(ScalarOp::Add, scalar, scalar, &[*sum, value])
            .ok_or_else(|| malformed("no such sum"))?;
        Ok(())
    })?;
    for (i, sum) in sums.into_iter().enumerate() {
        write(output, dtype, i as i64, scalar, sum)
            .ok_or_else(|| malformed("an output is too small"))?;
    }
    Ok(machine.failed)
}
