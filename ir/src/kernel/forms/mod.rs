//! The forms of kernels: [`Form`], and what the language knows of each ([`Loops`]).
//!
//! A form stands in one file: its loops, their evaluation, cost and text, and what they accumulate.
//! A new one is a variant of [`Form`] and of [`FormKind`] here, and a file; `docs/kernels.md` lists
//! its places in other crates.

mod attention;
mod contract;
mod lines;
mod loops;
mod nest;
mod scatter;
mod transposed;

pub use attention::Attention;
pub use contract::{Contract, Factor, Split};
pub use lines::Lines;
pub(crate) use loops::Loops;
pub use loops::{Joins, Operands};
pub use nest::{Nest, Segment};
pub use scatter::{Combiner, Scatter};
pub use transposed::{Moves, Transposed};

use crate::op::Lower;
use loops::Grouping;

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
