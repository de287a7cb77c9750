//! [`Rooms`]: memory for outputs that stay on their device, which is used again when nobody has the value any more.

use crate::device::{Device, alloc};
use crate::error::Result;
use crate::memory::Memory;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Memory for outputs that stay on their device.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// What nobody has any more, for each output.
    free: Mutex<Vec<Vec<Memory>>>,
    /// So much is kept of each.
    most: usize,
}

/// The memory of one value. Commands of later steps may use it as soon as nobody has this, since they stand behind those that were given before.
pub(crate) struct Room {
    memory: Memory,
    output: usize,
    rooms: Weak<Rooms>,
}

impl Rooms {
    /// None yet; so many of each output are kept.
    pub(crate) fn of(most: usize) -> Arc<Self> {
        Arc::new(Rooms { free: Mutex::default(), most })
    }

    /// One for a value of that output, of so many bytes.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn take(
        self: &Arc<Self>,
        device: &dyn Device,
        output: usize,
        bytes: usize,
    ) -> Result<Room> {
        let free = self.free().get_mut(output).and_then(Vec::pop);
        let memory = free.map_or_else(|| alloc(device, bytes), Ok)?;
        Ok(Room { memory, output, rooms: Arc::downgrade(self) })
    }

    /// Gives up what nobody has.
    pub(crate) fn clear(&self) {
        self.free().clear();
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<Memory>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(rooms) = self.rooms.upgrade() else { return };
        let mut free = rooms.free();
        if free.len() <= self.output {
            free.resize_with(self.output + 1, Vec::new);
        }
        if free[self.output].len() < rooms.most {
            free[self.output].push(self.memory.clone());
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room({:?})", self.memory)
    }
}
