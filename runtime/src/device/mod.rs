//! [`Device`]: a place where kernels run. A guest implements it; the CPU of `tracecast-codegen` is
//! one.
//!
//! A device is of one of two kinds. On a *synchronous* one ([`Device::queue`] gives nothing) copies
//! and launches are done when the call returns. One with a *queue* takes them as commands, and is
//! done with them later. Who guarantees what:
//!
//! * **Order.** There is one [`Queue`] for each device, which all executables, stores and threads
//!   share: commands run in the order in which they are given. The runtime gives the commands of a
//!   step as one group, and begins none while another thread gives one.
//! * **Drop.** The queue holds what its commands name until they are done. The runtime may drop
//!   memory, bindings and tensors at any time, and uses the memory of one run for the next as soon
//!   as that is given: its commands stand behind.
//! * **Failure.** After a command fails nothing behind it runs, and every number that is recorded
//!   behind it carries the [`Fault`]. The runtime resets the queue before the next group. Faults
//!   name the device, what it ran, and why.
//! * **Commit.** A step never writes to the last value of state: it writes to fresh memory, which
//!   the store has from then on as *pending*, and keeps the former one until the number of the step
//!   is reached. If that carries a fault, the store goes back to the last complete step, bit for
//!   bit, steps given behind fall with it, and the next call on the store tells the fault, once.
//! * **Threads.** Devices are called by any number of threads at the same time; a queue by one at a
//!   time. [`Device::enter`] is called on the thread that works with the device, and its guard is
//!   dropped on that thread.
//! * **Time.** Every wait is bounded, by the driver ([`SharedQueue::within`]) or whoever runs
//!   ([`Registry::set_wait_limit`](crate::Registry::set_wait_limit)); one that takes too long is a
//!   fault as well, and what it waited for stays pending.
//! * **Memory.** If [`Device::alloc`] fails for want of memory, the runtime waits for what is in
//!   flight, calls [`Device::trim`] and tries once more; then once more with what ended steps and
//!   whoever [makes room](crate::Executable::run_making_room) give up.
//! * **Loss.** Behind a fault of kind [`Lost`](FaultKind::Lost) nothing works any more: what a
//!   store has on that device is an error that names it, and can be
//!   [discarded](crate::Store::discard) and inserted anew; what lives elsewhere is as it was.

mod amp;
mod backend;
mod guard;
mod progress;
mod queue;
mod shared;

/// What a fault says, and which device.
pub use crate::error::{DeviceId, Fault, FaultKind};
pub use amp::{AmpSupport, Base, ScaleUpdate, ScalerRecorder};
pub use backend::Backend;
pub use guard::Guard;
pub use progress::Progress;
pub use queue::{HostBytes, Landing, Queue, Timeline};
pub use shared::SharedQueue;

use crate::error::{Error, Result};
use crate::memory::{Memory, Span};
use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::{Capabilities, Kernel};
use tracecast_ir::policy::DeviceType;

/// A place where kernels run. Implementations check nothing the runtime has checked already: types,
/// shapes, bounds, lifetimes, order and the reuse of memory are the runtime's.
pub trait Device: Debug + Send + Sync {
    /// The name of its kind, with its number among those unless it is the first: `npu`, `npu:1`.
    /// See [`DeviceId`].
    fn name(&self) -> &str;

    /// What autocast may do here, for a device that is registered when it is open; a
    /// [backend](crate::Backend) says it for those that it opens. `None`, the default: what holds for
    /// the type that it [serves](Device::serves), and for a device from outside nothing: a region is
    /// an error.
    fn amp(&self) -> Option<AmpSupport> {
        None
    }

    /// The device type that it serves if that is one of those with a table of their own. `None`,
    /// the default: it is a device from outside.
    fn serves(&self) -> Option<DeviceType> {
        None
    }

