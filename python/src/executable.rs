//! [`Executable`]: a compiled program, run on the memory of PyTorch's tensors.

use crate::error::refused;
use crate::memory::{Layout, Strided};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use tracecast::{Store, Tensor, TensorType};
use tracecast_aten::Program;

/// A compiled program for tensors of given layouts.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Executable {
    inner: Arc<tracecast::Executable>,
    inputs: Vec<(String, TensorType, Layout)>,
    results: Vec<(TensorType, Layout)>,
    /// Makes the memory of results: `torch.empty_strided`.
    empty: Py<PyAny>,
    draws: bool,
}

impl Executable {
    /// A program for inputs and results of these types, sizes and strides.
    ///
    /// # Errors
    /// If a layout does not fit.
    pub(crate) fn new(
        py: Python<'_>,
        inner: Arc<tracecast::Executable>,
        inputs: Vec<((String, TensorType), Strided<'_>)>,
        results: Vec<(TensorType, Strided<'_>)>,
        draws: bool,
    ) -> PyResult<Self> {
        let inputs = inputs.into_iter().map(|((name, ty), strided)| {
            let layout = Layout::new(py, &ty, strided)?;
            Ok((name, ty, layout))
        });
        let results = results.into_iter().map(|(ty, strided)| {
            let layout = Layout::new(py, &ty, strided)?;
            match layout.is_copied {
                true => Err(PyValueError::new_err(format!("a result of {ty} has to be dense"))),
                false => Ok((ty, layout)),
            }
        });
        let inputs = inputs.collect::<PyResult<_>>()?;
        let results = results.collect::<PyResult<_>>()?;
        let empty = py.import("torch")?.getattr("empty_strided")?.unbind();
        Ok(Executable { inner, inputs, results, empty, draws })
    }
}

#[pymethods]
impl Executable {
    /// Runs the program: its results, or None if a tensor has another layout than the program
    /// takes. `seed` starts its random numbers.
    #[pyo3(signature = (tensors, seed=0))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        tensors: Vec<Bound<'py, PyAny>>,
        seed: i64,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        if tensors.len() != self.inputs.len() {
            return Ok(None);
        }
        let (mut names, mut given) = (Vec::new(), Vec::new());
        for (tensor, (name, ty, layout)) in tensors.iter().zip(&self.inputs) {
            let Some(region) = layout.region(tensor)? else { return Ok(None) };
            names.push(name.as_str());
            given.push(Tensor::borrowed(ty.clone(), region).map_err(refused)?);
        }
        if self.draws {
            names.push(Program::SEED);
            given.push(Tensor::new([2], &[seed, 0]).map_err(refused)?);
        }
        let (mut results, mut buffers) = (Vec::new(), Vec::new());
        for (ty, layout) in &self.results {
            let (result, region) = layout.empty(self.empty.bind(py))?;
            buffers.push(Tensor::lent(ty.clone(), region).map_err(refused)?);
            results.push(result);
        }
        let done = py.detach(|| {
            let inputs: Vec<(&str, &Tensor)> = names.into_iter().zip(&given).collect();
            self.inner.run_into(&mut Store::new(), &inputs, buffers)
        });
        done.map_err(refused)?;
        Ok(Some(results))
    }

    /// Whether it draws random numbers.
    #[getter]
    fn draws(&self) -> bool {
        self.draws
    }

    /// How many inputs every run copies, as their elements are not dense.
    #[getter]
    fn copies(&self) -> usize {
        self.inputs.iter().filter(|(.., layout)| layout.is_copied).count()
    }

    /// How many kernels a run launches.
    #[getter]
    fn kernels(&self) -> usize {
        self.inner.kernels()
    }
}
