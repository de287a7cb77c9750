//! Single operators: scans, orders and variances of lines, and slices at computed places.

use crate::data::{fill, labels};
use crate::workloads::{WIDE, Workload, kernel, kernel_of};
use tracecast::prelude::*;

/// The workload of that name, if it is one of these.
pub(crate) fn workload(name: &str, options: Options, dtype: DType) -> Option<Workload> {
    let x = || [("x", fill(&WIDE, 1, -1.0, 1.0))];
    Some(match name {
        "cumsum" => kernel(options, dtype, x(), |t| t.input("x").cumsum(1, None)),
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
        "var-rows" => kernel(options, dtype, x(), |t| t.input("x").var(&[1], Some(1.0), false)),
        "var-columns" => kernel(options, dtype, x(), |t| t.input("x").var(&[0], Some(1.0), false)),
        "index-add" => index_add(options, dtype),
        "embedding-bag" => embedding_bag(options, dtype),
        _ => return None,
    })
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
