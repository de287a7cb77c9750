//! [`Team`]: into how many parts work is cut, and the threads that do them.

use super::Pool;
use tracecast_runtime::{Error, Result};

/// The least work of a part, counted in cheap element operations: some ten microseconds. Giving a part to a thread that is awake takes
/// less than one, but what it writes has to be fetched by who reads it next, which on some machines takes longer than what it saves for
/// parts half as large. Tests split nearly everything.
const SPLIT: usize = if cfg!(test) { 256 } else { 64 * 1024 };

/// Threads, or only the calling one.
#[derive(Debug)]
pub(crate) struct Team {
    threads: usize,
    pool: Option<Pool>,
}

impl Team {
    /// That many threads, the calling one among them; as many as the machine runs at once if `None`.
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

    /// Into how many parts to cut that much work, which can be cut into `most`.
    #[inline]
    pub(crate) fn parts(&self, work: usize, most: usize) -> usize {
        (work / SPLIT).min(self.threads).min(most).max(1)
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
    fn work_is_split_when_it_is_worth_it() {
        let team = Team::new(Some(4)).unwrap();
        assert_eq!(
            (team.parts(2 * SPLIT - 1, 100), team.parts(9 * SPLIT, 100), team.parts(9 * SPLIT, 3)),
            (1, 4, 3)
        );
        let count = std::sync::atomic::AtomicUsize::new(0);
        team.each(9, |i| {
            count.fetch_add(i, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 36);
    }
}
