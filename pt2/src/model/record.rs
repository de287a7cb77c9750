//! Recording of an exported program: node by node, with the Python line and the module of each, its
//! regions, and what it writes.

use super::host::{Host, Plain};
use super::{Exported, State, faults_of, type_of};
use crate::program::{Give, Graph, Node, Operand};
use crate::strides;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tracecast_aten::{Argument, Draws, Held, Memory, Operator, find};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::unknown::exempt;
use tracecast_ir::{Size, Source, TensorType, Tracer, Var};
use tracecast_runtime::Error;
use tracecast_runtime::error::UnrecordedCall;

/// What an op says whose result decides about the program.
pub(super) const DEPENDS: &str = "gives Python a number that depends on data: choose with torch.where, or export with the number as a constant";

impl Exported {
    /// Records the program once on a tracer of its own; all calls that cannot be are one error.
    pub(super) fn check(&mut self) -> tracecast_runtime::Result<()> {
        let t = Tracer::new("check");
        let host = Plain::new(&t);
        let inputs: Vec<Var<'_>> = match self.declare_sizes(&t) {
            Ok(()) => {
                self.inputs.iter().map(|input| t.input(&input.name, input.ty.clone())).collect()
            }
            Err(message) => return Err(Error::Archive { path: self.path.clone(), message }),
        };
        let checked = checked(self, &host, &inputs);
        if !checked.faults.is_empty() {
            return Err(Error::Exported { path: self.path.clone(), calls: checked.faults });
        }
        self.outputs = checked.outputs;
        self.warnings.extend(checked.warnings);
        let written = |state: &State| checked.written.contains(&state.name);
        self.states
            .iter_mut()
            .filter(|state| written(state))
            .for_each(|state| state.is_used = true);
        Ok(())
    }

    /// Records the program on these inputs; the results in order. What cannot be recorded is an
    /// error of the tracer, with the Python line.
    pub fn record<'t>(&self, host: &dyn Host<'t>, inputs: &[Var<'t>]) -> Vec<Var<'t>> {
        Run::new(self, host, false).program(inputs)
    }
}

/// What a check of a program came to.
struct Checked {
    faults: Vec<UnrecordedCall>,
    outputs: Vec<TensorType>,
    warnings: Vec<String>,
    /// The states that the program writes to.
    written: HashSet<String>,
}

/// Records a program to find everything that cannot be recorded.
fn checked<'t>(exported: &Exported, host: &Plain<'t>, inputs: &[Var<'t>]) -> Checked {
    let run = Run::new(exported, host, true);
    let results = run.program(inputs);
    let faults = faults_of(run.faults.into_inner());
    let outputs =
        if faults.is_empty() { results.iter().map(|y| y.ty()).collect() } else { Vec::new() };
    let warnings = host.warnings.borrow().clone();
    Checked { faults, outputs, warnings, written: run.written.into_inner() }
}

/// A recording.
pub(super) struct Run<'r, 't> {
    pub(super) exported: &'r Exported,
    pub(super) host: &'r dyn Host<'t>,
    pub(super) t: &'t Tracer,
    memory: Memory<'t>,
    /// Whether it goes on behind an error, with the type that the file states.
    checks: bool,
    faults: RefCell<Vec<UnrecordedCall>>,
    written: RefCell<HashSet<String>>,
    /// Statements about dtypes that do not hold under a region.
    dropped: Cell<usize>,
    /// What the file's names of sizes are worth in this call.
    pub(super) sizes: RefCell<HashMap<String, Size>>,
}

/// The values of a graph, by name. What is not there could not be recorded.
pub(super) type Values = HashMap<String, Argument<Held>>;

impl<'r, 't> Run<'r, 't> {
    fn new(exported: &'r Exported, host: &'r dyn Host<'t>, checks: bool) -> Self {
        let t = host.tracer();
        Run {
            exported,
            host,
            t,
            memory: Memory::new(t),
            checks,
            faults: RefCell::default(),
            written: RefCell::default(),
            dropped: Cell::new(0),
            sizes: RefCell::default(),
        }
    }

