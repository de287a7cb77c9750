//! One node for equal values: a table of what has been recorded, by op, attributes and operands.

use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use tracecast_ir::{Args, Attr, Attrs, Graph, NodeId, OpRef, Results, Tracer, ValueId};

/// What has been recorded so far.
///
/// Ops are functions of their operands and attributes, random ones too: they draw from a stream that is an attribute and from a
/// state that is an operand. So two equal records are one value.
#[derive(Default)]
pub(crate) struct Shared {
    seen: HashMap<u64, SmallVec<[NodeId; 1]>>,
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
        if args.vars.iter().any(|v| v.is_poison()) {
            return tracer.apply(op, args, attrs);
        }
        let ids: SmallVec<[ValueId; 4]> = args.vars.iter().map(|v| v.id()).collect();
        let wanted =
            Wanted { op: &op, attrs: &attrs, groups: &args.groups, args: in_order(&op, &ids) };
        let key = wanted.hash();
        let known = self.seen.get(&key).and_then(|nodes| {
            tracer.with_graph(|g| nodes.iter().copied().find(|n| wanted.is(g, *n)))
        });
        if let Some(node) = known {
            let value = tracer.var(ValueId { node, result: 0 });
            tracer.also_stands(value);
            return value.results();
        }
        let results = tracer.apply(op, args, attrs);
        if !results.is_empty() && !results[0].is_poison() {
            self.seen.entry(key).or_default().push(results[0].id().node);
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
        let mut hasher = DefaultHasher::new();
        self.op.hash(&mut hasher);
        self.groups.hash(&mut hasher);
        self.args.hash(&mut hasher);
        for (name, attr) in self.attrs.iter() {
            name.hash(&mut hasher);
            hash_attr(attr, &mut hasher);
        }
        hasher.finish()
    }

    fn is(&self, graph: &Graph, node: NodeId) -> bool {
        let n = graph.node(node);
        n.op == *self.op
            && n.attrs == *self.attrs
            && n.groups[..] == *self.groups
            && in_order(&n.op, &graph.args(node)) == self.args
    }
}

/// The operands, sorted if their order changes no bit of the result.
///
/// The order of `maximum` and `minimum` does: of two equal numbers, such as the two zeros, they take the first.
fn in_order(op: &OpRef, args: &[ValueId]) -> SmallVec<[ValueId; 4]> {
    let mut args: SmallVec<[ValueId; 4]> = SmallVec::from_slice(args);
    if args.len() == 2 && op.commutes() {
        args.sort_unstable();
    }
    args
}

fn hash_attr(attr: &Attr, hasher: &mut DefaultHasher) {
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
