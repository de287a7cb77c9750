//! [`Timing`]: when a step of a run began and how long it took; and the clock that notes it.

use crate::error::Result;
use std::time::{Duration, Instant};

/// When a step of a run began, counted from the start of the run, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Since the start of the run.
    pub start: Duration,
    /// From the launch to its end.
    pub time: Duration,
}

/// Notes when the steps of a run begin, and how long they take.
pub(super) struct Clock {
    pub(super) origin: Instant,
    pub(super) times: Vec<Timing>,
}

impl Clock {
    pub(super) fn time(&mut self, step: usize, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = self.origin.elapsed();
        let done = run();
        self.times[step] = Timing { start, time: self.origin.elapsed() - start };
        done
    }
}
