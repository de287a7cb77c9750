//! The tape: values, the ops that made them, and the walk back.

use super::ops;
use smallvec::SmallVec;
use std::collections::HashMap;
use tracecast_ir::eval::Value;
use tracecast_ir::op::{Body, Grad};
use tracecast_ir::ops::elementwise::ADD;
use tracecast_ir::ops::source::CONSTANT;
use tracecast_ir::ops::view::RESHAPE;
use tracecast_ir::{Attrs, Graph, OpRef, ValueId};

/// The number of a value.
pub(super) type Slot = usize;

/// How an op's flat operands are split.
pub(super) type Groups = SmallVec<[u16; 4]>;

/// One op that has run.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) op: OpRef,
    pub(super) attrs: Attrs,
    pub(super) groups: Groups,
    pub(super) operands: Vec<Slot>,
    pub(super) results: Vec<Slot>,
}

/// What has run so far. What differentiates runs on the tape as well, so gradients have gradients.
#[derive(Default)]
pub(super) struct Tape {
    values: Vec<Value>,
    entries: Vec<Entry>,
}

impl Tape {
    /// A value from outside.
    pub(super) fn leaf(&mut self, value: Value) -> Slot {
        self.values.push(value);
        self.values.len() - 1
    }

    pub(super) fn value(&self, slot: Slot) -> &Value {
        &self.values[slot]
    }

    /// Equal numbers in the type of a value.
    pub(super) fn full(&mut self, like: Slot, number: f64) -> Result<Slot, String> {
        let ty = &self.values[like].ty;
        let attrs = Attrs::new().with("dtype", ty.dtype).with("shape", &ty.shape[..]);
        let op = OpRef::from(&CONSTANT);
        Ok(self.apply(&op, &attrs.with("value", number), &Groups::new(), &[])?[0])
    }

    /// The same value under a number of its own.
    fn same(&mut self, slot: Slot) -> Result<Slot, String> {
        let attrs = Attrs::new().with("shape", &self.values[slot].ty.shape[..]);
        Ok(self.apply(&OpRef::from(&RESHAPE), &attrs, &Groups::from_slice(&[1]), &[slot])?[0])
    }

    /// Runs one op by itself.
    pub(super) fn apply(
        &mut self,
        op: &OpRef,
        attrs: &Attrs,
        groups: &Groups,
        operands: &[Slot],
    ) -> Result<Vec<Slot>, String> {
        let values: Vec<&Value> = operands.iter().map(|slot| &self.values[*slot]).collect();
        let computed = ops::alone(op, attrs, groups, &values)
            .map_err(|error| format!("{}: {error}", op.name().text()))?;
        let results: Vec<Slot> = computed.into_iter().map(|value| self.leaf(value)).collect();
        self.entries.push(Entry {
            op: op.clone(),
            attrs: attrs.clone(),
            groups: groups.clone(),
            operands: operands.to_vec(),
            results: results.clone(),
        });
        Ok(results)
    }

    /// Runs the ops of a program made of the op table alone, its ports being these values; the
    /// slots of its results.
    fn replay(&mut self, program: &Graph, ports: &[Slot]) -> Result<Vec<Slot>, String> {
        let mut slots: HashMap<ValueId, Slot> = HashMap::new();
        for (port, slot) in program.ports().iter().zip(ports) {
            slots.insert(ValueId { node: port.node, result: 0 }, *slot);
        }
        let live = program.live();
        for id in program.nodes().filter(|id| live[id.index()] && program.port_of(*id).is_none()) {
            let node = program.node(id);
            let operands: Vec<Slot> = program.args(id).iter().map(|arg| slots[arg]).collect();
            let results = self.apply(&node.op, &node.attrs, &node.groups, &operands)?;
            for (result, slot) in results.into_iter().enumerate() {
                slots.insert(ValueId { node: id, result: result as u16 }, slot);
            }
        }
        Ok(program.outputs().iter().map(|(_, id)| slots[id]).collect())
    }

    /// The gradients of what was seeded with respect to each of `wrt`; `None` where nothing
    /// arrives.
    pub(super) fn backward(
        &mut self,
        seeds: &[(Slot, Slot)],
        wrt: &[Slot],
    ) -> Result<Vec<Option<Slot>>, String> {
        self.backward_from(0, seeds, wrt)
    }

