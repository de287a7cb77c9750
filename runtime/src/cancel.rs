//! [`Cancel`]: ends runs early, at a deadline or when another thread asks for it.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    /// Those under which this thread runs, the outermost first.
    static CURRENT: RefCell<Vec<Cancel>> = const { RefCell::new(Vec::new()) };
}

/// A handle by which runs end early. A clone is the same handle, for another thread.
///
/// Every run inside of [`scope`](Cancel::scope), of whatever kind, looks at it between its kernels,
/// until it begins to replace state in place. It then ends with [`Error::Cancelled`], and state is
/// as it was. A kernel that runs is not stopped, and a program is compiled to its end. On a device
/// with a queue a run looks before its commands are given.
///
/// ```
/// use std::time::Duration;
/// use tracecast_runtime::{Cancel, Error};
///
/// let cancel = Cancel::after(Duration::from_secs(5));
/// // For another thread.
/// let handle = cancel.clone();
/// handle.cancel();
/// assert!(cancel.is_cancelled());
/// // `cancel.scope(|| step.run(&mut store, &inputs))` is `Err(Error::Cancelled(_))` now.
/// assert_eq!(cancel.scope(|| 7), 7);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Cancel {
    /// Without a deadline.
    pub fn new() -> Self {
        Cancel::default()
    }

    /// With a deadline, counted from now.
    pub fn after(limit: Duration) -> Self {
        Cancel { asked: Arc::default(), deadline: Instant::now().checked_add(limit) }
    }

    /// Ends runs of this handle, those that go on and those to come.
    pub fn cancel(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// True once runs are to end: another thread has asked for it, or the deadline has passed.
    pub fn is_cancelled(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.is_late()
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Does something whose runs, on this thread, end when this handle says so. Handles around this
    /// one count as well.
    pub fn scope<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(Vec::pop);
            }
        }
        CURRENT.with_borrow_mut(|all| all.push(self.clone()));
        let _leave = Leave;
        body()
    }
}

/// True if runs of this thread may end early.
pub(crate) fn is_limited() -> bool {
    CURRENT.with_borrow(|all| !all.is_empty())
}

/// An error if a run of this thread is to end; `place` says where it is.
pub(crate) fn check(place: impl FnOnce() -> String) -> Result<()> {
    CURRENT.with_borrow(|all| {
        let Some(cancel) = all.iter().find(|cancel| cancel.is_cancelled()) else { return Ok(()) };
        let why =
            if cancel.asked.load(Ordering::Relaxed) { "cancelled" } else { "past its deadline" };
        Err(Error::Cancelled(format!("{why}, {}: state is as it was", place())))
    })
}
