//! `custom_grad` and `cotangent`: a gradient that the user gives, as ops of the same graph.
//!
//! ```text
//! %0 = mul %x, %x : f32[3]                                       forward, as ever
//! %1 = cotangent %0 {output = 0} : f32[3]                        stands for the gradient of the result
//! %2 = mul %1, %x : f32[3]                                       backward, recorded along with it
//! %3 = custom_grad [%0], [%x], [%1], [%2] : f32[3]               the result, with that gradient
//! ```
//!
//! Backward is data, not a closure: autocast, text and every pass treat it like the rest.
//! Differentiating `custom_grad` records what depends on its cotangents again with the gradients in
//! their places; nothing flows into the forward part. As what is recorded are ordinary ops, it is
//! differentiable in turn, and there the results of `custom_grad` stand where backward has used the
//! results of forward, so that their custom gradient counts in the second order too, as in PyTorch.
//! What no gradient asks for goes with the dead code.

use super::infer::{self, Answer};
use crate::graph::{Graph, Node, NodeId};
use crate::op::{
    AttrDef, AttrKind, Body, Dispatch, Domain, FLOATS, Facts, Func, Grad, GradCx, Grads, InferCx,
    Inferred, Inside, OpDef, OpName, Operand, OperandKind, Rounding, Schema,
};
use crate::{Args, TensorType, ValueId, Var};
use smallvec::smallvec;
use std::collections::HashMap;

const fn list(name: &'static str) -> Operand {
    Operand { name, kind: OperandKind::List }
}

/// The gradient of a result of a function whose gradient is given.
pub static COTANGENT: OpDef = OpDef {
    name: OpName::new("cotangent"),
    doc: "The gradient of `y`, result number `output` of a function, where backward of its `custom_grad` needs it; zeros where nobody differentiates it.",
    schema: Schema {
        operands: &[Operand { name: "y", kind: OperandKind::One }],
        attrs: &[AttrDef { name: "output", kind: AttrKind::Int }],
        results: &["dy"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&infer::float),
    body: Body::Composite {
        expand: Func::Static(&|cx| smallvec![cx.tracer.full(cx.results[0].clone(), 0.0)]),
        inside: Inside::Own,
        grad: Some(Grad::Zero),
    },
    rounding: Rounding::NOWHERE,
    facts: Facts::new(),
    domain: Domain { dtypes: FLOATS, samples: &["T[3] {output = 0}"] },
};

/// The results of a function with a gradient of its own.
pub static CUSTOM_GRAD: OpDef = OpDef {
    name: OpName::new("custom_grad"),
    doc: "`outputs` as they are. The gradient of each of `inputs` is the one of `gradients` at its place, with the gradients of the results for `cotangents`; nothing flows into `outputs`.",
    schema: Schema {
        operands: &[list("outputs"), list("inputs"), list("cotangents"), list("gradients")],
        attrs: &[],
        results: &["y"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&types),
    body: Body::Composite {
        expand: Func::Static(&|cx| cx.args[..usize::from(cx.groups[0])].iter().copied().collect()),
        inside: Inside::Own,
        grad: Some(Grad::Rule(Func::Static(&|cx| gradients(cx)))),
    },
    rounding: Rounding::nowhere("nowhere; each step of the gradient as it was recorded"),
    facts: Facts::new(),
    domain: Domain {
        dtypes: FLOATS,
        samples: &[
            "[T[3]], [T[3], T[2]], [T[3]], [T[3], T[2]]",
            "[T[3], T[2]], [], [T[3], T[2]], []",
        ],
    },
};

/// The ops of this family.
pub static OPS: &[&OpDef] = &[&COTANGENT, &CUSTOM_GRAD];

fn types(cx: &InferCx<'_>) -> Answer {
    let outputs = cx.list(0);
    if outputs.is_empty() {
        return Err("takes at least one output".to_owned());
    }
    outputs.iter().try_for_each(infer::need_float)?;
    alike("cotangent", "output", outputs, cx.list(2))?;
    alike("gradient", "input", cx.list(1), cx.list(3))?;
    Ok(Inferred::many(outputs.iter().cloned()))
}

/// Fails unless there is one value for each, of the same type.
fn alike(what: &str, of: &str, each: &[TensorType], one: &[TensorType]) -> Result<(), String> {
    if each.len() != one.len() {
        return Err(format!("takes one {what} for each {of}: {} for {}", one.len(), each.len()));
    }
    match each.iter().zip(one).position(|(a, b)| a != b) {
        Some(at) => Err(format!("{what} {at} is {}, expected {} as its {of}", one[at], each[at])),
        None => Ok(()),
    }
}

/// Records backward with the gradients of the results in the place of the cotangents.
fn gradients<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let [outputs, inputs, cotangents, given] = split(cx);
    let mut place: HashMap<ValueId, Var<'t>> = HashMap::new();
    for (i, cotangent) in cotangents.iter().enumerate() {
        let dy = cx.dys[i].unwrap_or_else(|| cx.tracer.zeros_like(cx.outs[i]));
        place.insert(cotangent.id(), dy);
    }
    for (output, result) in outputs.iter().zip(cx.outs) {
        // What forward returned as it got it stays the input.
        if !inputs.iter().any(|x| x.id() == output.id()) {
            place.entry(output.id()).or_insert(*result);
        }
    }
    record_backward(cx, cotangents, given, &mut place);
    let mut grads: Grads<'t> = smallvec![None; outputs.len()];
    grads.extend(given.iter().map(|g| Some(place.get(&g.id()).copied().unwrap_or(*g))));
    grads.resize(cx.args.len(), None);
    grads
}

fn split<'a, 't>(cx: &GradCx<'a, 't>) -> [&'a [Var<'t>]; 4] {
    let mut rest = cx.args;
    std::array::from_fn(|i| {
        let (list, tail) = rest.split_at(usize::from(cx.groups[i]));
        rest = tail;
        list
    })
}

/// Records everything from the first cotangent to the last gradient again that depends on what has
/// a new place.
fn record_backward<'t>(
    cx: &GradCx<'_, 't>,
    cotangents: &[Var<'t>],
    given: &[Var<'t>],
    place: &mut HashMap<ValueId, Var<'t>>,
) {
    let Some(first) = cotangents.iter().map(|c| c.id().node).min() else { return };
    let Some(last) = given.iter().map(|g| g.id().node).max() else { return };
    for index in first.index()..=last.index() {
        let id = NodeId::new(index);
        if cotangents.iter().any(|c| c.id().node == id) {
            continue;
        }
        let read = |graph: &Graph| {
            let args = graph.args(id);
            let is_touched = args.iter().any(|a| place.contains_key(a));
            is_touched.then(|| (graph.node(id).clone(), args))
        };
        let Some((node, args)) = cx.tracer.with_graph(read) else { continue };
        let vars: Vec<Var<'t>> = args
            .iter()
            .map(|a| place.get(a).copied().unwrap_or_else(|| cx.tracer.var(*a)))
            .collect();
        for (result, new) in record(cx, &node, &vars).into_iter().enumerate() {
            place.insert(ValueId { node: id, result: result as u16 }, new);
        }
    }
}

/// Records a node with other operands, at its own line and in its own module.
fn record<'t>(cx: &GradCx<'_, 't>, node: &Node, vars: &[Var<'t>]) -> crate::Results<'t> {
    let t = cx.tracer;
    let again = || t.again(node, Args::grouped(vars, &node.groups));
    let record = || t.scope_path(&node.scope, again);
    t.at(node.source.clone(), || match node.part_of {
        Some(op) => t.part_of(op, record),
        None => record(),
    })
}
