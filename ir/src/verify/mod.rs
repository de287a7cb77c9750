//! The verifier: the only maker of [`Verified`].
//!
//! [`verify()`] looks at one program: it derives every type again with the op's own rule and
//! compares, checks operand counts, attributes, ports, updates, the number of ranks and the stage,
//! and reports everything it finds. [`compare()`] looks at a program and at what a pass has made of
//! it. Together they keep ten invariants of mixed precision:
//!
//! | | invariant | where it is checked |
//! |---|---|---|
//! | V1 | the dtypes of operands are those the op computes with: nothing is promoted silently | [`verify()`] from [`Stage::Cast`] on |
//! | V2 | every op, result and next state has the type that it had in the program as it was traced | [`verify()`]; [`compare()`] after every pass |
//! | V3 | a cast keeps the shape, and autocast casts floats only | [`verify()`] |
//! | V4 | autocast casts to a low dtype of the region or to f32, and to nothing else | [`verify()`] in [`Stage::Traced`]; [`compare()`] after `autocast` |
//! | V5 | the next value of state has the type of the state, so a step can follow itself | [`verify()`] |
//! | V6 | what the program rounds itself stays rounded, in every precision | [`compare()`] after every pass up to `fuse` |
//! | V7 | a pass that adds code drops no rounding and puts none into what was there, one that moves casts none that a result depends on, and that one adds none; with [`Promise::Drops`] it may drop what the program does not write | [`compare()`] after every pass up to `fuse` |
//! | V8 | sums and products are accumulated in f32 or wider | [`verify()`], on reductions and on kernels |
//! | V9 | a cast is shared where the weight cache of eager autocast shares it, and nowhere else | [`compare()`] after `autocast` |
//! | V10 | operands come before uses; behind a pass that moves casts none is dead and no two are equal | [`verify()`]; [`compare()`] after `simplify` and `place` |
//!
//! There is no control flow, so the value that a loop carries is state, and V5 is about state.
//! Which rounding is which is told by the [points](crate::point) that casts stand for.

mod accumulators;
mod added;
mod autocast;
mod casts;
mod compare;
mod dependence;
mod kept;
mod roundings;
mod whole;

pub use compare::{Promise, compare};

use crate::error::{VerifyError, VerifyErrors};
use crate::graph::{Graph, Node, NodeId, Role};
use crate::op::{Body, InferCx, Lower};
use crate::ops::source;
use crate::policy::{Decision, Region};
use crate::{Attr, DType, Must, TensorType};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::ops::Deref;

/// How far a program has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// As the user wrote it: ops may promote and broadcast their operands, and carry autocast
    /// decisions.
    Traced,
    /// Every cast, promotion and broadcast is a node of its own.
    Cast,
    /// Core ops only.
    Core,
    /// Ports, numbers in memory and kernels only.
    Fused,
}

/// A graph the verifier has passed.
#[derive(Clone, Debug)]
pub struct Verified {
    graph: Graph,
    stage: Stage,
}

impl Verified {
    /// How far it has come.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The graph, no longer verified.
    pub fn into_graph(self) -> Graph {
        self.graph
    }
}

impl Deref for Verified {
    type Target = Graph;

    fn deref(&self) -> &Graph {
        &self.graph
    }
}

/// Checks a graph against the rules of a stage.
///
/// # Errors
/// Everything that is wrong with it.
pub fn verify(mut graph: Graph, stage: Stage) -> Result<Verified, VerifyErrors> {
    let mut errors = Vec::new();
    let mut report = |id: NodeId, message: String| {
        let node = graph.node(id);
        errors.push(VerifyError {
            node: id.index(),
            op: node.op.name().to_string(),
            message,
            source_line: node.source.to_string(),
        });
    };
    let mut names = HashSet::with_capacity(graph.ports().len());
    for port in graph.ports() {
        if !names.insert(&port.name) {
            report(port.node, format!("two ports are named `{}`", port.name));
        }
        if graph.node(port.node).results.as_slice() != std::slice::from_ref(&port.ty) {
            report(port.node, format!("port `{}` is declared {}", port.name, port.ty));
        }
    }
    for id in graph.nodes() {
        for message in check_node(&graph, id, stage) {
            report(id, message);
        }
    }
    for (id, message) in other_ranks(&graph) {
        report(id, message);
    }
    let mut updated = HashSet::new();
    for (port, value) in graph.updates() {
        let port = &graph.ports()[*port];
        if port.role == Role::Input {
            report(port.node, format!("`{}` is an input and cannot be updated", port.name));
        }
        if !updated.insert(&port.name) {
            report(port.node, format!("`{}` is updated twice", port.name));
        }
        if *graph.ty(*value) != port.ty {
            report(
                value.node,
                format!(
                    "the next value of `{}` is {}, expected {}",
                    port.name,
                    graph.ty(*value),
                    port.ty
                ),
            );
        }
    }
    if !errors.is_empty() {
        return Err(VerifyErrors(errors));
    }
    graph.settle();
    Ok(Verified { graph, stage })
}

