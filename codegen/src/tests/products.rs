//! Contractions and scatters.

use super::{check, inputs, kernel, load, sizes, store, strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{
    Access, Body, Cmp, Combiner, Contract, Factor, Form, Function, Kernel, Load, Over, Scalar,
    ScalarOp, Scatter, Sink, Stage,
};
use tracecast_ir::{DType, Size, TensorType};

#[derive(Clone, Copy)]
pub(super) enum Left {
    Plain,
    Transposed,
    Rounded,
    Computed,
}

fn scalar_of(dtype: DType) -> Scalar {
    Scalar::of(dtype).unwrap()
}

fn factor(load: Load, how: Left) -> Factor {
    let scalar = scalar_of(load.dtype);
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], scalar);
    let value = match how {
        Left::Plain | Left::Transposed => x,
        Left::Rounded => body.unary(ScalarOp::Round(DType::BF16), x),
        Left::Computed => {
            let y = body.unary(ScalarOp::Call(Function::Tanh), x);
            let i =
                body.push(ScalarOp::Index(load.access.strides.len() as u32 - 2), &[], Scalar::I64);
            let i = body.convert(i, scalar);
            body.binary(ScalarOp::Add, y, i)
        }
    };
    Factor { loads: vec![load], body, value, split: None }
}

/// A product with an epilogue of a bias and an activation, also stored in another dtype; the
/// largest magnitude, and whether one is not finite.
pub(super) fn product(batch: &[usize], [m, n, k]: [usize; 3], dtype: DType, how: Left) -> Kernel {
    let acc = if dtype == DType::F64 { Scalar::F64 } else { Scalar::F32 };
    let with = |tail: &[usize]| -> Vec<usize> { batch.iter().chain(tail).copied().collect() };
    let (mut a, b) = (strides(&with(&[m, k])), strides(&with(&[k, n])));
    let axes = batch.len();
    if let Left::Transposed = how {
        (a[axes], a[axes + 1]) = (1, m as i64);
    }
    let c = strides(&with(&[m, n]));
    let mut bias: SmallVec<[i64; 4]> = smallvec![0; axes + 2];
    bias[axes + 1] = 1;
    let mut body = Body::default();
    let sum = body.push(ScalarOp::Acc, &[], acc);
    let x = body.push(ScalarOp::Load(0), &[], acc);
    let y = body.binary(ScalarOp::Add, sum, x);
    let zero = body.constant(acc, 0.0);
    let z = body.binary(ScalarOp::Max, y, zero);
    let wide = if acc == Scalar::F64 { DType::F64 } else { DType::F32 };
    let size = body.unary(ScalarOp::Abs, y);
    let inf = body.constant(acc, f64::INFINITY);
    let finite = body.cmp(Cmp::Lt, size, inf);
    let not = body.unary(ScalarOp::Not, finite);
    let flag = body.convert(not, acc);
    let sinks = vec![
        store(0, wide, &c, sum),
        Sink::Largest { value: size, output: 2 },
        store(1, dtype, &c, z),
        Sink::Largest { value: flag, output: 3 },
    ];
    let contract = Contract {
        batch: sizes(batch),
        m: m.into(),
        n: n.into(),
        k: k.into(),
        acc,
        a: factor(load(0, dtype, &a), how),
        b: factor(
            load(1, dtype, &b),
            if matches!(how, Left::Computed) { Left::Rounded } else { Left::Plain },
        ),
        loads: vec![load(2, dtype, &bias)],
        epilogue: Stage { over: Over::Row, body, sinks },
    };
    let ins = vec![
        TensorType::new(dtype, with(&[m, k]).as_slice()),
        TensorType::new(dtype, with(&[k, n]).as_slice()),
        TensorType::new(dtype, [n]),
    ];
    let outs = vec![
        TensorType::new(wide, with(&[m, n]).as_slice()),
        TensorType::new(dtype, with(&[m, n]).as_slice()),
        TensorType::scalar(wide),
        TensorType::scalar(wide),
    ];
    kernel(ins, outs, Form::Contract(contract))
}

#[test]
fn contractions_of_every_kind() {
    let sizes = [
        [1, 1, 1],
        [3, 5, 7],
        [6, 16, 32],
        [17, 33, 19],
        [40, 10, 600],
        [1, 70, 40],
        [70, 1, 40],
        [5, 4, 0],
        [0, 4, 3],
    ];
    for size in sizes {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            for how in [Left::Plain, Left::Transposed, Left::Rounded, Left::Computed] {
                for batch in [&[][..], &[2], &[2, 3]] {
                    let k = product(batch, size, dtype, how);
                    check(&k, &inputs(&k, 1, false));
                }
            }
        }
    }
}

