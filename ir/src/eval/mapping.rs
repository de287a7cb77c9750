//! [`Mapping`]: the memory of a large tensor on huge pages of its own, and the free ones that are
//! kept for the next.
//!
//! The system zeroes the pages of a new mapping when they are first touched, which takes longer
//! than most kernels take for them. So mappings that are free are used again, by what they fit.
//! What is kept is bounded twice: it is at most [`MOST`] bytes, and together with what is in use
//! never more than was in use at one time, so that keeping it does not raise the peak of a process.
//! What was free for longest goes first.

use memmap2::MmapMut;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The usual size of a huge page, and the least that is mapped.
pub(super) const HUGE: usize = 2 << 20;
/// The most that free mappings hold together: what a step of 100 million parameters frees.
const MOST: usize = 1 << 30;
/// A free mapping is used for something smaller by up to that part of it.
const SLACK: usize = 8;
const LINE: usize = 64;
const PAGE: usize = 4096;
/// A step that goes through the lines of a page in an order in which any few steps lie far apart.
const STRIDE: usize = 25;

/// A mapping in use.
pub(super) struct Mapping {
    /// There until it is dropped.
    area: Option<Area>,
    /// True until somebody has used it: then its bytes are zero.
    pub(super) is_new: bool,
}

/// A mapping and where its bytes begin.
struct Area {
    map: MmapMut,
    at: usize,
    bytes: usize,
}

/// The mappings that nobody uses.
#[derive(Default)]
struct Free {
    /// The one that was freed last is the last.
    areas: VecDeque<Area>,
    /// Of all of them.
    bytes: usize,
    /// Of all mappings in use.
    used: usize,
    /// The most that was in use at one time.
    peak: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free { areas: VecDeque::new(), bytes: 0, used: 0, peak: 0 });

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the memory of free mappings back to the system: how many bytes.
///
/// Tensors of 2 MiB and more leave theirs behind for others, at most 1 GiB and never more than
/// makes the most that was in use at one time. Call it when no more such tensors are to come and
/// something else needs the memory.
///
/// ```
/// use tracecast_ir::eval::{Bytes, give_back_free};
/// drop(Bytes::zeroed(4 << 20)?);
/// assert!(give_back_free() >= 4 << 20 && give_back_free() == 0);
/// # Ok::<(), String>(())
/// ```
pub fn give_back_free() -> usize {
    let areas = free().empty();
    areas.iter().map(|area| area.bytes).sum()
}

impl Mapping {
    /// A mapping of at least that many bytes, if there can be one.
    pub(super) fn of(bytes: usize) -> Option<Mapping> {
        if let Some(area) = free().take(bytes) {
            return Some(Mapping { area: Some(area), is_new: false });
        }
        trim(bytes);
        let area = Area::new(bytes).or_else(|| {
            give_back_free();
            Area::new(bytes)
        })?;
        free().count(bytes);
        Some(Mapping { area: Some(area), is_new: true })
    }
}

