//! The status word of a run: number and offending value of the first check that fails, kept as an
//! atomic minimum by the threads.
//!
//! The number of the check is in the upper 16 bits. Below is what it found with [`BIAS`] added, or
//! 0 if the check is about no number; numbers beyond [`LARGEST`] count as that. No check has failed
//! while all bits are set.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bits below the number of the check.
const BITS: u32 = 48;
/// What is added to what was found, so that it is positive.
pub(crate) const BIAS: i64 = 1 << (BITS - 1);
/// The largest number that can be found; the least is its negative.
pub(crate) const LARGEST: i64 = BIAS - 1;

/// Of a run that has not started.
pub(crate) fn fine() -> AtomicU64 {
    AtomicU64::new(u64::MAX)
}

/// The word for a check that has found nothing or, with what it found added to [`BIAS`] and that to
/// the word, something.
pub(crate) fn word(check: u32) -> i64 {
    (u64::from(check.min(u32::from(u16::MAX) - 1)) << BITS) as i64
}

/// The check that failed, and what it found.
pub(crate) fn raised(status: &AtomicU64) -> Option<(usize, Option<i64>)> {
    let word = status.load(Ordering::Relaxed);
    let found = (word & ((1 << BITS) - 1)) as i64;
    (word != u64::MAX).then(|| ((word >> BITS) as usize, (found != 0).then_some(found - BIAS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_checks_come_first_and_then_lower_numbers() {
        let status = fine();
        assert_eq!(raised(&status), None);
        for (check, found) in [(2, Some(LARGEST)), (2, Some(5)), (2, Some(-LARGEST)), (1, None)] {
            let low = found.map_or(0, |found| found + BIAS);
            status.fetch_min((word(check) | low) as u64, Ordering::Relaxed);
            assert_eq!(raised(&status), Some((check as usize, found)));
        }
    }
}