#[test]
fn large_contractions_are_split() {
    for size in [[130, 200, 300], [200, 130, 64]] {
        for how in [Left::Plain, Left::Computed] {
            let k = product(&[], size, DType::F32, how);
            check(&k, &inputs(&k, 2, false));
            check(&k, &inputs(&k, 3, true));
        }
    }
}

/// Sources of shape [r, n] combined with rows of a table by index; or, if `varying`, single
/// elements.
fn scatter(
    [r, n, rows]: [usize; 3],
    dtype: DType,
    combiner: Combiner,
    varying: bool,
    base: bool,
) -> Kernel {
    let mut body = Body::default();
    let index = body.push(ScalarOp::Load(1), &[], Scalar::I64);
    let zero = body.constant(Scalar::I64, 0.0);
    let count = body.constant(Scalar::I64, rows as f64);
    let low = body.cmp(Cmp::Le, zero, index);
    let high = body.cmp(Cmp::Lt, index, count);
    let fine = body.binary(ScalarOp::And, low, high);
    body.push(ScalarOp::Check(0), &[fine], Scalar::Bool);
    let x = body.push(ScalarOp::Load(0), &[], scalar_of(dtype));
    let twice = if dtype == DType::Bool { ScalarOp::And } else { ScalarOp::Add };
    let y = body.binary(twice, x, x);
    let place =
        Access { strides: smallvec![0, 1], indirect: smallvec![n as i64], ..Access::default() }
            .map(&Size::from);
    let form = Scatter {
        extents: sizes(&[r, n]),
        loads: vec![load(0, dtype, &[n as i64, 1]), load(1, DType::I64, &[1, i64::from(varying)])],
        body,
        value: y,
        combiner,
        place,
        index: smallvec![index],
        base: base.then_some(2),
    };
    let table = TensorType::new(dtype, [rows, n]);
    let indices = TensorType::new(DType::I64, [if varying { r + n } else { r }]);
    let mut ins = vec![TensorType::new(dtype, [r, n]), indices];
    if base {
        ins.push(table.clone());
    }
    kernel(ins, vec![table], Form::Scatter(form))
}

#[test]
fn scatters_of_every_kind() {
    for (i, dtype) in DType::COMPUTABLE.into_iter().enumerate() {
        for (j, size) in
            [[1, 1, 1], [9, 7, 4], [50, 32, 5], [300, 130, 11], [0, 3, 2]].into_iter().enumerate()
        {
            for (k, (varying, base)) in
                [(false, false), (false, true), (true, true)].into_iter().enumerate()
            {
                // Sums of every dtype, and of the others one after the other.
                let other = Combiner::ALL[(i + j + k) % Combiner::ALL.len()];
                for combiner in [Combiner::Add, other] {
                    combine(scatter(size, dtype, combiner, varying, base), size);
                }
            }
        }
    }
}

/// Compares a scatter with the interpreter: in place too, and with an index out of range.
fn combine(mut k: Kernel, size: [usize; 3]) {
    let base = k.inputs.len() == 3;
    let mut ins = inputs(&k, 3, false);
    for (i, at) in ins[1].chunks_mut(8).enumerate() {
        at.copy_from_slice(&((i * 7 % size[2]) as i64).to_le_bytes());
    }
    check(&k, &ins);
    if base {
        k.outputs[0].update = Some(2);
        check(&k, &ins);
    }
    if let Some(last) = ins[1].len().checked_sub(8).filter(|_| size[0] > 0) {
        ins[1][last..].copy_from_slice(&i64::MAX.to_le_bytes());
        check(&k, &ins);
    }
}

#[test]
fn a_scatter_may_overlap_itself() {
    // Windows of 4 with a step of 2, added up where they overlap.
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], Scalar::F32);
    let form = Scatter {
        extents: sizes(&[9, 4]),
        loads: vec![load(0, DType::F32, &[4, 1])],
        body,
        value: x,
        combiner: Combiner::Add,
        place: Access { strides: smallvec![2, 1], ..Access::default() }.map(&Size::from),
        index: SmallVec::new(),
        base: None,
    };
    let k = kernel(
        vec![TensorType::new(DType::F32, [9, 4])],
        vec![TensorType::new(DType::F32, [20])],
        Form::Scatter(form),
    );
    check(&k, &inputs(&k, 4, false));
}
