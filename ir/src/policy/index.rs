//! [`RuleIndex`]: which rules may speak of a call, found by what they name, so that a call costs
//! the same under many rules as under few.
//!
//! Whether a rule does speak of it, and which one wins, [`PolicySet`](super::PolicySet) says.

use std::collections::HashMap;

use super::rule::OpPattern;
use super::{Query, Target};

/// Rules by what they name; each is the number of its place in the set.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleIndex {
    ops: Named,
    modules: Named,
    nodes: Named,
    /// With stars: all of these are asked.
    patterns: Vec<usize>,
}

type Named = HashMap<String, Vec<usize>>;

impl RuleIndex {
    /// The index of rules with these targets, in order.
    pub(super) fn of<'t>(targets: impl IntoIterator<Item = &'t Target>) -> Self {
        let mut index = RuleIndex::default();
        for (at, target) in targets.into_iter().enumerate() {
            index.add(at, target);
        }
        index
    }

    /// Takes in a rule.
    pub(super) fn add(&mut self, at: usize, target: &Target) {
        let (named, name) = match target {
            Target::DeviceOp(text) | Target::Op(text) => {
                (&mut self.ops, OpPattern::in_rule(text).0)
            }
            Target::Module(text) | Target::Node(text) if text.contains('*') => {
                return self.patterns.push(at);
            }
            Target::Module(text) => (&mut self.modules, text.as_str()),
            Target::Node(text) => (&mut self.nodes, text.as_str()),
        };
        match named.get_mut(name) {
            Some(rules) => rules.push(at),
            None => drop(named.insert(name.to_owned(), vec![at])),
        }
    }

    /// Rules among which are all that speak of a call, each once.
    pub(super) fn candidates<'i>(&'i self, query: &Query<'i>) -> impl Iterator<Item = usize> + 'i {
        let Query { op, scope, node, .. } = *query;
        let around = scope.match_indices('.').map(|(end, _)| &scope[..end]).chain([scope]);
        let modules = around.filter_map(|module| self.modules.get(module));
        let named = self.ops.get(op).into_iter().chain(modules).chain(self.nodes.get(node));
        named.flatten().chain(&self.patterns).copied()
    }
}
