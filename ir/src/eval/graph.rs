//! Evaluates a graph node by node.

use super::exchange::exchange;
use super::{Bytes, EvalError, Value, data, kernel};
use crate::args::{Args, Results};
use crate::attrs::Attr;
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::build;
use crate::op::{Body, ExpandCx, Inside, Lower};
use crate::ops::source;
use crate::tracer::{DEEPEST, Tracer};
use smallvec::SmallVec;
use std::collections::HashMap;

/// What a program gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// The named results, in order.
    pub outputs: Vec<(String, Value)>,
    /// The next values of state by the name of its port, in order.
    pub updates: Vec<(String, Value)>,
}

impl Outputs {
    /// A result by name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.outputs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// The next value of a port, if the program updates it.
    pub fn update(&self, name: &str) -> Option<&Value> {
        self.updates.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
}

/// An op of a program in core ops that has just been evaluated, or a port.
pub struct Seen<'a> {
    /// The program in core ops.
    pub graph: &'a Graph,
    /// The node.
    pub node: NodeId,
    /// Its operands, in order; none for a port.
    pub operands: &'a [&'a Value],
    /// Its results, in order.
    pub results: &'a [Value],
}

/// Evaluates a graph of any stage, with a value for every port by name.
///
/// Decisions of autocast become casts, promotions and broadcasts become nodes, composites are
/// expanded; every core op then runs as a kernel of its own, so every result is rounded to its
/// dtype.
///
/// # Errors
/// If a port has no value or one of another type, if the graph still has symbolic ops, or if the
/// data has no meaning for an op.
pub fn graph(graph: &Graph, inputs: &HashMap<String, Value>) -> Result<Outputs, EvalError> {
    watched(graph, inputs, &mut |_| ())
}

/// As [`graph`], and shows every port and then every op to `see`, in the order of the program, as
/// soon as its results are there.
///
/// # Errors
/// As [`graph`].
pub fn watched(
    graph: &Graph,
    inputs: &HashMap<String, Value>,
    see: &mut dyn FnMut(&Seen<'_>),
) -> Result<Outputs, EvalError> {
    let mut results = run(graph, &[inputs], see)?;
    results.pop().ok_or_else(|| EvalError::Malformed("a rank is lost".to_owned()))
}

/// As [`graph`], for a parallel run: each rank has values of its own for the ports, and every
/// collective takes those of all ranks.
///
/// # Errors
/// As [`graph`]; if a collective is for another number of ranks.
pub fn ranks(graph: &Graph, inputs: &[HashMap<String, Value>]) -> Result<Vec<Outputs>, EvalError> {
    run(graph, &inputs.iter().collect::<Vec<_>>(), &mut |_| ())
}

/// Evaluates on every rank at once, node by node.
fn run(
    graph: &Graph,
    inputs: &[&HashMap<String, Value>],
    see: &mut dyn FnMut(&Seen<'_>),
) -> Result<Vec<Outputs>, EvalError> {
    if let Some(size) = graph.sizes().names().first() {
        let message =
            format!("`{}` is the name of a size: give it a number with `Graph::at`", size.name);
        return Err(EvalError::Port(message));
    }
    let core = to_core(graph)?;
    let mut ranks: Vec<Values> =
        inputs.iter().map(|given| given_ports(&core, given, see)).collect::<Result<_, _>>()?;
    let (mut uses, live) = (count_uses(&core), core.live());
    for id in core.nodes() {
        if core.port_of(id).is_some() || !live[id.index()] {
            continue;
        }
        let args = core.args(id);
        let results = node(&core, id, &ranks)?;
        for (values, results) in ranks.iter_mut().zip(results) {
            {
                let operand = |v: &ValueId| values[v.node.index()][v.result as usize].as_ref();
                let operands: SmallVec<[&Value; 4]> = args.iter().filter_map(operand).collect();
                see(&Seen { graph: &core, node: id, operands: &operands, results: &results });
            }
            values[id.index()] = results.into_iter().map(Some).collect();
        }
        for arg in args {
            let left = &mut uses[arg.node.index()];
            *left -= 1;
            if *left == 0 {
                ranks.iter_mut().for_each(|values| values[arg.node.index()].fill(None));
            }
        }
    }
    ranks.iter().map(|values| outputs(&core, values)).collect()
}

/// The results of every node that are still needed.
type Values = Vec<SmallVec<[Option<Value>; 1]>>;

/// The values of the ports, and room for those of all other nodes.
fn given_ports(
    core: &Graph,
    inputs: &HashMap<String, Value>,
    see: &mut dyn FnMut(&Seen<'_>),
) -> Result<Values, EvalError> {
    let mut values: Values = vec![SmallVec::new(); core.len()];
    for port in core.ports() {
        let value = inputs
            .get(&port.name)
            .ok_or_else(|| EvalError::Port(format!("`{}` has no value", port.name)))?;
        if value.ty != port.ty {
            return Err(EvalError::Port(format!(
                "`{}` is {}, found {}",
                port.name, port.ty, value.ty
            )));
        }
        let results = std::slice::from_ref(value);
        see(&Seen { graph: core, node: port.node, operands: &[], results });
        values[port.node.index()].push(Some(value.clone()));
    }
    Ok(values)
}

fn outputs(core: &Graph, values: &Values) -> Result<Outputs, EvalError> {
    let at = |v: ValueId| {
        values[v.node.index()][v.result as usize]
            .clone()
            .ok_or_else(|| EvalError::Malformed("a result is lost".to_owned()))
    };
    let outputs = core
        .outputs()
        .iter()
        .map(|(name, v)| Ok((name.clone(), at(*v)?)))
        .collect::<Result<_, EvalError>>()?;
    let update = |(port, v): &(usize, ValueId)| Ok((core.ports()[*port].name.clone(), at(*v)?));
    let updates = core.updates().iter().map(update).collect::<Result<_, EvalError>>()?;
    Ok(Outputs { outputs, updates })
}

/// How often each node's results are taken, by other nodes or from outside.
fn count_uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.len()];
    let args = graph.nodes().flat_map(|id| graph.args(id));
    for value in args.chain(graph.roots()) {
        uses[value.node.index()] += 1;
    }
    uses
}

/// The results of one core node or kernel, on every rank.
fn node(graph: &Graph, id: NodeId, ranks: &[Values]) -> Result<Vec<Vec<Value>>, EvalError> {
    if let Some(Lower::Exchange(what)) = build::lowering(graph, id) {
        let operand = graph.args(id)[0];
        let given = ranks.iter().map(|values| held(values, &operand));
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let node = graph.node(id);
        let results = exchange(*what, &node.attrs, &node.results[0], &given);
        let results =
            results.map_err(|m| EvalError::Malformed(format!("{}: {m}", node.op.name())))?;
        return Ok(results.into_iter().map(|value| vec![value]).collect());
    }
    ranks.iter().map(|values| computed(graph, id, values)).collect()
}

fn held<'v>(values: &'v Values, v: &ValueId) -> Result<&'v Value, EvalError> {
    values[v.node.index()][v.result as usize]
        .as_ref()
        .ok_or_else(|| EvalError::Malformed("an operand is lost".to_owned()))
}

