//! Operands that step through memory along the row.

use super::{check, inputs, load, nest, no_loops, store, strides};
use tracecast_ir::kernel::{
    Body, Form, Guard, Kernel, Nest, Over, Reduction, Scalar, ScalarOp, Sink, Stage,
};
use tracecast_ir::{DType, Size, TensorType};

/// Sizes of outer axes and of the row.
const SHAPES: [&[usize]; 9] = [
    &[40],
    &[1, 40],
    &[5, 33],
    &[40, 17],
    &[130, 16],
    &[3, 20, 50],
    &[2, 3, 37, 64],
    &[70, 1500],
    &[9, 4100],
];

/// The strides of the last two axes exchanged in memory.
fn transposed(extents: &[usize]) -> Vec<i64> {
    let mut stored = extents.to_vec();
    let last = stored.len() - 1;
    if last == 0 {
        return vec![1];
    }
    stored.swap(last - 1, last);
    let mut strides = strides(&stored).to_vec();
    strides.swap(last - 1, last);
    strides
}

/// How `x` lies in memory: its strides and offset, and how many elements it has.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Transposed,
    EverySecond,
    Backwards,
}

impl Lie {
    fn of(self, extents: &[usize]) -> (Vec<i64>, i64, usize) {
        let count: usize = extents.iter().product();
        let dense = strides(extents).to_vec();
        match self {
            Lie::Transposed => (transposed(extents), 0, count),
            Lie::EverySecond => (dense.iter().map(|s| 2 * s).collect(), 1, 2 * count),
            Lie::Backwards => (dense.iter().map(|s| -s).collect(), count as i64 - 1, count),
        }
    }
}

/// `x + b`, stored; with `more`, the largest of each row and the sum of each column of it as well.
fn sum(extents: &[usize], lie: Lie, dtype: DType, more: bool) -> Kernel {
    let scalar = Scalar::of(dtype).unwrap();
    let dense = strides(extents);
    let (at, offset, count) = lie.of(extents);
    let mut x = load(0, dtype, &at);
    x.access.offset = Size::from(offset);
    let mut body = Body::default();
    let a = body.push(ScalarOp::Load(0), &[], scalar);
    let b = body.push(ScalarOp::Load(1), &[], scalar);
    let op = if scalar == Scalar::Bool { ScalarOp::Or } else { ScalarOp::Add };
    let value = body.binary(op, a, b);
    let mut sinks = vec![store(0, dtype, &dense, value)];
    let mut outs = vec![TensorType::new(dtype, extents)];
    let mut stages = Vec::new();
    let mut registers = Vec::new();
    if more {
        let (row, outer) = extents.split_last().unwrap();
        let mut kept: smallvec::SmallVec<[bool; 4]> = outer.iter().map(|_| false).collect();
        kept.push(true);
        sinks.push(Sink::Reduce { reduction: Reduction::Max, value, register: 0 });
        let to = scalar.dtype();
        sinks.push(Sink::Column { reduction: Reduction::Sum, value, output: 2, dtype: to, kept });
        let mut per_row = strides(outer);
        per_row.push(0);
        let mut body = Body::default();
        let most = body.push(ScalarOp::Register(0), &[], scalar);
        let sinks = vec![store(1, to, &per_row, most)];
        stages.push(Stage { over: Over::Once, body, sinks });
        registers.push(scalar);
        outs.push(TensorType::new(to, outer));
        outs.push(TensorType::new(to, [*row]));
    }
    stages.insert(0, Stage { over: Over::Row, body, sinks });
    let form = Nest { loads: vec![x, load(1, dtype, &dense)], registers, stages, ..no_loops() };
    let types = vec![TensorType::new(dtype, [count]), TensorType::new(dtype, extents)];
    nest(types, outs, extents, form)
}

#[test]
fn maps_of_operands_in_another_order() {
    use DType::{BF16, Bool, F16, F32, F64, I64, U8};
    for extents in SHAPES {
        for dtype in [F32, F16, BF16, F64, I64, U8, Bool] {
            for lie in [Lie::Transposed, Lie::EverySecond, Lie::Backwards] {
                let k = sum(extents, lie, dtype, false);
                check(&k, &inputs(&k, 1, true));
            }
        }
    }
}

