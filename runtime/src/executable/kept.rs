//! [`Kept`]: earlier values of outputs, which are written again when nobody holds them any more.

use crate::error::Result;
use crate::tensor::Tensor;
use std::collections::VecDeque;
use tracecast_ir::TensorType;

/// For each output, earlier values: of those that nobody else holds a run keeps one.
#[derive(Default)]
pub(super) struct Kept(Vec<VecDeque<Tensor>>);

/// Earlier values known of each output: the caller may hold the last one while the next is made.
const MOST: usize = 2;

impl Kept {
    /// A tensor for an output that nobody else holds: an earlier value of it, or a new one.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(super) fn fresh(&mut self, output: usize, ty: &TensorType) -> Result<Tensor> {
        let mut free = None;
        if let Some(values) = self.0.get_mut(output) {
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

    /// Keeps the value of an output, so that it can be written again when nobody else holds it.
    pub(super) fn remember(&mut self, output: usize, value: &Tensor) {
        if self.0.len() <= output {
            self.0.resize_with(output + 1, VecDeque::new);
        }
        let values = &mut self.0[output];
        if values.len() == MOST {
            values.pop_front();
        }
        values.push_back(value.clone());
    }
}
