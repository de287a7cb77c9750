//! [`Kept`]: the memory of outputs: what the caller gives, or earlier values, which are written
//! again when nobody holds them any more.

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use std::collections::VecDeque;
use tracecast_ir::TensorType;

/// Memory for outputs.
#[derive(Default)]
pub(super) struct Kept {
    /// For each output, earlier values: of those that nobody else holds a run keeps one.
    values: Vec<VecDeque<Tensor>>,
    /// For each output, the memory that the caller gives for it; empty if the caller gives none.
    given: Vec<Option<Tensor>>,
}

/// Why memory for a result is refused.
pub(super) const HELD: &str = "the memory for a result is held by somebody else as well";

/// Earlier values known of each output: the caller may hold the last one while the next is made.
const MOST: usize = 2;

impl Kept {
    /// Takes memory for the outputs of a run; with none, the memory of the last run is given up.
    pub(super) fn give(&mut self, given: Vec<Option<Tensor>>) {
        self.given = given;
    }

    /// A tensor for an output that nobody else holds: what the caller gave for it, an earlier value
    /// of it, or a new one.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(super) fn fresh(&mut self, output: usize, ty: &TensorType) -> Result<Tensor> {
        if let Some(given) = self.given.get_mut(output).and_then(Option::take) {
            return Ok(given);
        }
        let mut free = None;
        if let Some(values) = self.values.get_mut(output) {
            values.retain_mut(|value| {
                let is_held = value.own_bytes().is_none();
                if !is_held {
                    free = Some(value.clone());
                }
                is_held
            });
        }
        free.map_or_else(|| Tensor::to_write(ty.clone()), Ok)
    }

    /// The value of an output in the memory that the caller gave for it, if it is not there yet: an
    /// output may be an input or another output.
    pub(super) fn placed(&mut self, output: usize, value: Tensor) -> Result<Tensor> {
        let Some(mut given) = self.given.get_mut(output).and_then(Option::take) else {
            return Ok(value);
        };
        let bytes = given.own_bytes().ok_or_else(|| Error::Tensor(HELD.to_owned()))?;
        bytes.copy_from_slice(value.bytes());
        Ok(given)
    }

    /// Keeps the value of an output, so that it can be written again when nobody else holds it.
    pub(super) fn remember(&mut self, output: usize, value: &Tensor) {
        if !self.given.is_empty() {
            return;
        }
        if self.values.len() <= output {
            self.values.resize_with(output + 1, VecDeque::new);
        }
        let values = &mut self.values[output];
        if values.len() == MOST {
            values.pop_front();
        }
        values.push_back(value.clone());
    }
}
