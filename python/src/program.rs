//! [`Program`]: calls of ATen overloads as Python gives them, recorded by the table of `tracecast-aten`.

use crate::dtype;
use crate::error::refused;
use crate::executable::{Executable, SEED};
use crate::memory::Strided;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_aten::{Argument, Draws, find};
use tracecast_ir::{DType, Source, TensorType, Tracer, Var};

/// Whether the table has an overload, such as `add.Tensor`.
#[pyfunction]
pub(crate) fn knows(overload: &str) -> bool {
    find(overload).is_some()
}

/// A result of a call: the name of the call, and which of its results.
type Place = (String, usize);

/// A call, and the sizes and dtypes that PyTorch states for its results.
struct Call {
    name: String,
    overload: String,
    arguments: Vec<(Option<String>, Argument<Place>)>,
    results: Vec<Stated>,
    /// Of the user's program, such as `model.py:12`.
    line: String,
    /// The path of modules.
    scope: String,
}

/// What PyTorch states about a tensor; nothing if it has a dtype without kernels here.
#[derive(Clone)]
struct Stated(Option<TensorType>);

/// Calls of ATen overloads in order, with inputs and outputs.
#[pyclass(frozen, module = "tracecast._native")]
pub(crate) struct Program {
    name: String,
    inputs: Vec<(String, Stated)>,
    calls: Vec<Call>,
    outputs: Vec<Place>,
}

#[pymethods]
impl Program {
    /// `inputs` are `(name, dtype, sizes)`; `calls` are `(name, overload, arguments, results, line, scope)`, with arguments `(name or None, value)` and
    /// results `(dtype, sizes)`; `outputs` are `(call or input, which result)`.
    #[new]
    fn new(
        name: String,
        inputs: Vec<(String, String, Vec<usize>)>,
        calls: &Bound<'_, PyList>,
        outputs: Vec<Place>,
    ) -> PyResult<Self> {
        let inputs =
            inputs.into_iter().map(|(name, dtype, sizes)| (name, Stated::of(&dtype, sizes)));
        let calls = calls.iter().map(|call| Call::read(&call)).collect::<PyResult<_>>()?;
        Ok(Program { name, inputs: inputs.collect(), calls, outputs })
    }

    /// The calls that cannot be recorded, by their names, and why.
    fn check(&self) -> Vec<(String, String)> {
        let t = Tracer::new(&self.name);
        let recorder = Recorder::new(&t, true);
        self.record(&recorder);
        recorder.faults.into_inner()
    }

    /// Compiles the program for tensors of these sizes and strides and a number of threads.
    fn compile(
        &self,
        py: Python<'_>,
        inputs: Vec<Strided<'_>>,
        results: Vec<Strided<'_>>,
        threads: usize,
    ) -> PyResult<Executable> {
        let t = Tracer::new(&self.name);
        let recorder = Recorder::new(&t, false);
        self.record(&recorder);
        if let Some((call, why)) = recorder.faults.borrow().first() {
            return Err(refused(format!("{call}: {why}")));
        }
        for (at, (name, result)) in self.outputs.iter().enumerate() {
            t.output(&format!("{at}"), recorder.tensor(name, *result).map_err(refused)?);
        }
        drop(recorder);
        let graph = t.finish().map_err(refused)?;
        let names: Vec<&str> = self.inputs.iter().map(|(name, _)| name.as_str()).collect();
        Executable::compile(py, graph, &names, (inputs, results), threads)
    }

    /// The number of calls.
    fn __len__(&self) -> usize {
        self.calls.len()
    }
}

impl Program {
    fn record<'t>(&self, recorder: &Recorder<'t>) {
        let t = recorder.t;
        for (name, Stated(ty)) in &self.inputs {
            let value = ty.as_ref().map(|ty| Argument::Tensor(t.input(name, ty.clone())));
            recorder.values.borrow_mut().insert(name.clone(), value.into_iter().collect());
        }
        for call in &self.calls {
            if !recorder.checks && !recorder.faults.borrow().is_empty() {
                return;
            }
            let source = Source::Text(Arc::from(call.line.as_str()));
            t.at(source, || t.scope_path(&call.scope, || recorder.call(call)));
        }
    }
}

/// What a program is recorded with.
struct Recorder<'t> {
    t: &'t Tracer,
    /// Goes on behind what cannot be recorded, with inputs in its place.
    checks: bool,
    values: RefCell<HashMap<String, Vec<Argument<Var<'t>>>>>,
    faults: RefCell<Vec<(String, String)>>,
    rng: Cell<Option<Var<'t>>>,
}

impl<'t> Recorder<'t> {
    fn new(t: &'t Tracer, checks: bool) -> Self {
        let (values, faults, rng) = Default::default();
        Recorder { t, checks, values, faults, rng }
    }

