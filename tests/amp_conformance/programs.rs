//! The region programs as traced programs, under policies with parity as they are recorded, and
//! else with PyTorch's defects put right.

use crate::cases::{device, dtype};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use tracecast::amp::Autocast;
use tracecast::ir::functions::{einsum, stack};
use tracecast::ir::ops::prelude::*;
use tracecast::ir::policy::{DeviceType, PolicySet, Region};
use tracecast::ir::{Graph, NodeId, Reason, Role, Tracer, Var};
use tracecast::passes::{self, Pipeline};
use tracecast::{DType, Options, TensorType, Trace, trace_with};

/// The name in the tables of an op of the programs, its overload, and whether its operands are one
/// list.
pub(crate) fn op_of(name: &str) -> (&str, &str, bool) {
    match name {
        "bce" => ("binary_cross_entropy", "", false),
        "softmax" | "log_softmax" => (name, "int", false),
        "norm" => (name, "Scalar", false),
        "pow" => (name, "Tensor_Scalar", false),
        "conv_transpose2d" | "conv_transpose3d" => (name, "input", false),
        "cat" | "stack" => (name, "", true),
        _ => (name, "", false),
    }
}

pub(crate) fn names(step: &Value) -> Vec<&str> {
    step["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// True if the operand is made from the tensor it is named by, and so has no name in the record.
pub(crate) fn is_nameless(op: &str, at: usize) -> bool {
    op == "binary_cross_entropy" || op == "index_copy" && at > 0
}

pub(crate) fn line(name: &str, from: DType, to: DType) -> String {
    format!("{name}:{from}->{to}")
}

pub(crate) fn recorded_casts(step: &Value) -> Vec<String> {
    let casts = step["casts"].as_array().into_iter().flatten();
    casts.map(|c| line(c[0].as_str().unwrap_or("?"), dtype(&c[1]), dtype(&c[2]))).collect()
}

pub(crate) fn state_of(region: &Region, home: DeviceType) -> Value {
    json!({
        "enabled": region.is_enabled(home),
        "dtype": region.low(home).name(),
        "cache": region.cache(),
    })
}

/// A program that records a defect of PyTorch's, with what is right put in: pointer and value.
/// `None` if it is not known what that is.
pub(crate) fn put_right(program: &Value) -> Option<Value> {
    let changes: &[(&str, Value)] = match program["id"].as_str() {
        Some("region/reentered_instance") => &[
            ("/program/4/state/enabled", json!(false)),
            ("/program/5/out", json!("f32")),
            ("/program/5/casts", json!([])),
        ],
        Some("cache/stale_after_in_place") => &[
            ("/program/3/casts", json!([["w", "f32", "bf16"]])),
            ("/program/3/value", json!(40.0)),
        ],
        Some("cache/key_has_no_dtype") => &[(
            "/program/3",
            json!({"do": "call", "op": "linear", "args": ["x", "w"], "out": "f16",
                "casts": [["w", "f32", "f16"], ["x", "f32", "f16"]]}),
        )],
        _ => return None,
    };
    let mut program = program.clone();
    for (pointer, value) in changes {
        *program.pointer_mut(pointer)? = value.clone();
    }
    Some(program)
}

/// The programs that are not traced as a whole, and why.
pub(crate) const IN_PART: &[(&str, &str)] = &[
    ("eligible/mm_f8e5m2_f32", EIGHT_BITS),
    ("eligible/prod_f8e4m3fn", EIGHT_BITS),
    ("promote/cat_f8e4m3fn_f32", EIGHT_BITS),
];

const EIGHT_BITS: &str = "a call not traced, its operand is an 8-bit float without kernels";

/// What came of a program that was traced.
pub(crate) struct Traced {
    /// Every difference to the record, or to what is right in its place.
    pub(crate) found: Vec<String>,
    /// The calls of ops that are not registered, which were left out.
    pub(crate) left_out: usize,
}

/// The steps that are to be refused.
fn refused(program: &Value) -> impl Iterator<Item = (usize, &Value)> {
    let steps = program["program"].as_array().into_iter().flatten();
    steps.enumerate().filter(|(_, step)| step.get("error").is_some())
}

/// Traces a program without PyTorch's defects, and compares it as [`compared`] does.
pub(crate) fn traced(program: &Value) -> Traced {
    compared(program, false)
}

/// Traces a program under policies with parity, as it was recorded. A call that is refused ends a
/// trace, so each has one.
pub(crate) fn traced_with_parity(program: &Value) -> Traced {
    let mut traced = compared(program, true);
    for (at, step) in refused(program) {
        let mut until = program.clone();
        until["program"].as_array_mut().expect("a list of steps").truncate(at + 1);
        let out = RefCell::new(Out { fails_at: Some(at), ..Out::default() });
        let refusal = record(&until, true, &out).err();
        let Out { left_out, .. } = out.into_inner();
        match refusal {
            None if left_out == traced.left_out => {
                traced.found.push(format!("{} is taken, recorded {}", step["op"], step["error"]));
            }
            Some(error) if !error.to_string().contains("\n  given ") => {
                traced
                    .found
                    .push(format!("{} is refused without its operands: {error}", step["op"]));
            }
            _ => {}
        }
    }
    traced
}

/// Records a program.
fn record(program: &Value, parity: bool, out: &RefCell<Out>) -> Result<Graph, tracecast::Error> {
    let mut policies = PolicySet::standard();
    policies.set_parity(parity);
    trace_with("program", &Options::new().with_policies(policies), |t| {
        let home = device(&program["device"]);
        let steps = program["program"].as_array().map_or(&[][..], Vec::as_slice);
        let regions: Vec<_> = steps.iter().map(|step| region(home, step)).collect();
        let vars = RefCell::default();
        let run = Run { t, home, program, parity, regions: &regions, vars, out };
        run.start();
        run.steps(steps, None);
    })
}

/// Traces a program, runs the `autocast` pass, and compares states, result types, the casts in the
/// graph and values.
fn compared(program: &Value, parity: bool) -> Traced {
    let out = RefCell::new(Out::default());
    let graph = record(program, parity, &out);
    let Out { mut found, mut casts, made_of, values, left_out, .. } = out.into_inner();
    match graph {
        Err(error) => found.push(error.to_string()),
        Ok(graph) => {
            let pipeline = Pipeline::new().then(passes::Autocast::new());
            match pipeline.run(graph, |_, _, _| ()) {
                Err(error) => found.push(error.to_string()),
                Ok(graph) => {
                    let mut is = casts_in(&graph);
                    is.retain(|cast| {
                        cast.split(':').next().is_none_or(|name| !made_of.contains(name))
                    });
                    is.sort();
                    casts.sort();
                    if is != casts {
                        found.push(format!("casts in the graph: {is:?}, expected {casts:?}"));
                    }
                    found.extend(wrong_values(&graph, program, &values));
                }
            }
        }
    }
    Traced { found, left_out }
}

/// The casts that policies ask for, by the port that each comes from.
fn casts_in(graph: &Graph) -> Vec<String> {
    let asked = |id: &NodeId| {
        let points = &graph.node(*id).origin.points;
        graph.node(*id).op.name().text() == "cast"
            && points
                .iter()
                .any(|p| matches!(graph.points()[*p as usize].reason, Reason::Policy { .. }))
    };
    let casts = graph.nodes().filter(asked).map(|id| {
        let operand = graph.args(id)[0];
        let mut root = operand.node;
        while graph.port_of(root).is_none() {
            root = graph.args(root)[0].node;
        }
        let name = graph.port_of(root).map_or("?", |port| port.name.as_str());
        line(name, graph.ty(operand).dtype, graph.node(id).results[0].dtype)
    });
    casts.collect()
}

/// Interprets the graph on the fills of the program and compares what it says about values.
fn wrong_values(graph: &Graph, program: &Value, values: &[(String, f64)]) -> Vec<String> {
    use tracecast::ir::eval::{self, Value as Number};
    let inputs = graph.ports().iter().map(|port| {
        let fill = program["tensors"][&port.name]["fill"].as_f64().unwrap_or(0.5);
        let count = port.ty.numel().get();
        let value =
            Number::from_f64s(port.ty.clone(), &vec![fill; count]).expect("as many as elements");
        (port.name.clone(), value)
    });
    let outputs = match eval::graph(graph, &inputs.collect()) {
        Ok(outputs) => outputs,
        Err(error) => return vec![error.to_string()],
    };
    let wrong = values.iter().filter_map(|(name, should)| {
        let is = outputs.get(name)?.to_f64s()[0];
        (is != *should).then(|| format!("value {name}: {is}, expected {should}"))
    });
    wrong.collect()
}

#[derive(Default)]
struct Out {
    found: Vec<String>,
    casts: Vec<String>,
    /// The tensors that operands without a name are made of: the record has no casts of these.
    made_of: BTreeSet<String>,
    values: Vec<(String, f64)>,
    left_out: usize,
    calls: usize,
    /// The step that ends the trace, if one does.
    fails_at: Option<usize>,
}

struct Run<'c, 't> {
    t: &'t Trace,
    home: DeviceType,
    program: &'c Value,
    parity: bool,
    /// One for each step; an object is told by its place.
    regions: &'c [Autocast],
    vars: RefCell<BTreeMap<String, Var<'t>>>,
    out: &'c RefCell<Out>,
}

/// The region of a step that enters one.
fn region(home: DeviceType, step: &Value) -> Autocast {
    let on = step.get("device").map_or(home, device);
    let mut region = Autocast::new(on.name());
    if step["do"] == "inference_mode" {
        // Inference mode is a region in which weights have no shared cast.
        return region.cache(false);
    }
    if let Some(low) = step.get("dtype") {
        region = region.dtype(dtype(low));
    }
    if let Some(enabled) = step.get("enabled").and_then(Value::as_bool) {
        region = region.enabled(enabled);
    }
    match step.get("cache_enabled").and_then(Value::as_bool) {
        Some(cache) => region.cache(cache),
        None => region,
    }
}

impl Run<'_, '_> {
    /// Makes the tensors, before every region.
    fn start(&self) {
        for (name, tensor) in self.program["tensors"].as_object().into_iter().flatten() {
            let Some(ty) = type_of(tensor) else { continue };
            let kind = tensor["kind"].as_str().unwrap_or("plain");
            let role = if matches!(kind, "param" | "nonleaf" | "view_of_param") {
                Role::Param
            } else {
                Role::Input
            };
            let grad = kind == "grad_input" || role == Role::Param;
            let port = self.t.tracer().port(name, ty.clone(), role, grad, self.home);
            let var = match kind {
                "nonleaf" => port.abs(),
                "leaf_view" | "view_of_param" => port.permute([1, 0]),
                _ => port,
            };
            self.vars.borrow_mut().insert(name.clone(), var);
        }
    }

    fn found(&self, what: String) {
        self.out.borrow_mut().found.push(what);
    }

    /// Runs steps up to the exit that belongs to them; returns those after it.
    fn steps<'s>(&'s self, mut steps: &'s [Value], mut last: Option<&'s Autocast>) -> &'s [Value] {
        while let [step, rest @ ..] = steps {
            let at = self.regions.len() - steps.len();
            steps = rest;
            match step["do"].as_str() {
                Some("enter" | "inference_mode") => {
                    let again = last.filter(|_| step["reuse"] == true);
                    let region = again.unwrap_or(&self.regions[at]);
                    last = Some(region);
                    steps = region.run(self.t, || {
                        self.check_state(step);
                        self.steps(rest, last)
                    });
                    if let Some(at) = (rest.len() - steps.len()).checked_sub(1) {
                        self.check_state(&rest[at]);
                    }
                }
                Some("exit") => return steps,
                Some("call") => self.call(at, step),
                Some("other_thread") => self.other_thread(step),
                Some("scale_in_place") => self.scale(step),
                Some("backward") => self.backward(step),
                _ => {}
            }
        }
        steps
    }

    fn check_state(&self, step: &Value) {
        let Some(should) = step.get("state") else { return };
        let is = state_of(&self.t.tracer().region(), self.home);
        if is != *should {
            self.found(format!("state: {is}, expected {should}"));
        }
    }

    fn call(&self, at: usize, step: &Value) {
        let names = names(step);
        let vars: Option<Vec<_>> =
            names.iter().map(|name| self.vars.borrow().get(*name).copied()).collect();
        let name = step["op"].as_str().unwrap_or("?");
        let fails = self.out.borrow().fails_at == Some(at);
        if step.get("error").is_some() && !fails {
            if !self.parity {
                self.refused(name, step);
            }
            return;
        }
        let Some(result) = vars.and_then(|vars| apply(name, &vars)) else {
            self.out.borrow_mut().left_out += 1;
            return;
        };
        if result.is_poison() || fails {
            return;
        }
        if result.dtype() != dtype(&step["out"]) {
            self.found(format!("{name}: {}, expected {}", result.dtype(), step["out"]));
        }
        let mut out = self.out.borrow_mut();
        out.casts.extend(recorded_casts(step));
        if ["bce", "einsum", "index_copy"].contains(&name) {
            out.made_of.extend(names.iter().map(|name| (*name).to_owned()));
        }
        out.calls += 1;
        let port = format!("out{}", out.calls);
        self.t.output(&port, result);
        out.values.extend(step["value"].as_f64().map(|value| (port, value)));
        if let Some(name) = step["as"].as_str() {
            self.vars.borrow_mut().insert(name.to_owned(), result);
        }
    }

    /// A call that is refused, in a trace of its own: an error ends a trace.
    fn refused(&self, name: &str, step: &Value) {
        let t = Tracer::new("refused");
        let port = |name: &&str| {
            let result = self.vars.borrow().get(*name).map(|var| var.ty());
            let ty = result.or_else(|| type_of(&self.program["tensors"][*name]))?;
            Some(t.port(name, ty, Role::Input, false, self.home))
        };
        let Some(vars) = names(step).iter().map(port).collect::<Option<Vec<_>>>() else {
            self.out.borrow_mut().left_out += 1;
            return;
        };
        let known = t.in_region(&self.t.tracer().region(), || apply(name, &vars)).is_some();
        match t.error() {
            None if known => self.found(format!("{name} is taken, recorded {}", step["error"])),
            None => {}
            Some(error) => {
                let unnamed =
                    vars.iter().find(|var| !error.to_string().contains(&var.ty().to_string()));
                if let Some(var) = unnamed {
                    self.found(format!(
                        "the refusal of {name} does not name {}: {error}",
                        var.ty()
                    ));
                }
            }
        }
    }

    /// Another thread starts with autocast off, also while this one is inside a region.
    fn other_thread(&self, step: &Value) {
        let names = names(step);
        let types: Option<Vec<_>> =
            names.iter().map(|name| type_of(&self.program["tensors"][*name])).collect();
        let (Some(types), Some(op)) = (types, step["op"].as_str()) else { return };
        let there = || {
            let t = Tracer::new("there");
            let vars: Vec<_> = types
                .iter()
                .enumerate()
                .map(|(i, ty)| t.input(&format!("x{i}"), ty.clone()))
                .collect();
            (t.region().is_off(), apply(op, &vars).map(|result| result.dtype()))
        };
        let (off, found) = std::thread::scope(|scope| scope.spawn(there).join().expect("no panic"));
        if !off || found != Some(dtype(&step["out"])) {
            self.found(format!("another thread: off {off}, {op} {found:?}"));
        }
    }

    fn scale(&self, step: &Value) {
        let (Some(name), Some(by)) = (step["tensor"].as_str(), step["by"].as_f64()) else { return };
        let mut vars = self.vars.borrow_mut();
        if let Some(var) = vars.get_mut(name) {
            let next = var.mul(by);
            self.t.tracer().changed_in_place(*var, next);
            *var = next;
        }
    }

    /// Gradients of leaves have the dtypes of the leaves.
    fn backward(&self, step: &Value) {
        let vars = self.vars.borrow();
        let Some(from) = step["from"].as_str().and_then(|name| vars.get(name)) else { return };
        let wanted: Vec<_> = step["grad_dtypes"].as_object().into_iter().flatten().collect();
        let leaves: Vec<_> =
            wanted.iter().filter_map(|(name, _)| vars.get(*name).copied()).collect();
        let gradients = self.t.grad(from.sum(()), &leaves);
        for ((name, should), gradient) in wanted.iter().zip(gradients) {
            if gradient.dtype() != dtype(should) {
                self.found(format!("gradient of {name}: {}, recorded {should}", gradient.dtype()));
            }
        }
    }
}

