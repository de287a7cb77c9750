//! [`Step`]: a compiled training step, which updates PyTorch's tensors in place.
//!
//! State that a run updates lies in a store whose entries are the memory of PyTorch's tensors. The
//! runtime writes a state after everything that can fail and after every read of it, so that a
//! failed step leaves all of them as they were.

mod guard;

pub(crate) use guard::Guard;

use crate::error::refused;
use crate::executable::{Given, Results, on_cpu};
use crate::memory::{Layout, Region, Strided};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::{Arc, Mutex, PoisonError};
use tracecast::{Store, Tensor, TensorType};
use tracecast_aten::Program;

/// A compiled training step for given objects of PyTorch.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Step {
    inner: Arc<tracecast::Executable>,
    guard: Py<Guard>,
    /// `torch.get_num_threads`, and what it said.
    threads: (Py<PyAny>, usize),
    states: Vec<State>,
    inputs: Vec<(String, TensorType, Layout, Source)>,
    results: Results,
    /// Tensors that are given the last results.
    copied: Vec<Py<PyAny>>,
    /// The tensors that a run writes to, and the function that reports the writes to autograd.
    written: (Py<PyList>, Py<PyAny>),
    draws: bool,
    store: Mutex<Store>,
}

/// State that is updated in place.
struct State {
    tensor: Py<PyAny>,
    layout: Layout,
    address: usize,
    bytes: usize,
}

/// Where an input of a run comes from.
enum Source {
    /// It is always the same tensor.
    Held(Py<PyAny>),
    /// An argument of the step.
    Argument(usize),
    /// The learning rate of a group of the optimizer.
    Rate(Py<PyDict>),
}

/// What Python gives for a [`Step`]: a tensor and its memory for each state; for each input its
/// memory, and the tensor, the number of an argument, or a group of the optimizer; the memory of
/// each result; the tensors that are given the last results.
pub(crate) type Parts<'py> = (
    Vec<(Bound<'py, PyAny>, Strided<'py>)>,
    Vec<(Bound<'py, PyAny>, Strided<'py>)>,
    Vec<Strided<'py>>,
    Vec<Bound<'py, PyAny>>,
);

/// The types of a compiled step.
pub(crate) struct Types<'a> {
    /// Names and types, without those of state.
    pub(crate) inputs: &'a [(String, TensorType)],
    /// Names and types.
    pub(crate) states: &'a [(String, TensorType)],
    pub(crate) results: &'a [TensorType],
    /// It takes a seed.
    pub(crate) draws: bool,
}