#[test]
fn rows_and_columns_of_operands_in_another_order() {
    for extents in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::F64, DType::I64] {
            for lie in [Lie::Transposed, Lie::EverySecond, Lie::Backwards] {
                let k = sum(extents, lie, dtype, true);
                check(&k, &inputs(&k, 2, false));
            }
        }
    }
}

#[test]
fn an_operand_that_is_replaced_is_read_where_it_is() {
    let extents = [40, 40];
    let mut k = sum(&extents, Lie::Transposed, DType::F32, false);
    k.outputs[0].update = Some(1);
    check(&k, &inputs(&k, 3, false));
}

/// `b + x[s r + 0] + x[s r + 1] + …` of the row's position `r`: loads at these places of each
/// window of `s` elements.
fn windows(extents: &[usize], dtype: DType, size: usize, at: &[i64]) -> Kernel {
    let dense = strides(extents);
    let apart: Vec<i64> = dense.iter().map(|stride| size as i64 * stride).collect();
    let mut loads = vec![load(1, dtype, &dense)];
    let mut body = Body::default();
    let scalar = Scalar::of(dtype).unwrap();
    let mut value = body.push(ScalarOp::Load(0), &[], scalar);
    for offset in at {
        let mut x = load(0, dtype, &apart);
        x.access.offset = Size::from(*offset);
        let one = body.push(ScalarOp::Load(loads.len() as u32), &[], scalar);
        loads.push(x);
        value = body.binary(ScalarOp::Add, value, one);
    }
    let sinks = vec![store(0, dtype, &dense, value)];
    let form = Nest { loads, stages: vec![Stage { over: Over::Row, body, sinks }], ..no_loops() };
    let count = size * extents.iter().product::<usize>();
    let types = vec![TensorType::new(dtype, [count]), TensorType::new(dtype, extents)];
    nest(types, vec![TensorType::new(dtype, extents)], extents, form)
}

#[test]
fn loads_that_lie_side_by_side() {
    let whole: Vec<i64> = (0..11).collect();
    let shapes: [(usize, &[i64]); 7] = [
        (2, &[0, 1]),
        (3, &[0, 1, 2]),
        (8, &whole[..8]),
        (11, &whole),
        (4, &[0, 1, 3]),
        (4, &[2, 1, 0]),
        (9, &[4, 5, 4, 6, 0]),
    ];
    for extents in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64, DType::U8] {
            for (size, at) in shapes {
                let k = windows(extents, dtype, size, at);
                check(&k, &inputs(&k, 5, true));
            }
        }
    }
}

/// `x + b`, where `x` is read from two positions behind on, or `step` apart, and has the fill where
/// that leaves its row, or its first outer row.
fn seen_from_afar(extents: &[usize], step: i64, dtype: DType, fill: u64) -> Kernel {
    let mut k = sum(extents, Lie::Transposed, dtype, false);
    let Form::Nest(nest) = &mut k.form else { unreachable!("a nest was made") };
    let row = extents.len() - 1;
    let mut along = vec![0; extents.len()];
    along[row] = step;
    let sizes = |list: &[i64]| list.iter().map(|n| Size::from(*n)).collect();
    let mut x = load(0, dtype, &strides(extents));
    x.access.strides[row] = Size::from(step);
    x.access.offset = Size::from(-2);
    let end = (extents[row] - 3) as i64;
    x.access.guards.push(Guard {
        offset: Size::from(-2),
        strides: sizes(&along),
        extent: end.into(),
    });
    if row > 0 {
        let mut outer = vec![0; extents.len()];
        outer[0] = 1;
        let extent = Size::from(extents[0] as i64 - 1);
        x.access.guards.push(Guard { offset: Size::from(0), strides: sizes(&outer), extent });
    }
    x.access.fill = fill;
    nest.loads[0] = x;
    k
}

#[test]
fn operands_that_are_not_there_at_the_ends_of_rows() {
    use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
    let ones = [(F32, 1f32.to_bits().into()), (F64, 1f64.to_bits()), (I32, 7), (I64, u64::MAX)];
    let zeros = [F32, F16, BF16, F64, I64, U8, Bool].map(|dtype| (dtype, 0));
    for extents in SHAPES {
        for (dtype, fill) in ones.into_iter().chain(zeros) {
            for step in [1, 2, 3] {
                let k = seen_from_afar(extents, step, dtype, fill);
                check(&k, &inputs(&k, 4, true));
            }
        }
    }
}
