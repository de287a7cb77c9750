//! [`Device`]: a place where kernels run. A guest implements it; the CPU of `tracecast-codegen` is one.

mod amp;
mod backend;
mod id;

pub use amp::{AmpSupport, Base};
pub use backend::Backend;
pub use id::DeviceId;

use crate::Memory;
use crate::error::{Error, Result};
use std::fmt::Debug;
use std::time::Duration;
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::{Capabilities, Kernel};
use tracecast_ir::policy::DeviceType;

/// A place where kernels run. Implementations check nothing the runtime has checked already: types, shapes, bounds, lifetimes, order
/// and the reuse of memory are the runtime's.
pub trait Device: Debug + Send + Sync {
    /// The name of its kind, with its number among those unless it is the first: `npu`, `npu:1`. See [`DeviceId`].
    fn name(&self) -> &str;

    /// What autocast may do here, unless a [backend](crate::Backend) says so for all devices of the kind. `None`, the default: what holds for the type that it
    /// [serves](Device::serves), and for a device from outside nothing: a region is an error.
    fn amp(&self) -> Option<AmpSupport> {
        None
    }

    /// The device type that it serves if that is one of those with a table of their own. `None`, the default: it is a device from outside.
    fn serves(&self) -> Option<DeviceType> {
        None
    }

    /// What its kernels can do besides what every device's can. By default nothing.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Whether [`load`](Device::load) takes this kernel with names in its sizes: it is then compiled once, and each binding gives the names
    /// values. A kernel that a device does not take is loaded with numbers in the place of names ([`Kernel::at`]), once for each set of
    /// sizes. By default what the [capabilities](Device::capabilities) say of its form.
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

    /// Reserves memory; it holds anything.
    ///
    /// # Errors
    /// If there is not enough.
    fn alloc(&self, bytes: usize) -> Result<Memory>;

    /// Takes over bytes of the host as memory, where that saves a copy; by default it gives them back.
    ///
    /// # Errors
    /// The bytes, if they are to be copied.
    fn adopt(&self, bytes: Bytes) -> std::result::Result<Memory, Bytes> {
        Err(bytes)
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// If the link to the device fails.
    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()>;

    /// Copies to the host, after everything launched before has finished.
    ///
    /// # Errors
    /// If the link to the device fails.
    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()>;

    /// Holds whatever a whole step needs (a thread pool, a stream) while `body` launches kernels.
    ///
    /// # Errors
    /// Those of `body`.
    fn run_step(&self, body: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        body()
    }

    /// True if a launch can fail only by raising a check of its kernel. Then state is updated in place, after the last kernel with
    /// checks; elsewhere a step writes fresh buffers.
    fn launches_are_infallible(&self) -> bool {
        false
    }

    /// True if kernels can be bound to a [`HostLoan`](crate::HostLoan), whose address is another in each run. Large inputs and outputs
    /// are then not copied.
    fn takes_loans(&self) -> bool {
        false
    }

    /// True if [`merge`](Device::merge) works on its memory, beside that of any device that says so: ranks within a process then reduce values where
    /// they lie. Otherwise these are copied to the host and back.
    fn merges(&self) -> bool {
        false
    }

    /// Makes one of what lies at several places: `with` is given the bytes from each place of `from` on, some at a time and `len` in all, and what it makes of
    /// them is written to every place of `to`. Places are memory and where in it. Nobody else uses these bytes meanwhile; a place of `from` may be one of
    /// `to`, and overlaps no other.
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

/// Replaces the bytes of one place by what those of all amount to: it is given those of the places before it, its own, and those of the places after it.
pub type Merging<'a> = dyn FnMut(&[&[u8]], &mut [u8], &[&[u8]]) + 'a;

/// A compiled kernel.
pub trait Launch: Send + Sync {
    /// Ties it to the places its operands live: the kernel's inputs, then its outputs. An output that updates an input in place has
    /// the memory and offset of that input.
    ///
    /// `sizes` are the values of the kernel's [names](Kernel::names), in their order, which keep to their bounds; there are none if all its
    /// sizes are numbers. What depends on them alone is worked out here, so that a run need not do it.
    ///
    /// # Errors
    /// If the device cannot use that memory, or has no code for these sizes.
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>>;

    /// How many bytes a binding of these sizes, given as [`bind`](Launch::bind) gets them, keeps besides its operands, if the inputs at those places are [lasting](Arg::lasting): what it makes of
    /// them in one run for the next.
    fn kept_bytes(&self, _lasting: &[usize], _sizes: &[i64]) -> usize {
        0
    }

    /// How many bytes a run takes on its threads besides operands and what the binding keeps, for sizes as [`bind`](Launch::bind) gets them. Threads
    /// use them for one kernel after another.
    fn scratch_bytes(&self, _sizes: &[i64]) -> usize {
        0
    }

    /// The code as text, if the device can show it; for `dump --emit`.
    fn text(&self) -> Option<String> {
        None
    }

    /// The loops that became its functions, as text, if the device can show them; for `dump --emit plan`. With a name, as they are behind
    /// the transformation of that name.
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
    /// The time that took; without the time to make memory executable, which is that of all kernels.
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
pub trait Bound: Send + Sync {
    /// False if it runs on the launching thread alone: a step of such kernels does without [`Device::run_step`].
    fn is_shared(&self) -> bool {
        true
    }

    /// Has on this thread, and on those that help it, what runs need beside operands and what the binding has. The runtime asks for it before
    /// a step begins, on the thread that launches it: a step that has begun is not to end for want of memory. By default there is nothing to do.
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
    /// True if it is state that the program only reads, or numbers that it brings: as long as [`Memory::version`] stays the same, so do the bytes, and what the
    /// device has made of them in an earlier run is still right.
    pub lasting: bool,
}

/// What a kernel does with an operand. Only an `Update` place is both read and written by one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes every element.
    Write,
    /// Reads and writes, each element at the position where it was read.
    Update,
}
