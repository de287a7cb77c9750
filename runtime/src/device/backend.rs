//! [`Backend`]: the driver of a kind of devices.

use super::{AmpSupport, Device, DeviceId};
use crate::error::Result;
use std::fmt::Debug;
use std::sync::Arc;
use tracecast_ir::policy::DeviceType;

/// The driver of a kind of devices: what is [registered](crate::Registry::register) once under the
/// kind's name, and opens each device at its first use.
pub trait Backend: Debug + Send + Sync {
    /// How many devices there are: 0 if the driver does not work. Does not fail, and may be called
    /// at any time.
    fn count(&self) -> usize;

    /// Opens a device, whose own name is that of `id`. The registry asks for each at most once,
    /// unless it fails.
    ///
    /// # Errors
    /// If the device cannot be used.
    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>>;

    /// What autocast may do on these devices. `None`, the default: a region of this kind is an
    /// error.
    fn amp(&self) -> Option<AmpSupport> {
        None
    }

    /// The device type that it serves if that is one of those with a table of their own, such as
    /// `cuda` for a driver of such cards. `None`, the default: it is given one of the types
    /// [from outside](DeviceType::OUTSIDE).
    fn serves(&self) -> Option<DeviceType> {
        None
    }
}
