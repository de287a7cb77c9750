//! Builds the autocast query for an op: used by the tracer when it records, and by `explain`.

use crate::graph::{Graph, node_name};
use crate::op::{Dispatch, OpName, OpRef, OperandKind as Operand};
use crate::policy::{
    Decision, DeviceType, OperandInfo, OperandKind, PolicySet, Query, Region, Rule,
};
use crate::{Attrs, DType, NodeId};
use smallvec::SmallVec;
use std::collections::HashMap;

/// One op application, as policies see it.
pub(crate) struct Question<'a> {
    pub(crate) op: &'a OpRef,
    pub(crate) attrs: &'a Attrs,
    pub(crate) groups: &'a [u16],
    /// The dtype and the device of every flat operand.
    pub(crate) operands: SmallVec<[(DType, DeviceType); 4]>,
    /// The module path.
    pub(crate) scope: &'a str,
    /// How many nodes of this op there are before it in its module.
    pub(crate) number: usize,
    pub(crate) region: &'a Region,
}

impl Question<'_> {
    /// Puts the question to `answer`; `None` for an op that no policy ever sees.
    pub(crate) fn put<R>(&self, answer: impl FnOnce(&Query<'_>) -> R) -> Option<R> {
        let def = self.op.def();
        let (overload, declared) = match &def.dispatch {
            Dispatch::Listed { overload } | Dispatch::ListedOrExpands { overload } => {
                (*overload, None)
            }
            Dispatch::Declares(policy) => ("", Some(policy)),
            Dispatch::Expands | Dispatch::Internal => return None,
        };
        let mut kinds = SmallVec::<[OperandKind; 4]>::new();
        for (operand, &n) in def.schema.operands.iter().zip(self.groups) {
            let kind = match operand.kind {
                Operand::One => OperandKind::Tensor,
                Operand::Optional => OperandKind::Optional,
                Operand::List => OperandKind::ListItem,
            };
            kinds.extend(std::iter::repeat_n(kind, usize::from(n)));
        }
        let operands: SmallVec<[OperandInfo; 4]> = self
            .operands
            .iter()
            .zip(kinds)
            .map(|(&(dtype, device), kind)| OperandInfo { dtype, device, kind })
            .collect();
        let node = node_name(self.scope, self.op.name(), self.number);
        Some(answer(&Query {
            op: self.op.name().text(),
            overload,
            scope: self.scope,
            node: &node,
            operands: &operands,
            dtype_arg: def.schema.takes_dtype().then(|| self.attrs.dtype("dtype")),
            region: self.region,
            declared,
            recorded: true,
        }))
    }
}

/// The nodes of a program that a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Those with operands on a device type that the rule holds for.
    pub here: Vec<NodeId>,
    /// Those whose operands all live on others.
    pub elsewhere: Vec<NodeId>,
}

impl Graph {
    /// What `policies` decide about each node of a traced program, also where that changes nothing;
    /// `None` for an op that no policy ever sees.
    pub fn decisions(&self, policies: &PolicySet) -> Vec<Option<Decision>> {
        self.put_questions(|query| policies.decide(query))
    }

    /// For each rule of `policies`, in order, the nodes of a traced program that it is about,
    /// whether or not a stronger rule decides.
    pub fn matched_by(&self, policies: &PolicySet) -> Vec<Matched> {
        let rules: Vec<&Rule> = policies.rules().collect();
        let about = self.put_questions(|query| {
            let about = policies.about(query);
            about.map(|at| (at, rules[at].speaks_of(query))).collect::<Vec<_>>()
        });
        let mut matched = vec![Matched::default(); rules.len()];
        for (id, about) in self.nodes().zip(about) {
            for (at, here) in about.into_iter().flatten() {
                let Matched { here: near, elsewhere } = &mut matched[at];
                if here { near.push(id) } else { elsewhere.push(id) }
            }
        }
        matched
    }

    fn put_questions<R>(&self, answer: impl Fn(&Query<'_>) -> R) -> Vec<Option<R>> {
        let devices = self.devices();
        let mut numbers = HashMap::<(&str, OpName), usize>::new();
        self.nodes()
            .map(|id| {
                let node = self.node(id);
                let number = numbers.entry((&node.scope, node.op.name())).or_default();
                *number += 1;
                let dtypes = self.args(id).into_iter().map(|a| self.ty(a).dtype);
                let question = Question {
                    op: &node.op,
                    attrs: &node.attrs,
                    groups: &node.groups,
                    operands: dtypes.zip(self.operand_devices(&devices, id)).collect(),
                    scope: &node.scope,
                    number: *number - 1,
                    region: self.region(id),
                };
                question.put(&answer)
            })
            .collect()
    }
}
