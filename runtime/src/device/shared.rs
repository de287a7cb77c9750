//! [`SharedQueue`]: the queue of a device as all threads and executables share it.

use super::{DeviceId, HostBytes, Landing, Queue, Timeline};
use crate::error::Result;
use crate::memory::Span;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracecast_ir::eval::Bytes;

/// How long a wait for a device may take if nobody says otherwise.
const LIMIT: Duration = Duration::from_secs(60);

/// The queue of a device as all threads and executables share it: what
/// [`Device::queue`](crate::Device::queue) gives. A clone is the same queue.
///
/// The runtime gives it commands in groups: a group is given by one thread at a time, and numbered.
/// It resets the queue after a fault, before the next group.
#[derive(Clone)]
pub struct SharedQueue {
    device: DeviceId,
    line: Arc<Mutex<Line>>,
    timeline: Arc<dyn Timeline>,
    left: Arc<Left>,
    /// In nanoseconds; of all handles.
    limit: Arc<AtomicU64>,
    in_flight: usize,
}

/// Numbers that nobody waits for any more. Their faults are logged.
struct Left {
    timeline: Arc<dyn Timeline>,
    numbers: Mutex<Vec<u64>>,
}

impl Left {
    /// Logs the faults that are known.
    fn look(&self) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.retain(|number| match self.timeline.poll(*number) {
            Some(Err(fault)) => {
                log::warn!(target: "tracecast", "nobody asked how a step ended: {fault}");
                false
            }
            end => end.is_none(),
        });
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.look();
    }
}

struct Line {
    queue: Box<dyn Queue>,
    /// The number recorded last, unless the queue goes on behind a fault since.
    last: Option<u64>,
}

/// A group that was given.
pub(crate) struct Group {
    /// The number that is reached when it is done.
    pub(crate) number: u64,
    /// The number of the group before it, whose fault is also one of this group.
    behind: Option<u64>,
}

impl SharedQueue {
    /// Shares the queue of that device: steps are given one by one, and no wait takes longer than a
    /// minute.
    pub fn new(device: DeviceId, queue: Box<dyn Queue>) -> Self {
        let timeline = queue.timeline();
        let line = Arc::new(Mutex::new(Line { queue, last: None }));
        let left = Arc::new(Left { timeline: timeline.clone(), numbers: Mutex::default() });
        let limit = Arc::new(AtomicU64::new(nanoseconds(LIMIT)));
        SharedQueue { device, line, timeline, left, limit, in_flight: 1 }
    }

    /// The same whose waits take no longer than that: then there is a fault that says so.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = Arc::new(AtomicU64::new(nanoseconds(limit)));
        self
    }

    /// Waits that begin from now on take no longer than that, on all handles of this queue. A
    /// [registry](crate::Registry::set_wait_limit) says so for all of its devices.
    pub fn set_limit(&self, limit: Duration) {
        self.limit.store(nanoseconds(limit), Ordering::Relaxed);
    }

    /// The same to which a number of steps are given before the first has ended; at least one.
    /// State takes memory for one more than that.
    #[must_use]
    pub fn in_flight(mut self, steps: usize) -> Self {
        self.in_flight = steps.max(1);
        self
    }

    /// The device.
    pub fn device(&self) -> &DeviceId {
        &self.device
    }

    /// How long a wait may take.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit.load(Ordering::Relaxed))
    }

    /// How many steps of a store are given to it before the first has ended.
    pub fn most_in_flight(&self) -> usize {
        self.in_flight
    }

    /// Where the numbers of groups are watched.
    pub fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    /// Gives a group of commands and its number. A fault of earlier groups is none of this one,
    /// which begins on a queue that goes on: `first` says whether it still may, at a point behind
    /// which every fault is also one of this group.
    ///
    /// # Errors
    /// If the device is lost, `first` says no, or a command is not taken; those before it are.
    pub(crate) fn give(
        &self,
        first: &mut dyn FnMut() -> Result<()>,
        commands: &mut dyn FnMut(&mut dyn Queue) -> Result<()>,
    ) -> Result<Group> {
        self.left.look();
        let mut line = self.line();
        let Line { queue, last } = &mut *line;
        if let Some(Err(fault)) = last.and_then(|last| self.timeline.poll(last)) {
            if fault.is_lost() {
                return Err(fault.into());
            }
            queue.reset()?;
            *last = None;
        }
        first()?;
        let given = commands(&mut **queue);
        let number = queue.record();
        let behind = last.replace(number);
        given.map(|()| Group { number, behind })
    }

    /// Waits until a group has come to its end.
    ///
    /// # Errors
    /// Its fault, or that it took too long.
    pub fn wait(&self, number: u64) -> Result<()> {
        Ok(self.timeline.wait(number, self.limit())?)
    }

    /// Gives a group of commands, and waits for its end. If none of them ran since a group of
    /// somebody else before it failed, they are given again.
    ///
    /// # Errors
    /// If a command is not taken, or fails; if it takes too long.
    pub fn run(&self, commands: &mut dyn FnMut(&mut dyn Queue) -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let group = self.give(&mut || Ok(()), commands)?;
            let done = self.wait(group.number);
            let fell = |before| matches!(self.timeline.poll(before), Some(Err(_)));
            if done.is_ok() || !group.behind.is_some_and(fell) || begun.elapsed() >= self.limit() {
                return done;
            }
        }
    }

    /// Copies from the host, and waits for it.
    ///
    /// # Errors
    /// If that fails.
    pub fn write(&self, from: HostBytes, to: &Span) -> Result<()> {
        self.run(&mut |queue| queue.upload(from.clone(), to))
    }

    /// Copies to the host after all that was given before.
    ///
    /// # Errors
    /// If that fails.
    pub fn read(&self, from: &Span) -> Result<Bytes> {
        let landing = Landing::of(from.len)?;
        self.run(&mut |queue| queue.download(from, landing.clone()))?;
        Ok(landing.take())
    }

    /// Nobody waits for a number any more: if it carries a fault, that is logged.
    pub(crate) fn leave(&self, number: u64) {
        self.left.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    /// True if both are the same queue.
    pub(crate) fn same(&self, other: &SharedQueue) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As many as fit: five hundred years.
fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedQueue({}, {} in flight)", self.device, self.in_flight)
    }
}
