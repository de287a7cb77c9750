//! Attention: operands read in place, through views.

use super::{Built, Context, Group, finish, lowering};
use crate::Size;
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::attention::{Attend, Drop, Extents, Pass, Placed};
use crate::kernel::emit::Collected;
use crate::kernel::index::{Index, linear, through};
use crate::kernel::{Attention, Form};
use crate::op::{Lower, Position};

/// What lies in memory behind views that `inline` says are rematerialised, and where the elements
/// of `value` are there, over its own axes.
///
/// # Errors
/// The node that has to lie in memory, so that this can be said.
pub fn seen(
    graph: &Graph,
    value: ValueId,
    inline: &dyn Fn(NodeId) -> bool,
) -> Result<(ValueId, Position), NodeId> {
    let rank = graph.ty(value).shape.rank();
    let (mut at, mut index) = (value, Index::identity(rank, rank));
    while inline(at.node) {
        if !matches!(lowering(graph, at.node), Some(Lower::View(_))) {
            return Err(at.node);
        }
        index = through(graph, at.node, &index).ok_or(at.node)?;
        at = graph.args(at.node)[0];
    }
    linear(&index, &graph.ty(at).shape).map(|place| (at, place)).ok_or(value.node)
}

/// The kernel of one node.
pub(in crate::kernel) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let node = group.members[0];
    let Some(Lower::Attention(pass)) = lowering(graph, node) else {
        return Err(format!("{} is no attention", graph.node(node).op.name()));
    };
    let mut collected = Collected::default();
    let n = graph.node(node);
    let args = graph.args(node);
    let mut operands = n.groups.iter().scan(0usize, |from, count| {
        let first = *from;
        *from += usize::from(*count);
        Some((*count > 0).then(|| args[first]))
    });
    let mut next = || -> Result<Option<(Placed, ValueId)>, String> {
        let Some(value) = operands.next().flatten() else { return Ok(None) };
        let (leaf, place) = seen(graph, value, cx.inline)
            .map_err(|_| "an operand of attention does not lie in memory".to_owned())?;
        let mut strides = [Size::from(0); 4];
        strides.iter_mut().zip(&place.strides).for_each(|(to, stride)| *to = *stride);
        let input = collected.inputs.number(leaf);
        Ok(Some((Placed { input, offset: place.offset, strides }, value)))
    };
    let missing = || "attention has an operand too few".to_owned();
    let mut one = || next()?.ok_or_else(missing);
    let dy = if *pass == Pass::Backward { Some(one()?.0) } else { None };
    let [(q, of_q), (k, of_k), (v, of_v)] = [one()?, one()?, one()?];
    let given = match dy {
        Some(dy) => Some([dy, one()?.0, one()?.0]),
        None => None,
    };
    let mask = next()?.map(|(mask, _)| mask);
    let rng = next()?;
    let (attrs, float) = (&n.attrs, |name: &str| n.attrs.float(name));
    let p = float("dropout").unwrap_or(0.0);
    let drop = rng.filter(|_| p > 0.0).map(|(rng, of)| Drop {
        p: p.to_bits(),
        stream: attrs.int("stream").unwrap_or(0) as u32,
        rng,
        part: graph.ty(of).shape.numel() != 2,
    });
    let [batch, heads, queries, width] = axes(graph, of_q)?;
    let [_, shared, keys, _] = axes(graph, of_k)?;
    let [.., value] = axes(graph, of_v)?;
    let attend = Attend {
        pass: *pass,
        extents: Extents { batch, heads, shared, queries, keys, width, value },
        operands: [q, k, v],
        mask,
        drop,
        given,
        causal: attrs.bool("causal"),
        scale: float("scale").unwrap_or(1.0).to_bits(),
    };
    let outputs = (0..n.results.len() as u16).map(|result| ValueId { node, result }).collect();
    Ok(finish(cx, group, collected, outputs, Form::Attention(Attention(attend))))
}

fn axes(graph: &Graph, value: ValueId) -> Result<[Size; 4], String> {
    let shape = &graph.ty(value).shape;
    match shape[..] {
        [a, b, c, d] => Ok([a, b, c, d]),
        _ => Err(format!("attention takes four axes, found {shape}")),
    }
}
