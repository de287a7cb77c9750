//! What the forms of kernels share when they become plans: loads as sources, sinks, and what is
//! known of operands.

use super::columns::{Column, column_strides};
use super::loops::padded;
use super::max_abs::{Largest, of_row};
use super::{Draft, Place, Plan, Sink, Source};
use crate::error::{Error, Result};
use smallvec::SmallVec;
use tracecast_ir::Size;
use tracecast_ir::kernel::{self as ir, Body, Kernel, Load};

/// See [`Plan::fresh`]. Of several segments the first speaks for all.
pub(super) fn fresh(
    kernel: &Kernel,
    loads: &[Load],
    segment: Option<&ir::Segment>,
) -> SmallVec<[usize; 2]> {
    let inputs = segment.map_or(kernel.inputs.len(), |s| s.inputs.len());
    let outputs = segment.map_or(kernel.outputs.len(), |s| s.outputs.len());
    let input = |slot: usize| segment.map_or(slot, |s| s.inputs[slot]);
    let output = |slot: usize| segment.map_or(slot, |s| s.outputs[slot]);
    let is_fresh = |slot: &usize| {
        let replaced = kernel.outputs[output(*slot)].update;
        !loads.iter().any(|l| replaced == Some(input(l.input)))
    };
    (0..outputs).filter(is_fresh).map(|slot| inputs + slot).collect()
}

/// A sink of the draft's main plan, which stands in a stage with that body. Reductions down columns
/// and largest values are noted.
///
/// # Errors
/// If there is no such sink.
pub(super) fn sink(
    draft: &mut Draft<'_>,
    segment: Option<&ir::Segment>,
    body: &Body,
    sink: &ir::Sink,
) -> Result<Sink> {
    let kernel = draft.kernel;
    let inputs = segment.map_or(kernel.inputs.len(), |s| s.inputs.len());
    let Draft { plans, columns, largest, registers, .. } = draft;
    let plan = &mut plans[0];
    Ok(match sink {
        ir::Sink::Store { output, dtype, access, value } => Sink::Store {
            slot: inputs + output,
            dtype: *dtype,
            place: Place::At(padded(access, plan.extents.len())),
            value: *value,
            after: written_loads(plan),
        },
        ir::Sink::Reduce { reduction, value, register } => {
            Sink::Reduce { reduction: *reduction, value: *value, register: *register }
        }
        ir::Sink::Keep { value, buffer } => Sink::Keep { value: *value, buffer: *buffer },
        ir::Sink::Set { value, register } => Sink::Set { value: *value, register: *register },
        ir::Sink::Largest { value, output } => {
            largest.push(Largest { scalar: body.ty(*value), output: inputs + output });
            of_row(*value, *registers + largest.len() - 1)
        }
        ir::Sink::Column { reduction, value, output, dtype, kept } => {
            if reduction.is_position() {
                let what = format!("{reduction} down a column");
                return Err(unsupported(kernel, &what));
            }
            let (keep, count, size, rows) = column_strides(&plan.extents, kept);
            columns.push(Column {
                reduction: *reduction,
                scalar: body.ty(*value),
                output: kernel.inputs.len() + segment.map_or(*output, |s| s.outputs[*output]),
                dtype: *dtype,
                size,
                rows,
                outer: None,
                sum: None,
                finish: None,
            });
            plan.slots += 1;
            let slot = plan.slots - 1;
            Sink::Column { reduction: *reduction, value: *value, slot, keep, count, size }
        }
    })
}

/// All loads of operands that the kernel writes.
fn written_loads(plan: &Plan) -> SmallVec<[u32; 1]> {
    plan.loads.iter().enumerate().filter(|(_, l)| !l.read_only).map(|(i, _)| i as u32).collect()
}

/// How many elements an operand of the kernel has.
pub(super) fn elements_of(kernel: &Kernel) -> impl Fn(usize) -> Size {
    |input| kernel.inputs.get(input).map_or(Size::from(0), |t| t.numel())
}

/// The kernel asks for what no code exists for.
pub(super) fn unsupported(kernel: &Kernel, what: &str) -> Error {
    Error::Unsupported { kernel: kernel.name.clone(), what: what.to_owned() }
}

/// Loads as sources, in slots of that numbering.
pub(super) fn sources<'a>(
    loads: impl IntoIterator<Item = &'a Load>,
    rank: usize,
    elements: impl Fn(usize) -> Size,
    written: impl Fn(usize) -> bool,
) -> Vec<Source> {
    loads
        .into_iter()
        .map(|l| {
            let place = Place::At(padded(&l.access, rank));
            Source::new(l.input, l.dtype, place, elements(l.input), !written(l.input))
        })
        .collect()
}
