//! Scatters: a base, and sources combined with its elements where an index says.

use super::{Built, Context, Group, finish, is_zeros, lowering, value_of};
use crate::Size;
use crate::graph::ValueId;
use crate::kernel::emit::{Collected, Emitter, Found, Numbered};
use crate::kernel::index::Index;
use crate::kernel::{Access, Body, Combiner, Form, Scatter, Val, update};
use crate::op::Lower;
use smallvec::{SmallVec, smallvec};

/// A scatter: base, index, source; or base and source, where no index is needed.
pub(in crate::kernel) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let anchor = group.members[0];
    let args = graph.args(anchor);
    let (combiner, index) = match lowering(graph, anchor) {
        Some(Lower::Scatter(combiner)) => (*combiner, Some(args[1])),
        Some(Lower::PutSlice) => (Combiner::Set, None),
        _ => return Err(format!("{} is no scatter", graph.node(anchor).op.name())),
    };
    let (base, source) = (args[0], args[args.len() - 1]);
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
    let mut indices: SmallVec<[Val; 1]> = SmallVec::new();
    if let Some(index) = index {
        let raw = emitter.emit(index, &here)?;
        let length = out.shape.get(axis).copied().unwrap_or(one);
        indices.push(emitter.position(anchor, (index, raw), length));
    }
    let body: Body = emitter.body;
    let mut place: Access = Access { strides: smallvec![Size::from(0); rank], ..Access::default() };
    let start = graph.node(anchor).attrs.size("start").unwrap_or_default();
    for (i, stride) in out.shape.strides().iter().enumerate() {
        if i == axis && index.is_some() {
            place.indirect.push(*stride);
        } else if let Some(along) = place.strides.get_mut(i) {
            // Of no sources there may be fewer axes.
            *along = *stride;
        }
        if i == axis && index.is_none() {
            place.offset = start * *stride;
        }
    }
    if out.shape.rank() == 0 && index.is_some() {
        place.indirect.push(one);
    }
    let form =
        Scatter { extents, loads: loads.list, body, value, combiner, place, index: indices, base };
    let mut built = finish(cx, group, collected, vec![value_of(anchor)], Form::Scatter(form));
    update::mark(graph, &mut built);
    Ok(built)
}