    /// What its kernels can do besides what every device's can. By default nothing.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Whether [`load`](Device::load) takes this kernel with names in its sizes: it is then
    /// compiled once, and each binding gives the names values. A kernel that a device does not take
    /// is loaded with numbers in the place of names ([`Kernel::at`]), once for each set of sizes.
    /// By default what the [capabilities](Device::capabilities) say of its form.
    fn takes_sizes(&self, kernel: &Kernel) -> bool {
        self.capabilities().sizes.contains(&kernel.form.kind())
    }

    /// Compiles a kernel. Only a kernel that it [takes](Device::takes_sizes) has names.
    ///
    /// # Errors
    /// If the device has no code for it.
    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>>;

    /// Compiles the kernels of one program; by default one after another.
    ///
    /// # Errors
    /// If the device has no code for one of them.
    fn load_all(&self, kernels: &[&Kernel]) -> Result<Vec<Box<dyn Launch>>> {
        kernels.iter().map(|k| self.load(k)).collect()
    }

    /// Its queue, if what it does is not done when a call returns: the same for its whole life.
    /// `None`, the default: copies and launches are done then.
    fn queue(&self) -> Option<&SharedQueue> {
        None
    }

    /// Reserves memory; it holds anything. Waits for nothing.
    ///
    /// # Errors
    /// If there is not enough: a fault of kind [`OutOfMemory`](FaultKind::OutOfMemory). If the
    /// device is lost.
    fn alloc(&self, bytes: usize) -> Result<Memory>;

    /// Gives back memory that it keeps for later without using it. The runtime asks for that before
    /// it tries for a second time to reserve memory.
    fn trim(&self) {}

    /// What it knows of its memory; it waits for nothing, and knows it also when it is lost.
    /// `None`, the default: nothing.
    fn memory_stats(&self) -> Option<MemoryStats> {
        None
    }

    /// Makes it the device of this thread, if its driver has one, until the guard is dropped. The
    /// runtime does so before it reserves memory, compiles kernels, or gives commands. By default
    /// there is nothing to do.
    ///
    /// # Errors
    /// If that fails.
    fn enter(&self) -> Result<Guard> {
        Ok(Guard::none())
    }

    /// Takes over bytes of the host as memory, where that saves a copy; by default it gives them
    /// back.
    ///
    /// # Errors
    /// The bytes, if they are to be copied.
    fn adopt(&self, bytes: Bytes) -> std::result::Result<Memory, Bytes> {
        Err(bytes)
    }

    /// Copies from the host. A device with a queue need not say how: by default it is a command,
    /// which is waited for.
    ///
    /// # Errors
    /// If the link to the device fails.
    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        let queue = self.queue().ok_or_else(|| no_copies(self.name()))?;
        queue.write(from.to_vec().into(), &Span { memory: to.clone(), at, len: from.len() })
    }

    /// Copies to the host, after everything launched before has finished. A device with a queue
    /// need not say how: by default it is a command, which is waited for.
    ///
    /// # Errors
    /// If the link to the device fails.
    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        let queue = self.queue().ok_or_else(|| no_copies(self.name()))?;
        let bytes = queue.read(&Span { memory: from.clone(), at, len: to.len() })?;
        match bytes.len() == to.len() {
            true => to.copy_from_slice(&bytes),
            false => return Err(Error::Device(format!("{} filled other bytes", self.name()))),
        }
        Ok(())
    }

    /// Ties a copy of plain bytes to its two places, which are equally long and do not overlap:
    /// programs make copies of state that cannot be updated in place. `None`, the default: the
    /// runtime copies through the host. A device with a queue is not asked, its copies are
    /// [commands](Queue::copy).
    ///
    /// # Errors
    /// If the device cannot use that memory.
    fn bind_copy(&self, _from: &Arg, _to: &Arg) -> Result<Option<Box<dyn Bound>>> {
        Ok(None)
    }

    /// Holds whatever a whole step needs (a thread pool, a stream) while `body` launches kernels.
    ///
    /// # Errors
    /// Those of `body`.
    fn run_step(&self, body: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        body()
    }

    /// True if a launch can fail only by raising a check of its kernel. Then state is updated in
    /// place, after the last kernel with checks; elsewhere, and on a device with a queue, a step
    /// writes fresh buffers.
    fn launches_are_infallible(&self) -> bool {
        false
    }

    /// True if kernels can be bound to a [`HostLoan`](crate::HostLoan), whose address is another in
    /// each run. Large inputs and outputs are then not copied.
    fn takes_loans(&self) -> bool {
        false
    }

    /// True if [`merge`](Device::merge) works on its memory, beside that of any device that says
    /// so: ranks within a process then reduce values in place. Otherwise these are copied to the
    /// host and back.
    fn merges(&self) -> bool {
        false
    }

    /// Makes one of what lies at several places: `with` is given the bytes from each place of
    /// `from` on, some at a time and `len` in all, and what it makes of them is written to every
    /// place of `to`. Places are memory and where in it. Nobody else uses these bytes meanwhile; a
    /// place of `from` may be one of `to`, and overlaps no other.
    ///
    /// # Errors
    /// If a place is not in such memory, or reaches beyond it.
    fn merge(
        &self,
        _from: &[(&Memory, usize)],
        _to: &[(&Memory, usize)],
        _len: usize,
        _with: &mut Merging<'_>,
    ) -> Result<()> {
        Err(Error::Device(format!("{} merges no memory", self.name())))
    }
}

