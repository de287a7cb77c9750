//! The op table as cases: every op on the samples that it is documented with, in every dtype, and
//! the gradients of those that have some.

use crate::case::Case;
use crate::compare::Agreement;
use crate::level::Level;
use crate::numbers::Numbers;
use tracecast::prelude::*;
use tracecast_ir::op::Body;
use tracecast_ir::ops::sample::{Range, Sample, parse_sample};
use tracecast_ir::ops::{Family, families};
use tracecast_ir::{Graph, IntoDims, OpDef, Tracer};

/// All of them, in the order of the table.
pub(crate) fn all() -> Vec<Case> {
    // Ops that exchange numbers with other ranks are no programs of one device.
    let of_ops = |family: Family| {
        let ops = family.ops.iter().filter(|op| !matches!(op.body, Body::Symbolic(_)));
        ops.flat_map(|op| of_op(op, family.name)).collect::<Vec<_>>()
    };
    families().into_iter().filter(|family| family.name != "collective").flat_map(of_ops).collect()
}

fn of_op(op: &'static OpDef, family: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in op.domain.dtypes {
        for (number, text) in op.domain.samples.iter().enumerate() {
            let Ok(sample) = parse_sample(op, text, dtype) else { continue };
            let place = if number == 0 { String::new() } else { format!(".{}", number + 1) };
            let name = format!("{}.{dtype}{place}", op.name);
            let mut add = |section: &str, level, agreement, backward| {
                let case = Case {
                    agreement,
                    inputs: inputs(&sample),
                    ..Case::new(format!("{section}/{name}"), level)
                };
                let graph = traced(op, &sample, backward);
                cases.extend(graph.map(|graph| Case { text: graph.to_string(), ..case }));
            };
            add("table", level(family, dtype), agreement(family), false);
            if dtype == DType::F32 {
                add("gradients", Level::Everything, Agreement::Sums, true);
            }
        }
    }
    cases
}

/// Ops that move numbers have their bits, and those of one element no sums.
fn agreement(family: &str) -> Agreement {
    match family {
        "source" | "view" | "cat" | "windows" | "index" | "stack" | "padding" | "sorting"
        | "bits" | "neighbour" | "cast" | "barrier" => Agreement::Exact,
        "elementwise" | "functions" | "division" | "power" | "mul_add" | "activation" | "curve"
        | "random" => Agreement::Functions,
        _ => Agreement::Sums,
    }
}

/// The level that first needs an op of a family.
fn level(family: &str, dtype: DType) -> Level {
    match (dtype, family) {
        (DType::F32, "elementwise" | "functions") => Level::Maps,
        (DType::F32, "reduce" | "products" | "softmax" | "activation" | "amp") => Level::Mlp,
        (DType::F32, "view" | "cat" | "attention" | "norm" | "group_norm") => Level::Attention,
        (DType::F32, "batch_norm" | "conv" | "pool" | "statistics") => Level::Attention,
        _ => Level::Everything,
    }
}

/// The op on its sample, or the gradients of the sum of the squares of its first float result.
fn traced(op: &'static OpDef, sample: &Sample, backward: bool) -> Option<Graph> {
    let t = Tracer::new("sample");
    record(&t, op, sample, backward)?;
    // An op without a gradient has no case of its gradient.
    t.finish().ok()
}

fn record(t: &Tracer, op: &'static OpDef, sample: &Sample, backward: bool) -> Option<()> {
    let args = sample.inputs(t);
    let wrt: Vec<_> = args.vars.iter().copied().filter(|v| v.dtype().is_float()).collect();
    let results = t.apply(op, args, sample.attrs.clone());
    if !backward {
        results.iter().enumerate().for_each(|(i, y)| t.output(&format!("y{i}"), *y));
        return Some(());
    }
    let float = results.iter().copied().find(|y| y.dtype().is_float() && y.ty().numel() != 0);
    let y = float.filter(|_| !wrt.is_empty())?;
    let loss = (y * y).sum(().dtype(DType::F32));
    let gradients = t.grad(loss, &wrt).into_iter().enumerate();
    gradients.for_each(|(i, g)| t.output(&format!("g{i}"), g));
    Some(())
}

/// The numbers of operands that lie somewhere.
fn inputs(sample: &Sample) -> Vec<(String, Vec<f64>)> {
    let mut inputs = Vec::new();
    for (i, (ty, range)) in sample.operands.iter().enumerate() {
        if *range != Range::Any {
            let name = format!("x{i}");
            let mut numbers = Numbers::of(&name, 0);
            let count = ty.numel().get();
            inputs.push((name, (0..count).map(|_| numbers.within(*range, ty.dtype)).collect()));
        }
    }
    inputs
}
