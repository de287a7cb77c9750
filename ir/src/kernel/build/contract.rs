//! Contractions: factors computed while they are packed, and an epilogue.

use super::{Built, Context, Group, finish, value_of};
use crate::Shape;
use crate::graph::{NodeId, ValueId};
use crate::kernel::emit::{Collected, Emitter, Found};
use crate::kernel::index::Index;
use crate::kernel::{Access, Contract, Factor, Form, Over, Scalar, ScalarOp, Sink, Stage};
use std::collections::BTreeSet;

/// A contraction with its epilogue.
pub(super) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let graph = cx.graph;
    let (anchor, shape) = (group.members[0], &group.domain);
    let args = graph.args(anchor);
    let rank = shape.rank();
    let (m, n) = (shape[rank - 2], shape[rank - 1]);
    let a_ty = graph.ty(args[0]);
    let k = a_ty.shape[a_ty.shape.rank() - 1];
    let acc =
        Scalar::of(a_ty.dtype).filter(|s| s.is_float()).ok_or("contractions are of floats")?;
    let members: BTreeSet<NodeId> = group.members.iter().copied().collect();
    let mut collected = Collected::default();
    let outside =
        |v: ValueId, _: &Index| Ok(if (cx.inline)(v.node) { Found::Compute } else { Found::Leaf });
    let mut factor = |value: ValueId| -> Result<Factor, String> {
        let mut loads = Vec::new();
        let mut emitter = Emitter::new(graph, rank, &mut loads, &mut collected, &outside);
        let value = emitter.emit(value, &factor_index(&graph.ty(value).shape, shape, rank))?;
        let body = emitter.body;
        Ok(Factor { loads, body, value })
    };
    let (a, b) = (factor(args[0])?, factor(args[1])?);
    let resolve = |v: ValueId, index: &Index| {
        if !members.contains(&v.node) {
            return outside(v, index);
        }
        if !index.is_identity(&graph.ty(v).shape, shape) {
            return Err("an epilogue reads its contraction elsewhere".to_owned());
        }
        Ok(if v.node == anchor { Found::Inst(ScalarOp::Acc, acc) } else { Found::Compute })
    };
    let (mut loads, mut outputs, mut sinks) = (Vec::new(), Vec::new(), Vec::new());
    let mut emitter = Emitter::new(graph, rank, &mut loads, &mut collected, &resolve);
    for &member in group.members.iter().filter(|m| (cx.stored)(**m)) {
        let value = emitter.emit(value_of(member), &Index::identity(rank, rank))?;
        let strides = shape.strides().iter().map(|&s| s as i64).collect();
        let dtype = graph.node(member).results[0].dtype;
        sinks.push(Sink::Store {
            output: outputs.len(),
            dtype,
            access: Access { strides, ..Access::default() },
            value,
        });
        outputs.push(value_of(member));
    }
    let epilogue = Stage { over: Over::Row, body: emitter.body, sinks };
    let form = Contract { batch: shape[..rank - 2].to_vec(), m, n, k, acc, a, b, loads, epilogue };
    Ok(finish(cx, group, collected, outputs, Form::Contract(form)))
}

/// The index of a factor over the loops (batch.., row, column of the factor): leading axes align at the right, size 1 repeats.
fn factor_index(shape: &Shape, result: &Shape, rank: usize) -> Index {
    let Index::Axes(loops) = Index::identity(rank, rank) else {
        unreachable!("identity is by axes")
    };
    let missing = rank - shape.rank();
    let axes = (0..shape.rank()).map(|i| {
        let mut p = loops[i + missing].clone();
        if i + missing + 2 < rank && shape[i] == 1 && result[i + missing] != 1 {
            p.strides[i + missing] = 0;
        }
        p
    });
    Index::Axes(axes.collect())
}
