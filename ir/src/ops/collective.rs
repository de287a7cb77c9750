//! Collectives: what the ranks of a parallel run do together. Every rank runs the same program, and
//! its collectives in the same order.
//!
//! The attribute `ranks` is the number of ranks that the program is for. With one rank every
//! collective gives its operand, and the program runs anywhere. `reduce_to` and `reduce_scatter`
//! are the gradients of `broadcast` and `all_gather`. In each gradient, the loss is the sum of the
//! losses of all ranks.

use super::elementwise::Elementwise;
use super::infer::{self, Answer};
use crate::op::{
    ANY, Across, Dispatch, Domain, Exchange, GradCx, Grads, InferCx, Inferred, Lower, NUMBERS,
    Rounding, core, rule,
};
use crate::{TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait Collectives;

/// The values of all ranks combined, the same on every rank: `across` is `sum`, `mean` (of floats)
/// or `max`.
///
/// Numbers are added in the order of the ranks. A maximum is NaN where a rank has NaN; its gradient
/// is shared evenly by the ranks that have it.
ALL_REDUCE = all_reduce(x; across: OptStr, ranks: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        ranks(cx)?;
        let across = across(cx)?;
        if across == Across::Mean {
            infer::need_float(cx.operand(0))?;
        }
        infer::number(cx)
    },
    body:     core(rule(&|cx| reduced(cx)), Lower::Exchange(Exchange::AllReduce)),
    rounding: Rounding::result("the result once, from f32; each step of the gradient"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {across = \"sum\", ranks = 1}", "T[] {across = \"max\", ranks = 1}"] },
}

/// The value of the rank `root`, on every rank.
BROADCAST = broadcast(x; root: Int, ranks: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        root(cx)?;
        infer::same(cx)
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().reduce_to(int(cx, "root"), int(cx, "ranks")))]),
        Lower::Exchange(Exchange::Broadcast),
    ),
    rounding: Rounding::nowhere("nowhere forward; the gradient once, from f32"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {root = 0, ranks = 1}"] },
}

/// The values of all ranks one after another along the first axis.
ALL_GATHER = all_gather(x; ranks: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let count = ranks(cx)?;
        sized(cx, |first| Ok(first * count))
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().reduce_scatter(int(cx, "ranks")))]),
        Lower::Exchange(Exchange::AllGather),
    ),
    rounding: Rounding::nowhere("nowhere forward; the gradient once, from f32"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {ranks = 1}", "T[4] {ranks = 1}"] },
}

/// The sum of the values of all ranks on the rank `root`, and zeros on the others.
REDUCE_TO = reduce_to(x; root: Int, ranks: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        root(cx)?;
        infer::number(cx)
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().broadcast(int(cx, "root"), int(cx, "ranks")))]),
        Lower::Exchange(Exchange::ReduceTo),
    ),
    rounding: Rounding::result("the result once, from f32"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {root = 0, ranks = 1}"] },
}

/// The sum of the values of all ranks divided along the first axis: each rank has the part of its
/// number.
REDUCE_SCATTER = reduce_scatter(x; ranks: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let count = ranks(cx)?;
        infer::need_number(cx.operand(0))?;
        sized(cx, |first| match first.number() {
            Some(rows) if rows % count == 0 => Ok((rows / count).into()),
            _ if count == 1 => Ok(first),
            _ => Err(format!("{} does not divide into {count} parts along its first axis", cx.operand(0))),
        })
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().all_gather(int(cx, "ranks")))]),
        Lower::Exchange(Exchange::ReduceScatter),
    ),
    rounding: Rounding::result("the result once, from f32"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[4, 5] {ranks = 1}"] },
}
}

fn int(cx: &GradCx<'_, '_>, name: &str) -> i64 {
    cx.attrs.int(name).expect("required")
}

fn ranks(cx: &InferCx<'_>) -> Result<i64, String> {
    match cx.attrs.int("ranks") {
        Some(ranks @ 1..=1_000_000) => Ok(ranks),
        other => Err(format!("`ranks` is {}, expected 1 to 1000000", other.unwrap_or_default())),
    }
}

fn root(cx: &InferCx<'_>) -> Result<(), String> {
    let (ranks, root) = (ranks(cx)?, cx.attrs.int("root").unwrap_or(0));
    if (0..ranks).contains(&root) {
        return Ok(());
    }
    Err(format!("`root` is {root}, expected a rank from 0 to {}", ranks - 1))
}

fn across(cx: &InferCx<'_>) -> Result<Across, String> {
    let across = cx.attrs.str("across").unwrap_or_default();
    let known = || Across::ALL.map(Across::name).join(", ");
    Across::find(across)
        .ok_or_else(|| format!("`across` is \"{across}\", expected one of {}", known()))
}

/// The operand with another size of its first axis.
fn sized(
    cx: &InferCx<'_>,
    size: impl FnOnce(crate::Size) -> Result<crate::Size, String>,
) -> Answer {
    let x = cx.operand(0);
    let Some((first, rest)) = x.shape.split_first() else {
        return Err(format!("takes a tensor with at least one axis, found {x}"));
    };
    let first = size(*first)?;
    let ty = TensorType {
        dtype: x.dtype,
        shape: [first].into_iter().chain(rest.iter().copied()).collect(),
    };
    ty.check_size()?;
    Ok(Inferred::one(ty))
}

fn reduced<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let ranks = int(cx, "ranks");
    let across = Exchange::AllReduce.across(cx.attrs).expect("checked by infer");
    let of_all = |dy: Var<'t>, across: Across| dy.all_reduce(Some(across.name()), ranks);
    if across != Across::Max {
        return smallvec![Some(of_all(cx.dy(), across))];
    }
    let has_it = cx.args[0].eq(cx.outs[0]).to(cx.dy().dtype());
    let share = has_it.div(of_all(has_it, Across::Sum));
    smallvec![Some(of_all(cx.dy(), Across::Sum).mul(share))]
}
