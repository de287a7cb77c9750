//! [`Program`]: a graph of PyTorch, recorded through the table of `tracecast-aten`; [`Compiled`]:
//! its code.

use crate::error::refused;
use crate::executable::Executable;
use crate::memory::Strided;
use crate::step::{Guard, Parts, Step, Types};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tracecast::amp::Autocast;
use tracecast::explain::{explain, json};
use tracecast::ir::policy::{DeviceType, PolicyFile, PolicySet, PolicyTable};
use tracecast::runtime::Registry;
use tracecast::{
    DType, Graph, Options, SizedProgram, TensorType, compile, compile_sized, trace_with,
};
use tracecast_aten::{Scene, dtype, find};
use tracecast_ir::{Role, Values};

/// The devices that programs may run on besides the CPU.
static REGISTRY: OnceLock<Arc<Registry>> = OnceLock::new();

/// Has programs run on the devices of this registry.
///
/// # Errors
/// If they run on those of another one.
pub(crate) fn set_registry(registry: &Arc<Registry>) -> PyResult<()> {
    if Arc::ptr_eq(REGISTRY.get_or_init(|| registry.clone()), registry) {
        return Ok(());
    }
    Err(PyValueError::new_err("this library has a module with other devices"))
}

fn registry() -> &'static Arc<Registry> {
    REGISTRY.get_or_init(|| Registry::global().clone())
}

/// The names of the devices that programs can run on.
#[pyfunction]
pub(crate) fn devices() -> Vec<String> {
    let kinds = registry().kinds();
    let registered = kinds.iter().flat_map(|kind| &kind.devices).map(ToString::to_string);
    ["cpu", "reference"].map(str::to_owned).into_iter().chain(registered).collect()
}

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

    /// Compiles the program for a number of threads on a device. The calls in its region are
    /// recorded under a policy, in a low dtype: the name of a strategy or table, the text of a
    /// policy file, or `device` for the device's own policy.
    #[pyo3(signature = (threads, device="cpu", policy=None, low=None))]
    fn compile(
        &self,
        py: Python<'_>,
        threads: usize,
        device: &str,
        policy: Option<&str>,
        low: Option<&str>,
    ) -> PyResult<Compiled> {
        let mut options = options(threads, device);
        if let Some(policy) = policy.filter(|policy| *policy != "device") {
            options = options.with_policies(policies(policy)?);
        }
        let region = policy.map(|_| region(device, low)).transpose()?;
        let graph = self.graph(&options, region.as_ref()).map_err(refused)?;
        let ports = graph.ports().iter();
        let ports: HashMap<_, _> = ports.map(|port| (&*port.name, &port.ty)).collect();
        let (mut inputs, mut states) = (Vec::new(), Vec::new());
        for name in self.0.inputs() {
            let ty = ports.get(name).ok_or_else(|| refused(format!("no input `{name}`")))?;
            let list = if self.0.is_state(name) { &mut states } else { &mut inputs };
            list.push((name.to_owned(), (*ty).clone()));
        }
        let results = graph.outputs().iter().map(|(_, value)| graph.ty(*value).clone()).collect();
        let draws = ports.contains_key(tracecast_aten::Program::SEED);
        let traced = graph.clone();
        let code = py.detach(|| {
            Ok(match graph.sizes().names().is_empty() {
                false => Code::Sized(Box::new(compile_sized(graph, &options)?)),
                true => Code::Plain(Arc::new(compile(graph, &options)?)),
            })
        });
        let code = code.map_err(|error: tracecast::Error| refused(error))?;
        Ok(Compiled { code, inputs, states, results, draws, graph: traced, options })
    }
}

impl Program {
    fn graph(&self, options: &Options, region: Option<&Autocast>) -> Result<Graph, String> {
        let mut recorded = Ok(());
        let graph = trace_with(self.0.name(), options, |t| {
            let port = |name: &str, ty, role| match role {
                Role::Input => t.input_of(name, ty),
                Role::Param => t.param_of(name, ty),
                Role::State => t.state_of(name, ty),
            };
            let region = |body: &mut dyn FnMut()| match region {
                Some(region) => region.run(t, body),
                None => body(),
            };
            let scene = Scene { tracer: t.tracer(), port: &port, region: &region };
            recorded = self.0.record_in(&scene);
        });
        recorded?;
        graph.map_err(|error| error.to_string())
    }
}