/// The results of one core node or kernel, on one rank.
fn computed(graph: &Graph, id: NodeId, values: &Values) -> Result<Vec<Value>, EvalError> {
    let node = graph.node(id);
    let run = |k: &crate::kernel::Kernel, inputs: &[ValueId]| {
        let inputs = inputs.iter().map(|v| held(values, v)).collect::<Result<Vec<_>, _>>()?;
        let bytes: Vec<&[u8]> = inputs.iter().map(|v| &v.bytes[..]).collect();
        kernel(k, &bytes)
    };
    let buffers = if let Some(Attr::Kernel(k)) = node.attrs.get("kernel") {
        run(k, &graph.args(id))?
    } else if source::is_data(node) {
        return Ok(vec![data(node).map_err(EvalError::Memory)?]);
    } else if node.results.iter().all(|ty| ty.numel() == 0) {
        node.results.iter().map(|_| Vec::new().into()).collect()
    } else {
        let built = build::single(graph, id)
            .map_err(|m| EvalError::Malformed(format!("{}: {m}", node.op.name())))?;
        run(&built.kernel, &built.inputs)?
    };
    let value = |(ty, bytes): (&crate::TensorType, Bytes)| {
        Value::new(ty.clone(), bytes).map_err(EvalError::Malformed)
    };
    node.results.iter().zip(buffers).map(value).collect()
}

/// The same program in core ops and kernels, with every cast and expansion a node of its own.
fn to_core(graph: &Graph) -> Result<Graph, EvalError> {
    if let Some(id) =
        graph.nodes().find(|id| matches!(graph.node(*id).op.def().body, Body::Symbolic(_)))
    {
        let node = graph.node(id);
        let Body::Symbolic(pass) = node.op.def().body else { unreachable!("just matched") };
        return Err(EvalError::Symbolic { op: node.op.name().to_string(), pass });
    }
    let mut core = graph.retrace(|tracer, _, node, mut args| {
        let mut attrs = node.attrs.clone();
        if let Some(decision) = &node.decision {
            for (var, cast) in args.vars.iter_mut().zip(&decision.casts) {
                if let Some(dtype) = cast {
                    *var = var.to(*dtype);
                }
            }
            if let Some(dtype) = decision.dtype_arg {
                attrs.set("dtype", dtype);
            }
        }
        tracer.apply(node.op.clone(), args, attrs)
    })?;
    let mut layers = 0;
    let composite = |core: &Graph| {
        core.nodes().find(|id| matches!(core.node(*id).op.def().body, Body::Composite { .. }))
    };
    while let Some(id) = composite(&core) {
        if layers == DEEPEST {
            let node = core.node(id);
            return Err(EvalError::from(crate::TraceError {
                op: node.op.name().to_string(),
                message: format!("lies inside {DEEPEST} composites: it seems to be made of itself"),
                source_line: node.source.to_string(),
                scope: node.scope.to_string(),
            }));
        }
        layers += 1;
        core = core.retrace(|tracer, _, node, args| expand(tracer, node, args))?;
    }
    Ok(core)
}

/// A composite's parts in its place.
fn expand<'t>(tracer: &'t Tracer, node: &crate::Node, mut args: Args<'t>) -> Results<'t> {
    let Body::Composite { expand, inside, .. } = &node.op.def().body else {
        return tracer.again(node, args);
    };
    if *inside == Inside::F32 {
        for var in &mut args.vars {
            *var = var.to(var.dtype().compute());
        }
    }
    let cx = ExpandCx {
        tracer,
        args: &args.vars,
        groups: &args.groups,
        attrs: &node.attrs,
        results: &node.results,
    };
    let results = tracer.part_of(node.op.name(), || expand(&cx));
    results.iter().zip(&node.results).map(|(var, ty)| var.to(ty.dtype)).collect()
}
