//! Contractions: factors computed while they are packed, and an epilogue that stores, accumulates
//! down the columns and takes largest magnitudes.

use super::{
    Built, Context, FactorLoops, Group, column_sink, factors, finish, largest, lowering, value_of,
};
use crate::graph::{Graph, NodeId, ValueId};
use crate::kernel::emit::{Collected, Emitter, Found, Numbered};
use crate::kernel::index::{Index, linear, repeats};
use crate::kernel::{Access, Contract, Factor, Form, Load, Over, Scalar, ScalarOp, Sink, Stage};
use crate::op::{Lower, Position};
use crate::{Shape, Size};
use smallvec::smallvec;
use std::collections::BTreeSet;

/// A contraction with its epilogue.
pub(in crate::kernel) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let (anchor, shape) = (group.members[0], &group.domain);
    let args = graph.args(anchor);
    let rank = shape.rank();
    let (m, n) = (shape[rank - 2], shape[rank - 1]);
    let a_ty = graph.ty(args[0]);
    let k = a_ty.shape[a_ty.shape.rank() - 1];
    let acc =
        Scalar::of(a_ty.dtype).filter(|s| s.is_float()).ok_or("contractions are of floats")?;
    let mut collected = Collected::default();
    let outside = |v: ValueId, _: &Index| Ok(outside(cx, v));
    let mut factor = |arg: ValueId, loops: FactorLoops| -> Result<Factor, String> {
        let mut loads = Numbered::default();
        let split = loops.split.as_ref();
        let axes = split.map_or(rank, |split| rank - 2 + split.rows.len() + split.columns.len());
        let mut emitter = Emitter::new(graph, axes, &mut loads, &mut collected, &outside);
        let index = factor_index(graph, &graph.ty(arg).shape, shape, &loops);
        let value = emitter.emit(loops.value, &index)?;
        let body = emitter.body;
        Ok(Factor { loads: loads.list, body, value, split: loops.split })
    };
    let [left, right] = factors(graph, anchor, cx.inline);
    let (a, b) = (factor(args[0], left)?, factor(args[1], right)?);
    let (epilogue, loads, outputs) = epilogue(cx, group, acc, &mut collected)?;
    let form = Contract { batch: shape[..rank - 2].to_vec(), m, n, k, acc, a, b, loads, epilogue };
    Ok(finish(cx, group, collected, outputs, Form::Contract(form)))
}

/// What is done with the sums, what that loads, and the values it stores.
fn epilogue(
    cx: &Context<'_>,
    group: &Group,
    acc: Scalar,
    collected: &mut Collected,
) -> Result<(Stage, Vec<Load>, Vec<ValueId>), String> {
    let (graph, shape, rank) = (cx.graph, &group.domain, group.domain.rank());
    let members: BTreeSet<NodeId> = group.members.iter().copied().collect();
    let here = Index::identity(rank, rank);
    let in_order = linear(&here, shape).map(Index::Linear).ok_or("a result has no order")?;
    let resolve = |v: ValueId, index: &Index| {
        if *index == in_order && graph.ty(v).shape == *shape {
            return Ok(Found::Here);
        }
        if !members.contains(&v.node) {
            return Ok(outside(cx, v));
        }
        // One that has the elements in order, under another shape.
        let is_flat = *index == in_order && graph.ty(v).numel() == shape.numel();
        if !is_flat && !index.is_identity(&graph.ty(v).shape, shape) {
            return Err("an epilogue reads its contraction elsewhere".to_owned());
        }
        Ok(if v.node == group.members[0] {
            Found::Inst(ScalarOp::Acc, acc)
        } else {
            Found::Compute
        })
    };
    let mut loads = Numbered::default();
    let (mut outputs, mut sinks) = (Vec::new(), Vec::new());
    let mut emitter = Emitter::new(graph, rank, &mut loads, collected, &resolve);
    for &member in group.members.iter().filter(|m| (cx.stored)(**m)) {
        if let Some(Lower::ReduceColumn) = lowering(graph, member) {
            let value = emitter.emit(graph.args(member)[0], &here)?;
            sinks.push(column_sink(graph, member, shape, (value, outputs.len()))?);
            outputs.push(value_of(member));
            continue;
        }
        if let Some(Lower::ReduceRow) = lowering(graph, member) {
            let of = largest(graph, member).filter(|l| graph.ty(l.of).numel() == shape.numel());
            let of = of.ok_or("an epilogue reduces something")?.of;
            let value = emitter.emit(of, &in_order)?;
            sinks.push(Sink::Largest { value, output: outputs.len() });
            outputs.push(value_of(member));
            continue;
        }
        let is_here = graph.node(member).results[0].shape == *shape;
        let value = emitter.emit(value_of(member), if is_here { &here } else { &in_order })?;
        let strides = shape.strides();
        let dtype = graph.node(member).results[0].dtype;
        sinks.push(Sink::Store {
            output: outputs.len(),
            dtype,
            access: Access { strides, ..Access::default() },
            value,
        });
        outputs.push(value_of(member));
    }
    let stage = Stage { over: Over::Row, body: emitter.body, sinks };
    Ok((stage, loads.list, outputs))
}

/// A value that is no member is rematerialised or loaded.
fn outside(cx: &Context<'_>, value: ValueId) -> Found {
    if (cx.inline)(value.node) { Found::Compute } else { Found::Leaf }
}

/// The index of what is computed for a factor, over the loops (batch.., row.., column.. of the
/// factor): leading axes align at the right, size 1 repeats. `shape` is that of the factor.
fn factor_index(graph: &Graph, shape: &Shape, result: &Shape, loops: &FactorLoops) -> Index {
    let batches = result.rank() - 2;
    let (missing, lead) = (result.rank() - shape.rank(), shape.rank() - 2);
    let (rows, columns) =
        loops.split.as_ref().map_or((1, 1), |split| (split.rows.len(), split.columns.len()));
    let rank = batches + rows + columns;
    // The next loop of the rows and of the columns.
    let mut next = [batches, batches + rows];
    let axes = loops.parts.iter().map(|part| {
        let mut strides = smallvec![Size::from(0); rank];
        match *part {
            Some(axis) if axis >= lead => {
                strides[next[axis - lead]] = Size::from(1);
                next[axis - lead] += 1;
            }
            Some(axis) if !repeats(graph, shape[axis], result[axis + missing]) => {
                strides[axis + missing] = Size::from(1);
            }
            _ => {}
        }
        Position { strides, ..Position::default() }
    });
    Index::Axes(axes.collect())
}
