//! Kernels that reduce along rows and down columns.

use super::{check, inputs, load, nest, no_loops, store, strides};
use smallvec::SmallVec;
use tracecast_ir::kernel::{
    Body, Cmp, Form, Function, GROUP, Kernel, Nest, Over, ROW_CHUNK, Reduction, Scalar, ScalarOp,
    Sink, Stage,
};
use tracecast_ir::{DType, TensorType};

const ROWS: [&[usize]; 11] = [
    &[1],
    &[3, 5],
    &[2, 16],
    &[4, 100],
    &[3, 2, 33],
    &[2, 4096],
    &[2, 4097],
    &[2, 9000],
    // Enough rows to go two at a time.
    &[17, 40],
    &[3, 7, 67],
    // And too much for that.
    &[33, 200],
];

/// Reductions of every row, and each element added to itself.
fn reductions(extents: &[usize], dtype: DType, hows: &[Reduction]) -> Kernel {
    let scalar = Scalar::of(dtype).unwrap();
    let dense = strides(extents);
    let (outer, _) = extents.split_at(extents.len() - 1);
    let mut kept: SmallVec<[i64; 4]> = strides(outer);
    kept.push(0);
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], scalar);
    let mut sinks: Vec<Sink> = hows
        .iter()
        .enumerate()
        .map(|(i, r)| Sink::Reduce { reduction: *r, value: x, register: i })
        .collect();
    let twice = body.binary(ScalarOp::Add, x, x);
    sinks.push(store(hows.len(), dtype, &dense, twice));
    let first = Stage { over: Over::Row, body, sinks };
    let mut body = Body::default();
    let mut sinks = Vec::new();
    let mut outs = Vec::new();
    let mut registers = Vec::new();
    for (i, how) in hows.iter().enumerate() {
        let ty = how.result(scalar);
        let to = how.result_dtype(dtype);
        registers.push(ty);
        let v = body.push(ScalarOp::Register(i as u32), &[], ty);
        sinks.push(store(i, to, &kept, v));
        outs.push(TensorType::new(to, outer));
    }
    outs.push(TensorType::new(dtype, extents));
    let last = Stage { over: Over::Once, body, sinks };
    let form = Nest {
        loads: vec![load(0, dtype, &dense)],
        registers,
        stages: vec![first, last],
        ..no_loops()
    };
    nest(vec![TensorType::new(dtype, extents)], outs, extents, form)
}

#[test]
fn reductions_along_rows() {
    for extents in ROWS.into_iter().chain([&[3usize, 0][..], &[0, 3]]) {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::F16, DType::BF16] {
            let k = reductions(extents, dtype, &Reduction::ALL);
            check(&k, &inputs(&k, 1, false));
            check(&k, &inputs(&k, 2, true));
        }
    }
}

/// What the second pass cannot load is kept for it.
#[test]
fn positions_of_largest_computed_values() {
    for n in [5, 16, 33, 4097] {
        for dtype in [DType::F32, DType::I32, DType::F64, DType::BF16] {
            let hows = [Reduction::ArgMax, Reduction::Sum, Reduction::ArgMin];
            let mut k = reductions(&[3, n], dtype, &hows);
            let Form::Nest(nest) = &mut k.form else { panic!("a nest") };
            let sinks = &mut nest.stages[0].sinks;
            let [.., Sink::Store { value: twice, .. }] = sinks[..] else { panic!("a store") };
            if let Sink::Reduce { value, .. } = &mut sinks[0] {
                *value = twice;
            }
            check(&k, &inputs(&k, 5, false));
            check(&k, &inputs(&k, 6, true));
        }
    }
}

#[test]
fn more_reductions_than_registers_and_rows_of_every_rest() {
    use Reduction::{Max, Min, Sum};
    for n in [7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80, 95, 111, 128] {
        for dtype in [DType::F32, DType::BF16] {
            for hows in [&[Sum][..], &[Sum, Max], &[Sum, Max, Min], &[Min, Max, Sum, Max, Min, Sum]]
            {
                let k = reductions(&[3, n], dtype, hows);
                check(&k, &inputs(&k, 8, false));
                check(&k, &inputs(&k, 9, true));
            }
        }
    }
}

