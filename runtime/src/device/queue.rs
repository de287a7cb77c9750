//! [`Queue`] and [`Timeline`]: the order of what a device does, where that is not done when a call
//! returns.

use super::{Bound, Fault};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::tensor::Tensor;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracecast_ir::eval::Bytes;

/// The queue of a device: commands run in the order in which they are given, each after the one
/// before it has ended. A call returns when its command is taken, not when it is done.
///
/// What a command names, memory and bytes of the host, the queue holds until it is done: dropping a
/// [`Memory`](crate::Memory) never waits, and frees nothing that is in use.
///
/// A command that fails stops the queue: nothing behind it runs, and every number that is recorded
/// behind it carries the [`Fault`]. Commands that are given to a queue that has stopped are
/// dropped, and so are numbers recorded: they carry the fault too. [`reset`](Queue::reset) makes it
/// usable again.
///
/// An error of one of these methods says that this command was not taken. Those before it were.
pub trait Queue: Send {
    /// Copies bytes of the host to memory. There are as many as the span has.
    ///
    /// # Errors
    /// If the command is not taken.
    fn upload(&mut self, from: HostBytes, to: &Span) -> Result<()>;

    /// Copies from memory to bytes of the host: [fills](Landing::fill) them, before the number that
    /// is recorded next is reached.
    ///
    /// # Errors
    /// If the command is not taken.
    fn download(&mut self, from: &Span, to: Landing) -> Result<()>;

    /// Copies from memory to memory of the same device, as many bytes as both spans have; they do
    /// not overlap.
    ///
    /// # Errors
    /// If the command is not taken.
    fn copy(&mut self, from: &Span, to: &Span) -> Result<()>;

    /// Runs a kernel with its operands: what [`Bound::run`] does, when its turn comes. `step` is
    /// what the program calls it; faults name it.
    ///
    /// A queue that does more with its own bindings finds what they are by
    /// `(&**bound as &dyn Any).downcast_ref()`.
    ///
    /// # Errors
    /// If the command is not taken.
    fn launch(&mut self, step: &Arc<str>, bound: &Arc<dyn Bound>) -> Result<()>;

    /// A number that the [timeline](Queue::timeline) reaches when all commands before it are done:
    /// one greater than the last. Sees to it that the device begins. Allocates nothing.
    fn record(&mut self) -> u64;

    /// Where the numbers are watched. The same for the whole life of the queue.
    fn timeline(&self) -> Arc<dyn Timeline>;

    /// Goes on after a fault with the next command that is given. Numbers that were recorded behind
    /// the fault carry it for ever. The runtime calls it only when the timeline has told a fault of
    /// the last number recorded.
    ///
    /// # Errors
    /// If the device is [lost](super::FaultKind::Lost): then always.
    fn reset(&mut self) -> Result<()>;
}

/// How far a [queue](Queue) has come. Shared by all threads; asking it allocates nothing unless
/// there is a fault.
pub trait Timeline: Send + Sync {
    /// `None` if the number has not been reached; otherwise how what was recorded by it ended. The
    /// answer stays the same from then on.
    fn poll(&self, number: u64) -> Option<std::result::Result<(), Fault>>;

    /// As [`poll`](Timeline::poll), once the number is reached.
    ///
    /// # Errors
    /// The fault; [`TimedOut`](super::FaultKind::TimedOut) if it is not reached in that time.
    fn wait(&self, number: u64, at_most: Duration) -> std::result::Result<(), Fault>;
}

/// Bytes of the host that a queue copies from: those of a tensor, which are not copied for that, or
/// bytes of its own. A clone is the same bytes.
#[derive(Clone)]
pub struct HostBytes(Held);

#[derive(Clone)]
enum Held {
    Tensor(Tensor),
    Bytes(Arc<Bytes>),
}

impl From<Tensor> for HostBytes {
    fn from(tensor: Tensor) -> Self {
        HostBytes(Held::Tensor(tensor))
    }
}

impl From<Bytes> for HostBytes {
    fn from(bytes: Bytes) -> Self {
        HostBytes(Held::Bytes(Arc::new(bytes)))
    }
}

impl From<Vec<u8>> for HostBytes {
    fn from(bytes: Vec<u8>) -> Self {
        HostBytes::from(Bytes::from(bytes))
    }
}

impl Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Tensor(tensor) => tensor.bytes(),
            Held::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Debug for HostBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBytes({})", self.len())
    }
}

/// Bytes of the host that a queue fills. A clone is the same bytes.
///
/// ```
/// use tracecast_runtime::Landing;
///
/// let landing = Landing::of(3)?;
/// landing.clone().fill(&[1, 2, 3])?;
/// assert!(landing.fill(&[1]).is_err());
/// assert_eq!(landing.take()[..], [1, 2, 3]);
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
#[derive(Clone)]
pub struct Landing {
    bytes: Arc<Mutex<Bytes>>,
    len: usize,
}

impl Landing {
    /// A number of bytes.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn of(len: usize) -> Result<Self> {
        let bytes = Bytes::to_write(len).map_err(Error::Device)?;
        Ok(Landing { bytes: Arc::new(Mutex::new(bytes)), len })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives them these values.
    ///
    /// # Errors
    /// If there are more or fewer, or they were taken.
    pub fn fill(&self, from: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.is_empty() && self.len > 0 {
            let why = "the bytes were taken before they came: a number was reached too soon";
            return Err(Error::Device(why.to_owned()));
        }
        if bytes.len() != from.len() {
            let (expected, found) = (bytes.len(), from.len());
            return Err(Error::Device(format!("expected {expected} bytes, found {found}")));
        }
        bytes.copy_from_slice(from);
        Ok(())
    }

    /// The bytes; there are none afterwards.
    pub fn take(self) -> Bytes {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({} bytes)", self.len)
    }
}
