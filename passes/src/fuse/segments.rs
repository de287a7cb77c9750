//! Multi-tensor kernels: maps that run the same code over different tensors become one kernel with
//! a segment for each, where none of them has to wait for another. An optimizer's step is one
//! launch however many parameters there are, and so is the sweep that unscales and checks all
//! gradients.

use super::between::Between;
use super::cost::Settings;
use std::rc::Rc;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::kernel::build::Built;
use tracecast_ir::kernel::{
    Access, Form, Kernel, Load, Nest, Output, ScalarOp, Segment, Sink, Stage,
};
use tracecast_ir::{DType, Graph, Size, ValueId};

/// Merges what can be merged; the others stay as they are.
///
/// A kernel that nothing waits for can join any other of its class. Others join only if they take
/// largest values, since their results are needed all together anyway, and if no kernel lies
/// between. Where memory is planned, the update of a large parameter stays a kernel of its own,
/// which frees the gradient before the next one is made.
pub(super) fn merge(graph: &Graph, kernels: Vec<Built>, settings: &Settings) -> Vec<Built> {
    let mut between = Between::of(&kernels);
    let mut teams: Vec<Team> = Vec::new();
    let mut of_class: FxHashMap<Rc<Class>, Vec<usize>> = FxHashMap::default();
    let mut out = Vec::new();
    for (number, built) in kernels.into_iter().enumerate() {
        let terminal = between.is_last(number);
        let stays = settings.plan_memory && replaced(graph, &built) >= settings.own_launch();
        let merged = |(class, ..): &(Class, usize, Vec<ValueId>)| {
            terminal && !stays || class.takes_largest()
        };
        let Some((class, size, inputs)) = Class::of(&built).filter(merged) else {
            out.push(built);
            continue;
        };
        let (class, flat) = (Rc::new(class), Flat { built, number, size, inputs });
        let known = of_class.entry(class.clone()).or_default();
        let waits = |team: &Team| class.takes_largest() && between.any(team.number(), number);
        let fits = |t: &usize| {
            let team = &teams[*t];
            let fits = team.operands_with(&flat) <= settings.limits.most_operands;
            fits && team.takes(&flat) && !waits(team)
        };
        let team = known.iter().copied().find(fits);
        let team = team.unwrap_or_else(|| {
            known.push(teams.len());
            teams.push(Team::of(class.clone()));
            teams.len() - 1
        });
        if let Some(first) = teams[team].members.first() {
            between.join(first.number, number);
        }
        teams[team].add(flat);
    }
    out.extend(teams.into_iter().map(|team| team.kernel(graph)));
    out
}

/// The bytes of the largest state that a kernel overwrites.
fn replaced(graph: &Graph, built: &Built) -> usize {
    let updates = built.kernel.outputs.iter().zip(&built.outputs);
    let updates = updates.filter(|(output, _)| output.update.is_some());
    updates.map(|(_, value)| graph.hint(graph.ty(*value).bytes())).max().unwrap_or(0)
}

/// What kernels must have in common.
#[derive(PartialEq, Eq, Hash)]
struct Class {
    stage: Stage,
    loads: Vec<(DType, bool, u64)>,
    /// For each load its slot; slots are numbered by first use.
    slots: Vec<usize>,
    when: Option<ValueId>,
    updates: Vec<Option<usize>>,
}

/// Kernels of one class none of which reads state that another replaces.
struct Team {
    class: Rc<Class>,
    members: Vec<Flat>,
    reads: FxHashSet<ValueId>,
    replaces: FxHashSet<ValueId>,
}

impl Team {
    fn of(class: Rc<Class>) -> Self {
        Team {
            class,
            members: Vec::new(),
            reads: FxHashSet::default(),
            replaces: FxHashSet::default(),
        }
    }

    /// The number of its first kernel.
    fn number(&self) -> usize {
        self.members[0].number
    }

    fn takes(&self, flat: &Flat) -> bool {
        flat.inputs.iter().all(|v| !self.replaces.contains(v))
            && flat.replaced(&self.class).all(|v| !self.reads.contains(&v))
    }

    /// How many operands its kernel has with one more member.
    fn operands_with(&self, flat: &Flat) -> usize {
        let new = flat.inputs.iter().filter(|v| !self.reads.contains(v)).count();
        let outputs = self.class.updates.len() * (self.members.len() + 1);
        self.reads.len() + new + outputs + usize::from(self.class.when.is_some())
    }

