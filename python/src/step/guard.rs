//! [`Guard`]: what a compiled step depends on in Python's objects, compared before each run.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// Parts of Python's objects, and what they were.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Guard(Vec<Part>);

/// A part of an object that has to stay as it is.
struct Part {
    of: Py<PyAny>,
    at: At,
    value: Py<PyAny>,
    /// Equal values will do. A tensor or a container has to be the same object.
    by_value: bool,
}

enum At {
    /// An entry of a dict.
    Key(Py<PyAny>),
    /// An element of a list.
    Index(usize),
    /// An attribute.
    Name(Py<PyString>),
    /// The number of entries or elements, which was that.
    Length(usize),
}

#[pymethods]
impl Guard {
    /// From `(object, key, value)`: an entry of a dict, an element of a list, an attribute of any
    /// other object; with the key None the length of a dict or list.
    #[new]
    fn new(parts: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let part = |(of, key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let at = if key.is_none() {
                At::Length(value.extract()?)
            } else if of.is_instance_of::<PyDict>() {
                At::Key(key.unbind())
            } else if of.is_instance_of::<PyList>() {
                At::Index(key.extract()?)
            } else {
                At::Name(key.cast_into::<PyString>()?.unbind())
            };
            let name = value.get_type().name()?;
            let plain = ["bool", "int", "float", "complex", "str", "tuple", "NoneType"];
            let by_value = plain.iter().any(|plain| name == *plain);
            Ok(Part { of: of.unbind(), at, value: value.unbind(), by_value })
        };
        parts.into_iter().map(part).collect::<PyResult<_>>().map(Guard)
    }

    /// Whether everything is as it was.
    pub(crate) fn holds(&self, py: Python<'_>) -> PyResult<bool> {
        for part in &self.0 {
            if !part.holds(py)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Part {
    fn holds(&self, py: Python<'_>) -> PyResult<bool> {
        let of = self.of.bind(py);
        let found = match &self.at {
            At::Length(length) => return Ok(of.len()? == *length),
            At::Key(key) => of.cast::<PyDict>()?.get_item(key)?,
            At::Index(at) => of.cast::<PyList>()?.get_item(*at).ok(),
            At::Name(name) => of.getattr_opt(name)?,
        };
        let Some(found) = found else { return Ok(false) };
        Ok(found.is(&self.value) || self.by_value && found.eq(&self.value)?)
    }
}
