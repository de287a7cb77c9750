//! The forms of kernels: [`Form`], and what the language knows of each ([`Loops`]).
//!
//! A form stands in one file: its loops, their evaluation, cost and text, and what they accumulate.
//! A new one is a variant of [`Form`] and of [`FormKind`] here, and a file; `docs/kernels.md` lists
//! its places in other crates.

mod attention;
mod contract;
mod lines;
mod nest;
mod scatter;
mod transposed;

pub use attention::Attention;
pub use contract::{Contract, Factor, Split};
pub use lines::Lines;
pub use nest::{Nest, Segment};
pub use scatter::{Combiner, Scatter};
pub use transposed::{Moves, Transposed};

use super::build::{Built, Context, Group};
use super::cost::Reads;
use super::interpret::{Failed, Stopped};
use super::{Access, Body, Guard, Kernel, Load, Scalar, Sink, Stage, Val};
use crate::graph::{Graph, NodeId};
use crate::op::Lower;
use crate::{Shape, Size};
use std::fmt;

/// The loops of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Maps and rows.
    Nest(Nest),
    /// Contractions.
    Contract(Contract),
    /// Scatters.
    Scatter(Scatter),
    /// Scans and orders.
    Lines(Lines),
    /// Attention.
    Attention(Attention),
    /// Transposed convolutions.
    Transposed(Transposed),
}

impl Form {
    /// Which form it is.
    pub const fn kind(&self) -> FormKind {
        match self {
            Form::Nest(_) => FormKind::Nest,
            Form::Contract(_) => FormKind::Contract,
            Form::Scatter(_) => FormKind::Scatter,
            Form::Lines(_) => FormKind::Lines,
            Form::Attention(_) => FormKind::Attention,
            Form::Transposed(_) => FormKind::Transposed,
        }
    }

    /// What the language knows of it.
    pub(crate) fn as_loops(&self) -> &dyn Loops {
        match self {
            Form::Nest(nest) => nest,
            Form::Contract(contract) => contract,
            Form::Scatter(scatter) => scatter,
            Form::Lines(lines) => lines,
            Form::Attention(attention) => attention,
            Form::Transposed(transposed) => transposed,
        }
    }

    /// The same, to be changed.
    pub(super) fn as_loops_mut(&mut self) -> &mut dyn Loops {
        match self {
            Form::Nest(nest) => nest,
            Form::Contract(contract) => contract,
            Form::Scatter(scatter) => scatter,
            Form::Lines(lines) => lines,
            Form::Attention(attention) => attention,
            Form::Transposed(transposed) => transposed,
        }
    }
}

/// A form before there is a kernel of it: what decides which nodes of a graph share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FormKind {
    /// Maps and rows.
    Nest,
    /// Contractions.
    Contract,
    /// Scatters.
    Scatter,
    /// Scans and orders.
    Lines,
    /// Attention.
    Attention,
    /// Transposed convolutions.
    Transposed,
}

impl FormKind {
    /// All of them.
    pub const ALL: [FormKind; 6] = [
        FormKind::Nest,
        FormKind::Contract,
        FormKind::Scatter,
        FormKind::Lines,
        FormKind::Attention,
        FormKind::Transposed,
    ];

    /// The form whose kernels an op of that lowering begins; `None` for what becomes no kernel.
    pub fn begun_by(lower: &Lower) -> Option<FormKind> {
        match lower {
            Lower::Map(_)
            | Lower::View(_)
            | Lower::Gather
            | Lower::Cat
            | Lower::Pad
            | Lower::Windows
            | Lower::ReduceRow
            | Lower::ReduceColumn => Some(FormKind::Nest),
            Lower::Contract => Some(FormKind::Contract),
            Lower::Scatter(_) | Lower::PutSlice => Some(FormKind::Scatter),
            Lower::Lines(_) => Some(FormKind::Lines),
            Lower::Attention(_) => Some(FormKind::Attention),
            Lower::Transposed(_) => Some(FormKind::Transposed),
            Lower::Port | Lower::Data | Lower::Fused | Lower::Exchange(_) => None,
        }
    }

    /// What may join a kernel of the form.
    pub const fn joins(self) -> Joins {
        self.grouping().joins
    }

    /// How the op that begins a kernel of the form reads its operands.
    pub const fn operands(self) -> Operands {
        self.grouping().operands
    }

    pub(super) const fn grouping(self) -> &'static Grouping {
        match self {
            FormKind::Nest => &nest::GROUPING,
            FormKind::Contract => &contract::GROUPING,
            FormKind::Scatter => &scatter::GROUPING,
            FormKind::Lines => &lines::GROUPING,
            FormKind::Attention => &attention::GROUPING,
            FormKind::Transposed => &transposed::GROUPING,
        }
    }
}

/// How nodes come together in a kernel of a form: the form's row in the table.
pub(super) struct Grouping {
    /// What may join.
    pub(super) joins: Joins,
    /// How the op that begins the kernel reads its operands.
    pub(super) operands: Operands,
    /// The iteration domain of that op on its own.
    pub(super) domain: fn(&Graph, NodeId) -> &Shape,
    /// The kernel of a group.
    pub(super) build: fn(&Context<'_>, &Group) -> Result<Built, String>,
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
fn sizes_of(access: &mut Access, each: &mut dyn FnMut(&mut Size)) {
    each(&mut access.offset);
    access.strides.iter_mut().chain(&mut access.indirect).for_each(&mut *each);
    for Guard { offset, strides, extent } in &mut access.guards {
        each(offset);
        strides.iter_mut().for_each(&mut *each);
        each(extent);
    }
}

/// The sizes of the elements that are loaded.
fn sizes_of_loads(loads: &mut [Load], each: &mut dyn FnMut(&mut Size)) {
    loads.iter_mut().for_each(|load| sizes_of(&mut load.access, each));
}

/// The sizes of the elements that a stage stores.
fn sizes_of_stores(stage: &mut Stage, each: &mut dyn FnMut(&mut Size)) {
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
fn numbers(sizes: &[Size]) -> Vec<usize> {
    sizes.iter().map(|size| size.get()).collect()
}

/// Tells of the accumulator of a reduction down a column.
fn column_accumulator(stage: &Stage, sink: &Sink, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
    let Sink::Column { reduction, value, dtype, .. } = sink else { return };
    if !reduction.accumulates() {
        return;
    }
    if let (Some(acc), Some(term)) = (Scalar::of(*dtype), scalar(&stage.body, *value)) {
        found("a sum down a column", acc, term);
    }
}

/// The type of a value, if the body has it.
fn scalar(body: &Body, value: Val) -> Option<Scalar> {
    body.insts.get(value as usize).map(|inst| inst.ty)
}
