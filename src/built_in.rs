//! The devices that every process has: the CPU, once for all options that say the same, and the
//! interpreter.
//!
//! What a CPU was opened with is no part of what it is called: all of them are `cpu`.

use std::sync::{Arc, LazyLock};
#[cfg(feature = "cpu")]
use std::sync::{Mutex, PoisonError};
#[cfg(feature = "cpu")]
use tracecast_codegen::{CpuDevice, CpuOptions};
#[cfg(feature = "cpu")]
use tracecast_runtime::Result;
use tracecast_runtime::{Device, ReferenceDevice};

/// The interpreter.
pub(crate) fn reference() -> Arc<dyn Device> {
    static REFERENCE: LazyLock<Arc<dyn Device>> = LazyLock::new(|| Arc::new(ReferenceDevice));
    REFERENCE.clone()
}

/// The CPU with these options: the same for equal ones, so that the entries of a store need not
/// move between programs.
///
/// # Errors
/// If it cannot be opened with them.
#[cfg(feature = "cpu")]
pub(crate) fn cpu(options: CpuOptions) -> Result<Arc<dyn Device>> {
    static OPENED: Mutex<Vec<(CpuOptions, Arc<dyn Device>)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = opened.iter().find(|(known, _)| *known == options) {
        return Ok(device.clone());
    }
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(options.clone())?);
    opened.push((options, device.clone()));
    Ok(device)
}