/// What a device knows of its memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// In use now: reserved, and held by a handle or by a command that is not done.
    pub in_use: usize,
    /// The most that was in use at a time.
    pub peak: Option<usize>,
    /// How much there may be.
    pub limit: Option<usize>,
    /// How many pieces are in use.
    pub allocations: Option<usize>,
}

impl MemoryStats {
    /// A number of bytes are in use, and nothing else is known; see the fields for what else there
    /// may be to know.
    pub fn new(in_use: usize) -> Self {
        MemoryStats { in_use, ..MemoryStats::default() }
    }
}

/// Memory of a device. If there is not enough, once more when its queue has come to its end and it
/// has [trimmed](Device::trim) what it keeps.
pub(crate) fn alloc(device: &dyn Device, bytes: usize) -> Result<Memory> {
    let _guard = device.enter()?;
    match device.alloc(bytes) {
        Err(Error::Fault(fault)) if fault.is_out_of_memory() => {
            // How that ends is told to those who wait for it.
            device.queue().map(|queue| queue.run(&mut |_| Ok(())));
            device.trim();
            device.alloc(bytes)
        }
        done => done,
    }
}

fn no_copies(name: &str) -> Error {
    Error::Device(format!("`{name}` has neither copies nor a queue"))
}

/// Replaces the bytes of one place by what those of all amount to: it is given those of the places
/// before it, its own, and those of the places after it.
pub type Merging<'a> = dyn FnMut(&[&[u8]], &mut [u8], &[&[u8]]) + 'a;

/// A compiled kernel.
pub trait Launch: Send + Sync {
    /// Ties it to the places its operands live: the kernel's inputs, then its outputs. An output
    /// that updates an input in place has the memory and offset of that input.
    ///
    /// `sizes` are the values of the kernel's [names](Kernel::names), in their order, which keep to
    /// their bounds; there are none if all its sizes are numbers. What depends on them alone is
    /// worked out here, so that a run need not do it.
    ///
    /// # Errors
    /// If the device cannot use that memory, or has no code for these sizes.
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>>;

    /// How many bytes a binding of these sizes, given as [`bind`](Launch::bind) gets them, keeps
    /// besides its operands, if the inputs at those places are [lasting](Arg::lasting): what it
    /// makes of them in one run for the next.
    fn kept_bytes(&self, _lasting: &[usize], _sizes: &[i64]) -> usize {
        0
    }

    /// How many bytes a run takes on its threads besides operands and what the binding keeps, for
    /// sizes as [`bind`](Launch::bind) gets them. Threads use them for one kernel after another.
    fn scratch_bytes(&self, _sizes: &[i64]) -> usize {
        0
    }

