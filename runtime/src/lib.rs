//! The runtime of tracecast: tensors, named state, devices, and running planned programs.
//!
//! A [`Device`] compiles kernels and owns memory; everything else is here: types, shapes, bounds, lifetimes, order and the reuse of
//! memory.

pub mod device;
pub mod error;
pub mod memory;

pub use device::{Access, AmpSupport, Arg, Bound, Device, Launch};
pub use error::{Error, Result};
pub use memory::{HostMemory, Memory};