/// An autocast region of a device.
fn region(device: &str, low: Option<&str>) -> PyResult<Autocast> {
    // What the interpreter runs lives on the CPU as well.
    let region = Autocast::new(if device == "reference" { "cpu" } else { device });
    let Some(low) = low else { return Ok(region) };
    let unknown = || PyValueError::new_err(format!("there is no dtype `{low}` to compute in"));
    let low: DType = dtype::named(low).ok_or_else(unknown)?;
    Ok(region.dtype(low))
}

/// Policies by the name of a strategy or table, or from the text of a policy file.
fn policies(text: &str) -> PyResult<PolicySet> {
    if let Some(set) = PolicySet::strategy(text) {
        return Ok(set);
    }
    if let Some(table) = PolicyTable::named(text) {
        let mut set = PolicySet::standard();
        for device in DeviceType::ALL {
            set.set_table(table.for_device(device).into());
        }
        return Ok(set);
    }
    if !text.contains('=') {
        let known = "`device`, `strict-bf16`, `standard-f16`, `bold-bf16`, `torch-cuda`";
        let message = format!("no policy `{text}`: expected a name, such as {known}, or a file");
        return Err(PyValueError::new_err(message));
    }
    let file = PolicyFile::parse(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
    file.into_set().ok_or_else(|| PyValueError::new_err("a TorchScript list decides nothing here"))
}

/// Options for a number of threads of a device; programs of one number share a device. The CPU
/// computes what a device of the registry refuses, such as f64 where it has none.
fn options(threads: usize, device: &str) -> Options {
    static ALL: Mutex<Option<HashMap<(usize, String), Options>>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || {
        let options = Options::new().device(device).registry(registry()).threads(threads);
        if matches!(device, "cpu" | "reference") { options } else { options.fallback("cpu") }
    };
    let key = (threads, device.to_owned());
    all.get_or_insert_default().entry(key).or_insert_with(made).clone()
}

enum Code {
    Plain(Arc<tracecast::Executable>),
    Sized(Box<SizedProgram>),
}

/// A compiled program, for all values of the sizes that are names.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Compiled {
    code: Code,
    inputs: Vec<(String, TensorType)>,
    states: Vec<(String, TensorType)>,
    results: Vec<TensorType>,
    draws: bool,
    /// As it was recorded.
    graph: Graph,
    options: Options,
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

    /// The program as a step of these objects of PyTorch, which holds for as long as the guard.
    fn step(&self, py: Python<'_>, guard: Py<Guard>, parts: Parts<'_>) -> PyResult<Step> {
        let Code::Plain(inner) = &self.code else {
            return Err(PyValueError::new_err("a step has numbers for all sizes"));
        };
        let types = Types {
            inputs: &self.inputs,
            states: &self.states,
            results: &self.results,
            draws: self.draws,
        };
        Step::new(py, inner.clone(), &types, guard, parts)
    }

    /// The program as text, as it was recorded.
    #[getter]
    fn text(&self) -> String {
        self.graph.to_string()
    }

    /// Why each op has its dtype, and what has become of each cast: as text, or as JSON. `node`
    /// limits it to one.
    #[pyo3(signature = (node=None, as_json=false))]
    fn explain(&self, py: Python<'_>, node: Option<&str>, as_json: bool) -> PyResult<String> {
        let explained = py.detach(|| explain(&self.graph, &self.options)).map_err(refused)?;
        let explained = match node {
            Some(node) => explained.about(node).map_err(refused)?,
            None => explained,
        };
        Ok(if as_json { json(&explained).to_string() } else { explained.to_string() })
    }
}

/// The type with numbers for names of sizes.
fn numbers(ty: &TensorType, values: &Values) -> PyResult<TensorType> {
    let sizes = ty.shape.iter().map(|size| size.at(&|name| values.get(name)));
    let sizes = sizes.collect::<Result<Vec<i64>, String>>().map_err(refused)?;
    Ok(TensorType::new(ty.dtype, sizes))
}