/// The type of a tensor of a program, if kernels exist for its dtype.
fn type_of(tensor: &Value) -> Option<TensorType> {
    let sizes: Option<Vec<_>> = tensor["shape"]
        .as_array()?
        .iter()
        .map(|size| size.as_u64().map(|size| size as usize))
        .collect();
    Some(TensorType::new(dtype(&tensor["dtype"]), &sizes?[..]))
        .filter(|ty| ty.dtype.is_computable())
}

/// Records an op of the programs; `None` if it is not registered.
fn apply<'t>(name: &str, x: &[Var<'t>]) -> Option<Var<'t>> {
    Some(match (name, x) {
        ("mm", [a, b]) => a.mm(*b),
        ("matmul", [a, b]) => a.matmul(*b),
        ("linear", [x, w]) => x.linear(*w, None),
        ("add", [a, b]) => a.add(*b),
        ("mul", [a, b]) => a.mul(*b),
        ("exp", [x]) => x.exp(),
        ("relu", [x]) => x.relu(),
        ("softmax", [x]) => x.softmax(-1),
        ("log_softmax", [x]) => x.log_softmax(-1),
        ("norm", [x]) => x.vector_norm((), None),
        ("pow", [x]) => x.pow(2),
        ("conv_transpose2d", [x, w]) => x.conv_transpose2d(*w, None, [], [], [], None, []),
        ("conv_transpose3d", [x, w]) => x.conv_transpose3d(*w, None, [], [], [], None, []),
        ("sum", [x]) => x.sum(()),
        ("layer_norm", [x]) => x.layer_norm(None, None, [*x.shape().last()?], 1e-5),
        ("mse_loss", [x, y]) => x.mse_loss(*y, None),
        ("cat", [_, ..]) => cat(x, 0),
        ("stack", [_, ..]) => stack(x, 0),
        ("prod", [x]) => x.prod(()),
        ("mv", [a, b]) => a.mv(b.select(0, 0)),
        ("einsum", [_, _]) => einsum("ij,jk->ik", x),
        ("bce", [a, b]) => a.sigmoid().binary_cross_entropy(b.sigmoid(), None, None),
        ("index_copy", [a, b]) => {
            let index = a.tracer().constant(DType::I64, &[4], &[0.0, 1.0, 2.0, 3.0]);
            a.index_copy(index, *b, 0)
        }
        _ => return None,
    })
}