    /// How a product is computed at sizes as [`bind`](Launch::bind) gets them, in one line, if the
    /// kernel is a product and the device can tell: the schedule, its blocking, the grid of
    /// threads, the workspace. For people.
    fn schedule(&self, _sizes: &[i64]) -> Option<String> {
        None
    }

    /// The code as text, if the device can show it; for `dump --emit`.
    fn text(&self) -> Option<String> {
        None
    }

    /// The loops that became its functions, as text, if the device can show them; for
    /// `dump --emit plan`. With a name, as they are behind the transformation of that name.
    ///
    /// # Errors
    /// If the device has no transformation of that name.
    fn plan(&self, _until: Option<&str>) -> Result<Option<String>> {
        Ok(None)
    }

    /// Its machine code, function by function, if the device can show it; for `dump --emit asm`.
    fn machine_code(&self) -> Vec<MachineCode> {
        Vec::new()
    }

    /// How its code came to be, if the device keeps account of that.
    fn made(&self) -> Option<&Made> {
        None
    }
}

/// The machine code of one function of a kernel, before addresses are put into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCode {
    /// What the function is called in the other functions of the kernel.
    pub name: String,
    /// The code: instructions, and constants behind them.
    pub bytes: Vec<u8>,
    /// How many bytes are instructions, as far as that is known.
    pub instructions: Option<usize>,
    /// Where addresses belong, and of what: offsets in the code, in order.
    pub addresses: Vec<(usize, String)>,
}

/// How the code of a kernel came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Where it comes from.
    pub from: MadeFrom,
    /// The time that took; without the time to make memory executable, which is that of all
    /// kernels.
    pub time: Duration,
    /// The bytes of code.
    pub bytes: usize,
    /// Why a file with the code was not used, or not written.
    pub warning: Option<String>,
}

impl Made {
    /// Nothing, in no time.
    pub fn new(from: MadeFrom) -> Self {
        Made { from, time: Duration::ZERO, bytes: 0, warning: None }
    }
}

/// Where code comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MadeFrom {
    /// It was compiled.
    Compiler,
    /// An equal kernel of this process has it.
    Process,
    /// It was read from a file.
    Disk,
}

impl MadeFrom {
    /// The name used in texts.
    pub const fn name(self) -> &'static str {
        match self {
            MadeFrom::Compiler => "compiled",
            MadeFrom::Process => "in use",
            MadeFrom::Disk => "from disk",
        }
    }
}

/// A compiled kernel with its operands.
pub trait Bound: Any + Send + Sync {
    /// False if it runs on the launching thread alone: a step of such kernels does without
    /// [`Device::run_step`].
    fn is_shared(&self) -> bool {
        true
    }

    /// Has on this thread, and on those that help it, what runs need beside operands and what the
    /// binding has. The runtime asks for it before a step begins, on the thread that launches it: a
    /// step that has begun is not to end for want of memory. By default there is nothing to do.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn reserve(&self) -> Result<()> {
        Ok(())
    }

    /// Runs it. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Data`] if a check of the kernel was raised; outputs then hold anything.
    fn run(&self) -> Result<()>;
}

/// An operand's place.
#[derive(Clone, Debug)]
pub struct Arg {
    /// The memory.
    pub memory: Memory,
    /// In bytes; a multiple of 64, and 0 in a loan.
    pub offset: usize,
    /// In bytes.
    pub len: usize,
    /// What the kernel does with it.
    pub access: Access,
    /// True if it is state that the program only reads, or reads often before it updates it, or
    /// numbers that it brings. Launches that find the same [`Memory::version`] find the same bytes:
    /// what the device has made of them in an earlier one is still right.
    pub lasting: bool,
}

/// What a kernel does with an operand. Only an `Update` place is both read and written by one
/// kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes every element.
    Write,
    /// Reads and writes, each element at the position where it was read.
    Update,
}
