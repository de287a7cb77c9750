//! [`Site`]: one device, as graphs hold it.

use super::DeviceType;
use std::fmt;

/// One device, as graphs hold it: its type, and its number among the devices of its kind. Policies
/// see the type alone.
///
/// ```
/// use tracecast_ir::policy::{DeviceType, Site};
///
/// let first: Site = DeviceType::Cuda.into();
/// assert_eq!((first.ordinal, first.to_string()), (0, "cuda".to_owned()));
/// assert_eq!(Site { ordinal: 1, ..first }.to_string(), "cuda:1");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The type by which graphs and policies know its kind.
    pub kind: DeviceType,
    /// Its number, from 0.
    pub ordinal: u16,
}

impl Site {
    /// Its text where the kind has this name: `npu:1`; the first one of a kind goes without its
    /// number.
    pub(crate) fn named<'a>(self, name: &'a str) -> impl fmt::Display + use<'a> {
        fmt::from_fn(move |f| match self.ordinal {
            0 => f.write_str(name),
            ordinal => write!(f, "{name}:{ordinal}"),
        })
    }
}

impl From<DeviceType> for Site {
    /// The first device of the kind.
    fn from(kind: DeviceType) -> Self {
        Site { kind, ordinal: 0 }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named(self.kind.name()).fmt(f)
    }
}
