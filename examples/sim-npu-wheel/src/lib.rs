//! The native part of `tracecast` for PyTorch with the chips of `sim-npu` as devices: what a team
//! with hardware of its own ships beside the package `tracecast`.
//!
//! ```python
//! step = torch.compile(model, backend="tracecast", options={"device": "npu:1"})
//! ```

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sim_npu::Driver;
use std::sync::{Arc, LazyLock};
use tracecast_runtime::{Registry, Result};

/// The devices of this process.
static CHIPS: LazyLock<Result<Arc<Registry>>> = LazyLock::new(|| {
    let registry = Arc::new(Registry::new());
    registry.register("npu", Arc::new(Driver::default()))?;
    Ok(registry)
});

#[pymodule]
fn sim_npu_native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let registry = CHIPS.as_ref().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    tracecast_native::module(m, registry)
}
