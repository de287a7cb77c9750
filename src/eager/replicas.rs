//! [`Replicas`]: a value on each device where it is asked for, copied there once.

use super::{DeviceTensor, Eager};
use crate::error::Result;

/// A value, and its copies on other devices, each made when it is asked for the first time: what
/// PyTorch's scaler does with `_MultiDeviceReplicator`.
pub(crate) struct Replicas<'a> {
    value: &'a DeviceTensor,
    copies: Vec<DeviceTensor>,
}

impl<'a> Replicas<'a> {
    /// Of this value, which must not change meanwhile.
    pub(crate) fn of(value: &'a DeviceTensor) -> Self {
        Replicas { value, copies: Vec::new() }
    }

    /// The value on that device.
    ///
    /// # Errors
    /// If a device fails.
    pub(crate) fn on(&mut self, eager: &Eager) -> Result<DeviceTensor> {
        if self.value.eager().same_device(eager) {
            return Ok(self.value.clone());
        }
        if let Some(copy) = self.copies.iter().find(|copy| copy.eager().same_device(eager)) {
            return Ok(copy.clone());
        }
        let copy = self.value.to(eager)?;
        self.copies.push(copy.clone());
        Ok(copy)
    }
}
