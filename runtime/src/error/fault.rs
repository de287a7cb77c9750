//! [`Fault`]: what went wrong on a device.

use super::{DeviceId, Error};
use std::fmt;
use std::time::Duration;
use tracecast_ir::kernel::Kernel;

/// What went wrong on a device: which device, what it was doing, and why.
///
/// ```
/// use tracecast_runtime::{DeviceId, Fault};
///
/// let fault = Fault::launch(&DeviceId::new("npu", 1)?, "matmul", "the unit does not answer");
/// assert_eq!(fault.to_string(), "device npu:1: kernel @matmul: the unit does not answer");
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The device.
    pub device: DeviceId,
    /// The kernel that it ran, if it ran one.
    pub kernel: Option<String>,
    /// What it is.
    pub kind: FaultKind,
    /// Why, in words.
    pub message: String,
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The data has no meaning for an op: what [`Error::Data`] is where a run tells it itself.
    Check,
    /// There is not enough memory.
    OutOfMemory {
        /// The bytes that were asked for.
        asked: usize,
        /// The bytes in use.
        in_use: usize,
        /// How many there may be, if that is known.
        limit: Option<usize>,
    },
    /// A kernel could not run, or not to its end.
    Launch,
    /// Bytes could not be copied.
    Copy,
    /// Something took longer than it may. It may still come to its end.
    TimedOut,
    /// The device is gone, with all that is in its memory.
    Lost,
}

impl Fault {
    fn new(device: &DeviceId, kernel: Option<&str>, kind: FaultKind, message: String) -> Self {
        let kernel = kernel.map(str::to_owned);
        Fault { device: device.clone(), kernel, kind, message }
    }

    /// The check of that number was raised in a step called `step`, whose kernel was bound with
    /// these sizes; with what the check found, if the device knows.
    pub fn check(
        device: &DeviceId,
        step: &str,
        kernel: &Kernel,
        sizes: &[i64],
        number: usize,
        found: Option<i64>,
    ) -> Self {
        Fault::of(device, step, Error::data(kernel, sizes, number, found))
    }

    /// There is not enough memory.
    pub fn out_of_memory(
        device: &DeviceId,
        asked: usize,
        in_use: usize,
        limit: Option<usize>,
    ) -> Self {
        let limit_said = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        let message =
            format!("out of memory: {asked} bytes asked for, {in_use}{limit_said} in use");
        Fault::new(device, None, FaultKind::OutOfMemory { asked, in_use, limit }, message)
    }

    /// A kernel could not run.
    pub fn launch(device: &DeviceId, step: &str, message: impl Into<String>) -> Self {
        Fault::new(device, Some(step), FaultKind::Launch, message.into())
    }

    /// Bytes could not be copied. The message says which.
    pub fn copy(device: &DeviceId, message: impl Into<String>) -> Self {
        Fault::new(device, None, FaultKind::Copy, message.into())
    }

    /// Something has not ended in this time.
    pub fn timed_out(device: &DeviceId, after: Duration) -> Self {
        let message = format!("its queue has not come to an end after {after:?}");
        Fault::new(device, None, FaultKind::TimedOut, message)
    }

    /// The device is gone.
    pub fn lost(device: &DeviceId, message: impl Into<String>) -> Self {
        Fault::new(device, None, FaultKind::Lost, message.into())
    }

    /// What an error of [`Bound::run`](crate::Bound::run) is as a fault, for queues that run
    /// kernels by it.
    pub fn of(device: &DeviceId, step: &str, error: Error) -> Self {
        match error {
            Error::Fault(fault) => {
                let kernel = fault.kernel.clone().or_else(|| Some(step.to_owned()));
                Fault { kernel, ..*fault }
            }
            Error::Data { op, message, source_line, .. } => {
                let at = match source_line.is_empty() {
                    true => String::new(),
                    false => format!("\n  at {source_line}"),
                };
                Fault::new(device, Some(step), FaultKind::Check, format!("{op}: {message}{at}"))
            }
            other => Fault::launch(device, step, other.to_string()),
        }
    }

    /// True if the device has not got enough memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.kind, FaultKind::OutOfMemory { .. })
    }

    /// True if the device is gone.
    pub fn is_lost(&self) -> bool {
        self.kind == FaultKind::Lost
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: ", self.device)?;
        if let Some(kernel) = &self.kernel {
            write!(f, "kernel @{kernel}: ")?;
        }
        match self.kind {
            FaultKind::Lost => write!(f, "the device is lost: ")?,
            FaultKind::Copy => write!(f, "copy: ")?,
            _ => {}
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::Fault(Box::new(fault))
    }
}