/// Collectives for another number of ranks than the first one is for: all ranks run one program.
fn other_ranks(graph: &Graph) -> Vec<(NodeId, String)> {
    let collectives = graph
        .nodes()
        .filter(|id| matches!(graph.node(*id).op.def().lowering(), Some(Lower::Exchange(_))));
    let mut ranks = collectives.filter_map(|id| Some((id, graph.node(id).attrs.int("ranks")?)));
    let Some((_, first)) = ranks.next() else { return Vec::new() };
    let others = ranks.filter(|(_, own)| *own != first);
    let message = |own| format!("is for {own} ranks, and the first collective for {first}");
    others.map(|(id, own)| (id, message(own))).collect()
}

/// Everything wrong with one node.
fn check_node(graph: &Graph, id: NodeId, stage: Stage) -> Vec<String> {
    let node = graph.node(id);
    let def = node.op.def();
    let mut wrong = Vec::new();
    let args = graph.args(id);
    if args.iter().any(|a| a.node >= id) {
        wrong.push("an operand is recorded after its use".to_owned());
        return wrong;
    }
    if usize::from(node.groups.iter().sum::<u16>()) != args.len() {
        wrong.push(format!("{} operands in groups {:?}", args.len(), node.groups));
        return wrong;
    }
    if let Some(message) = wrong_stage(node, stage) {
        wrong.push(message);
    }
    let is_port = matches!(def.body, Body::Source(Lower::Port));
    if is_port {
        if graph.port_of(id).is_none() {
            wrong.push("no port stands behind this input".to_owned());
        }
        return wrong;
    }
    let mut attrs = node.attrs.clone();
    if let Err(message) = crate::args::check_attrs(&def.schema, &mut attrs) {
        wrong.push(message);
        return wrong;
    }
    let mut types: SmallVec<[TensorType; 4]> = args.iter().map(|a| graph.ty(*a).clone()).collect();
    if let Some(decision) = &node.decision {
        if stage != Stage::Traced {
            wrong.push("an autocast decision is still open".to_owned());
        }
        check_decision(decision, graph.region(id), &types, &mut wrong);
        crate::tracer::apply_decision(decision, &mut types, &mut attrs);
    }
    let must = Must::proven(graph.sizes());
    let cx = InferCx { types: &types, groups: &node.groups, attrs: &attrs, must: &must };
    check_types(node, &cx, stage, &mut wrong);
    if let Some(Attr::Kernel(kernel)) = node.attrs.get("kernel") {
        wrong.extend(accumulators::narrow(kernel));
    }
    wrong
}

/// Autocast casts floats, to f32 or to what a region that is on computes in.
fn check_decision(
    decision: &Decision,
    region: &Region,
    types: &[TensorType],
    wrong: &mut Vec<String>,
) {
    if decision.casts.len() != types.len() {
        wrong.push(format!(
            "its autocast decision speaks of {} operands, expected {}",
            decision.casts.len(),
            types.len()
        ));
    }
    for (i, (ty, to)) in types.iter().zip(&decision.casts).enumerate() {
        let Some(to) = *to else { continue };
        if !ty.dtype.is_float() {
            wrong.push(format!("autocast casts operand {i}, {ty}, to {to}: it casts floats only"));
        } else if to != DType::F32 && !region.computes_in(to) {
            wrong.push(format!(
                "autocast casts operand {i}, {ty}, to {to}, expected f32 or what the region {region} computes in"
            ));
        }
    }
}

fn check_types(node: &Node, cx: &InferCx<'_>, stage: Stage, wrong: &mut Vec<String>) {
    match (node.op.def().infer)(cx) {
        Err(message) => {
            let def = node.op.def();
            wrong.push(crate::tracer::with_operands(message, def, cx.groups, cx.types, cx.attrs));
        }
        Ok(inferred) => {
            if inferred.results != node.results {
                wrong.push(format!(
                    "has type {}, expected {}",
                    list(&node.results),
                    list(&inferred.results)
                ));
            }
            if stage > Stage::Traced && !inferred.is_explicit() {
                let types: Vec<_> = cx.types.iter().map(ToString::to_string).collect();
                wrong.push(format!(
                    "operands {} need a cast or an expansion of their own",
                    types.join(", ")
                ));
            }
        }
    }
}

/// Why a node has no place in a stage.
fn wrong_stage(node: &Node, stage: Stage) -> Option<String> {
    let dtype_missing = node.results.iter().map(|t| t.dtype).find(|d: &DType| !d.is_computable());
    if let Some(dtype) = dtype_missing {
        return Some(format!("no kernels exist for dtype {dtype}"));
    }
    if node.checkpoint != 0 && stage > Stage::Cast {
        return Some(
            "lies in a checkpoint region: `autodiff` should have recomputed what it needs of it"
                .to_owned(),
        );
    }
    match (&node.op.def().body, stage) {
        (Body::Source(Lower::Port), _) => None,
        (Body::Core { kernel: Lower::Fused | Lower::Exchange(_), .. }, Stage::Fused) => None,
        (Body::Source(_), Stage::Fused) if source::is_data(node) => None,
        (_, Stage::Fused) => Some("is not a kernel".to_owned()),
        (Body::Composite { .. }, Stage::Core) => {
            Some("is composite: `decompose` should have expanded it".to_owned())
        }
        (Body::Symbolic(pass), Stage::Core) => {
            Some(format!("is symbolic: `{pass}` should have removed it"))
        }
        _ => None,
    }
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
