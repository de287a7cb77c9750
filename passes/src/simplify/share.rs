//! One node for equal values: a table of what has been recorded, by op, attributes and operands.

use super::errors::Raising;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use tracecast_ir::hash::{FxHashMap, FxHasher};
use tracecast_ir::op::Lower;
use tracecast_ir::{Args, Attr, Attrs, Graph, NodeId, OpRef, Results, Tracer, ValueId, Var};

/// What has been recorded so far.
///
/// Ops are functions of their operands and attributes, random ones too: they draw from a stream
/// that is an attribute and from a state that is an operand. So two equal records are one value.
#[derive(Default)]
pub(crate) struct Shared {
    seen: FxHashMap<u64, SmallVec<[NodeId; 1]>>,
    pub(super) raising: Raising,
}

impl Shared {
    /// Records an op, or finds the value that an equal record gave.
    pub(crate) fn record<'t>(
        &mut self,
        tracer: &'t Tracer,
        op: OpRef,
        args: Args<'t>,
        attrs: Attrs,
    ) -> Results<'t> {
        match self.known(tracer, &op, &args, &attrs) {
            Ok(value) => value.results(),
            Err(key) => self.noted(key, tracer.apply(op, args, attrs)),
        }
    }

    /// Records a node of another graph on these operands, or finds the value that an equal record
    /// gave.
    pub(crate) fn carry<'t>(
        &mut self,
        tracer: &'t Tracer,
        graph: &Graph,
        id: NodeId,
        args: Args<'t>,
    ) -> Results<'t> {
        let node = graph.node(id);
        match self.known(tracer, &node.op, &args, &node.attrs) {
            Ok(value) => value.results(),
            Err(key) => self.noted(key, tracer.carry(graph, id, args)),
        }
    }

    /// The first result of an equal record, which now stands for this one as well; else under which
    /// key this one is to be noted, if at all.
    fn known<'t>(
        &self,
        tracer: &'t Tracer,
        op: &OpRef,
        args: &Args<'t>,
        attrs: &Attrs,
    ) -> Result<Var<'t>, Option<u64>> {
        // What ranks exchange is the same on all of them, though values that are equal on one of
        // them may differ on another.
        let is_exchange = matches!(op.def().lowering(), Some(Lower::Exchange(_)));
        if is_exchange || args.vars.iter().any(|v| v.is_poison()) {
            return Err(None);
        }
        let ids: SmallVec<[ValueId; 4]> = args.vars.iter().map(|v| v.id()).collect();
        let wanted = Wanted { op, attrs, groups: &args.groups, args: in_order(op, ids) };
        let key = wanted.hash();
        let known = self.seen.get(&key).and_then(|nodes| {
            tracer.with_graph(|g| nodes.iter().copied().find(|n| wanted.is(g, *n)))
        });
        let value = known.map(|node| tracer.var(ValueId { node, result: 0 })).ok_or(Some(key))?;
        tracer.also_stands(value);
        Ok(value)
    }

    fn noted<'t>(&mut self, key: Option<u64>, results: Results<'t>) -> Results<'t> {
        if let (Some(key), Some(first)) = (key, results.first().filter(|v| !v.is_poison())) {
            self.seen.entry(key).or_default().push(first.id().node);
        }
        results
    }
}

/// An op application that may have been recorded.
struct Wanted<'a> {
    op: &'a OpRef,
    attrs: &'a Attrs,
    groups: &'a [u16],
    args: SmallVec<[ValueId; 4]>,
}

impl Wanted<'_> {
    fn hash(&self) -> u64 {
        let mut hasher = FxHasher::default();
        std::ptr::from_ref(self.op.def()).hash(&mut hasher);
        for arg in &self.args {
            (u64::from(arg.result) << 32 | arg.node.index() as u64).hash(&mut hasher);
        }
        for (_, attr) in self.attrs.iter() {
            hash_attr(attr, &mut hasher);
        }
        hasher.finish()
    }

    fn is(&self, graph: &Graph, node: NodeId) -> bool {
        let n = graph.node(node);
        n.op == *self.op
            && n.attrs == *self.attrs
            && n.groups[..] == *self.groups
            && in_order(&n.op, graph.args(node)) == self.args
    }
}

/// The operands, sorted if their order changes no bit of the result.
///
/// The order of `maximum` and `minimum` does: of two equal numbers, such as the two zeros, they
/// take the first.
fn in_order(op: &OpRef, mut args: SmallVec<[ValueId; 4]>) -> SmallVec<[ValueId; 4]> {
    if args.len() == 2 && op.commutes() {
        args.sort_unstable();
    }
    args
}

/// Attributes that are equal give the same.
fn hash_attr(attr: &Attr, hasher: &mut FxHasher) {
    std::mem::discriminant(attr).hash(hasher);
    match attr {
        Attr::Bool(v) => v.hash(hasher),
        Attr::Int(v) => v.hash(hasher),
        Attr::Float(v) => v.to_bits().hash(hasher),
        Attr::DType(v) => v.hash(hasher),
        Attr::Ints(v) => v.hash(hasher),
        Attr::Size(v) => v.hash(hasher),
        Attr::Sizes(v) => v.hash(hasher),
        Attr::Number(v) => v.to_string().hash(hasher),
        Attr::Floats(v) => v.iter().for_each(|v| v.to_bits().hash(hasher)),
        Attr::Str(v) => v.hash(hasher),
        Attr::Kernel(v) => v.name.hash(hasher),
    }
}
