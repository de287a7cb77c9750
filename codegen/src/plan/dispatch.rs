//! [`Dispatch`]: what a run does with the functions of a kernel, for each form.

use super::attention::{AttentionDispatch, BoundAttention};
use super::contract::{BoundContract, ContractDispatch};
use super::lines::LinesDispatch;
use super::nest::{BoundNest, NestDispatch};
use super::numbers::Numbers;
use super::scatter::ScatterDispatch;
use super::transposed::TransposedDispatch;
use super::{Draft, attention, contract, lines, nest, scatter, transposed};
use tracecast_ir::kernel::Form;

/// What a run does with the functions of a kernel: how its work is divided, and what it needs
/// besides the operands.
///
/// What belongs to the code says sizes by expressions. A binding has numbers in their place
/// ([`Dispatch::at`]).
#[derive(Debug)]
pub(crate) enum Dispatch<
    N = NestDispatch,
    C = ContractDispatch,
    S = ScatterDispatch,
    L = LinesDispatch,
    A = AttentionDispatch,
    T = TransposedDispatch,
> {
    /// One pass over rows and positions.
    Nest(N),
    /// A contraction by the precompiled routine.
    Contract(C),
    /// Sources added to a copy of the base.
    Scatter(S),
    /// Scans and orders by precompiled code.
    Lines(L),
    /// Attention by precompiled code.
    Attention(A),
    /// Transposed convolutions by precompiled code.
    Transposed(T),
}

/// What a run does with sizes that are numbers.
pub(crate) type BoundDispatch = Dispatch<
    BoundNest,
    BoundContract,
    ScatterDispatch<usize>,
    LinesDispatch<usize>,
    BoundAttention,
    TransposedDispatch<usize>,
>;

impl Dispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative or too large.
    pub(crate) fn at(&self, sizes: &Numbers<'_>) -> std::result::Result<BoundDispatch, String> {
        Ok(match self {
            Dispatch::Nest(nest) => Dispatch::Nest(nest.at(sizes)?),
            Dispatch::Contract(contract) => Dispatch::Contract(contract.at(sizes)?),
            Dispatch::Scatter(scatter) => Dispatch::Scatter(scatter.at(sizes)?),
            Dispatch::Lines(lines) => Dispatch::Lines(lines.at(sizes)?),
            Dispatch::Attention(attention) => Dispatch::Attention(attention.at(sizes)?),
            Dispatch::Transposed(transposed) => Dispatch::Transposed(transposed.at(sizes)?),
        })
    }
}

/// What a run does with the functions of finished plans.
pub(crate) fn dispatch(draft: &Draft<'_>) -> Dispatch {
    match &draft.kernel.form {
        Form::Nest(form) => Dispatch::Nest(nest::dispatch(draft, form)),
        Form::Contract(form) => Dispatch::Contract(contract::dispatch(draft, form)),
        Form::Scatter(form) => Dispatch::Scatter(scatter::dispatch(draft, form)),
        Form::Lines(form) => Dispatch::Lines(lines::dispatch(draft.kernel, form)),
        Form::Attention(form) => Dispatch::Attention(attention::dispatch(draft.kernel, form)),
        Form::Transposed(form) => Dispatch::Transposed(transposed::dispatch(draft.kernel, form)),
    }
}
