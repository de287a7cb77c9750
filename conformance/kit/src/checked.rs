//! What checks by code share: outcomes that are found before the end, and values.

use crate::numbers::random;
use crate::report::{Outcome, refused};
use tracecast::prelude::*;
use tracecast_runtime::Error;

/// An outcome that is found before the end.
pub(crate) type Checked = Result<(), Outcome>;

pub(crate) fn outcome(checked: Checked) -> Outcome {
    checked.err().unwrap_or(Outcome::Pass)
}

pub(crate) fn failed(why: impl Into<String>) -> Outcome {
    Outcome::failed(why)
}

/// An error where none is expected.
pub(crate) fn told(error: Error) -> Outcome {
    failed(error.to_string())
}

/// An error of a step: the first one compiles, which the device may refuse.
pub(crate) fn told_at(number: u64, error: Error) -> Outcome {
    if number == 0 { refused(&error) } else { failed(format!("step {number}: {error}")) }
}

pub(crate) fn numbers(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

pub(crate) fn tensor(ty: TensorType, name: &str, step: u64) -> Result<Tensor, Outcome> {
    random(&ty, name, step).map_err(told)
}
