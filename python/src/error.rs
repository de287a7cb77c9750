//! [`Error`]: what a program is refused for, in Python.

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(
    tracecast,
    Error,
    PyRuntimeError,
    "What Tracecast refuses: the op, its types, and the line of the Python program."
);

/// The error of a program in Python.
pub(crate) fn refused(error: impl std::fmt::Display) -> PyErr {
    Error::new_err(error.to_string())
}
