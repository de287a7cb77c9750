//! [`Program`]: a graph of FX as a list of calls, recorded through the table.
//!
//! Python writes the list as JSON: the wheel compiles it, and tests replay recorded ones without
//! Python.

pub mod dtype;
pub mod expression;
mod json;

use crate::argument::Argument;
use crate::call::find;
use crate::table::Draws;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{DType, Graph, Role, Source, TensorType, Tracer, Var};

/// A result of a call: the name of the call, and which of its results.
type Place = (String, usize);

/// Calls of overloads in order, with inputs and outputs.
///
/// ```
/// use tracecast_aten::Program;
///
/// let program = Program::parse(r#"{
///     "name": "double", "sizes": [], "inputs": [["x", "float32", [2, 3]]],
///     "calls": [["y", "add.Tensor", [[null, {"tensor": ["x", 0]}], [null, {"tensor": ["x", 0]}]], [["float32", [2, 3]]], "model.py:3", ""]],
///     "outputs": [["y", 0]]
/// }"#)?;
/// assert_eq!(program.faults(), []);
/// assert_eq!(program.graph()?.outputs().len(), 1);
/// # Ok::<(), String>(())
/// ```
pub struct Program {
    name: String,
    sizes: Vec<NamedRange>,
    inputs: Vec<(String, Stated)>,
    calls: Vec<Listed>,
    outputs: Vec<Place>,
    /// Inputs that are state, and what a run leaves in each.
    updates: Vec<(String, Place)>,
    /// Inputs that are trained parameters.
    parameters: Vec<String>,
    /// How many calls, from the first on, lie in the autocast region.
    in_region: usize,
}

/// Where a program is recorded.
pub struct Scene<'a, 't> {
    /// The tracer.
    pub tracer: &'t Tracer,
    /// Makes a port.
    pub port: &'a dyn Fn(&str, TensorType, Role) -> Var<'t>,
    /// Records what it is given inside of the autocast region of the program.
    pub region: &'a dyn Fn(&mut dyn FnMut()),
}

/// A size that is a name, its bounds, and the value that it is traced with.
struct NamedRange {
    name: String,
    least: i64,
    most: Option<i64>,
    traced: i64,
}

/// A call, and what PyTorch states about its results.
struct Listed {
    name: String,
    overload: String,
    arguments: Vec<(Option<String>, Argument<Place>)>,
    results: Vec<Stated>,
    /// Of the user's program, such as `model.py:12`.
    line: String,
    /// The path of modules.
    scope: String,
}

/// The type that PyTorch states for a tensor; nothing if it has a dtype without kernels here.
struct Stated(Option<TensorType>);

impl Program {
    /// The input `i64[2]` of recorded programs that is the seed of their random numbers.
    pub const SEED: &str = "rng";

    /// The call `[loss, tensors]` that is no overload of ATen: it gives the gradients of a number.
    pub const GRADIENTS: &str = "gradients";

    /// The names of the inputs.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|(name, _)| name.as_str())
    }

    /// The calls that cannot be recorded, by their names, and why.
    pub fn faults(&self) -> Vec<(String, String)> {
        let t = Tracer::new(&self.name);
        on_cpu(&t, |scene| {
            let recorder = Recorder::new(scene, true);
            self.record(&recorder);
            recorder.faults.into_inner()
        })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether an input is state, which a run updates.
    pub fn is_state(&self, input: &str) -> bool {
        self.updates.iter().any(|(name, _)| name == input)
    }

    /// The recorded program; its outputs are `0`, `1`, and so on. No region is on.
    ///
    /// # Errors
    /// The first call that cannot be recorded.
    pub fn graph(&self) -> Result<Graph, String> {
        let t = Tracer::new(&self.name);
        on_cpu(&t, |scene| self.record_in(scene))?;
        t.finish().map_err(|error| error.to_string())
    }

    /// Records the program, with its outputs and updates.
    ///
    /// # Errors
    /// As [`graph`](Program::graph).
    pub fn record_in(&self, scene: &Scene<'_, '_>) -> Result<(), String> {
        let recorder = Recorder::new(scene, false);
        self.record(&recorder);
        if let Some((call, why)) = recorder.faults.borrow().first() {
            return Err(format!("{call}: {why}"));
        }
        for (at, (name, result)) in self.outputs.iter().enumerate() {
            scene.tracer.output(&at.to_string(), recorder.tensor(name, *result)?);
        }
        for (state, (name, result)) in &self.updates {
            scene.tracer.update(recorder.tensor(state, 0)?, recorder.tensor(name, *result)?);
        }
        Ok(())
    }

    fn record(&self, recorder: &Recorder<'_, '_>) {
        let t = recorder.scene.tracer;
        for NamedRange { name, least, most, traced } in &self.sizes {
            match most {
                Some(most) => t.size_at(name, *least..=*most, *traced),
                None => t.size_at(name, *least.., *traced),
            };
        }
        for (name, Stated(ty)) in &self.inputs {
            let role = self.role(name);
            let port = |ty: &TensorType| (recorder.scene.port)(name, ty.clone(), role);
            let value = ty.as_ref().map(|ty| Argument::Tensor(port(ty)));
            recorder.values.borrow_mut().insert(name.clone(), value.into_iter().collect());
        }
        let (inside, behind) = self.calls.split_at(self.in_region.min(self.calls.len()));
        if !inside.is_empty() {
            (recorder.scene.region)(&mut || recorder.calls(inside));
        }
        recorder.calls(behind);
    }

    fn role(&self, input: &str) -> Role {
        match self.is_state(input) {
            false => Role::Input,
            true if self.parameters.iter().any(|name| name == input) => Role::Param,
            true => Role::State,
        }
    }
}

