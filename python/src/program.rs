//! [`Program`]: a graph of PyTorch, recorded through the table of `tracecast-aten`; [`Compiled`]:
//! its code.

use crate::error::refused;
use crate::executable::Executable;
use crate::memory::Strided;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast::{Options, SizedProgram, TensorType, compile, compile_sized};
use tracecast_aten::find;
use tracecast_ir::Values;

/// Whether the table has an overload, such as `add.Tensor`.
#[pyfunction]
pub(crate) fn knows(overload: &str) -> bool {
    find(overload).is_some()
}

/// Calls of ATen overloads in order, with inputs and outputs.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Program(tracecast_aten::Program);

#[pymethods]
impl Program {
    /// From JSON, as `tracecast_aten::Program::parse` takes it.
    #[new]
    fn new(json: &str) -> PyResult<Self> {
        tracecast_aten::Program::parse(json).map(Program).map_err(PyValueError::new_err)
    }

    /// The calls that cannot be recorded, by their names, and why.
    fn check(&self) -> Vec<(String, String)> {
        self.0.faults()
    }

    /// Compiles the program for a number of threads.
    fn compile(&self, py: Python<'_>, threads: usize) -> PyResult<Compiled> {
        let graph = self.0.graph().map_err(refused)?;
        let ports: HashMap<_, _> =
            graph.ports().iter().map(|port| (&*port.name, &port.ty)).collect();
        let input = |name: &str| {
            let ty = ports.get(name).ok_or_else(|| refused(format!("no input `{name}`")))?;
            Ok((name.to_owned(), (*ty).clone()))
        };
        let inputs = self.0.inputs().map(input).collect::<PyResult<_>>()?;
        let results = graph.outputs().iter().map(|(_, value)| graph.ty(*value).clone()).collect();
        let (draws, text) = (ports.contains_key(tracecast_aten::Program::SEED), graph.to_string());
        let (options, has_sizes) = (options(threads), !graph.sizes().names().is_empty());
        let code = py.detach(|| {
            Ok(match has_sizes {
                true => Code::Sized(compile_sized(graph, &options)?),
                false => Code::Plain(Arc::new(compile(graph, &options)?)),
            })
        });
        let code = code.map_err(|error: tracecast::Error| refused(error))?;
        Ok(Compiled { code, inputs, results, draws, text })
    }
}

/// Options for a number of threads; programs of one number share a device.
fn options(threads: usize) -> Options {
    static ALL: Mutex<Option<HashMap<usize, Options>>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || Options::new().threads(threads);
    all.get_or_insert_default().entry(threads).or_insert_with(made).clone()
}

enum Code {
    Plain(Arc<tracecast::Executable>),
    Sized(SizedProgram),
}

/// A compiled program, for all values of the sizes that are names.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Compiled {
    code: Code,
    inputs: Vec<(String, TensorType)>,
    results: Vec<TensorType>,
    draws: bool,
    text: String,
}

#[pymethods]
impl Compiled {
    /// The program with numbers for its sizes, for inputs and results of these sizes and strides.
    /// An error if a bound or a guard of a size is not kept.
    fn at(
        &self,
        py: Python<'_>,
        sizes: Vec<(String, i64)>,
        inputs: Vec<Strided<'_>>,
        results: Vec<Strided<'_>>,
    ) -> PyResult<Executable> {
        if self.inputs.len() != inputs.len() || self.results.len() != results.len() {
            return Err(PyValueError::new_err("a layout for each input and result is expected"));
        }
        let (inner, values) = match &self.code {
            Code::Plain(inner) => (inner.clone(), Values::default()),
            Code::Sized(program) => {
                let given: Vec<(&str, i64)> = sizes.iter().map(|(n, v)| (&**n, *v)).collect();
                let values = program.graph().values(&|_| None, &given).map_err(refused)?;
                let inner = py.detach(|| program.at(&values)).map_err(refused)?;
                (inner, values)
            }
        };
        let taken = self.inputs.iter().map(|(name, ty)| Ok((name.clone(), numbers(ty, &values)?)));
        let taken = taken.collect::<PyResult<Vec<_>>>()?.into_iter().zip(inputs).collect();
        let given = self.results.iter().map(|ty| numbers(ty, &values));
        let given = given.collect::<PyResult<Vec<_>>>()?.into_iter().zip(results).collect();
        Executable::new(py, inner, taken, given, self.draws)
    }

    /// The program as text, as it was recorded.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }
}

/// The type with numbers for names of sizes.
fn numbers(ty: &TensorType, values: &Values) -> PyResult<TensorType> {
    let sizes = ty.shape.iter().map(|size| size.at(&|name| values.get(name)));
    let sizes = sizes.collect::<Result<Vec<i64>, String>>().map_err(refused)?;
    Ok(TensorType::new(ty.dtype, sizes))
}
