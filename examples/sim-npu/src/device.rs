//! [`Npu`]: one chip, as a device.

use crate::chip::{Call, Chip, current, set_current};
use crate::counts::{Counts, count};
use crate::faults::{Injection, Point};
use crate::isa::Program;
use crate::lower::lower;
use crate::memory::Usage;
use crate::queue::Line;
use crate::{Defect, Settings, amp_of};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracecast_runtime::ir::kernel::{FormKind, Kernel};
use tracecast_runtime::{
    AmpSupport, Arg, Bound, Capabilities, Device, DeviceId, Error, Fault, Guard, KernelLimits,
    Launch, Memory, MemoryStats, Result, SharedQueue,
};

/// The forms that there is code for.
const FORMS: [FormKind; 2] = [FormKind::Nest, FormKind::Contract];

/// One chip.
pub struct Npu {
    name: String,
    settings: Settings,
    chip: Arc<Chip>,
    queue: SharedQueue,
    /// The program that was made last.
    latest: Mutex<Arc<Program>>,
}

impl Npu {
    /// The chip of that name.
    ///
    /// # Errors
    /// If there is no thread for its queue.
    pub fn new(id: &DeviceId, settings: Settings) -> Result<Self> {
        let chip = Arc::new(Chip::new(id, &settings));
        let queue = SharedQueue::new(id.clone(), Box::new(Line::start(&chip)?))
            .within(settings.patience)
            .in_flight(settings.in_flight);
        let latest = Mutex::default();
        Ok(Npu { name: id.to_string(), settings, chip, queue, latest })
    }

    fn latest(&self) -> MutexGuard<'_, Arc<Program>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of its memory is in use.
    pub fn usage(&self) -> Usage {
        self.chip.space.usage()
    }

    /// What it was asked for.
    pub fn counts(&self) -> Counts {
        self.chip.counters.now()
    }

    /// Its time.
    pub fn now(&self) -> Duration {
        self.chip.clock.now()
    }

    /// No fault is to come any more.
    pub fn mend(&self) {
        self.chip.faults.mend();
    }

    /// Has one of the commands that come fail.
    pub fn inject(&self, injection: Injection) {
        self.chip.faults.arm(injection);
    }

    /// How many injected faults have happened.
    pub fn struck(&self) -> u64 {
        self.chip.faults.struck()
    }

    /// True if it has done all that it was told.
    pub fn is_idle(&self) -> bool {
        self.chip.pending.load(Ordering::SeqCst) == 0
    }

    /// Begins no other command until it [goes on](Npu::resume).
    pub fn pause(&self) {
        self.chip.pause();
    }

    /// Goes on behind a [pause](Npu::pause).
    pub fn resume(&self) {
        self.chip.resume();
    }
}

impl Device for Npu {
    fn name(&self) -> &str {
        &self.name
    }

    fn amp(&self) -> Option<AmpSupport> {
        Some(amp_of(&self.settings))
    }

    fn capabilities(&self) -> Capabilities {
        let limits = KernelLimits {
            forms: &FORMS,
            dtypes: self.settings.memories.dtypes(),
            most_operands: self.settings.most_operands,
            ..KernelLimits::NONE
        };
        Capabilities { limits, ..Capabilities::default() }
    }

    fn queue(&self) -> Option<&SharedQueue> {
        Some(&self.queue)
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        self.chip.is_entered();
        let program = lower(kernel, self.settings.memories).map_err(|why| {
            Error::Device(format!("{}: no code for kernel @{}: {why}", self.name, kernel.name))
        })?;
        let (kernel, mut program) = (Arc::new(kernel.clone()), Arc::new(program));
        if self.chip.has(Defect::Race) {
            *self.latest() = program;
            std::thread::sleep(Duration::from_micros(200));
            program = self.latest().clone();
        }
        Ok(Box::new(Loaded { kernel, program, chip: self.chip.clone() }))
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.chip.is_entered();
        count(&self.chip.counters.allocations);
        if let Some(lost) = self.chip.progress.stopped().filter(Fault::is_lost) {
            return Err(lost.into());
        }
        let (usage, limit) = (self.usage(), self.chip.space.limit());
        let short = |in_use| Fault::out_of_memory(&self.chip.id, bytes, in_use, Some(limit));
        if self.chip.faults.strikes(Point::Allocation) {
            return Err(short(usage.in_use).into());
        }
        if self.chip.has(Defect::Leak) {
            std::mem::forget(self.chip.space.take(1));
        }
        Ok(Memory::new(self.chip.space.take(bytes).map_err(|full| short(full.in_use))?))
    }

    fn trim(&self) {
        self.chip.space.trim();
    }

    fn memory_stats(&self) -> Option<MemoryStats> {
        let Usage { in_use, peak, allocations, .. } = self.usage();
        let mut stats = MemoryStats::new(in_use);
        stats.peak = Some(peak);
        stats.limit = Some(self.chip.space.limit());
        stats.allocations = Some(allocations);
        Some(stats)
    }

    fn enter(&self) -> Result<Guard> {
        let before = current();
        set_current(Some(self.chip.id.ordinal()));
        let stays = self.chip.has(Defect::GuardLeft);
        Ok(Guard::new(move || {
            if !stays {
                set_current(before);
            }
        }))
    }
}

impl fmt::Debug for Npu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Npu({}, {:?})", self.name, self.settings)
    }
}

/// A kernel with its program.
struct Loaded {
    kernel: Arc<Kernel>,
    program: Arc<Program>,
    chip: Arc<Chip>,
}

impl Launch for Loaded {
    fn bind(&self, args: &[Arg], _: &[i64]) -> Result<Box<dyn Bound>> {
        let operands = args.iter().map(|arg| self.chip.part(&arg.memory, arg.offset, arg.len));
        Ok(Box::new(Call {
            kernel: self.kernel.clone(),
            program: self.program.clone(),
            operands: operands.collect::<Result<_>>()?,
            held: args.iter().map(|arg| arg.memory.clone()).collect(),
        }))
    }

    fn text(&self) -> Option<String> {
        Some(self.program.to_string())
    }
}