    fn value(&self, name: &str, result: usize) -> Result<Argument<Var<'t>>, String> {
        let found = self.values.borrow().get(name).and_then(|all| all.get(result)).cloned();
        found.ok_or_else(|| format!("reads `{name}`, which has no value here"))
    }

    fn tensor(&self, name: &str, result: usize) -> Result<Var<'t>, String> {
        match self.value(name, result)? {
            Argument::Tensor(x) => Ok(x),
            _ => Err(format!("`{name}` is no tensor")),
        }
    }

    fn call(&self, call: &Call) {
        let done = self.recorded(call);
        let failed = self.t.take_error().map(|error| error.message);
        match (done, failed) {
            (Ok(results), None) => {
                self.values.borrow_mut().insert(call.name.clone(), results);
            }
            (Err(why), _) | (Ok(_), Some(why)) => {
                let at =
                    if call.line.is_empty() { String::new() } else { format!(" ({})", call.line) };
                let why = format!("{}: {why}{at}", call.overload);
                self.faults.borrow_mut().push((call.name.clone(), why));
                let stand_in = |(at, Stated(ty)): (usize, &Stated)| {
                    let input =
                        |ty: &TensorType| self.t.input(&format!("?{}.{at}", call.name), ty.clone());
                    ty.as_ref().map_or(Argument::None, |ty| Argument::Tensor(input(ty)))
                };
                let known = if self.checks { &call.results[..] } else { &[] };
                let results = known.iter().enumerate().map(stand_in).collect();
                self.values.borrow_mut().insert(call.name.clone(), results);
            }
        }
    }

    fn recorded(&self, call: &Call) -> Result<Vec<Argument<Var<'t>>>, String> {
        let operator = find(&call.overload).ok_or("no such overload is in the table")?;
        let mut given = Vec::new();
        for (name, argument) in &call.arguments {
            let value = argument.map(&mut |(name, result)| self.tensor(name, *result))?;
            given.push((name.as_deref(), value));
        }
        let draw = || {
            let rng = self
                .rng
                .get()
                .unwrap_or_else(|| self.t.input(SEED, TensorType::new(DType::I64, [2])));
            self.rng.set(Some(rng));
            (rng, i64::from(self.t.next_stream()))
        };
        let recorded = operator.record(self.t, &given, &Draws::from(&draw))?;
        let flat = recorded.results.into_iter().flat_map(|result| match result {
            Argument::List(list) => list,
            one => vec![one],
        });
        let results: Vec<_> = flat.collect();
        if self.t.error().is_none() {
            for (result, stated) in results.iter().zip(&call.results) {
                let (Argument::Tensor(x), Stated(Some(ty))) = (result, stated) else { continue };
                if x.shape() != ty.shape {
                    return Err(format!("gives {} where PyTorch gives {ty}", x.ty()));
                }
            }
        }
        Ok(results)
    }
}

impl Stated {
    fn of(dtype: &str, sizes: Vec<usize>) -> Self {
        let dtype = dtype::named(dtype).filter(|dtype| dtype.is_computable());
        Stated(dtype.map(|dtype| TensorType::new(dtype, &sizes[..])))
    }
}

impl Call {
    fn read(call: &Bound<'_, PyAny>) -> PyResult<Self> {
        type Arguments<'py> = Vec<(Option<String>, Bound<'py, PyAny>)>;
        type Parts<'py> =
            (String, String, Arguments<'py>, Vec<(String, Vec<usize>)>, String, String);
        let (name, overload, arguments, results, line, scope): Parts<'_> = call.extract()?;
        let arguments = arguments.into_iter().map(|(name, value)| Ok((name, argument(&value)?)));
        Ok(Call {
            name,
            overload,
            arguments: arguments.collect::<PyResult<_>>()?,
            results: results.into_iter().map(|(dtype, sizes)| Stated::of(&dtype, sizes)).collect(),
            line,
            scope,
        })
    }
}

/// An argument. Tuples are what Python has no literal for: `("tensor", name, result)`, `("dtype", name)`, `("place",)`. What is none of it
/// is a text, which the table refuses.
fn argument(value: &Bound<'_, PyAny>) -> PyResult<Argument<Place>> {
    if value.is_none() {
        return Ok(Argument::None);
    }
    if value.is_instance_of::<PyBool>() {
        return value.extract().map(Argument::Bool);
    }
    if value.is_instance_of::<PyInt>() {
        return value.extract().map(Argument::Int);
    }
    if value.is_instance_of::<PyFloat>() {
        return value.extract().map(Argument::Float);
    }
    if value.is_instance_of::<PyString>() {
        return value.extract().map(Argument::Text);
    }
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().map(|one| argument(&one)).collect::<PyResult<_>>().map(Argument::List);
    }
    let Ok(tuple) = value.cast::<PyTuple>() else {
        return Ok(Argument::Text(value.str()?.to_string()));
    };
    let kind: String = tuple.get_item(0)?.extract()?;
    Ok(match kind.as_str() {
        "tensor" => {
            Argument::Tensor((tuple.get_item(1)?.extract()?, tuple.get_item(2)?.extract()?))
        }
        "dtype" => {
            let name: String = tuple.get_item(1)?.extract()?;
            dtype::named(&name).map_or(Argument::Text(name), Argument::DType)
        }
        _ => Argument::Place,
    })
}
