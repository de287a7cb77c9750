//! Multi-tensor kernels: maps that run the same code over different tensors, and that no other kernel waits for, become one kernel
//! with a segment for each. An optimizer's step is one launch however many parameters there are.

use std::collections::{HashMap, HashSet};
use tracecast_ir::kernel::build::Built;
use tracecast_ir::kernel::{
    Access, Form, Kernel, Load, Nest, Output, ScalarOp, Segment, Sink, Stage,
};
use tracecast_ir::{DType, Graph, ValueId};

/// Merges what can be merged; the others stay as they are.
pub(super) fn merge(graph: &Graph, kernels: Vec<Built>) -> Vec<Built> {
    let read: HashSet<ValueId> = kernels.iter().flat_map(|k| k.inputs.iter().copied()).collect();
    let mut classes: Vec<(Class, Vec<Flat>)> = Vec::new();
    let mut out = Vec::new();
    for built in kernels {
        let terminal = built.outputs.iter().all(|v| !read.contains(v));
        match Flat::of(&built).filter(|_| terminal) {
            Some((class, flat)) => match classes
                .iter_mut()
                .find(|(c, m)| *c == class && m.iter().all(|m| apart(m, &flat, &class)))
            {
                Some((_, members)) => members.push(Flat { built, ..flat }),
                None => classes.push((class, vec![Flat { built, ..flat }])),
            },
            None => out.push(built),
        }
    }
    for (class, members) in classes {
        out.push(if members.len() == 1 { one(members) } else { joined(graph, class, members) });
    }
    out
}

/// What kernels must have in common.
#[derive(PartialEq)]
struct Class {
    stage: Stage,
    loads: Vec<(DType, bool, u64)>,
    /// For each load its slot; slots are numbered by first use.
    slots: Vec<usize>,
    when: Option<ValueId>,
    updates: Vec<Option<usize>>,
}

/// A map over one axis: what differs between kernels of a class.
struct Flat {
    built: Built,
    size: usize,
    /// For each slot, the value.
    inputs: Vec<ValueId>,
}

impl Flat {
    fn of(built: &Built) -> Option<(Class, Flat)> {
        let Form::Nest(nest) = &built.kernel.form else { return None };
        if !nest.is_map() || nest.segments.len() != 1 || !built.kernel.checks.is_empty() {
            return None;
        }
        let extents = &nest.segments[0].extents;
        let stage = &nest.stages[0];
        if stage.body.insts.iter().any(|i| matches!(i.op, ScalarOp::Index(_))) {
            return None;
        }
        let mut inputs: Vec<ValueId> = Vec::new();
        let mut slot = |v: ValueId| {
            inputs.iter().position(|i| *i == v).unwrap_or_else(|| {
                inputs.push(v);
                inputs.len() - 1
            })
        };
        let mut loads = Vec::new();
        let mut slots = Vec::new();
        for load in &nest.loads {
            loads.push((load.dtype, is_dense(&load.access, extents)?, load.access.fill));
            slots.push(slot(built.inputs[load.input]));
        }
        let mut sinks = Vec::new();
        for sink in &stage.sinks {
            let Sink::Store { output, dtype, access, value } = sink else { return None };
            if !is_dense(access, extents)? {
                return None;
            }
            sinks.push(Sink::Store {
                output: *output,
                dtype: *dtype,
                access: flat(true),
                value: *value,
            });
        }
        let updates =
            built.kernel.outputs.iter().map(|o| o.update.map(|i| slot(built.inputs[i]))).collect();
        let when = built.kernel.when.map(|i| built.inputs[i]);
        let stage = Stage { over: stage.over, body: stage.body.clone(), sinks };
        let size = extents.iter().product();
        let empty = Built { kernel: built.kernel.clone(), inputs: Vec::new(), outputs: Vec::new() };
        Some((Class { stage, loads, slots, when, updates }, Flat { built: empty, size, inputs }))
    }
}

/// True if neither reads state that the other replaces.
fn apart(a: &Flat, b: &Flat, class: &Class) -> bool {
    let replaced = |x: &Flat, y: &Flat| {
        class.updates.iter().flatten().any(|&slot| y.inputs.contains(&x.inputs[slot]))
    };
    !replaced(a, b) && !replaced(b, a)
}

/// Whether an access walks its buffer in order (`true`) or stays in place (`false`); `None` if neither.
fn is_dense(access: &Access, extents: &[usize]) -> Option<bool> {
    if access.offset != 0 || !access.indirect.is_empty() || !access.guards.is_empty() {
        return None;
    }
    let mut expected = 1i64;
    let mut dense = true;
    for (&stride, &extent) in access.strides.iter().zip(extents).rev() {
        dense &= extent == 1 || stride == expected;
        expected *= extent as i64;
    }
    let still = access.strides.iter().zip(extents).all(|(&s, &n)| s == 0 || n == 1);
    if dense {
        Some(true)
    } else if still {
        Some(false)
    } else {
        None
    }
}

fn flat(dense: bool) -> Access {
    Access { strides: [i64::from(dense)].into_iter().collect(), ..Access::default() }
}

fn one(members: Vec<Flat>) -> Built {
    members.into_iter().next().expect("a class has a member").built
}

/// One kernel for all members.
fn joined(graph: &Graph, class: Class, members: Vec<Flat>) -> Built {
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut number: HashMap<ValueId, usize> = HashMap::new();
    let mut input = |v: ValueId| {
        *number.entry(v).or_insert_with(|| {
            inputs.push(v);
            inputs.len() - 1
        })
    };
    let mut outputs = Vec::new();
    let mut values = Vec::new();
    let mut segments = Vec::new();
    for member in &members {
        let slots: Vec<usize> = member.inputs.iter().map(|v| input(*v)).collect();
        let first = outputs.len();
        for (i, value) in member.built.outputs.iter().enumerate() {
            let update = class.updates[i].map(|slot| slots[slot]);
            outputs.push(Output { ty: graph.ty(*value).clone(), update });
            values.push(*value);
        }
        segments.push(Segment {
            extents: vec![member.size],
            inputs: slots,
            outputs: (first..outputs.len()).collect(),
        });
    }
    let when = class.when.map(&mut input);
    let loads = class
        .loads
        .iter()
        .zip(&class.slots)
        .map(|(&(dtype, dense, fill), &input)| Load {
            input,
            dtype,
            access: Access { fill, ..flat(dense) },
        })
        .collect();
    let nest = Nest {
        segments,
        loads,
        registers: Vec::new(),
        buffers: Vec::new(),
        stages: vec![class.stage],
    };
    let kernel = Kernel {
        name: format!("{}_x{}", members[0].built.kernel.name, members.len()),
        inputs: inputs.iter().map(|v| graph.ty(*v).clone()).collect(),
        outputs,
        when,
        checks: Vec::new(),
        form: Form::Nest(nest),
    };
    Built { kernel, inputs, outputs: values }
}
