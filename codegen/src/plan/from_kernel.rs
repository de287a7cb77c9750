//! From the forms of a kernel to plans, before they are simplified.

use super::argmax::in_two_passes;
use super::canonical::{padded, simplify, sources};
use super::columns::{Column, column_strides, set_units};
use super::max_abs::{Largest, of_row, so_far};
use super::widen_once::widen;
use super::{Place, Plan, Sink, Source, Stage};
use crate::error::{Error, Result};
use smallvec::{SmallVec, smallvec};
use std::collections::HashSet;
use tracecast_ir::DType;
use tracecast_ir::kernel::{
    self as ir, Body, Contract, Factor, Inst, Kernel, Load, Nest, Over, Reduction, Scalar,
    ScalarOp, Scatter,
};

/// The plan of a nest. Slots are the input slots, the output slots, one for the accumulators of each column, and one for each largest
/// value so far.
pub(crate) fn nest(kernel: &Kernel, nest: &Nest) -> Result<(Plan, Vec<Column>, Vec<Largest>)> {
    let first = &nest.segments[0];
    let rank = first.extents.len();
    if rank == 0 {
        return Err(unsupported(kernel, "a nest without a row"));
    }
    let (inputs, outputs) = (first.inputs.len(), first.outputs.len());
    let mut extents: Vec<i64> = first.extents.iter().map(|e| *e as i64).collect();
    let longest = nest.segments.iter().filter_map(|s| s.extents.last()).max().copied().unwrap_or(0);
    extents[rank - 1] = longest as i64;
    let updated: HashSet<usize> = kernel.outputs.iter().filter_map(|o| o.update).collect();
    let written = |slot: usize| {
        nest.segments.iter().any(|s| s.inputs.get(slot).is_some_and(|i| updated.contains(i)))
    };
    let elements = |slot: usize| {
        let inputs = nest.segments.iter().filter_map(|s| kernel.inputs.get(*s.inputs.get(slot)?));
        inputs.map(|t| t.numel() as i64).min().unwrap_or(0)
    };
    let mut plan = Plan {
        aligned: nest.segments.iter().all(|s| s.extents[rank - 1] % 16 == 0),
        extents,
        slots: inputs + outputs,
        tensors: tensors(nest, longest),
        fresh: fresh(kernel, &nest.loads, Some(first)),
        loads: sources(&nest.loads, rank, elements, written),
        positions: Vec::new(),
        apart: Vec::new(),
        buffers: nest.buffers.clone(),
        stages: Vec::new(),
    };
    let (mut columns, mut all) = (Vec::new(), Vec::new());
    let registers = nest.registers.len();
    for stage in &nest.stages {
        let mut sinks = Vec::new();
        for sink in &stage.sinks {
            sinks.push(match sink {
                ir::Sink::Largest { value, output } => {
                    all.push(Largest { scalar: stage.body.ty(*value), output: inputs + output });
                    of_row(*value, registers + all.len() - 1)
                }
                _ => nest_sink(kernel, &mut plan, &mut columns, stage, sink, inputs)?,
            });
        }
        plan.stages.push(Stage {
            once: stage.over == Over::Once,
            first: false,
            body: stage.body.clone(),
            sinks,
        });
    }
    if !all.is_empty() {
        let stage = so_far(&mut plan, &all, registers);
        plan.stages.push(stage);
    }
    simplify(&mut plan, nest.is_map());
    plan.aligned = if nest.segments.len() == 1 { plan.row() % 16 == 0 } else { plan.aligned };
    in_two_passes(&mut plan);
    widen(&mut plan);
    set_units(&plan, &mut columns);
    Ok((plan, columns, all))
}

/// See [`Plan::tensors`].
fn tensors(nest: &Nest, longest: usize) -> i64 {
    let all: usize = nest.segments.iter().filter_map(|s| s.extents.last()).sum();
    all.div_ceil(longest.max(1)).max(1) as i64
}

