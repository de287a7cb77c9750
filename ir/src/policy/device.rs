//! [`DeviceType`]: the kinds of device that have an autocast state, and which low dtypes they take.

use std::fmt;
use std::str::FromStr;

use super::PolicyError;
use crate::DType;

/// A kind of device, as autocast tells them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DeviceType {
    /// The processor.
    #[default]
    Cpu,
    /// NVIDIA and AMD graphics cards.
    Cuda,
    /// Intel graphics cards.
    Xpu,
    /// Apple's Metal.
    Mps,
    /// Meta's accelerator.
    Mtia,
    /// Microsoft's accelerator.
    Maia,
    /// Intel Gaudi.
    Hpu,
    /// Graphcore.
    Ipu,
    /// What XLA compiles for.
    Xla,
    /// The first kind of device from outside.
    PrivateUse1,
    /// The second kind of device from outside.
    PrivateUse2,
    /// The third kind of device from outside.
    PrivateUse3,
    /// The fourth kind of device from outside.
    PrivateUse4,
}

/// Which low dtypes a region of a device may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted<'a> {
    /// All of them, unchecked.
    Any,
    /// All but this one, which is an error.
    AnyBut(DType),
    /// These; another one switches the region off with a warning.
    Only(&'a [DType]),
    /// The device cannot be used here: every region is off, with a warning.
    Unavailable,
    /// Nobody registered an answer: a region is an error, even one that is switched off.
    Unregistered,
}

impl DeviceType {
    /// Every device type, in declaration order.
    pub const ALL: [DeviceType; 13] = [
        DeviceType::Cpu,
        DeviceType::Cuda,
        DeviceType::Xpu,
        DeviceType::Mps,
        DeviceType::Mtia,
        DeviceType::Maia,
        DeviceType::Hpu,
        DeviceType::Ipu,
        DeviceType::Xla,
        DeviceType::PrivateUse1,
        DeviceType::PrivateUse2,
        DeviceType::PrivateUse3,
        DeviceType::PrivateUse4,
    ];

    /// The types that nobody has: each stands for one kind of device from outside, under a name of
    /// its own.
    pub const OUTSIDE: [DeviceType; 4] = [
        DeviceType::PrivateUse1,
        DeviceType::PrivateUse2,
        DeviceType::PrivateUse3,
        DeviceType::PrivateUse4,
    ];

    /// The order in which the policies of several devices apply to one call.
    pub const DISPATCH_ORDER: [DeviceType; 13] = [
        DeviceType::PrivateUse1,
        DeviceType::PrivateUse2,
        DeviceType::PrivateUse3,
        DeviceType::PrivateUse4,
        DeviceType::Cuda,
        DeviceType::Mps,
        DeviceType::Xla,
        DeviceType::Hpu,
        DeviceType::Ipu,
        DeviceType::Xpu,
        DeviceType::Maia,
        DeviceType::Mtia,
        DeviceType::Cpu,
    ];

    /// The name used in text, such as `cuda`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceType::Cpu => "cpu",
            DeviceType::Cuda => "cuda",
            DeviceType::Xpu => "xpu",
            DeviceType::Mps => "mps",
            DeviceType::Mtia => "mtia",
            DeviceType::Maia => "maia",
            DeviceType::Hpu => "hpu",
            DeviceType::Ipu => "ipu",
            DeviceType::Xla => "xla",
            DeviceType::PrivateUse1 => "privateuse1",
            DeviceType::PrivateUse2 => "privateuse2",
            DeviceType::PrivateUse3 => "privateuse3",
            DeviceType::PrivateUse4 => "privateuse4",
        }
    }

    /// True for one of the types [`OUTSIDE`](Self::OUTSIDE).
    pub const fn is_outside(self) -> bool {
        self as u8 >= DeviceType::PrivateUse1 as u8
    }

    /// All names, for messages.
    pub fn names() -> String {
        DeviceType::ALL.map(DeviceType::name).join(", ")
    }

    /// The low dtype of a region that names none and is inside no other region.
    pub const fn default_low(self) -> DType {
        match self {
            DeviceType::Cpu | DeviceType::Maia | DeviceType::Hpu | DeviceType::Xla => DType::BF16,
            DeviceType::Cuda
            | DeviceType::Xpu
            | DeviceType::Mps
            | DeviceType::Mtia
            | DeviceType::Ipu
            | DeviceType::PrivateUse1
            | DeviceType::PrivateUse2
            | DeviceType::PrivateUse3
            | DeviceType::PrivateUse4 => DType::F16,
        }
    }

    /// Which low dtypes a region of this device may have, as far as the type alone decides.
    pub const fn accepted(self) -> Accepted<'static> {
        match self {
            DeviceType::Cuda => Accepted::Any,
            _ if self.is_outside() => Accepted::Unregistered,
            _ => Accepted::Only(&[DType::BF16, DType::F16]),
        }
    }

    /// This type's bit in a set of types.
    pub(super) const fn bit(self) -> u16 {
        1 << self as u8
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DeviceType {
    type Err = PolicyError;

    /// Reads a name, with or without a device index: `cuda`, `cuda:1`.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let name = match s.split_once(':') {
            Some((name, index)) if index.parse::<u16>().is_ok() => name,
            _ => s,
        };
        DeviceType::ALL
            .into_iter()
            .find(|device| device.name() == name)
            .ok_or_else(|| PolicyError::UnknownDevice { name: s.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_errors_list_them() {
        for device in DeviceType::ALL {
            assert_eq!(device.name().parse::<DeviceType>().unwrap(), device);
            assert!(DeviceType::DISPATCH_ORDER.contains(&device));
            assert_eq!(device.is_outside(), DeviceType::OUTSIDE.contains(&device));
        }
        assert_eq!("cuda:1".parse::<DeviceType>().unwrap(), DeviceType::Cuda);
        let error = "tpu".parse::<DeviceType>().unwrap_err().to_string();
        assert!(error.contains("`tpu`") && error.contains("cpu, cuda, xpu"), "{error}");
    }

    #[test]
    fn default_dtypes_are_pytorchs() {
        let bf16: Vec<_> =
            DeviceType::ALL.into_iter().filter(|d| d.default_low() == DType::BF16).collect();
        assert_eq!(bf16, [DeviceType::Cpu, DeviceType::Maia, DeviceType::Hpu, DeviceType::Xla]);
    }
}
