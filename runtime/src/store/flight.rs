//! [`Flight`]: a step that was given to a queue, and how it ended.

use crate::device::{Fault, FaultKind, SharedQueue};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a step ended.
pub(crate) type End = Result<(), Fault>;

/// A step that was given to a queue. Whoever has something of it asks it how it ended; of a store
/// the first one that asks is told.
///
/// If nobody was told of a fault when nobody has anything of the step any more, it is logged.
pub(crate) struct Flight {
    queue: SharedQueue,
    number: u64,
    end: OnceLock<End>,
    told: AtomicBool,
}

impl Flight {
    /// The step that has that number on a queue.
    pub(crate) fn new(queue: &SharedQueue, number: u64) -> Self {
        let (end, told) = (OnceLock::new(), AtomicBool::new(false));
        Flight { queue: queue.clone(), number, end, told }
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<&End> {
        if self.end.get().is_none()
            && let Some(end) = self.queue.timeline().poll(self.number)
        {
            return Some(self.end.get_or_init(|| end));
        }
        self.end.get()
    }

    /// True if it is known to have come to its end without a fault.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.end(), Some(Ok(())))
    }

    /// Its fault, if it is known to have one.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.end().and_then(|end| end.as_ref().err())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// That it takes too long. A step whose fault is that it took too long has ended.
    pub(crate) fn wait(&self) -> Result<&End, Fault> {
        if let Some(end) = self.end() {
            return Ok(end);
        }
        let waited = self.queue.timeline().wait(self.number, self.queue.limit());
        match (self.end(), waited) {
            (Some(end), _) => Ok(end),
            (None, Err(late)) if late.kind == FaultKind::TimedOut => Err(late),
            (None, end) => Ok(self.end.get_or_init(|| end)),
        }
    }

    /// Waits for its end, and tells its fault, whoever was told before.
    ///
    /// # Errors
    /// Its fault; or that it takes too long.
    pub(crate) fn ended(&self) -> crate::error::Result<()> {
        if let Err(fault) = self.wait()? {
            self.tell();
            return Err(fault.clone().into());
        }
        Ok(())
    }

    /// True for the first one who tells of its fault.
    pub(crate) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// True if it has a fault of which nobody was told.
    pub(crate) fn is_untold(&self) -> bool {
        self.fault().is_some() && !self.told.load(Ordering::Acquire)
    }

    /// True if both were given to the same queue.
    pub(crate) fn shares_queue(&self, other: &Flight) -> bool {
        self.is_on(&other.queue)
    }

    /// True if it stands behind the other one in the same queue.
    pub(crate) fn is_behind(&self, other: &Flight) -> bool {
        self.shares_queue(other) && self.number > other.number
    }

    /// True if it was given to that queue.
    pub(crate) fn is_on(&self, queue: &SharedQueue) -> bool {
        self.queue.same(queue)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if *self.told.get_mut() {
            return;
        }
        match self.end() {
            Some(Ok(())) => {}
            Some(Err(fault)) => {
                log::warn!(target: "tracecast", "nobody asked how a step ended: {fault}")
            }
            None => self.queue.leave(self.number),
        }
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({} on {})", self.number, self.queue.device())
    }
}
