//! [`ScalerError`]: what the eager scaler and its raw ops refuse, each with what to do instead.

use thiserror::Error;

/// A call of an eager scaler, or of a raw op, that has no meaning.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ScalerError {
    /// The growth factor of a new scaler does not let the scale grow.
    #[error("the growth factor has to be above 1, found {0}")]
    GrowthFactor(f64),
    /// The backoff factor of a new scaler does not let the scale shrink.
    #[error("the backoff factor has to be below 1, found {0}")]
    BackoffFactor(f64),
    /// Nothing was scaled yet.
    #[error(
        "{call}() before the first scale(): scale the loss or outputs first, earlier in the iteration"
    )]
    NoScale {
        /// What was called.
        call: &'static str,
    },
    /// An optimizer's gradients are unscaled already.
    #[error(
        "unscale_() was already called on this optimizer since the last update(): call it once per optimizer and step"
    )]
    AlreadyUnscaled,
    /// An optimizer has stepped already.
    #[error("unscale_() after step(): gradients are unscaled before the step, or by it")]
    UnscaleAfterStep,
    /// An optimizer has stepped already.
    #[error(
        "step() was already called on this optimizer since the last update(): call it once per optimizer and step"
    )]
    AlreadyStepped,
    /// A gradient has too few bits to be unscaled.
    #[error(
        "a gradient is f16: f16 gradients are not unscaled; keep parameters in f32 and use autocast"
    )]
    HalfGradient,
    /// An optimizer without gradients was to step.
    #[error(
        "no gradient was checked for this optimizer: compute the gradients of the scaled loss before step()"
    )]
    NothingChecked,
    /// No optimizer was unscaled or stepped.
    #[error(
        "no gradient was checked since the last update(): call step() or unscale_() before update()"
    )]
    NothingToUpdate,
    /// A flag of all processes for an optimizer that was not unscaled, or has stepped.
    #[error("a flag of all processes is set between unscale_() and step(): call unscale_() first")]
    NotUnscaled,
    /// A fused optimizer after an explicit `unscale_` of a sharded scaler, with `parity`.
    #[error(
        "the flag of a sharded scaler has the shape [1] and the count of steps has none: PyTorch refuses this step of a fused optimizer"
    )]
    FlagShape,
    /// A step that computes the loss again.
    #[error(
        "step() takes no closure while scaling is on: compute the loss and its gradients before step()"
    )]
    Closure,
    /// A new scale that is not one number on the scaler's device.
    #[error(
        "the new scale has to be a number or an untrained tensor of one element on the scaler's device, found {0}"
    )]
    NewScale(String),
    /// A new scale given as an integer, with `parity`.
    #[error("the new scale has to be a float, found the integer {0}")]
    IntegerScale(i64),
    /// Something to scale that is not a tensor.
    #[error("expected a tensor or a nest of tensors to scale, found the number {0}")]
    NotTensor(f64),
    /// A disabled scaler has no factors.
    #[error("this scaler is disabled and has no {0}: make it with enabled = true")]
    Disabled(&'static str),
    /// A state without an entry.
    #[error("the state has no entry `{0}`: give what state_dict() of an enabled scaler returned")]
    MissingEntry(&'static str),
    /// A state without entries.
    #[error(
        "the state is empty, as that of a disabled scaler: make this one with enabled = false too"
    )]
    EmptyState,
    /// A copy in the middle of an iteration.
    #[error("a scaler is copied at the beginning of an iteration, or at its end after update()")]
    OpenIteration,
    /// An operand of a raw op that is not of its type.
    #[error("`{operand}` has to be one {expected}, found {found}")]
    Operand {
        /// Which one.
        operand: &'static str,
        /// Its dtype.
        expected: &'static str,
        /// What it was.
        found: String,
    },
    /// A gradient that is not of a float dtype.
    #[error("a gradient is {0}: only gradients of a float dtype can be unscaled")]
    Gradient(String),
}