    fn program(&self, inputs: &[Var<'t>]) -> Vec<Var<'t>> {
        // What comes of an op that failed has no type.
        let _library = exempt();
        let mut values = Values::new();
        if let Err(why) = self.bind_sizes(inputs) {
            let results = self.exported.outputs().len().max(1);
            return vec![self.t.fail("exported model", why); results];
        }
        for (input, given) in self.exported.inputs.iter().zip(inputs) {
            values.insert(input.value.clone(), Argument::Tensor(self.memory.own(*given)));
        }
        let mut states: Vec<(&State, Var<'t>, Held)> = Vec::new();
        for state in self.exported.states.iter().filter(|state| state.is_used) {
            let before = self.host.state(state);
            let held = self.memory.own(self.t.last(before));
            for value in &state.values {
                values.insert(value.clone(), Argument::Tensor(held));
            }
            states.push((state, before, held));
        }
        let mut constants = Vec::new();
        for constant in &self.exported.constants {
            match self.exported.constant(constant) {
                Ok(tensor) => {
                    let numbers = tensor.to_f64s();
                    let value =
                        self.t.constant(constant.ty.dtype, &constant.ty.shape.numbers(), &numbers);
                    let held = self.memory.own(value);
                    values.insert(constant.value.clone(), Argument::Tensor(held));
                    constants.push((constant, value, held));
                }
                Err(why) => {
                    self.t.fail("constant", why);
                }
            }
        }
        let graph = &self.exported.program.graph;
        self.graph(graph, &mut values, "");
        if self.dropped.get() > 0 {
            let message = format!(
                "{} statements about dtypes that torch.export saw do not hold under this region, and are dropped",
                self.dropped.get()
            );
            self.host.warn(&message);
        }
        let results = self.gives(&values);
        for (state, before, held) in states {
            let Ok(after) = self.memory.read(held) else { continue };
            if after.id() != self.t.last(before).id() {
                self.written.borrow_mut().insert(state.name.clone());
                self.t.advance(before, |_| after);
            }
        }
        for (constant, before, held) in constants {
            if self.memory.read(held).is_ok_and(|after| after.id() != before.id()) {
                let why =
                    format!("`{}` is written to, and is no state that is kept", constant.name);
                self.fault("buffer", &why, String::new(), "");
            }
        }
        results
    }

    /// The results, and the next values that the signature gives.
    fn gives(&self, values: &Values) -> Vec<Var<'t>> {
        let tensor = |value: &str| match values.get(value) {
            Some(Argument::Tensor(held)) => Some(*held),
            _ => None,
        };
        let mut results = Vec::new();
        for give in &self.exported.program.gives {
            match give {
                Give::Output(Some(value)) => {
                    let read =
                        tensor(value).ok_or_else(|| format!("`{value}` is not computed here"));
                    match read.and_then(|held| self.memory.read(held)) {
                        Ok(y) => results.push(y),
                        Err(why) => {
                            if self.faults.borrow().is_empty() {
                                self.fault("output", &why, String::new(), "");
                            }
                            results.push(self.t.fail("output", why));
                        }
                    }
                }
                Give::Next { value, name } => {
                    let owner = self
                        .exported
                        .states
                        .iter()
                        .find(|state| state.name == *name || state.tied.contains(name));
                    let target = owner
                        .and_then(|state| state.values.first())
                        .and_then(|value| tensor(value));
                    let written = match (target, tensor(value)) {
                        (Some(target), Some(next)) => {
                            self.memory.read(next).and_then(|next| self.memory.write(target, next))
                        }
                        // A buffer that nothing reads is not kept.
                        _ => Ok(()),
                    };
                    if let Err(why) = written {
                        self.fault("output", &why, String::new(), "");
                    }
                }
                Give::Output(None) | Give::Dropped => {}
            }
        }
        results
    }

    fn graph(&self, graph: &Graph, values: &mut Values, path: &str) {
        let mut regions = 0;
        for node in &graph.nodes {
            let place = Source::Text(Arc::from(node.line.as_str()));
            self.t.at(place, || {
                self.t.scope_path(&node.scope, || {
                    if !self.t_goes_on() {
                        return;
                    }
                    let done = self.node(graph, node, values, path, &mut regions);
                    let failed = if self.checks { self.t.take_error() } else { None };
                    let failed = failed.map(|error| error.message);
                    match (done, failed) {
                        (Err(why), _) | (Ok(()), Some(why)) => {
                            let target = short(&node.target);
                            self.fault(target, &why, self.shown(node, values), &node.line);
                            self.stand_in(graph, node, values, path);
                        }
                        (Ok(()), None) => self.tell(node, values, path),
                    }
                });
            });
        }
    }

    fn t_goes_on(&self) -> bool {
        self.checks || self.t.error().is_none()
    }

    /// Notes what cannot be recorded.
    fn fault(&self, target: &str, message: &str, arguments: String, line: &str) {
        if !self.checks {
            let place =
                if line.is_empty() { Source::Unknown } else { Source::Text(Arc::from(line)) };
            self.t.at(place, || self.t.fail(target, message));
        }
        let message = message.lines().next().unwrap_or_default().to_owned();
        let fault = UnrecordedCall {
            target: target.to_owned(),
            message,
            arguments,
            line: line.to_owned(),
            count: 1,
        };
        self.faults.borrow_mut().push(fault);
    }

    /// Lets values of the types that the file states stand for the results of a node that could not
    /// be recorded.
    fn stand_in(&self, graph: &Graph, node: &Node, values: &mut Values, path: &str) {
        for name in names(&node.outputs) {
            let Some(Ok(ty)) = graph.tensors.get(name).map(type_of) else { continue };
            let known = ty.shape.iter().flat_map(|size| size.names());
            let known = known
                .into_iter()
                .all(|name| self.t.with_graph(|graph| graph.sizes().get(name).is_some()));
            if known && self.checks {
                let value = self.t.input(&format!("?{path}{name}"), ty);
                values.insert(name.to_owned(), Argument::Tensor(self.memory.own(value)));
            }
        }
    }

    /// Tells the host of what a node gives.
    fn tell(&self, node: &Node, values: &Values, path: &str) {
        let mut all = Vec::new();
        for name in names(&node.outputs) {
            let Some(Argument::Tensor(held)) = values.get(name) else { continue };
            let Ok(value) = self.memory.read(*held) else { continue };
            self.host.recorded(&format!("{path}{name}"), &[value]);
            all.push(value);
        }
        self.host.recorded(&format!("{path}{}", node.name), &all);
    }

    fn shown(&self, node: &Node, values: &Values) -> String {
        let each = node.inputs.iter().map(|(name, operand)| {
            let shown = match operand {
                Operand::Unknown(what) => what.clone(),
                Operand::Graph(_) => "a graph".to_owned(),
                _ => match self.argument(operand, values) {
                    Ok(Some(argument)) => argument.describe(&|held| {
                        self.memory.read(*held).map_or("?".to_owned(), |x| x.ty().to_string())
                    }),
                    _ => "?".to_owned(),
                },
            };
            if name.is_empty() { shown } else { format!("{name} = {shown}") }
        });
        each.collect::<Vec<_>>().join(", ")
    }

    /// An argument; `None` if it is of a node that could not be recorded.
    fn argument(
        &self,
        operand: &Operand,
        values: &Values,
    ) -> Result<Option<Argument<Held>>, String> {
        Ok(match operand {
            Operand::Tensor(name) | Operand::Size(name) => values.get(name).cloned(),
            Operand::Truth(_) => None,
            Operand::List(list) => {
                let all = list.iter().map(|one| self.argument(one, values));
                all.collect::<Result<Option<Vec<_>>, String>>()?.map(Argument::List)
            }
            Operand::Graph(_) => return Err("has a graph where a value is expected".to_owned()),
            Operand::Plain(plain) => Some(plain.plain()),
            Operand::Unknown(what) => return Err(format!("has {what}")),
        })
    }

    fn node(
        &self,
        graph: &Graph,
        node: &Node,
        values: &mut Values,
        path: &str,
        regions: &mut usize,
    ) -> Result<(), String> {
        let target = short(&node.target);
        match target {
            "higher_order.wrap_with_autocast" => {
                *regions += 1;
                let [device, dtype, enabled, _cache, Operand::Graph(inner), rest @ ..] =
                    &operands(node)[..]
                else {
                    return Err("has other arguments than a region".to_owned());
                };
                let inside = format!("{path}region{regions}/");
                return self.region(
                    node,
                    values,
                    (*device, *dtype, *enabled),
                    inner,
                    rest,
                    &inside,
                );
            }
            "higher_order.wrap_with_set_grad_enabled" => {
                let [enabled, Operand::Graph(inner), rest @ ..] = &operands(node)[..] else {
                    return Err("has other arguments than a region".to_owned());
                };
                let Operand::Plain(Argument::Bool(enabled)) = enabled else {
                    return Err("does not say whether gradients flow".to_owned());
                };
                let mut inner_values = self.inner(inner, rest, values)?;
                self.graph(inner, &mut inner_values, path);
                return self.outer(node, inner, &inner_values, values, !enabled);
            }
            "aten._assert_tensor_metadata.default" => return self.states_dtype(node, values),
            "aten._assert_scalar.default" => return self.states_truth(graph, node),
            _ => {}
        }
        // Sizes are what the file says they are, however it computes them.
        if !node.outputs.is_empty()
            && node.outputs.iter().all(|o| matches!(o, Operand::Size(_) | Operand::Truth(_)))
        {
            return self.sizes(graph, node, values, target);
        }
        let name = target
            .strip_prefix("aten.")
            .ok_or("is no op of ATen, and there is none for it here")?;
        if let Some(why) = without_values(name) {
            return if why.is_empty() { Ok(()) } else { Err(why.to_owned()) };
        }
        let operator = find(name).ok_or("no such overload is in the table")?;
        let mut given = Vec::new();
        for (name, operand) in &node.inputs {
            let Some(argument) = self.argument(operand, values)? else {
                let is_first = self.faults.borrow().is_empty();
                return if is_first {
                    Err(format!("reads for `{name}` what is not computed here"))
                } else {
                    Ok(())
                };
            };
            given.push((Some(name.as_str()).filter(|name| !name.is_empty()), argument));
        }
        let draw = || self.host.draw();
        let doubts = || self.is_view(graph, node, &operator);
        let results = self.memory.call(&operator, &given, &Draws::from(&draw), &doubts)?;
        self.bind(node, results, values);
        Ok(())
    }

    /// Names results, of which there may be fewer than the node has: those that nothing here
    /// computes.
    fn bind(&self, node: &Node, results: Vec<Argument<Held>>, values: &mut Values) {
        let flat = results.into_iter().flat_map(|result| match result {
            Argument::List(list) => list,
            one => vec![one],
        });
        for (name, result) in names(&node.outputs).into_iter().zip(flat) {
            values.insert(name.to_owned(), result);
        }
    }

    fn is_view(&self, graph: &Graph, node: &Node, operator: &Operator) -> Option<bool> {
        let (_, Operand::Tensor(from)) = node.inputs.first()? else { return None };
        let [to] = names(&node.outputs)[..] else { return None };
        let op = operator.schema().name.split('.').next().unwrap_or_default();
        strides::is_view(op, graph.tensors.get(from)?, graph.tensors.get(to)?)
    }

    /// The values of the inputs of a graph inside.
    fn inner(&self, inner: &Graph, rest: &[&Operand], values: &Values) -> Result<Values, String> {
        if inner.inputs.len() != rest.len() {
            return Err(format!(
                "gives {} values to a graph of {} inputs",
                rest.len(),
                inner.inputs.len()
            ));
        }
        let mut all = Values::new();
        for (input, given) in inner.inputs.iter().zip(rest) {
            let (Operand::Tensor(name) | Operand::Size(name)) = input else { continue };
            if let Some(argument) = self.argument(given, values)? {
                all.insert(name.clone(), argument);
            }
        }
        Ok(all)
    }

    /// Names the results of a graph inside; those of one without gradients are cut off.
    fn outer(
        &self,
        node: &Node,
        inner: &Graph,
        inner_values: &Values,
        values: &mut Values,
        cut: bool,
    ) -> Result<(), String> {
        let mut results = Vec::new();
        for output in &inner.outputs {
            let Some(mut argument) = self.argument(output, inner_values)? else { return Ok(()) };
            if let (Argument::Tensor(held), true) = (&argument, cut) {
                let value = self.memory.read(*held)?;
                if value.dtype().is_float() {
                    argument = Argument::Tensor(self.memory.own(value.detach()));
                }
            }
            results.push(argument);
        }
        self.bind(node, results, values);
        Ok(())
    }

    fn region(
        &self,
        node: &Node,
        values: &mut Values,
        (device, dtype, enabled): (&Operand, &Operand, &Operand),
        inner: &Graph,
        rest: &[&Operand],
        inside: &str,
    ) -> Result<(), String> {
        let (Operand::Plain(Argument::Text(device)), Operand::Plain(Argument::Bool(enabled))) =
            (device, enabled)
        else {
            return Err("does not say the device of a region, or whether it is on".to_owned());
        };
        let dtype = match dtype {
            Operand::Plain(Argument::DType(dtype)) => Some(*dtype),
            Operand::Plain(Argument::None) => None,
            _ => return Err("has a region in a dtype that is not known".to_owned()),
        };
        let mut inner_values = self.inner(inner, rest, values)?;
        let mut body = || self.graph(inner, &mut inner_values, inside);
        if self.exported.regions {
            self.host.region(device, dtype, *enabled, &mut body);
        } else {
            body();
        }
        self.outer(node, inner, &inner_values, values, false)
    }

    /// What export saw of a tensor. A region changes dtypes after the fact, so that this part is no
    /// more than counted.
    fn states_dtype(&self, node: &Node, values: &Values) -> Result<(), String> {
        let of = |wanted: &str| {
            node.inputs.iter().find(|(name, _)| name == wanted).map(|(_, operand)| operand)
        };
        let (Some(tensor), Some(Operand::Plain(Argument::DType(dtype)))) = (of("a"), of("dtype"))
        else {
            return Ok(());
        };
        if let Some(Argument::Tensor(held)) = self.argument(tensor, values)?
            && self.memory.read(held)?.dtype() != *dtype
        {
            self.dropped.set(self.dropped.get() + 1);
        }
        Ok(())
    }
}

/// Ops that give no values: nothing for those that only state what ranges say already, else why
/// there is none.
fn without_values(name: &str) -> Option<&'static str> {
    match name {
        "sym_constrain_range_for_size.default"
        | "sym_constrain_range.default"
        | "_assert_async.msg"
        | "_assert_async.default" => Some(""),
        "item.default" | "_local_scalar_dense.default" => Some(DEPENDS),
        _ => None,
    }
}

/// `torch.ops.aten.add.Tensor` as `aten.add.Tensor`.
fn short(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

fn operands(node: &Node) -> Vec<&Operand> {
    node.inputs.iter().map(|(_, operand)| operand).collect()
}

/// The names of results, lists laid out.
fn names(outputs: &[Operand]) -> Vec<&str> {
    let mut all = Vec::new();
    for output in outputs {
        match output {
            Operand::Tensor(name) | Operand::Size(name) => all.push(name.as_str()),
            Operand::List(list) => all.extend(names(list)),
            // A result that is none keeps its place.
            _ => all.push(""),
        }
    }
    all
}