#[test]
fn one_long_row_is_shared_by_threads() {
    for n in [2 * ROW_CHUNK, 2 * ROW_CHUNK + 1, 5 * ROW_CHUNK - 17, (2 * GROUP + 1) * ROW_CHUNK + 5]
    {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::F16, DType::U8] {
            let values = Reduction::ALL.into_iter().filter(|how| !how.is_position());
            let k = reductions(&[n], dtype, &values.collect::<Vec<_>>());
            check(&k, &inputs(&k, 3, false));
            check(&k, &inputs(&k, 4, true));
        }
    }
}

/// A softmax, with its rows kept in a buffer.
fn softmax(extents: &[usize], from: DType, to: DType) -> Kernel {
    let dense = strides(extents);
    let mut first = Body::default();
    let x = first.push(ScalarOp::Load(0), &[], Scalar::F32);
    let sinks = vec![
        Sink::Reduce { reduction: Reduction::Max, value: x, register: 0 },
        Sink::Keep { value: x, buffer: 0 },
    ];
    let first = Stage { over: Over::Row, body: first, sinks };
    let mut second = Body::default();
    let x = second.push(ScalarOp::Row(0), &[], Scalar::F32);
    let max = second.push(ScalarOp::Register(0), &[], Scalar::F32);
    let d = second.binary(ScalarOp::Sub, x, max);
    let e = second.unary(ScalarOp::Call(Function::Exp), d);
    let zero = second.constant(Scalar::F32, 0.25);
    let large = second.cmp(Cmp::Lt, zero, e);
    let sinks = vec![
        Sink::Reduce { reduction: Reduction::Sum, value: e, register: 1 },
        Sink::Keep { value: e, buffer: 0 },
        Sink::Keep { value: large, buffer: 1 },
    ];
    let second = Stage { over: Over::Row, body: second, sinks };
    let mut once = Body::default();
    let sum = once.push(ScalarOp::Register(1), &[], Scalar::F32);
    let one = once.constant(Scalar::F32, 1.0);
    let inverse = once.binary(ScalarOp::Div, one, sum);
    let once = Stage {
        over: Over::Once,
        body: once,
        sinks: vec![Sink::Set { value: inverse, register: 2 }],
    };
    let mut third = Body::default();
    let e = third.push(ScalarOp::Row(0), &[], Scalar::F32);
    let large = third.push(ScalarOp::Row(1), &[], Scalar::Bool);
    let inverse = third.push(ScalarOp::Register(2), &[], Scalar::F32);
    let y = third.binary(ScalarOp::Mul, e, inverse);
    let sinks = vec![store(0, to, &dense, y), store(1, DType::Bool, &dense, large)];
    let third = Stage { over: Over::Row, body: third, sinks };
    let form = Nest {
        loads: vec![load(0, from, &dense)],
        registers: vec![Scalar::F32; 3],
        buffers: vec![Scalar::F32, Scalar::Bool],
        stages: vec![first, second, once, third],
        ..no_loops()
    };
    let ty = |d| TensorType::new(d, extents);
    nest(vec![ty(from)], vec![ty(to), ty(DType::Bool)], extents, form)
}

#[test]
fn stages_with_buffers_and_registers() {
    for extents in ROWS {
        for (from, to) in
            [(DType::F32, DType::F32), (DType::BF16, DType::F16), (DType::F16, DType::BF16)]
        {
            let k = softmax(extents, from, to);
            check(&k, &inputs(&k, 3, false));
            check(&k, &inputs(&k, 4, true));
        }
    }
}

#[test]
fn a_row_is_updated_in_place() {
    let mut k = softmax(&[40, 300], DType::F32, DType::F32);
    k.outputs[0].update = Some(0);
    check(&k, &inputs(&k, 5, false));
}