    fn add(&mut self, flat: Flat) {
        self.replaces.extend(flat.replaced(&self.class));
        self.reads.extend(flat.inputs.iter().copied());
        self.members.push(flat);
    }

    fn kernel(mut self, graph: &Graph) -> Built {
        match self.members.pop() {
            Some(only) if self.members.is_empty() => only.built,
            last => {
                self.members.extend(last);
                joined(graph, &self.class, &self.members)
            }
        }
    }
}

/// A map over one axis: what differs between kernels of a class.
struct Flat {
    built: Built,
    /// Its place among all kernels.
    number: usize,
    size: usize,
    /// For each slot, the value.
    inputs: Vec<ValueId>,
}

impl Class {
    fn takes_largest(&self) -> bool {
        self.stage.sinks.iter().any(|sink| matches!(sink, Sink::Largest { .. }))
    }

    /// The class of a map, its size, and for each slot the value.
    fn of(built: &Built) -> Option<(Class, usize, Vec<ValueId>)> {
        let Form::Nest(nest) = &built.kernel.form else { return None };
        let kernel = &built.kernel;
        let numbers = kernel.names.is_empty() && kernel.checks.is_empty();
        if !nest.is_map() || nest.segments.len() != 1 || !numbers {
            return None;
        }
        let extents = &nest.segments[0].extents;
        let stage = &nest.stages[0];
        if stage.body.insts.iter().any(|i| matches!(i.op, ScalarOp::Index(_))) {
            return None;
        }
        let mut inputs: Vec<ValueId> = Vec::new();
        let mut number: FxHashMap<ValueId, usize> = FxHashMap::default();
        let mut slot = |v: ValueId| {
            *number.entry(v).or_insert_with(|| {
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
            let Sink::Store { output, dtype, access, value } = sink else {
                sinks.push(sink.clone());
                continue;
            };
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
        let size = extents.iter().product::<Size>().get();
        Some((Class { stage, loads, slots, when, updates }, size, inputs))
    }
}

impl Flat {
    /// The state that it replaces.
    fn replaced(&self, class: &Class) -> impl Iterator<Item = ValueId> {
        class.updates.iter().flatten().map(|slot| self.inputs[*slot])
    }
}

/// Whether an access walks its buffer in order (`true`) or stays in place (`false`); `None` if
/// neither.
fn is_dense(access: &Access, extents: &[Size]) -> Option<bool> {
    if access.offset != 0 || !access.indirect.is_empty() || !access.guards.is_empty() {
        return None;
    }
    let mut expected = Size::from(1);
    let mut dense = true;
    for (&stride, &extent) in access.strides.iter().zip(extents).rev() {
        dense &= extent == 1 || stride == expected;
        expected *= extent;
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
    Access { strides: [Size::from(i64::from(dense))].into_iter().collect(), ..Access::default() }
}

/// One kernel for all members.
fn joined(graph: &Graph, class: &Class, members: &[Flat]) -> Built {
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut number: FxHashMap<ValueId, usize> = FxHashMap::default();
    let mut input = |v: ValueId| {
        *number.entry(v).or_insert_with(|| {
            inputs.push(v);
            inputs.len() - 1
        })
    };
    let mut outputs = Vec::new();
    let mut values = Vec::new();
    let mut segments = Vec::new();
    for member in members {
        let slots: Vec<usize> = member.inputs.iter().map(|v| input(*v)).collect();
        let first = outputs.len();
        for (i, value) in member.built.outputs.iter().enumerate() {
            let update = class.updates[i].map(|slot| slots[slot]);
            outputs.push(Output { ty: graph.ty(*value).clone(), update });
            values.push(*value);
        }
        segments.push(Segment {
            extents: vec![member.size.into()],
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
        stages: vec![class.stage.clone()],
    };
    let kernel = Kernel {
        name: format!("{}_x{}", members[0].built.kernel.name, members.len()),
        inputs: inputs.iter().map(|v| graph.ty(*v).clone()).collect(),
        outputs,
        when,
        checks: Vec::new(),
        arguments: Vec::new(),
        names: Vec::new(),
        form: Form::Nest(nest),
    };
    Built { kernel, begins: members[0].built.begins, inputs, outputs: values }
}