impl Step {
    /// A step for inputs, states and results of these types.
    ///
    /// # Errors
    /// If a layout does not fit, or a state cannot be updated in place.
    pub(crate) fn new(
        py: Python<'_>,
        inner: Arc<tracecast::Executable>,
        types: &Types<'_>,
        guard: Py<Guard>,
        (held, given, made, copied): Parts<'_>,
    ) -> PyResult<Self> {
        let Types { inputs, states, results, draws } = *types;
        if (inputs.len(), states.len(), results.len()) != (given.len(), held.len(), made.len()) {
            return Err(PyValueError::new_err("a layout for each input, state and result"));
        }
        let torch = py.import("torch")?;
        let (mut store, written) = (Store::new(), PyList::empty(py));
        let state = |((name, ty), (tensor, strided)): (&(String, TensorType), (_, _))| {
            let tensor: Bound<'_, PyAny> = tensor;
            let layout = Layout::new(py, ty, strided)?;
            let region = layout.region(&tensor.getattr(intern!(py, "data"))?)?;
            let region = region.filter(|_| !layout.is_copied);
            let wrong = || PyValueError::new_err(format!("state `{name}` is no dense {ty}"));
            let region = region.ok_or_else(wrong)?;
            let (address, bytes) = region.place();
            store.insert(name, Tensor::lent(ty.clone(), region).map_err(refused)?);
            written.append(&tensor)?;
            Ok(State { tensor: tensor.unbind(), layout, address, bytes })
        };
        let states = states.iter().zip(held).map(state).collect::<PyResult<_>>()?;
        let input = |((name, ty), (of, strided)): (&(String, TensorType), (_, _))| {
            let (of, layout): (Bound<'_, PyAny>, _) = (of, Layout::new(py, ty, strided)?);
            let source = match of.cast::<PyDict>() {
                Ok(group) => Source::Rate(group.clone().unbind()),
                Err(_) => match of.extract::<usize>() {
                    Ok(at) if !of.hasattr(intern!(py, "data_ptr"))? => Source::Argument(at),
                    _ => Source::Held(of.unbind()),
                },
            };
            Ok((name.clone(), ty.clone(), layout, source))
        };
        let inputs = inputs.iter().zip(given).map(input).collect::<PyResult<_>>()?;
        let made = results.iter().cloned().zip(made).collect();
        copied.iter().try_for_each(|tensor| written.append(tensor))?;
        let count = torch.getattr("get_num_threads")?;
        let threads = count.call0()?.extract()?;
        let tell = torch.getattr("autograd")?.getattr("graph")?.getattr("increment_version")?;
        Ok(Step {
            inner,
            guard,
            threads: (count.unbind(), threads),
            states,
            inputs,
            results: Results::new(py, made)?,
            copied: copied.into_iter().map(Bound::unbind).collect(),
            written: (written.unbind(), tell.unbind()),
            draws,
            store: Mutex::new(store),
        })
    }

    /// Whether each state lies where it did, in the same form.
    fn is_tied(&self, py: Python<'_>) -> PyResult<bool> {
        for state in &self.states {
            let tensor = state.tensor.bind(py);
            if !state.layout.is_at(tensor, state.address)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether memory overlaps that of a state, which the run writes.
    fn is_written(&self, region: &Region) -> bool {
        let (start, bytes) = region.place();
        let meets =
            |state: &State| start < state.address + state.bytes && state.address < start + bytes;
        self.states.iter().any(meets)
    }
}

#[pymethods]
impl Step {
    /// Makes a step: its results, or None if it holds for other objects or arguments. `seed` starts
    /// its random numbers.
    fn run<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyTuple>,
        seed: i64,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let threads: usize = self.threads.0.bind(py).call0()?.extract()?;
        let holds = threads == self.threads.1 && self.guard.get().holds(py)?;
        if !holds || !self.is_tied(py)? {
            return Ok(None);
        }
        let mut given = Given::new();
        for (name, ty, layout, source) in &self.inputs {
            let tensor = match source {
                Source::Held(tensor) => tensor.bind(py).clone(),
                Source::Argument(at) => match arguments.get_item(*at) {
                    Ok(tensor) => tensor,
                    Err(_) => return Ok(None),
                },
                Source::Rate(group) => {
                    let rate = group.bind(py).get_item(intern!(py, "lr"))?;
                    let rate: f64 =
                        rate.ok_or_else(|| PyValueError::new_err("no learning rate"))?.extract()?;
                    given.push(name, Tensor::scalar(rate as f32));
                    continue;
                }
            };
            let Some(mut region) = layout.region(&tensor)? else { return Ok(None) };
            if self.is_written(&region) {
                let copy = tensor.call_method0(intern!(py, "clone"))?;
                let Some(cloned) = layout.region(&copy)? else { return Ok(None) };
                region = cloned;
            }
            given.push(name, Tensor::borrowed(ty.clone(), region).map_err(refused)?);
        }
        if self.draws {
            given.push(Program::SEED, Tensor::new([2], &[seed, 0]).map_err(refused)?);
        }
        let (mut results, buffers) = self.results.make(py)?;
        let done = py.detach(|| {
            let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
            self.inner.run_into(&mut store, &given.pairs(), buffers)
        });
        done.map_err(refused)?;
        let kept = results.len().saturating_sub(self.copied.len());
        for (to, from) in self.copied.iter().zip(results.drain(kept..)) {
            let to = to.bind(py).getattr(intern!(py, "data"))?;
            to.call_method1(intern!(py, "copy_"), (from,))?;
        }
        let (written, tell) = &self.written;
        tell.bind(py).call1((written,))?;
        Ok(Some(results))
    }

    /// Whether it draws random numbers.
    #[getter]
    fn draws(&self) -> bool {
        self.draws
    }

    /// How many tensors a run updates in place.
    #[getter]
    fn in_place(&self) -> usize {
        self.states.len()
    }

    /// The kernels that the CPU runs because the device refuses them, and why it does.
    #[getter]
    fn on_cpu(&self) -> Vec<(String, String)> {
        on_cpu(&self.inner)
    }
}
