//! [`Loops`]: what the language knows of the loops of a kernel. [`Grouping`]: how nodes come
//! together in a kernel of a form.

use crate::graph::{Graph, NodeId};
use crate::kernel::build::{Built, Context, Group};
use crate::kernel::cost::Reads;
use crate::kernel::interpret::{Failed, Stopped};
use crate::kernel::{Access, Body, Guard, Kernel, Load, Scalar, Sink, Stage, Val};
use crate::{Shape, Size};
use std::fmt;

/// How nodes come together in a kernel of a form: the form's row in the table.
pub(in crate::kernel) struct Grouping {
    /// What may join.
    pub(in crate::kernel) joins: Joins,
    /// How the op that begins the kernel reads its operands.
    pub(in crate::kernel) operands: Operands,
    /// The iteration domain of that op on its own.
    pub(in crate::kernel) domain: fn(&Graph, NodeId) -> &Shape,
    /// The kernel of a group.
    pub(in crate::kernel) build: fn(&Context<'_>, &Group) -> Result<Built, String>,
}

/// What may join a kernel besides the op that begins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joins {
    /// Whatever runs over the same domain, or once per row of it.
    SameDomain,
    /// What takes each result as it is made: maps, reductions down columns, the largest magnitude.
    Epilogue,
    /// Nothing.
    Nothing,
}

/// How the op that begins a kernel reads its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Each as its lowering says, mostly at the position of the loops.
    AtPosition,
    /// Each in an order of its own, perhaps several times: what is read had better lie in memory.
    InOwnOrder {
        /// Why it had better, in the words of explanations.
        why: &'static str,
    },
    /// Each as a whole, in place.
    InMemory {
        /// Why it has to, in the words of explanations.
        why: &'static str,
    },
    /// Each in an order of its own, in place or through views.
    SeenInMemory {
        /// Why it has to, in the words of explanations.
        why: &'static str,
    },
    /// The first as a whole before anything else, if it is not of zeros; the others at the position
    /// of the loops.
    BaseAndSources,
}

/// What the language knows of the loops of a kernel.
pub(crate) trait Loops {
    /// The name of the form.
    fn name(&self) -> &'static str;

    /// Runs the loops of a kernel without names: all inputs are read as they were before an output
    /// was written.
    fn evaluate(
        &self,
        kernel: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped>;

    /// The operations of a run of a kernel without names; what it reads is added to `reads`.
    fn cost(&self, kernel: &Kernel, reads: &mut Reads) -> u64;

    /// Writes the lines between the head of the kernel and its end.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Tells `found` of each accumulator: what it is, its type, and the type of what is
    /// accumulated.
    fn accumulators(&self, kernel: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar));

    /// Gives `each` all sizes, in an order of its own.
    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size));

    /// Gives `each` all scalar code.
    fn each_body(&mut self, each: &mut dyn FnMut(&mut Body));
}

/// The sizes of an element.
pub(super) fn sizes_of(access: &mut Access, each: &mut dyn FnMut(&mut Size)) {
    each(&mut access.offset);
    access.strides.iter_mut().chain(&mut access.indirect).for_each(&mut *each);
    for Guard { offset, strides, extent } in &mut access.guards {
        each(offset);
        strides.iter_mut().for_each(&mut *each);
        each(extent);
    }
}

/// The sizes of the elements that are loaded.
pub(super) fn sizes_of_loads(loads: &mut [Load], each: &mut dyn FnMut(&mut Size)) {
    loads.iter_mut().for_each(|load| sizes_of(&mut load.access, each));
}

/// The sizes of the elements that a stage stores.
pub(super) fn sizes_of_stores(stage: &mut Stage, each: &mut dyn FnMut(&mut Size)) {
    for sink in &mut stage.sinks {
        match sink {
            Sink::Store { access, .. } => sizes_of(access, each),
            Sink::Reduce { .. }
            | Sink::Keep { .. }
            | Sink::Set { .. }
            | Sink::Column { .. }
            | Sink::Largest { .. } => {}
        }
    }
}

/// The sizes of axes where names have values.
pub(super) fn numbers(sizes: &[Size]) -> Vec<usize> {
    sizes.iter().map(|size| size.get()).collect()
}

/// Tells of the accumulator of a reduction down a column.
pub(super) fn column_accumulator(
    stage: &Stage,
    sink: &Sink,
    found: &mut dyn FnMut(&str, Scalar, Scalar),
) {
    let Sink::Column { reduction, value, dtype, .. } = sink else { return };
    if !reduction.accumulates() {
        return;
    }
    if let (Some(acc), Some(term)) = (Scalar::of(*dtype), scalar(&stage.body, *value)) {
        found("a sum down a column", acc, term);
    }
}

/// The type of a value, if the body has it.
pub(super) fn scalar(body: &Body, value: Val) -> Option<Scalar> {
    body.insts.get(value as usize).map(|inst| inst.ty)
}
