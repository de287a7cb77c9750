//! [`Progress`]: a [`Timeline`] for queues whose commands end one after another on a thread.

use super::{DeviceId, Fault, Timeline};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A [`Timeline`] that is told how far its queue has come: what a queue with a thread of its own
/// needs.
///
/// ```
/// use tracecast_runtime::{DeviceId, Fault, Progress, Timeline};
///
/// let npu = DeviceId::new("npu", 0)?;
/// let progress = Progress::new(npu.clone());
/// progress.reach(1);
/// progress.fail(Fault::copy(&npu, "upload of 8 bytes: no answer"));
/// assert_eq!(progress.poll(1), Some(Ok(())));
/// assert!(progress.poll(2).is_some_and(|end| end.is_err()));
/// progress.recover(3);
/// progress.reach(4);
/// assert!(progress.poll(3).is_some_and(|end| end.is_err()) && progress.poll(4) == Some(Ok(())));
/// assert_eq!(progress.poll(5), None);
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
pub struct Progress {
    device: DeviceId,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Every number up to this one is reached.
    reached: u64,
    /// What stopped the queue behind that.
    stopped: Option<Fault>,
    /// Numbers that carry a fault: greater than the first, up to the second.
    failed: Vec<(u64, u64, Fault)>,
}

impl State {
    fn end(&self, number: u64) -> Option<Result<(), Fault>> {
        if number > self.reached {
            return self.stopped.clone().map(Err);
        }
        let fell = self.failed.iter().find(|(from, to, _)| number > *from && number <= *to);
        Some(fell.map_or(Ok(()), |(_, _, fault)| Err(fault.clone())))
    }
}

impl Progress {
    /// The timeline of a device on which nothing is recorded.
    pub fn new(device: DeviceId) -> Self {
        Progress { device, state: Mutex::default(), changed: Condvar::new() }
    }

    /// All commands before this number are done. Of no effect on a queue that has stopped.
    pub fn reach(&self, number: u64) {
        let mut state = self.state();
        if state.stopped.is_none() {
            state.reached = number.max(state.reached);
            self.changed.notify_all();
        }
    }

    /// A command has failed: the queue stops, and numbers that were not reached carry the fault. Of
    /// no effect on a queue that has stopped.
    pub fn fail(&self, fault: Fault) {
        let mut state = self.state();
        if state.stopped.is_none() {
            state.stopped = Some(fault);
            self.changed.notify_all();
        }
    }

    /// What stopped the queue.
    pub fn stopped(&self) -> Option<Fault> {
        self.state().stopped.clone()
    }

    /// The queue goes on. Up to this number, the last that was recorded, numbers that were not
    /// reached carry the fault for ever.
    pub fn recover(&self, last: u64) {
        let mut state = self.state();
        if let Some(fault) = state.stopped.take() {
            let from = state.reached;
            state.failed.push((from, last, fault));
            state.reached = last.max(from);
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timeline for Progress {
    fn poll(&self, number: u64) -> Option<Result<(), Fault>> {
        self.state().end(number)
    }

    fn wait(&self, number: u64, at_most: Duration) -> Result<(), Fault> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(end) = state.end(number) {
                return end;
            }
            let Some(left) = at_most.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            else {
                return Err(Fault::timed_out(&self.device, at_most));
            };
            let (next, _) =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Progress({}, {})", self.device, state.reached)?;
        state.stopped.as_ref().map_or(Ok(()), |fault| write!(f, ", stopped: {fault}"))
    }
}
