//! [`OutputPool`]: a pool of memory for outputs that stay on their device. A buffer returns to it
//! when its value is dropped.

use crate::device::{Device, alloc};
use crate::error::Result;
use crate::memory::Memory;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A pool of buffers for outputs that stay on their device.
#[derive(Debug)]
pub(crate) struct OutputPool {
    /// What nobody has any more, for each output.
    free: Mutex<Vec<Option<Memory>>>,
    /// False if what nobody has any more is given up.
    keeps: bool,
}

/// The memory of one value. Commands of later steps may use it as soon as nobody has this, since
/// they stand behind those that were given before.
pub(crate) struct OutputBuffer {
    memory: Memory,
    output: usize,
    pool: Weak<OutputPool>,
}

impl OutputPool {
    /// None yet; one of each output is kept, or none.
    pub(crate) fn of(keeps: bool) -> Arc<Self> {
        Arc::new(OutputPool { free: Mutex::default(), keeps })
    }

    /// One for a value of that output, of `bytes` bytes.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn take(
        self: &Arc<Self>,
        device: &dyn Device,
        output: usize,
        bytes: usize,
    ) -> Result<OutputBuffer> {
        let free = self.free().get_mut(output).and_then(Option::take);
        let memory = free.map_or_else(|| alloc(device, bytes), Ok)?;
        Ok(OutputBuffer { memory, output, pool: Arc::downgrade(self) })
    }

    /// Gives up what nobody has.
    pub(crate) fn clear(&self) {
        self.free().clear();
    }

    fn free(&self) -> MutexGuard<'_, Vec<Option<Memory>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputBuffer {
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for OutputBuffer {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade().filter(|pool| pool.keeps) else { return };
        let mut free = pool.free();
        if free.len() <= self.output {
            free.resize_with(self.output + 1, || None);
        }
        free[self.output] = Some(self.memory.clone());
    }
}

impl fmt::Debug for OutputBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutputBuffer({:?})", self.memory)
    }
}
