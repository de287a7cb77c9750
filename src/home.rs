//! [`Home`]: what a trace knows of the device that its program is for.

use tracecast_ir::DType;
use tracecast_ir::policy::{Accepted, DeviceType, PolicyError};

/// The device that a program is for, as far as autocast and the tensors of the program are concerned.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Its name, which stands for its type where a region is opened.
    pub(crate) name: String,
    /// Its type: where the ports of a program live.
    pub(crate) device: DeviceType,
    /// The low dtypes it takes.
    pub(crate) low: Vec<DType>,
}

impl Home {
    /// The device type that a region names: `cuda`, `cuda:1`, or the name of this device.
    pub(crate) fn device_type(&self, name: &str) -> Result<DeviceType, PolicyError> {
        let plain = match name.split_once(':') {
            Some((plain, index)) if index.parse::<u16>().is_ok() => plain,
            _ => name,
        };
        if plain == self.name { Ok(self.device) } else { name.parse() }
    }

    /// The low dtypes that regions of a device type take: of its own type, those that the device says.
    pub(crate) fn accepted(&self, device: DeviceType) -> Accepted<'_> {
        if device == self.device { Accepted::Only(&self.low) } else { device.accepted() }
    }
}
