//! Scatters: a base, and sources combined with its elements where an index says.

use super::{Built, Context, Group, finish, is_zeros, lowering, value_of};
use crate::Size;
use crate::graph::ValueId;
use crate::kernel::emit::{Collected, Emitter, Found, Numbered};
use crate::kernel::index::Index;
use crate::kernel::{Access, Body, Form, Scatter};
use crate::op::Lower;
use smallvec::smallvec;

/// A scatter: base, index, source.
pub(in crate::kernel) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let anchor = group.members[0];
    let Some(Lower::Scatter(combiner)) = lowering(graph, anchor) else {
        return Err(format!("{} is no scatter", graph.node(anchor).op.name()));
    };
    let args = graph.args(anchor);
    let (base, index, source) = (args[0], args[1], args[2]);
    let out = graph.node(anchor).results[0].clone();
    let rank = group.domain.rank().max(1);
    let one = Size::from(1);
    let extents = if group.domain.rank() == 0 { vec![one] } else { group.domain.to_vec() };
    let mut collected = Collected::default();
    let mut loads = Numbered::default();
    let outside =
        |v: ValueId, _: &Index| Ok(if (cx.inline)(v.node) { Found::Compute } else { Found::Leaf });
    let axis = out.shape.axis(graph.node(anchor).attrs.int("dim").unwrap_or(0))?;
    let zeros = is_zeros(graph, base);
    let base = if zeros { None } else { Some(collected.inputs.number(base)) };
    let mut emitter = Emitter::new(graph, rank, &mut loads, &mut collected, &outside);
    let here = Index::identity(group.domain.rank(), rank);
    let value = emitter.emit(source, &here)?;
    let raw = emitter.emit(index, &here)?;
    let at = emitter.checked_index(anchor, raw, out.shape.get(axis).copied().unwrap_or(one));
    let body: Body = emitter.body;
    let mut place: Access = Access { strides: smallvec![Size::from(0); rank], ..Access::default() };
    for (i, stride) in out.shape.strides().iter().enumerate() {
        if i == axis {
            place.indirect.push(*stride);
        } else if let Some(along) = place.strides.get_mut(i) {
            // Of no sources there may be fewer axes.
            *along = *stride;
        }
    }
    if out.shape.rank() == 0 {
        place.indirect.push(one);
    }
    let form = Scatter {
        extents,
        loads: loads.list,
        body,
        value,
        combiner: *combiner,
        place,
        index: smallvec![at],
        base,
    };
    Ok(finish(cx, group, collected, vec![value_of(anchor)], Form::Scatter(form)))
}
