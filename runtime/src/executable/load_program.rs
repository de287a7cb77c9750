//! Loads a [`Program`] on a device: as an [`Executable`], or as a [`Family`] if its sizes are
//! names.

use super::{Executable, Family};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::program::Program;
use std::sync::Arc;

impl Program {
    /// Has a device compile the kernels of a program whose sizes are names: once for all sizes
    /// those that the device takes, the others for each set of sizes that is asked for.
    ///
    /// # Errors
    /// If the device has no code for one of them.
    pub fn load_sized(self, device: Arc<dyn Device>) -> Result<Family> {
        self.load_sized_with(device, None)
    }

    /// As [`load_sized`](Program::load_sized), with another device for the kernels that this one
    /// refuses.
    ///
    /// # Errors
    /// As those of [`load_with`](Program::load_with).
    pub fn load_sized_with(
        self,
        device: Arc<dyn Device>,
        fallback: Option<Arc<dyn Device>>,
    ) -> Result<Family> {
        Family::new(self.parts, self.contents, device, fallback)
    }

    /// Has a device compile the kernels.
    ///
    /// # Errors
    /// If the device has no code for one of them, as for those whose sizes are names.
    pub fn load(self, device: Arc<dyn Device>) -> Result<Executable> {
        self.load_with(device, None)
    }

    /// As [`load`](Program::load), with another device for the kernels that this one refuses: by
    /// its [limits](tracecast_ir::kernel::KernelLimits), or in [`Device::load`]. Each launch there
    /// copies what it reads, and copies back what it writes;
    /// [`fallback_launches`](Executable::fallback_launches) are all of them.
    ///
    /// # Errors
    /// As those of [`load`](Program::load), if the fallback has a queue, or has no code either.
    pub fn load_with(
        self,
        device: Arc<dyn Device>,
        fallback: Option<Arc<dyn Device>>,
    ) -> Result<Executable> {
        if self.parts.kernels.iter().any(|kernel| !kernel.names.is_empty()) {
            return Err(Error::Plan("its sizes are names: see `Program::load_sized`".to_owned()));
        }
        Executable::new(self, device, fallback.as_ref())
    }
}