/// With ports on the CPU, and the region of the program off.
fn on_cpu<R>(t: &Tracer, body: impl FnOnce(&Scene<'_, '_>) -> R) -> R {
    let port = |name: &str, ty, role| t.port(name, ty, role, false, DeviceType::Cpu);
    body(&Scene { tracer: t, port: &port, region: &|inside| inside() })
}

/// What a program is recorded with.
struct Recorder<'a, 't> {
    scene: &'a Scene<'a, 't>,
    /// Goes on behind what cannot be recorded, with inputs in its place.
    checks: bool,
    values: RefCell<HashMap<String, Vec<Argument<Var<'t>>>>>,
    faults: RefCell<Vec<(String, String)>>,
    rng: Cell<Option<Var<'t>>>,
}

impl<'a, 't> Recorder<'a, 't> {
    fn new(scene: &'a Scene<'a, 't>, checks: bool) -> Self {
        let (values, faults, rng) = Default::default();
        Recorder { scene, checks, values, faults, rng }
    }

    fn calls(&self, calls: &[Listed]) {
        let t = self.scene.tracer;
        for call in calls {
            if !self.checks && !self.faults.borrow().is_empty() {
                return;
            }
            let source = Source::Text(Arc::from(call.line.as_str()));
            t.at(source, || t.scope_path(&call.scope, || self.call(call)));
        }
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

    fn call(&self, call: &Listed) {
        let done = self.recorded(call);
        let failed = self.scene.tracer.take_error().map(|error| error.message);
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
                    let name = format!("?{}.{at}", call.name);
                    let input = |ty: &TensorType| (self.scene.port)(&name, ty.clone(), Role::Input);
                    ty.as_ref().map_or(Argument::None, |ty| Argument::Tensor(input(ty)))
                };
                let known = if self.checks { &call.results[..] } else { &[] };
                let results = known.iter().enumerate().map(stand_in).collect();
                self.values.borrow_mut().insert(call.name.clone(), results);
            }
        }
    }

    fn recorded(&self, call: &Listed) -> Result<Vec<Argument<Var<'t>>>, String> {
        if call.overload == Program::GRADIENTS {
            return self.gradients(call);
        }
        let operator = find(&call.overload).ok_or("no such overload is in the table")?;
        let mut given = Vec::new();
        for (name, argument) in &call.arguments {
            let value = argument.map(&mut |(name, result)| self.tensor(name, *result))?;
            given.push((name.as_deref(), value));
        }
        let t = self.scene.tracer;
        let ty = || TensorType::new(DType::I64, [2]);
        let seed = || (self.scene.port)(Program::SEED, ty(), Role::Input);
        let draw = || {
            let rng = self.rng.get().unwrap_or_else(seed);
            self.rng.set(Some(rng));
            (rng, i64::from(t.next_stream()))
        };
        let recorded = operator.record(t, &given, &Draws::from(&draw))?;
        let flat = recorded.results.into_iter().flat_map(|result| match result {
            Argument::List(list) => list,
            one => vec![one],
        });
        let results: Vec<_> = flat.collect();
        if t.error().is_none() {
            for (result, stated) in results.iter().zip(&call.results) {
                let (Argument::Tensor(x), Stated(Some(ty))) = (result, stated) else { continue };
                if !self.has_shape(*x, ty) {
                    return Err(format!("gives {} where PyTorch gives {ty}", x.ty()));
                }
            }
        }
        Ok(results)
    }

    fn gradients(&self, call: &Listed) -> Result<Vec<Argument<Var<'t>>>, String> {
        let [(_, Argument::Tensor((loss, result))), (_, Argument::List(of))] = &call.arguments[..]
        else {
            return Err("takes a loss and a list of tensors".to_owned());
        };
        let tensor = |one: &Argument<Place>| match one {
            Argument::Tensor((name, result)) => self.tensor(name, *result),
            _ => Err("takes a list of tensors".to_owned()),
        };
        let of = of.iter().map(tensor).collect::<Result<Vec<_>, String>>()?;
        let gradients = self.scene.tracer.grad(self.tensor(loss, *result)?, &of);
        Ok(gradients.into_iter().map(Argument::Tensor).collect())
    }

    fn has_shape(&self, x: Var<'t>, stated: &TensorType) -> bool {
        let sizes = x.shape();
        sizes.len() == stated.shape.len()
            && sizes.iter().zip(stated.shape.iter()).all(|(found, stated)| {
                found == stated || self.scene.tracer.holds(found.equals(*stated))
            })
    }
}
