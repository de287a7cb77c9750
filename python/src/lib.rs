//! The native part of the Python package `tracecast`: programs of ATen calls are checked, compiled,
//! and run on the memory of PyTorch's tensors.
//!
//! Python gives a program as a list of calls. Each call is recorded through the table of
//! `tracecast-aten`, as exported models are; no other table of ops exists here or in Python.

mod error;
mod executable;
mod memory;
mod program;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::executable::Executable;
    #[pymodule_export]
    use crate::program::{Compiled, Program, knows};
}
