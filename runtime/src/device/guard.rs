//! [`Guard`]: what a device holds on a thread while the runtime works with it.

use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

/// What a device holds on a thread while the runtime works with it:
/// [`Device::enter`](crate::Device::enter) gives it, and it is dropped on the same thread before
/// the call of the user returns, also by an error or a panic; of several the last one first.
///
/// ```
/// use std::cell::Cell;
/// use tracecast_runtime::Guard;
///
/// let current = Cell::new(0);
/// # let current: &'static Cell<i32> = Box::leak(Box::new(current));
/// let before = current.replace(1);
/// let guard = Guard::new(move || current.set(before));
/// drop(guard);
/// assert_eq!(current.get(), 0);
/// ```
#[must_use = "it is held until it is dropped"]
pub struct Guard {
    leave: Option<Box<dyn FnOnce()>>,
    /// It stays on its thread.
    thread: PhantomData<Rc<()>>,
}

impl Guard {
    /// One that holds nothing.
    pub fn none() -> Self {
        Guard { leave: None, thread: PhantomData }
    }

    /// One that does this when it is dropped.
    pub fn new(leave: impl FnOnce() + 'static) -> Self {
        Guard { leave: Some(Box::new(leave)), thread: PhantomData }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({})", if self.leave.is_some() { "held" } else { "none" })
    }
}