/// `(x - mean) * w` of each row, where `w` is the same for all; `x` is loaded in three stages.
fn centred(extents: &[usize], dtype: DType) -> Kernel {
    let dense = strides(extents);
    let mut row = strides(extents);
    row.iter_mut().rev().skip(1).for_each(|s| *s = 0);
    let sum_of = |square: bool, register| {
        let mut body = Body::default();
        let x = body.push(ScalarOp::Load(0), &[], Scalar::F32);
        let value = if square { body.binary(ScalarOp::Mul, x, x) } else { x };
        let sinks = vec![Sink::Reduce { reduction: Reduction::Sum, value, register }];
        Stage { over: Over::Row, body, sinks }
    };
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], Scalar::F32);
    let w = body.push(ScalarOp::Load(1), &[], Scalar::F32);
    let sums = [0, 1].map(|r| body.push(ScalarOp::Register(r), &[], Scalar::F32));
    let centred = body.binary(ScalarOp::Sub, x, sums[0]);
    let scaled = body.binary(ScalarOp::Mul, centred, w);
    let y = body.binary(ScalarOp::Add, scaled, sums[1]);
    let last = Stage { over: Over::Row, body, sinks: vec![store(0, dtype, &dense, y)] };
    let form = Nest {
        loads: vec![load(0, dtype, &dense), load(1, dtype, &row)],
        registers: vec![Scalar::F32; 2],
        stages: vec![sum_of(false, 0), sum_of(true, 1), last],
        ..no_loops()
    };
    let all = TensorType::new(dtype, extents);
    let weights = TensorType::new(dtype, &extents[extents.len() - 1..]);
    nest(vec![all.clone(), weights], vec![all], extents, form)
}

#[test]
fn rows_are_widened_once_and_so_is_what_they_share() {
    for extents in
        [&[40][..], &[5, 33], &[20, 33], &[4, 10, 300], &[33, 2048], &[17, 2500], &[20, 5000]]
    {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for update in [None, Some(0)] {
                let mut k = centred(extents, dtype);
                k.outputs[0].update = update;
                check(&k, &inputs(&k, 10, false));
                check(&k, &inputs(&k, 11, true));
            }
        }
    }
}

/// Sums down some axes, with a store and a row reduction beside them if `more`.
fn columns(
    extents: &[usize],
    kept: &[bool],
    reduction: Reduction,
    to: DType,
    more: bool,
) -> Kernel {
    let dense = strides(extents);
    let from = match to {
        DType::F16 | DType::BF16 => DType::F32,
        d => d,
    };
    let scalar = Scalar::of(from).unwrap();
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], scalar);
    let y = body.binary(ScalarOp::Mul, x, x);
    let shape: Vec<usize> =
        extents.iter().zip(kept).filter(|(_, k)| **k).map(|(e, _)| *e).collect();
    let column = |value, output, reduction| Sink::Column {
        reduction,
        value,
        output,
        dtype: to,
        kept: kept.into(),
    };
    let mut sinks = vec![column(y, 0, reduction)];
    let mut outs = vec![TensorType::new(to, shape.as_slice())];
    let mut registers = Vec::new();
    if more {
        sinks.push(column(x, 1, Reduction::Sum));
        sinks.push(store(2, from, &dense, y));
        sinks.push(Sink::Reduce { reduction: Reduction::Sum, value: y, register: 0 });
        outs.push(TensorType::new(to, shape.as_slice()));
        outs.push(TensorType::new(from, extents));
        registers.push(scalar);
    }
    let form = Nest {
        loads: vec![load(0, from, &dense)],
        registers,
        stages: vec![Stage { over: Over::Row, body, sinks }],
        ..no_loops()
    };
    nest(vec![TensorType::new(from, extents)], outs, extents, form)
}

#[test]
fn reductions_down_columns() {
    let shapes: [(&[usize], &[bool]); 12] = [
        (&[1, 7], &[false, true]),
        (&[5, 16], &[false, true]),
        (&[600, 40], &[false, true]),
        (&[256, 3], &[false, true]),
        (&[3, 300, 17], &[false, false, true]),
        (&[3, 300, 17], &[true, false, true]),
        (&[300, 4, 17], &[false, true, true]),
        (&[3, 4, 100, 5], &[false, true, false, true]),
        (&[3, 4, 2, 5], &[true, true, true, true]),
        (&[0, 9], &[false, true]),
        (&[4, 0], &[false, true]),
        (&[2048, 130], &[false, true]),
    ];
    for (extents, kept) in shapes {
        for to in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64] {
            for reduction in Reduction::ALL.into_iter().filter(|how| !how.is_position()) {
                let k = columns(extents, kept, reduction, to, false);
                check(&k, &inputs(&k, 6, reduction == Reduction::Max));
            }
            let k = columns(extents, kept, Reduction::Sum, to, true);
            check(&k, &inputs(&k, 7, false));
        }
    }
}
