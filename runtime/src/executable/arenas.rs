//! [`Arenas`]: the memory in which runs keep what no tensor and no store holds, one piece for each run at a time.

use crate::device::{Device, alloc};
use crate::error::Result;
use crate::memory::Memory;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Arenas that are free. Programs that differ in sizes alone share them: they are as large as the largest of these programs that has run needs.
#[derive(Debug, Default)]
pub(super) struct Arenas(Mutex<Free>);

#[derive(Debug, Default)]
struct Free {
    /// How large each is.
    bytes: usize,
    arenas: Vec<Memory>,
}

/// An arena in use.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) memory: Memory,
    bytes: usize,
}

impl Arena {
    /// True if it has so many bytes.
    pub(super) fn holds(&self, bytes: usize) -> bool {
        self.bytes >= bytes
    }
}

impl Arenas {
    /// Arenas of at least so many bytes.
    pub(super) fn of(bytes: usize) -> Self {
        Arenas(Mutex::new(Free { bytes, arenas: Vec::new() }))
    }

    /// An arena of so many bytes or more, one that is `preferred` if it is free. If there was one, but too small, those that follow are twice as
    /// large at least, so that few are too small.
    pub(super) fn take(
        &self,
        device: &dyn Device,
        bytes: usize,
        preferred: &dyn Fn(&Memory) -> bool,
    ) -> Result<Arena> {
        let size = {
            let mut free = self.free();
            if bytes > free.bytes {
                free.arenas.clear();
                free.bytes = bytes.max(free.bytes.saturating_mul(2));
            }
            let at = free.arenas.iter().position(preferred).or(free.arenas.len().checked_sub(1));
            if let Some(memory) = at.map(|at| free.arenas.swap_remove(at)) {
                return Ok(Arena { memory, bytes: free.bytes });
            }
            free.bytes
        };
        // Without the lock: nobody waits for a device that has to give memory back first.
        match alloc(device, size) {
            Err(_) if size > bytes => {
                // Perhaps there is room for what is needed.
                let memory = alloc(device, bytes)?;
                let mut free = self.free();
                if free.bytes == size {
                    free.bytes = bytes;
                }
                Ok(Arena { memory, bytes })
            }
            made => Ok(Arena { memory: made?, bytes: size }),
        }
    }

    /// Lets another run have an arena, unless arenas have grown meanwhile.
    pub(super) fn give_back(&self, arena: Option<Arena>) {
        let mut free = self.free();
        if let Some(arena) = arena.filter(|arena| arena.bytes == free.bytes) {
            free.arenas.push(arena.memory);
        }
    }

    /// How large arenas are now.
    pub(super) fn bytes(&self) -> usize {
        self.free().bytes
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
