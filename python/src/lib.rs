//! The native part of the Python package `tracecast`: programs of ATen calls are checked, compiled,
//! and run on the memory of PyTorch's tensors.
//!
//! Python gives a program as a list of calls. Each call is recorded through the table of
//! `tracecast-aten`, as exported models are; no other table of ops exists here or in Python.
//!
//! A wheel with devices of its own has this crate as a library: its module calls [`module`].

mod error;
mod executable;
mod memory;
mod program;
mod step;

use pyo3::prelude::*;
use std::sync::Arc;
use tracecast::runtime::Registry;

/// Fills a module with what the package `tracecast` needs of its native part. Programs run on the
/// CPU and on the devices of `registry`.
///
/// ```no_run
/// use pyo3::prelude::*;
/// use std::sync::Arc;
/// use tracecast::runtime::Registry;
///
/// #[pymodule]
/// fn my_native(m: &Bound<'_, PyModule>) -> PyResult<()> {
///     let registry = Arc::new(Registry::new());
///     // registry.register("npu", Arc::new(MyBackend))
///     tracecast_native::module(m, &registry)
/// }
/// ```
///
/// # Errors
/// If a module of this library has another registry.
pub fn module(m: &Bound<'_, PyModule>, registry: &Arc<Registry>) -> PyResult<()> {
    program::set_registry(registry)?;
    m.add("Error", m.py().get_type::<error::Error>())?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<executable::Executable>()?;
    m.add_class::<step::Guard>()?;
    m.add_class::<program::Compiled>()?;
    m.add_class::<program::Program>()?;
    m.add_class::<step::Step>()?;
    m.add_function(wrap_pyfunction!(program::devices, m)?)?;
    m.add_function(wrap_pyfunction!(program::knows, m)?)
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    module(m, Registry::global())
}
