//! A device that measures how long each kernel of another one runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracecast::Device;
use tracecast::ir::kernel::Kernel;
use tracecast::runtime::{AmpSupport, Arg, Bound, Launch, Memory, Result};

/// A device that does what another one does and keeps the time.
#[derive(Debug)]
pub(crate) struct Timed {
    inner: Arc<dyn Device>,
    clocks: Mutex<Vec<(String, Clock)>>,
}

/// The nanoseconds that a kernel ran so far.
type Clock = Arc<AtomicU64>;

impl Timed {
    /// Keeps the time of this device.
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Timed { inner, clocks: Mutex::default() })
    }

    /// The time in each kernel since the last call. Equal kernels are one; copies of state are left out, as most programs have none.
    pub(crate) fn take(&self) -> Vec<(String, Duration)> {
        let clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = |clock: &Clock| Duration::from_nanos(clock.swap(0, Ordering::Relaxed));
        clocks.iter().map(|(name, clock)| (name.clone(), taken(clock))).collect()
    }
}

impl Device for Timed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn amp(&self) -> Option<AmpSupport> {
        self.inner.amp()
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        let clock = Clock::default();
        if !kernel.name.starts_with("copy_") {
            let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
            clocks.push((kernel.name.clone(), clock.clone()));
        }
        Ok(Box::new(TimedLaunch { inner: self.inner.load(kernel)?, clock }))
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.inner.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        self.inner.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        self.inner.download(from, at, to)
    }

    fn run_step(&self, body: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        self.inner.run_step(body)
    }

    fn launches_are_infallible(&self) -> bool {
        self.inner.launches_are_infallible()
    }

    fn takes_loans(&self) -> bool {
        self.inner.takes_loans()
    }
}

struct TimedLaunch {
    inner: Box<dyn Launch>,
    clock: Clock,
}

impl Launch for TimedLaunch {
    fn bind(&self, args: &[Arg]) -> Result<Box<dyn Bound>> {
        Ok(Box::new(TimedBound { inner: self.inner.bind(args)?, clock: self.clock.clone() }))
    }
}

struct TimedBound {
    inner: Box<dyn Bound>,
    clock: Clock,
}

impl Bound for TimedBound {
    fn run(&self) -> Result<()> {
        let start = Instant::now();
        let result = self.inner.run();
        self.clock.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}
