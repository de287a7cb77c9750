//! Contractions that reduce their results down the columns.

use super::{check, inputs, kernel, load, sizes, store, strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{
    Body, Contract, Factor, Form, Kernel, Over, Reduction, Scalar, ScalarOp, Sink, Stage,
};
use tracecast_ir::{DType, TensorType};

/// A product whose rounded result is stored; its sums down the columns as `kept` says, in f32 and
/// rounded, and the largest result of each column.
fn product(batch: &[usize], [m, n, k]: [usize; 3], dtype: DType, kept: &[bool]) -> Kernel {
    let with = |tail: &[usize]| -> Vec<usize> { batch.iter().chain(tail).copied().collect() };
    let extents = with(&[m, n]);
    let factor = |input: usize, tail: [usize; 2]| {
        let mut body = Body::default();
        let value = body.push(ScalarOp::Load(0), &[], Scalar::F32);
        Factor { loads: vec![load(input, dtype, &strides(&with(&tail)))], body, value, split: None }
    };
    let mut body = Body::default();
    let sum = body.push(ScalarOp::Acc, &[], Scalar::F32);
    let mask = body.push(ScalarOp::Load(0), &[], Scalar::F32);
    let masked = body.binary(ScalarOp::Mul, sum, mask);
    let value = body.as_dtype(masked, dtype);
    let column = |reduction, value, output, dtype| Sink::Column {
        reduction,
        value,
        output,
        dtype,
        kept: SmallVec::from_slice(kept),
    };
    let sinks = vec![
        column(Reduction::Sum, value, 1, DType::F32),
        store(0, dtype, &strides(&extents), value),
        column(Reduction::Max, sum, 2, DType::F32),
        column(Reduction::Sum, masked, 3, dtype),
    ];
    let contract = Contract {
        batch: sizes(batch),
        m: m.into(),
        n: n.into(),
        k: k.into(),
        acc: Scalar::F32,
        a: factor(0, [m, k]),
        b: factor(1, [k, n]),
        loads: vec![load(2, DType::F32, &strides(&extents))],
        epilogue: Stage { over: Over::Row, body, sinks },
    };
    let left: Vec<usize> =
        extents.iter().zip(kept).filter(|(_, kept)| **kept).map(|(n, _)| *n).collect();
    let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
    let ins = vec![ty(dtype, &with(&[m, k])), ty(dtype, &with(&[k, n])), ty(DType::F32, &extents)];
    let outs =
        vec![ty(dtype, &extents), ty(DType::F32, &left), ty(DType::F32, &left), ty(dtype, &left)];
    kernel(ins, outs, Form::Contract(contract))
}

#[test]
fn columns_of_products_are_summed_in_order() {
    let sizes = [
        [1, 1, 1],
        [5, 70, 3],
        [70, 3, 9],
        [256, 33, 7],
        [300, 100, 4],
        [513, 20, 2],
        [40, 200, 600],
        [4, 3, 0],
        [0, 4, 3],
    ];
    for size in sizes {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let k = product(&[], size, dtype, &[false, true]);
            check(&k, &inputs(&k, 5, false));
        }
    }
}

#[test]
fn columns_of_batches_of_products() {
    for (batch, m) in [(2, 256), (3, 100), (2, 512), (300, 2)] {
        for kept in [[false, false, true], [true, false, true], [false, true, true]] {
            let k = product(&[batch], [m, 33, 3], DType::F32, &kept);
            check(&k, &inputs(&k, 6, false));
        }
    }
    let kept: SmallVec<[bool; 4]> = smallvec![true, false, false, true];
    let k = product(&[2, 3], [128, 40, 3], DType::BF16, &kept);
    check(&k, &inputs(&k, 7, true));
    // Columns that are neither the first axes nor the last.
    let k = product(&[2, 3], [90, 40, 3], DType::F32, &[false, true, false, true]);
    check(&k, &inputs(&k, 8, false));
}
