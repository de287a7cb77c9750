//! [`Chip`]: what a device, its queue and its launches share.

use crate::clock::Clock;
use crate::counts::{Counters, count};
use crate::faults::Faults;
use crate::isa::Program;
use crate::memory::{Region, Space};
use crate::{Defect, Settings, Ways};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tracecast_runtime::ir::kernel::Kernel;
use tracecast_runtime::{Bound, DeviceId, Error, Memory, Progress, Result, Span};

thread_local! {
    /// The chip that this thread works with.
    static CURRENT: Cell<Option<u16>> = const { Cell::new(None) };
}

/// The ordinal of the chip that this thread works with: between calls of the runtime, what it was
/// before.
pub fn current() -> Option<u16> {
    CURRENT.get()
}

/// Makes a chip the one that this thread works with; `None` for none. Drivers with calls that name
/// no chip have something like it.
pub fn set_current(ordinal: Option<u16>) {
    CURRENT.set(ordinal);
}

/// What a device, its queue and its launches share.
pub(crate) struct Chip {
    pub(crate) id: DeviceId,
    pub(crate) space: Arc<Space>,
    pub(crate) progress: Progress,
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    pub(crate) clock: Clock,
    pub(crate) ways: Ways,
    /// Commands that were given and have not ended.
    pub(crate) pending: AtomicU64,
    paused: Mutex<bool>,
    resumed: Condvar,
}

impl Chip {
    /// A chip of these settings.
    pub(crate) fn new(id: &DeviceId, settings: &Settings) -> Self {
        Chip {
            id: id.clone(),
            space: Space::new(settings.memory),
            progress: Progress::new(id.clone()),
            counters: Counters::default(),
            faults: Faults::default(),
            clock: Clock::default(),
            ways: settings.ways,
            pending: AtomicU64::new(0),
            paused: Mutex::new(false),
            resumed: Condvar::new(),
        }
    }

    /// The addresses of bytes.
    pub(crate) fn addresses(&self, span: &Span) -> Result<Range<usize>> {
        self.part(&span.memory, span.at, span.len)
    }

    /// The addresses of bytes of a piece of memory.
    pub(crate) fn part(&self, memory: &Memory, at: usize, len: usize) -> Result<Range<usize>> {
        let region = memory.get::<Region>()?;
        if !Arc::ptr_eq(region.space(), &self.space) {
            return Err(Error::Device(format!("{}: memory of another device", self.id)));
        }
        region.part(at, len).map_err(|why| Error::Device(format!("{}: {why}", self.id)))
    }

    /// True if that is wrong with it.
    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.ways.has(defect)
    }

    /// Counts calls of threads that work with another chip.
    pub(crate) fn is_entered(&self) {
        if current() != Some(self.id.ordinal()) {
            count(&self.counters.strangers);
        }
    }

    /// Begins no other command.
    pub(crate) fn pause(&self) {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Goes on.
    pub(crate) fn resume(&self) {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.resumed.notify_all();
    }

    /// Returns once it may go on.
    pub(crate) fn wait_while_paused(&self) {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.resumed.wait_while(paused, |paused| *paused));
    }
}

/// A launch: a program, and where its tensors lie.
pub(crate) struct Call {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) program: Arc<Program>,
    pub(crate) operands: Vec<Range<usize>>,
    /// Addresses hold for as long as the memory is there.
    #[allow(dead_code, reason = "it is held")]
    pub(crate) held: Vec<Memory>,
}

impl Bound for Call {
    fn run(&self) -> Result<()> {
        Err(Error::Device(format!("kernel @{} runs on the queue of its device", self.kernel.name)))
    }
}
