//! [`Arenas`]: the memory in which runs keep what no tensor and no store holds, one piece for each
//! run at a time.

use crate::device::{Device, alloc};
use crate::error::Result;
use crate::memory::Memory;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The arenas of a program, and of programs that differ from it in sizes alone: as large as the
/// largest of these that has run needs. They are those of its device, on which programs that run
/// one at a time share one arena, as large as the largest of them needs.
#[derive(Debug)]
pub(super) struct Arenas {
    /// How large each is.
    bytes: Arc<AtomicUsize>,
    pool: Arc<ArenaPool>,
}

/// The arenas of a device that are free.
#[derive(Debug)]
struct ArenaPool {
    device: Weak<dyn Device>,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// At most as many as there have been runs at the same time.
    arenas: Vec<Arena>,
    /// How large the arenas of each program are.
    sizes: Vec<Weak<AtomicUsize>>,
}

/// An arena in use.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) memory: Memory,
    bytes: usize,
}

impl Arena {
    /// True if it has at least `bytes` bytes.
    pub(super) fn holds(&self, bytes: usize) -> bool {
        self.bytes >= bytes
    }
}

impl ArenaPool {
    /// That of a device, for as long as a program is loaded there.
    fn of(device: &Arc<dyn Device>) -> Arc<Self> {
        static POOLS: Mutex<Vec<Weak<ArenaPool>>> = Mutex::new(Vec::new());
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        let is_of =
            |pool: &Arc<ArenaPool>| std::ptr::addr_eq(pool.device.as_ptr(), Arc::as_ptr(device));
        if let Some(pool) = pools.iter().filter_map(Weak::upgrade).find(is_of) {
            return pool;
        }
        let pool = Arc::new(ArenaPool { device: Arc::downgrade(device), free: Mutex::default() });
        pools.push(Arc::downgrade(&pool));
        pool
    }

    /// Takes a free arena of at least `bytes` bytes: a `preferred` one, or the smallest. If all are
    /// too small, frees the largest, because the caller allocates a larger one next.
    fn take(&self, bytes: usize, preferred: &dyn Fn(&Memory) -> bool) -> Option<Arena> {
        let arenas = &mut self.free().arenas;
        arenas.sort_unstable_by_key(|arena| arena.bytes);
        let smallest = arenas.partition_point(|arena| !arena.holds(bytes));
        if smallest == arenas.len() {
            arenas.pop();
            return None;
        }
        let found = arenas[smallest..].iter().position(|arena| preferred(&arena.memory));
        Some(arenas.remove(smallest + found.unwrap_or(0)))
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arenas {
    /// Arenas of a device, of at least `bytes` bytes each.
    pub(super) fn of(device: &Arc<dyn Device>, bytes: usize) -> Self {
        let (bytes, pool) = (Arc::new(AtomicUsize::new(bytes)), ArenaPool::of(device));
        pool.free().sizes.push(Arc::downgrade(&bytes));
        Arenas { bytes, pool }
    }

    /// Takes an arena of at least `bytes` bytes, a `preferred` one if it is free. If those of the
    /// program were too small, those that follow are twice as large at least, so that few are too
    /// small.
    pub(super) fn take(
        &self,
        device: &dyn Device,
        bytes: usize,
        preferred: &dyn Fn(&Memory) -> bool,
    ) -> Result<Arena> {
        let grown = |size: usize| (bytes > size).then(|| bytes.max(size.saturating_mul(2)));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        let size = self.bytes();
        if let Some(arena) = self.pool.take(size, preferred) {
            return Ok(arena);
        }
        // Without the lock: nobody waits for a device that has to give memory back first.
        match alloc(device, size) {
            Err(_) if size > bytes => {
                // Perhaps there is room for what is needed.
                let memory = alloc(device, bytes)?;
                let _ =
                    self.bytes.compare_exchange(size, bytes, Ordering::Relaxed, Ordering::Relaxed);
                Ok(Arena { memory, bytes })
            }
            made => Ok(Arena { memory: made?, bytes: size }),
        }
    }

    /// Lets another run have an arena.
    pub(super) fn give_back(&self, arena: Option<Arena>) {
        self.pool.free().arenas.extend(arena);
    }

    /// How large arenas are now.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Arenas {
    /// Gives up what is too large for all programs that stay.
    fn drop(&mut self) {
        let mut free = self.pool.free();
        free.sizes.retain(|size| !std::ptr::eq(size.as_ptr(), Arc::as_ptr(&self.bytes)));
        let sizes = free.sizes.iter().filter_map(Weak::upgrade);
        let largest = sizes.map(|size| size.load(Ordering::Relaxed)).max().unwrap_or(0);
        free.arenas.retain(|arena| arena.bytes <= largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ReferenceDevice;

    #[test]
    fn programs_share_one_arena_for_each_run_at_a_time() {
        let [device, other] = [(); 2].map(|()| Arc::new(ReferenceDevice) as Arc<dyn Device>);
        let take = |arenas: &Arenas, bytes| arenas.take(&*device, bytes, &|_| false).unwrap();
        let of = |device, bytes| Arenas::of(device, bytes);
        let [evaluation, training, elsewhere] = [&device, &device, &other].map(|on| of(on, 0));
        let small = take(&evaluation, 64);
        evaluation.give_back(Some(small));
        let large = take(&training, 4096);
        let memory = large.memory.clone();
        assert!(large.holds(4096) && training.pool.free().arenas.is_empty());
        training.give_back(Some(large));
        let shared = take(&evaluation, 64);
        assert!(shared.memory.same(&memory));
        // What runs at the same time has memory of its own, and takes no more than it needs.
        let beside = take(&evaluation, 64);
        assert!(!beside.memory.same(&memory) && !beside.holds(4096));
        evaluation.give_back(Some(shared));
        evaluation.give_back(Some(beside));
        assert_eq!(evaluation.pool.free().arenas.len(), 2);
        assert!(!take(&evaluation, 64).memory.same(&memory), "the smallest that holds it");
        assert!(!take(&elsewhere, 64).memory.same(&memory), "devices share nothing");
        drop(training);
        assert_eq!((evaluation.pool.free().arenas.len(), memory.handles()), (0, 1));
    }
}
