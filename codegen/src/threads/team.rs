//! [`Team`]: the threads that do the parts of some work, and the parts of a range.

use super::Pool;
use tracecast_runtime::{Error, Result};

/// Threads, or only the calling one.
#[derive(Debug)]
pub(crate) struct Team {
    threads: usize,
    pool: Option<Pool>,
}

impl Team {
    /// That many threads, the calling one among them; as many as the machine runs at once if
    /// `None`.
    ///
    /// # Errors
    /// If they cannot be started.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.unwrap_or(processors).max(1);
        if threads == 1 {
            return Ok(Team { threads, pool: None });
        }
        let pool = Pool::new(threads - 1, processors)
            .map_err(|e| Error::Device(format!("{threads} threads: {e}")))?;
        Ok(Team { threads, pool: Some(pool) })
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Has the threads ready for what comes soon.
    pub(crate) fn wake(&self) {
        if let Some(pool) = &self.pool {
            pool.wake();
        }
    }

    /// Runs `f` once on each thread beside the calling one. Must not be called inside of a part.
    pub(crate) fn on_others(&self, f: impl Fn() + Sync) {
        if let Some(pool) = &self.pool {
            pool.on_each(&f);
        }
    }

    /// Runs `f` for every part, each on some thread.
    #[inline]
    pub(crate) fn each(&self, parts: usize, f: impl Fn(usize) + Sync) {
        match &self.pool {
            Some(pool) if parts > 1 => pool.each(parts, &f),
            _ => (0..parts).for_each(f),
        }
    }
}

/// Part `i` of `parts` of a range of that length, whose inner borders are multiples of `unit`.
#[inline]
pub(crate) fn part(length: usize, unit: usize, parts: usize, i: usize) -> std::ops::Range<usize> {
    let units = length.div_ceil(unit);
    let border = |i: usize| (units * i / parts * unit).min(length);
    border(i)..border(i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_in_units() {
        for (length, unit, parts) in
            [(0, 16, 3), (1, 16, 3), (100, 16, 3), (4096, 64, 7), (5, 1, 8)]
        {
            let mut next = 0;
            for i in 0..parts {
                let r = part(length, unit, parts, i);
                assert_eq!(r.start, next);
                assert!(r.end == length || r.end.is_multiple_of(unit));
                next = r.end;
            }
            assert_eq!(next, length);
        }
    }

    #[test]
    fn every_part_is_done() {
        let team = Team::new(Some(4)).unwrap();
        let count = std::sync::atomic::AtomicUsize::new(0);
        team.each(9, |i| {
            count.fetch_add(i, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 36);
    }
}
