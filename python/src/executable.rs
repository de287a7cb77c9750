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
    results: Results,
    draws: bool,
}

/// The launches of a run on the CPU, and why the device of the program refuses their kernels.
pub(crate) fn on_cpu(program: &tracecast::Executable) -> Vec<(String, String)> {
    program.fallback_launches().map(|launch| (launch.kernel, launch.reason)).collect()
}

/// The inputs of a run by name.
pub(crate) struct Given<'a> {
    names: Vec<&'a str>,
    tensors: Vec<Tensor>,
}

impl<'a> Given<'a> {
    pub(crate) fn new() -> Self {
        Given { names: Vec::new(), tensors: Vec::new() }
    }

    pub(crate) fn push(&mut self, name: &'a str, tensor: Tensor) {
        self.names.push(name);
        self.tensors.push(tensor);
    }

    pub(crate) fn pairs(&self) -> Vec<(&'a str, &Tensor)> {
        self.names.iter().copied().zip(&self.tensors).collect()
    }
}

/// The types and layouts of results.
pub(crate) struct Results {
    all: Vec<(TensorType, Layout)>,
    /// Makes their memory: `torch.empty_strided`.
    empty: Py<PyAny>,
}

impl Results {
    /// Results of these types, sizes and strides.
    ///
    /// # Errors
    /// If a layout does not fit.
    pub(crate) fn new(py: Python<'_>, results: Vec<(TensorType, Strided<'_>)>) -> PyResult<Self> {
        let result = |(ty, strided): (TensorType, Strided<'_>)| {
            let layout = Layout::new(py, &ty, strided)?;
            match layout.is_copied {
                true => Err(PyValueError::new_err(format!("a result of {ty} has to be dense"))),
                false => Ok((ty, layout)),
            }
        };
        let all = results.into_iter().map(result).collect::<PyResult<_>>()?;
        Ok(Results { all, empty: py.import("torch")?.getattr("empty_strided")?.unbind() })
    }

    /// New tensors of PyTorch, and their memory.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn make<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<Tensor>)> {
        let (mut results, mut buffers) = (Vec::new(), Vec::new());
        for (ty, layout) in &self.all {
            let (result, region) = layout.empty(self.empty.bind(py))?;
            buffers.push(Tensor::lent(ty.clone(), region).map_err(refused)?);
            results.push(result);
        }
        Ok((results, buffers))
    }
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
        let inputs = inputs.collect::<PyResult<_>>()?;
        Ok(Executable { inner, inputs, results: Results::new(py, results)?, draws })
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
        let mut given = Given::new();
        for (tensor, (name, ty, layout)) in tensors.iter().zip(&self.inputs) {
            let Some(region) = layout.region(tensor)? else { return Ok(None) };
            given.push(name, Tensor::borrowed(ty.clone(), region).map_err(refused)?);
        }
        if self.draws {
            given.push(Program::SEED, Tensor::new([2], &[seed, 0]).map_err(refused)?);
        }
        let (results, buffers) = self.results.make(py)?;
        let done = py.detach(|| self.inner.run_into(&mut Store::new(), &given.pairs(), buffers));
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

    /// The kernels that the CPU runs because the device refuses them, and why it does.
    #[getter]
    fn on_cpu(&self) -> Vec<(String, String)> {
        on_cpu(&self.inner)
    }
}
