//! A traced program run as PyTorch's eager mode would run it: op by op, with autocast asked before
//! each op and a tape behind it.
//!
//! It shares with the compiler the op table (what an op computes, its gradient) and the policies,
//! and nothing else: no pass has part in it. What it adds is what PyTorch does around its ops:
//!
//! * *autocast* (`aten/src/ATen/autocast_mode.cpp`): operands are cast one by one before an op; the
//!   cast of an f32 leaf that requires a gradient is kept for the rest of the scope if the cache is
//!   on, every other cast is made anew;
//! * *the engine* (`torch/csrc/autograd/engine.cpp`): what was recorded last is differentiated
//!   first; an op sends one gradient along each operand, in order; a gradient that arrives is added
//!   to those that came before, in the dtype of the value.

mod ops;
mod tape;

use std::collections::HashMap;
use std::sync::Arc;
use tape::{Slot, Tape};
use tracecast_ir::eval::{Outputs, Value};
use tracecast_ir::ops::cast::CAST;
use tracecast_ir::ops::grad::GRAD;
use tracecast_ir::policy::{Decision, PolicySet};
use tracecast_ir::{Attrs, DType, Graph, NodeId, OpRef, ValueId};

/// When autocast makes one cast for several uses of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// For the weights that PyTorch keeps the casts of.
    Weights,
    /// Never. What differs then shows that the cache matters.
    Never,
    /// Always within a scope. What differs then shows that only weights may be shared.
    Always,
}

/// Runs a traced program: what its results need, as if nothing else had been written.
pub(crate) fn run(
    graph: &Graph,
    inputs: &HashMap<String, Value>,
    sharing: Sharing,
) -> Result<Outputs, String> {
    let (tape, slots, cache) = (Tape::default(), HashMap::new(), HashMap::new());
    let mut eager = Eager { graph, sharing, tape, slots, cache };
    for port in graph.ports() {
        let slot = eager.tape.leaf(inputs[&port.name].clone());
        eager.slots.insert(ValueId { node: port.node, result: 0 }, slot);
    }
    let decisions = graph.decisions(&Arc::new(PolicySet::standard()));
    let live = graph.live();
    for id in graph.nodes().filter(|id| live[id.index()] && graph.port_of(*id).is_none()) {
        let results = if graph.node(id).op.name() == GRAD.name {
            eager.gradients(id)?
        } else {
            eager.op(id, decisions[id.index()].as_ref())?
        };
        for (result, slot) in results.into_iter().enumerate() {
            eager.slots.insert(ValueId { node: id, result: result as u16 }, slot);
        }
    }
    let value = |id: &ValueId| eager.tape.value(eager.slots[id]).clone();
    let outputs = graph.outputs().iter().map(|(name, id)| (name.clone(), value(id))).collect();
    let name = |port: &usize| graph.ports()[*port].name.clone();
    let updates = graph.updates().iter().map(|(port, id)| (name(port), value(id))).collect();
    Ok(Outputs { outputs, updates })
}

/// A program on its way.
struct Eager<'g> {
    graph: &'g Graph,
    sharing: Sharing,
    tape: Tape,
    slots: HashMap<ValueId, Slot>,
    /// The casts of weights: leaf, dtype and scope.
    cache: HashMap<(ValueId, DType, u32), Slot>,
}

impl Eager<'_> {
    /// One op of the program under its region.
    fn op(&mut self, id: NodeId, decision: Option<&Decision>) -> Result<Vec<Slot>, String> {
        let node = self.graph.node(id);
        let mut attrs = node.attrs.clone();
        let mut operands = Vec::new();
        for (i, arg) in self.graph.args(id).into_iter().enumerate() {
            let cast = decision.and_then(|d| d.casts[i]);
            operands.push(match cast {
                Some(to) if to != self.graph.ty(arg).dtype => self.cast(id, arg, to)?,
                _ => self.slots[&arg],
            });
        }
        if let Some(dtype) = decision.and_then(|d| d.dtype_arg) {
            attrs.set("dtype", dtype);
        }
        self.tape.apply(&node.op, &attrs, &node.groups, &operands)
    }

    /// An operand in the dtype that autocast wants.
    fn cast(&mut self, user: NodeId, operand: ValueId, to: DType) -> Result<Slot, String> {
        let region = self.graph.region(user);
        let leaf = self.graph.port_of(operand.node).filter(|port| port.requires_grad());
        let is_weight = leaf.is_some_and(|leaf| {
            region.cache() && leaf.ty.dtype == DType::F32 && to == region.low(leaf.device.kind)
        });
        let is_kept = match self.sharing {
            Sharing::Weights => is_weight,
            Sharing::Never => false,
            Sharing::Always => true,
        };
        let key = (operand, to, region.scope());
        if let Some(known) = self.cache.get(&key).filter(|_| is_kept) {
            return Ok(*known);
        }
        let attrs = Attrs::new().with("to", to);
        let op = OpRef::from(&CAST);
        let cast =
            self.tape.apply(&op, &attrs, &smallvec::smallvec![1], &[self.slots[&operand]])?[0];
        if is_kept {
            self.cache.insert(key, cast);
        }
        Ok(cast)
    }

    /// What a `grad` of the program asks for.
    fn gradients(&mut self, id: NodeId) -> Result<Vec<Slot>, String> {
        let slots: Vec<Slot> = self.graph.args(id).iter().map(|arg| self.slots[arg]).collect();
        let seed = self.tape.full(slots[0], 1.0)?;
        let found = self.tape.backward(&[(slots[0], seed)], &slots[1..])?;
        let zeros = |tape: &mut Tape, (of, gradient): (&Slot, Option<Slot>)| match gradient {
            Some(gradient) => Ok(gradient),
            None => tape.full(*of, 0.0),
        };
        slots[1..].iter().zip(found).map(|pair| zeros(&mut self.tape, pair)).collect()
    }
}
