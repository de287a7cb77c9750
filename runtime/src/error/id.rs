//! [`DeviceId`]: which device, in messages, texts and look-ups.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Which device: the name of its kind and its number among those, `npu:1`.
///
/// ```
/// use tracecast_runtime::DeviceId;
///
/// let id: DeviceId = "npu".parse()?;
/// assert_eq!((id.name(), id.ordinal(), id.to_string()), ("npu", 0, "npu:0".to_owned()));
/// for wrong in ["", "npu:", "npu:-1", "a:b:c", "my dev!"] {
///     assert!(wrong.parse::<DeviceId>().is_err());
/// }
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    name: Arc<str>,
    ordinal: u16,
}

impl DeviceId {
    /// The device of that number, counted from 0, of a kind.
    ///
    /// # Errors
    /// If a text could not hold the name: one of ASCII letters, digits and `_` that does not begin
    /// with a digit.
    pub fn new(name: &str, ordinal: u16) -> Result<Self> {
        let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() || !is_word || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(Error::Device(format!(
                "no device can be called `{name}`: expected letters, digits and `_`, and no digit first"
            )));
        }
        Ok(DeviceId { name: name.into(), ordinal })
    }

    /// The name of its kind.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number among the devices of its kind.
    pub fn ordinal(&self) -> u16 {
        self.ordinal
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    /// Reads `npu:1`, or `npu` for the first one.
    fn from_str(text: &str) -> Result<Self> {
        let Some((name, ordinal)) = text.split_once(':') else { return DeviceId::new(text, 0) };
        // A sign is no digit.
        let digits = ordinal.bytes().all(|b| b.is_ascii_digit());
        match ordinal.parse() {
            Ok(ordinal) if digits => DeviceId::new(name, ordinal),
            _ => Err(Error::Device(format!(
                "`{text}` names no device: expected a name, or a name and a number such as `npu:1`"
            ))),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.ordinal)
    }
}