/// See [`Plan::fresh`]. Of several segments the first speaks for all.
fn fresh(kernel: &Kernel, loads: &[Load], segment: Option<&ir::Segment>) -> SmallVec<[usize; 2]> {
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

fn nest_sink(
    kernel: &Kernel,
    plan: &mut Plan,
    columns: &mut Vec<Column>,
    stage: &ir::Stage,
    sink: &ir::Sink,
    inputs: usize,
) -> Result<Sink> {
    let rank = plan.extents.len();
    Ok(match sink {
        ir::Sink::Store { output, dtype, access, value } => Sink::Store {
            slot: inputs + output,
            dtype: *dtype,
            place: Place::At(padded(access, rank)),
            value: *value,
            after: written_loads(plan),
        },
        ir::Sink::Reduce { reduction, value, register } => {
            Sink::Reduce { reduction: *reduction, value: *value, register: *register }
        }
        ir::Sink::Keep { value, buffer } => Sink::Keep { value: *value, buffer: *buffer },
        ir::Sink::Set { value, register } => Sink::Set { value: *value, register: *register },
        ir::Sink::Largest { .. } => return Err(unsupported(kernel, "a largest value")),
        ir::Sink::Column { reduction, value, output, dtype, kept } => {
            if *reduction == Reduction::ArgMax {
                return Err(unsupported(kernel, "argmax down a column"));
            }
            let (keep, count, size, rows) = column_strides(&plan.extents, kept);
            columns.push(Column {
                reduction: *reduction,
                scalar: stage.body.ty(*value),
                output: inputs + output,
                dtype: *dtype,
                size,
                rows,
                unit: 0,
            });
            plan.slots += 1;
            let slot = plan.slots - 1;
            Sink::Column { reduction: *reduction, value: *value, slot, keep, count, size }
        }
    })
}

/// All loads of operands that the kernel writes.
fn written_loads(plan: &Plan) -> SmallVec<[u32; 1]> {
    plan.loads.iter().enumerate().filter(|(_, l)| !l.fixed).map(|(i, _)| i as u32).collect()
}

/// The plan that computes a block of a factor, and the dtype of the block. Slots are the kernel's inputs and outputs, and one for
/// the block.
pub(crate) fn factor(
    kernel: &Kernel,
    c: &Contract,
    factor: &Factor,
    matrix: [usize; 2],
) -> (Plan, DType) {
    let slots = kernel.inputs.len() + kernel.outputs.len();
    let (value, dtype) = written(c, factor);
    let extents: Vec<i64> = c.batch.iter().chain(&matrix).map(|e| *e as i64).collect();
    let store =
        Sink::Store { slot: slots, dtype, place: Place::Stream, value, after: SmallVec::new() };
    let mut plan = Plan {
        aligned: false,
        slots: slots + 1,
        tensors: 1,
        fresh: SmallVec::new(),
        loads: sources(&factor.loads, extents.len(), elements_of(kernel), |_| false),
        extents,
        positions: Vec::new(),
        apart: Vec::new(),
        buffers: Vec::new(),
        stages: vec![Stage {
            once: false,
            first: false,
            body: factor.body.clone(),
            sinks: vec![store],
        }],
    };
    keep_axes(&mut plan);
    (plan, dtype)
}

/// What a factor's function writes, and as what: bf16 where the values are those of bf16, which some CPUs multiply faster.
fn written(c: &Contract, factor: &Factor) -> (ir::Val, DType) {
    let Inst { op, args, ty } = &factor.body.insts[factor.value as usize];
    match op {
        _ if c.acc == Scalar::F64 => (factor.value, DType::F64),
        // Writing rounds.
        ScalarOp::Round(DType::BF16) if *ty == Scalar::F32 => (args[0], DType::BF16),
        ScalarOp::Load(l) if factor.loads[*l as usize].dtype == DType::BF16 => {
            (factor.value, DType::BF16)
        }
        _ => (factor.value, DType::F32),
    }
}

/// The plan of a contraction's epilogue for a part of a row, what it reduces down the columns and what it takes the largest of. Slots
/// are the kernel's inputs and outputs, one for the sums, one for the accumulators of each column, and one for each largest value so far.
pub(crate) fn epilogue(kernel: &Kernel, c: &Contract) -> Result<(Plan, Vec<Column>, Vec<Largest>)> {
    let (inputs, sums) = (kernel.inputs.len(), kernel.inputs.len() + kernel.outputs.len());
    let extents: Vec<i64> = c.batch.iter().chain(&[c.m, c.n]).map(|e| *e as i64).collect();
    let updated = |input: usize| kernel.outputs.iter().any(|o| o.update == Some(input));
    let mut plan = Plan {
        aligned: false,
        slots: sums + 1,
        tensors: 1,
        fresh: fresh(kernel, &c.loads, None),
        loads: sources(&c.loads, extents.len(), elements_of(kernel), updated),
        extents,
        positions: Vec::new(),
        apart: Vec::new(),
        buffers: Vec::new(),
        stages: Vec::new(),
    };
    let load = plan.loads.len() as u32;
    let dtype = if c.acc == Scalar::F64 { DType::F64 } else { DType::F32 };
    plan.loads.push(Source { slot: sums, dtype, place: Place::Stream, elements: 0, fixed: true });
    let load = |inst: &Inst| match inst.op {
        ScalarOp::Acc => Inst { op: ScalarOp::Load(load), ..inst.clone() },
        _ => inst.clone(),
    };
    let body = Body::from(c.epilogue.body.insts.iter().map(load).collect::<Vec<_>>());
    let (mut sinks, mut columns, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for sink in &c.epilogue.sinks {
        sinks.push(match sink {
            ir::Sink::Store { .. } | ir::Sink::Column { .. } => {
                nest_sink(kernel, &mut plan, &mut columns, &c.epilogue, sink, inputs)?
            }
            ir::Sink::Largest { value, output } => {
                all.push(Largest { scalar: body.ty(*value), output: inputs + output });
                of_row(*value, all.len() - 1)
            }
            _ => return Err(unsupported(kernel, "an epilogue with other sinks")),
        });
    }
    plan.stages.push(Stage { once: false, first: false, body, sinks });
    if !all.is_empty() {
        let stage = so_far(&mut plan, &all, 0);
        plan.stages.push(stage);
    }
    keep_axes(&mut plan);
    set_units(&plan, &mut columns);
    Ok((plan, columns, all))
}

fn elements_of(kernel: &Kernel) -> impl Fn(usize) -> i64 {
    |input| kernel.inputs.get(input).map_or(0, |t| t.numel() as i64)
}

/// Simplifies a plan whose callers count in the kernel's own rows and positions.
fn keep_axes(plan: &mut Plan) {
    simplify(plan, false);
}

/// The plan that adds a scatter's sources. Slots are the kernel's inputs and outputs, and one for the accumulator.
pub(crate) fn scatter(kernel: &Kernel, s: &Scatter) -> Result<Plan> {
    let slots = kernel.inputs.len() + kernel.outputs.len();
    let dtype = scatter_dtype(kernel);
    if dtype == DType::Bool {
        return Err(unsupported(kernel, "a scatter of truth values"));
    }
    let mut extents: Vec<i64> = s.extents.iter().map(|e| *e as i64).collect();
    let scalar_source = extents.is_empty();
    if scalar_source {
        extents.push(1);
    }
    let rank = extents.len();
    let elements = kernel.outputs[0].ty.numel() as i64;
    let (access, index) = (padded(&s.place, rank), s.index.clone());
    let add = Sink::Add { slot: slots, dtype, access, index, elements, value: s.value };
    let mut plan = Plan {
        aligned: extents[rank - 1] % 16 == 0,
        slots: slots + 1,
        tensors: 1,
        fresh: SmallVec::new(),
        loads: sources(&s.loads, rank, elements_of(kernel), |_| false),
        extents,
        positions: Vec::new(),
        apart: Vec::new(),
        buffers: Vec::new(),
        stages: vec![Stage { once: false, first: false, body: s.body.clone(), sinks: vec![add] }],
    };
    // Merging keeps the row-major order of the sources.
    simplify(&mut plan, true);
    plan.aligned = plan.row() % 16 == 0;
    Ok(plan)
}

/// The dtype that a scatter accumulates in.
pub(crate) fn scatter_dtype(kernel: &Kernel) -> DType {
    let dtype = kernel.outputs[0].ty.dtype;
    if dtype.is_low() { DType::F32 } else { dtype }
}

/// A map over one axis of `n` elements, with `slots` operands.
pub(crate) fn flat(n: i64, slots: usize, loads: Vec<Source>, body: Body, sinks: Vec<Sink>) -> Plan {
    Plan {
        extents: vec![n],
        aligned: n % 16 == 0,
        slots,
        tensors: 1,
        fresh: SmallVec::new(),
        loads,
        positions: Vec::new(),
        apart: Vec::new(),
        buffers: Vec::new(),
        stages: vec![Stage { once: false, first: false, body, sinks }],
    }
}

/// The element at the position of a flat map.
pub(crate) fn in_order() -> Place {
    Place::At(ir::Access { strides: smallvec![1], ..ir::Access::default() })
}

pub(crate) fn unsupported(kernel: &Kernel, what: &str) -> Error {
    Error::Unsupported { kernel: kernel.name.clone(), what: what.to_owned() }
}