/// Gives back what must not be kept when that much more is used. The lock is not held while the
/// system unmaps.
fn trim(coming: usize) {
    loop {
        let surplus = free().surplus(coming);
        if surplus.is_none() {
            break;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(area) = self.area.take() {
            free().put(area);
            trim(0);
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.area.as_ref().map_or(&[], |area| &area.map[area.at..area.at + area.bytes])
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.area.as_mut().map_or(&mut [], |area| &mut area.map[area.at..area.at + area.bytes])
    }
}

impl Area {
    /// The bytes begin on a huge page, which takes address space but no memory, and there on a line
    /// that is another one for each mapping: a processor takes a load for dependent on an earlier
    /// store if their addresses agree in the last twelve bits, and a program goes through several
    /// tensors at the same pace.
    fn new(bytes: usize) -> Option<Area> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let map = MmapMut::map_anon(bytes.checked_add(HUGE + PAGE)?).ok()?;
        let start = map.as_ptr().addr().wrapping_neg() % HUGE;
        let at = start + COUNT.fetch_add(STRIDE, Ordering::Relaxed) * LINE % PAGE;
        // What does not fill a huge page stays on small ones, so that no memory is used but that of
        // the bytes. A system that does not have huge pages does without.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, start, bytes / HUGE * HUGE);
        Some(Area { map, at, bytes })
    }
}

impl Free {
    /// The smallest area that that many bytes fill well enough, from now on in use.
    fn take(&mut self, bytes: usize) -> Option<Area> {
        let fits =
            |area: &Area| (bytes..=bytes.saturating_add(bytes / SLACK)).contains(&area.bytes);
        // Of equal ones the last, whose bytes are more likely to lie in a cache.
        let candidates = self.areas.iter().enumerate().rev().filter(|(_, area)| fits(area));
        let at = candidates.min_by_key(|(_, area)| area.bytes)?.0;
        let area = self.areas.remove(at)?;
        self.bytes -= area.bytes;
        self.count(area.bytes);
        Some(area)
    }

    /// That many bytes more are in use.
    fn count(&mut self, bytes: usize) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }

    fn put(&mut self, area: Area) {
        self.used -= area.bytes;
        self.bytes += area.bytes;
        self.areas.push_back(area);
    }

    /// An area that must not be kept when that much more is used.
    fn surplus(&mut self, coming: usize) -> Option<Area> {
        let used = self.used.saturating_add(coming);
        if self.bytes <= MOST.min(self.peak.saturating_sub(used)) {
            return None;
        }
        let area = self.areas.pop_front()?;
        self.bytes -= area.bytes;
        Some(area)
    }

    fn empty(&mut self) -> VecDeque<Area> {
        self.bytes = 0;
        std::mem::take(&mut self.areas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes that many bytes as [`Mapping::of`] does: whether they are those of a free area.
    fn take(free: &mut Free, bytes: usize) -> (Area, bool) {
        if let Some(area) = free.take(bytes) {
            return (area, true);
        }
        while free.surplus(bytes).is_some() {}
        free.count(bytes);
        (Area::new(bytes).unwrap(), false)
    }

    fn put(free: &mut Free, area: Area) {
        free.put(area);
        while free.surplus(0).is_some() {}
    }

    #[test]
    fn what_fits_is_used_again() {
        let mut free = Free::default();
        let areas = [4, 6, 4].map(|mib| take(&mut free, mib * MIB).0);
        let last = areas[2].map.as_ptr();
        areas.into_iter().for_each(|area| put(&mut free, area));
        assert_eq!((free.bytes, free.used, free.peak), (14 * MIB, 0, 14 * MIB));
        let (four, again) = take(&mut free, 4 * MIB - 4);
        assert!(again && four.map.as_ptr() == last && four.bytes == 4 * MIB);
        assert_eq!((free.bytes, free.used), (10 * MIB, 4 * MIB));
        // Much smaller, and larger.
        assert!(!take(&mut free, 3 * MIB).1 && !take(&mut free, 7 * MIB).1);
    }

    #[test]
    fn the_peak_does_not_grow_and_the_oldest_goes_first() {
        let mut free = Free::default();
        let [two, three] = [2, 3].map(|mib| take(&mut free, mib * MIB).0);
        put(&mut free, two);
        put(&mut free, three);
        // 5 MiB were in use at once: beside 4 there is room for neither.
        let (four, again) = take(&mut free, 4 * MIB);
        assert!(!again && free.bytes == 0 && free.peak == 5 * MIB);
        put(&mut free, four);
        let [mut one, other] = [2, 2].map(|mib| take(&mut free, mib * MIB));
        assert!(!one.1 && !other.1);
        for _ in 0..100 {
            put(&mut free, one.0);
            one = take(&mut free, 2 * MIB);
            assert!(one.1 && free.bytes + free.used <= free.peak);
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        // Nothing is touched, so that these take no memory.
        let mut free = Free::default();
        let areas: Vec<Area> = (0..40).map(|_| take(&mut free, 32 * MIB).0).collect();
        areas.into_iter().for_each(|area| put(&mut free, area));
        assert_eq!((free.bytes, free.areas.len()), (MOST, MOST / (32 * MIB)));
        assert_eq!(free.empty().len(), 32);
        assert_eq!((free.bytes, free.surplus(0).is_some()), (0, false));
    }

    #[test]
    fn threads_never_share_a_mapping() {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..50usize {
                        let mut own: Vec<Mapping> =
                            (1..4).map(|n| Mapping::of(n * HUGE + round).unwrap()).collect();
                        let marks = |m: &Mapping| [m[0], m[m.len() / 2], m[m.len() - 1]];
                        for m in &mut own {
                            let len = m.len();
                            [0, len / 2, len - 1].into_iter().for_each(|at| m[at] = thread);
                        }
                        std::thread::yield_now();
                        assert!(own.iter().all(|m| marks(m) == [thread; 3]));
                    }
                });
            }
        });
    }
}
