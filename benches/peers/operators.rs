//! Single operators: scans, orders and variances of lines, slices at computed places, norms,
//! pooling and interpolation of images.

use crate::data::{fill, labels};
use crate::workloads::{WIDE, Workload, kernel, kernel_of};
use tracecast::prelude::*;

/// The workload of that name, if it is one of these.
pub(crate) fn workload(name: &str, options: Options, dtype: DType) -> Option<Workload> {
    let x = || [("x", fill(&WIDE, 1, -1.0, 1.0))];
    Some(match name {
        "cumsum" => kernel(options, dtype, x(), |t| t.input("x").cumsum(1)),
        "sort" => kernel(options, dtype, x(), |t| {
            let (values, indices) = t.input("x").sort(1, false);
            t.output("indices", indices);
            values
        }),
        "topk" => kernel(options, dtype, x(), |t| {
            let (values, indices) = t.input("x").topk(16, 1, false);
            t.output("indices", indices);
            values
        }),
        "var-rows" => kernel(options, dtype, x(), |t| t.input("x").var(1, 1.0)),
        "var-columns" => kernel(options, dtype, x(), |t| t.input("x").var(0, 1.0)),
        "index-add" => index_add(options, dtype),
        "embedding-bag" => embedding_bag(options, dtype),
        _ => return images(name, options, dtype),
    })
}

/// A norm, a pooling or an interpolation of images, forward, or behind `-backward` with the
/// gradient of its operand.
fn images(name: &str, options: Options, dtype: DType) -> Option<Workload> {
    let forward: fn(Var<'_>) -> Var<'_> = match name.strip_suffix("-backward").unwrap_or(name) {
        "batch-norm" => |x| x.batch_norm(None, None, None, None, true, 1e-5),
        "max-pool-3" => |x| x.max_pool2d([3], [2], [1], [], false),
        "max-pool-2" => |x| x.max_pool2d([2], [], [], [], false),
        "avg-pool-3" => |x| x.avg_pool2d([3], [2], [1], false, true, None),
        "avg-pool-2" => |x| x.avg_pool2d([2], [], [], false, true, None),
        "adaptive-avg" => |x| x.adaptive_avg_pool2d([7]),
        "bilinear" => |x| x.interpolate(&[], &[2.0], "bilinear", None, false, false),
        _ => return None,
    };
    let (batch, size) = match name {
        "batch-norm" | "batch-norm-backward" => (32, 56),
        name if name.starts_with("adaptive") => (16, 7),
        name if name.contains("pool") => (16, 28),
        name if name.starts_with("bilinear") => (16, 112),
        _ => (16, 56),
    };
    let x = fill(&[batch, 64, 56, 56], 1, -1.0, 1.0);
    if !name.ends_with("-backward") {
        return Some(kernel(options, dtype, [("x", x)], move |t| forward(t.input("x"))));
    }
    let dy = fill(&[batch, 64, size, size], 2, -1.0, 1.0);
    Some(kernel(options, dtype, [("x", x), ("dy", dy)], move |t| {
        let x = t.input("x");
        let loss = (forward(x) * t.input("dy")).sum(());
        t.grad(loss, &[x])[0]
    }))
}

/// 65,536 rows of 64 added to 4,096 rows.
fn index_add(options: Options, dtype: DType) -> Workload {
    let floats = [("x", fill(&[4096, 64], 1, -1.0, 1.0)), ("y", fill(&[65_536, 64], 2, -1.0, 1.0))];
    let index = labels(65_536, 4096, 3);
    kernel_of(options, dtype, floats, [("i", index)], |t| {
        t.input("x").index_add(t.input("i"), t.input("y"), 0, None)
    })
}

/// The sums of 4,096 bags of 32 rows out of 100,000 of 64.
fn embedding_bag(options: Options, dtype: DType) -> Workload {
    let floats = [("w", fill(&[100_000, 64], 1, -1.0, 1.0))];
    let index = labels(4096 * 32, 100_000, 2).reshape([4096, 32]).expect("as many indices");
    kernel_of(options, dtype, floats, [("i", index)], |t| {
        t.input("w").embedding_bag(t.input("i"), None, None, Some("sum"), false, None, false)
    })
}