    /// The same among the entries from `first` on.
    fn backward_from(
        &mut self,
        first: usize,
        seeds: &[(Slot, Slot)],
        wrt: &[Slot],
    ) -> Result<Vec<Option<Slot>>, String> {
        let entries: Vec<Entry> = self.entries[first..].to_vec();
        let needed = self.needed(&entries, wrt);
        let mut arrived: HashMap<Slot, Slot> = HashMap::new();
        for (of, gradient) in seeds {
            self.arrive(&mut arrived, *of, *gradient)?;
        }
        for entry in entries.iter().rev() {
            let dys: Vec<Option<Slot>> =
                entry.results.iter().map(|slot| arrived.get(slot).copied()).collect();
            let is_asked = entry.operands.iter().any(|slot| needed[*slot]);
            if !is_asked || dys.iter().all(Option::is_none) {
                continue;
            }
            let gradients = self.differentiate(entry, &dys)?;
            for (operand, gradient) in entry.operands.iter().zip(gradients) {
                if let Some(gradient) = gradient.filter(|_| needed[*operand]) {
                    self.arrive(&mut arrived, *operand, gradient)?;
                }
            }
        }
        Ok(wrt.iter().map(|slot| arrived.get(slot).copied()).collect())
    }

    /// Which values lie on the way to what is asked for.
    fn needed(&self, entries: &[Entry], wrt: &[Slot]) -> Vec<bool> {
        let mut needed = vec![false; self.values.len()];
        wrt.iter().for_each(|slot| needed[*slot] = true);
        for entry in entries {
            let is_float = |slot: &Slot| self.values[*slot].ty.dtype.is_float();
            if !stops(&entry.op) && entry.operands.iter().any(|s| needed[*s] && is_float(s)) {
                for slot in entry.results.iter().filter(|slot| is_float(slot)) {
                    needed[*slot] = true;
                }
            }
        }
        needed
    }

    /// Adds a gradient to those of a value that came before.
    fn arrive(
        &mut self,
        arrived: &mut HashMap<Slot, Slot>,
        of: Slot,
        gradient: Slot,
    ) -> Result<(), String> {
        let (wanted, found) = (&self.values[of].ty, &self.values[gradient].ty);
        if wanted != found {
            return Err(format!("the gradient of {wanted} is {found}"));
        }
        let sum = match arrived.get(&of) {
            Some(before) => {
                let groups = Groups::from_slice(&[1, 1]);
                self.apply(&OpRef::from(&ADD), &Attrs::new(), &groups, &[*before, gradient])?[0]
            }
            None => gradient,
        };
        arrived.insert(of, sum);
        Ok(())
    }

    /// The gradients that one op sends along its operands.
    fn differentiate(
        &mut self,
        entry: &Entry,
        dys: &[Option<Slot>],
    ) -> Result<Vec<Option<Slot>>, String> {
        let ty = |slot: &Slot| self.values[*slot].ty.clone();
        let operands: Vec<_> = entry.operands.iter().map(ty).collect();
        let results: Vec<_> = entry.results.iter().map(ty).collect();
        match &entry.op.def().body {
            Body::Core { grad: Grad::Rule(rule), .. }
            | Body::Composite { grad: Some(Grad::Rule(rule)), .. } => {
                let given: Vec<bool> = dys.iter().map(Option::is_some).collect();
                let (program, which) = ops::gradient(rule, entry, &operands, &results, &given)?;
                let ports: Vec<Slot> =
                    entry.operands.iter().chain(&entry.results).copied().collect();
                let ports: Vec<Slot> =
                    ports.into_iter().chain(dys.iter().flatten().copied()).collect();
                let found = self.replay(&program, &ports)?;
                let mut gradients = vec![None; operands.len()];
                which.into_iter().zip(found).for_each(|(i, slot)| gradients[i] = Some(slot));
                Ok(gradients)
            }
            Body::Composite { grad: None, .. } => {
                let program = ops::parts(entry, &operands, &results)?;
                // The parts run again, on values of their own, so that what arrives at an operand
                // is their sum.
                let mut own = Vec::new();
                for slot in &entry.operands {
                    own.push(self.same(*slot)?);
                }
                let first = self.entries.len();
                let parts = self.replay(&program, &own)?;
                let seeds: Vec<(Slot, Slot)> =
                    parts.iter().zip(dys).filter_map(|(part, dy)| Some((*part, (*dy)?))).collect();
                self.backward_from(first, &seeds, &own)
            }
            Body::Symbolic(pass) => Err(format!("{} is left to {pass}", entry.op.name().text())),
            Body::Source(_) | Body::Core { .. } | Body::Composite { .. } => {
                Ok(vec![None; operands.len()])
            }
        }
    }
}

/// True for ops through which no gradient flows.
fn stops(op: &OpRef) -> bool {
    matches!(
        &op.def().body,
        Body::Core { grad: Grad::Zero, .. } | Body::Composite { grad: Some(Grad::Zero), .. }
    )
}
