//! The runtime of tracecast: tensors, named state, devices, and running planned programs.
//!
//! A [`Device`] compiles kernels and owns memory; everything else is here. [`Program::plan`] turns
//! a fused graph into steps over places in memory, [`Program::load`] has a device compile their
//! kernels, and [`Executable::run`] runs them on a [`Store`] and inputs. What a device may rely on:
//!
//! * operands have the types of the kernel, start at multiples of 64 bytes (but for loans), and lie
//!   inside their memory;
//! * while a kernel runs nothing else reads or writes its operands, and only an operand with
//!   [`Access::Update`] is given twice;
//! * a [lasting](Arg::lasting) operand has the same bytes at each launch of one [`Memory::version`];
//! * a kernel has names in its sizes only where the device takes such kernels
//!   ([`Device::takes_sizes`]); [`Launch::bind`] gives them values;
//! * kernels of one step run in the order they are launched, inside [`Device::run_step`] unless the
//!   device has a [queue](Device::queue);
//! * memory is read by the runtime only through [`Device::download`], after the launches before it.
//!
//! A step commits as a whole: state changes only when no kernel with a check that could be raised
//! is left to run, and no exchange with other [ranks](Collective).

mod arena;
mod buckets;
mod cancel;
pub mod collective;
pub mod device;
pub mod error;
mod executable;
pub mod files;
mod layout;
mod limits;
mod loan;
pub mod memory;
pub mod npz;
mod output_pool;
mod outputs;
mod parts;
mod program;
pub mod reference;
pub mod registry;
pub mod safetensors;
mod schedule;
pub mod store;
mod submitted;
pub mod tensor;

pub use cancel::Cancel;
pub use collective::Collective;
pub use device::{
    Access, AmpSupport, Arg, Backend, Base, Bound, Device, DeviceId, Fault, FaultKind, Guard,
    HostBytes, Landing, Launch, MachineCode, Made, MadeFrom, MemoryStats, Merging, Progress, Queue,
    ScaleUpdate, ScalerRecorder, SharedQueue, Timeline,
};
pub use error::{Error, Result};
pub use executable::{
    ExchangeTiming, Executable, FallbackLaunch, Family, Session, Started, Timing,
};
pub use limits::Limits;
pub use loan::HostLoan;
pub use memory::{HostMemory, Memory, Span};
pub use outputs::Outputs;
pub use program::Program;
pub use reference::ReferenceDevice;
pub use registry::{Kind, Registry};
pub use store::{Published, Store, Weights};
pub use submitted::{DeviceValue, Input, Submitted};
pub use tensor::{Element, Tensor};
/// The language: what a device needs of it is re-exported, so that its crate depends on this one
/// alone.
pub use tracecast_ir as ir;
pub use tracecast_ir::kernel::{Capabilities, KernelLimits};
