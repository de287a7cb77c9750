//! [`Clock`]: the time of a chip, which passes with what it does and with nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds between a command and its begin.
const BEGIN: u64 = 500;
/// Bytes that the link to the host carries in a nanosecond.
const LINK: u64 = 16;
/// Bytes that the memory of the chip gives in a nanosecond.
const MEMORY: u64 = 512;

/// The time of a chip: a cycle of its vector unit takes a nanosecond, copies take time by their
/// bytes. The same commands always take as long.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    /// Since the chip was opened.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn ran(&self, cycles: u64) {
        self.pass(cycles);
    }

    pub(crate) fn carried(&self, bytes: usize) {
        self.pass(bytes as u64 / LINK);
    }

    pub(crate) fn copied(&self, bytes: usize) {
        self.pass(bytes as u64 / MEMORY);
    }

    fn pass(&self, nanoseconds: u64) {
        self.0.fetch_add(BEGIN + nanoseconds, Ordering::SeqCst);
    }
}
