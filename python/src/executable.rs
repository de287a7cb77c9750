//! [`Executable`]: a compiled program, run on the memory of PyTorch's tensors.

use crate::error::refused;
use crate::memory::{Layout, Strided};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tracecast::{Graph, Options, Store, Tensor, TensorType};

/// The input of a program that is the seed of its random numbers.
pub(crate) const SEED: &str = "rng";

/// A compiled program.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Executable {
    inner: tracecast::Executable,
    inputs: Vec<(String, TensorType, Layout)>,
    results: Vec<(TensorType, Layout)>,
    /// Makes the memory of results: `torch.empty_strided`.
    empty: Py<PyAny>,
    draws: bool,
    text: String,
}

impl Executable {
    /// Compiles a recorded program for tensors of these layouts; `names` are those of its inputs.
    ///
    /// # Errors
    /// If a layout is missing or does not fit, or as [`tracecast::compile`].
    pub(crate) fn compile(
        py: Python<'_>,
        graph: Graph,
        names: &[&str],
        (inputs, results): (Vec<Strided<'_>>, Vec<Strided<'_>>),
        threads: usize,
    ) -> PyResult<Self> {
        let port = |name: &str| graph.ports().iter().find(|port| port.name == name);
        let types = graph.outputs().iter().map(|(_, value)| graph.ty(*value).clone());
        if names.len() != inputs.len() || graph.outputs().len() != results.len() {
            return Err(PyValueError::new_err("a layout for each input and result is expected"));
        }
        let inputs = names.iter().zip(inputs).map(|(name, strided)| {
            let ty = port(name).map(|port| port.ty.clone());
            let ty = ty.ok_or_else(|| PyValueError::new_err(format!("no input `{name}`")))?;
            let layout = Layout::new(py, &ty, strided)?;
            Ok(((*name).to_owned(), ty, layout))
        });
        let results = types.zip(results).map(|(ty, strided)| {
            let layout = Layout::new(py, &ty, strided)?;
            match layout.is_copied {
                true => Err(PyValueError::new_err(format!("a result of {ty} has to be dense"))),
                false => Ok((ty, layout)),
            }
        });
        let inputs = inputs.collect::<PyResult<_>>()?;
        let results = results.collect::<PyResult<_>>()?;
        let (draws, text) = (port(SEED).is_some(), graph.to_string());
        let compiled = py.detach(|| tracecast::compile(graph, &options(threads)));
        let empty = py.import("torch")?.getattr("empty_strided")?.unbind();
        Ok(Executable { inner: compiled.map_err(refused)?, inputs, results, empty, draws, text })
    }
}

/// Options for a number of threads; programs of one number share a device.
fn options(threads: usize) -> Options {
    static ALL: Mutex<Option<HashMap<usize, Options>>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || Options::new().threads(threads);
    all.get_or_insert_default().entry(threads).or_insert_with(made).clone()
}

#[pymethods]
impl Executable {
    /// Runs the program: its results, or None if a tensor has another layout than the program takes. `seed` starts its random numbers.
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
            names.push(SEED);
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

    /// The program as text, as it was recorded.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    /// How many kernels a run launches.
    #[getter]
    fn kernels(&self) -> usize {
        self.inner.kernels()
    }
}
