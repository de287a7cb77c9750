//! Random maps and rows kernels: any mix of types, classes of instructions, views and sizes.

use super::{Numbers, check, inputs, load, nest, no_loops, store, strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{
    Body, Cmp, Function, Guard, Kernel, Over, Reduction, Scalar, ScalarOp, Sink, Stage, Val,
};
use tracecast_ir::{DType, Size, TensorType};

const SCALARS: [Scalar; 5] = [Scalar::F32, Scalar::F64, Scalar::I32, Scalar::I64, Scalar::Bool];

/// A value of that type, converted if there is none.
fn some(n: &mut Numbers, body: &mut Body, ty: Scalar) -> Val {
    let all: Vec<Val> = (0..body.insts.len() as Val).filter(|v| body.ty(*v) == ty).collect();
    if !all.is_empty() && n.below(5) != 0 {
        return n.one_of(&all);
    }
    if n.below(4) == 0 {
        return body.constant(ty, n.below(9) as f64 - 4.0);
    }
    let any = n.below(body.insts.len()) as Val;
    body.convert(any, ty)
}

fn instruction(n: &mut Numbers, body: &mut Body, rank: usize) {
    // Mostly f32, as in life.
    let ty = if n.below(2) == 0 { Scalar::F32 } else { n.one_of(&SCALARS) };
    let arithmetic =
        [ScalarOp::Add, ScalarOp::Sub, ScalarOp::Mul, ScalarOp::Max, ScalarOp::Min, ScalarOp::Div];
    let (x, y) = (some(n, body, ty), some(n, body, ty));
    match n.below(12) {
        0 => {
            let c = n.one_of(&[Cmp::Eq, Cmp::Ne, Cmp::Lt, Cmp::Le]);
            body.cmp(c, x, y);
        }
        1 => {
            let c = some(n, body, Scalar::Bool);
            body.select(c, x, y);
        }
        2 => {
            let axis = n.below(rank) as u32;
            let at = body.push(ScalarOp::Index(axis), &[], Scalar::I64);
            let other = some(n, body, Scalar::I64);
            let sum = body.binary(ScalarOp::Add, at, other);
            let c = n.one_of(&[Cmp::Eq, Cmp::Lt, Cmp::Le]);
            body.cmp(c, at, sum);
            body.cmp(c, other, at);
        }
        3 => {
            let float = if ty == Scalar::F64 { ty } else { Scalar::F32 };
            let v = some(n, body, float);
            let op = match n.below(5) {
                0 => ScalarOp::Round(DType::F16),
                1 => ScalarOp::Round(DType::BF16),
                2 => ScalarOp::Sqrt,
                3 => ScalarOp::Floor,
                _ => ScalarOp::Call(n.one_of(&Function::ALL)),
            };
            let r = body.unary(op, v);
            let w = some(n, body, float);
            body.push(ScalarOp::MulAdd, &[v, r, w], float);
        }
        4 => {
            let v = some(n, body, Scalar::Bool);
            let w = some(n, body, Scalar::Bool);
            let op = n.one_of(&[ScalarOp::And, ScalarOp::Or]);
            let r = body.binary(op, v, w);
            body.unary(ScalarOp::Not, r);
        }
        5 if ty != Scalar::Bool => {
            let op = n.one_of(&[ScalarOp::Neg, ScalarOp::Abs]);
            body.unary(op, x);
        }
        _ if ty != Scalar::Bool => {
            let op = n.one_of(&arithmetic);
            body.binary(op, x, y);
        }
        _ => {
            body.convert(x, Scalar::F32);
        }
    }
}

/// Strides of a view with those extents, the type it looks at, and the offset.
fn view(n: &mut Numbers, extents: &[usize]) -> (SmallVec<[i64; 4]>, Vec<usize>, i64) {
    let dense = strides(extents);
    let rank = extents.len();
    match n.below(7) {
        0 => {
            let axis = n.below(rank);
            let mut shape = extents.to_vec();
            shape[axis] = 1;
            let mut s = strides(&shape);
            s[axis] = 0;
            (s, shape, 0)
        }
        1 => (smallvec![0; rank], vec![], 0),
        2 => {
            let mut shape = extents.to_vec();
            shape.reverse();
            let mut s = strides(&shape);
            s.reverse();
            (s, shape, 0)
        }
        3 => {
            let mut shape = extents.to_vec();
            shape[rank - 1] *= 2;
            let mut s = strides(&shape);
            s[rank - 1] = 2;
            (s, shape, 1)
        }
        _ => (dense, extents.to_vec(), 0),
    }
}

pub(super) fn random(seed: u64) -> Kernel {
    let mut n = Numbers(seed);
    let rank = 1 + n.below(3);
    let extents: Vec<usize> =
        (0..rank).map(|a| if a == rank - 1 { 1 + n.below(300) } else { 1 + n.below(5) }).collect();
    let mut form = no_loops();
    let (mut ins, mut outs) = (Vec::new(), Vec::new());
    let mut body = Body::default();
    for i in 0..1 + n.below(4) {
        let dtype = if n.below(2) == 0 { DType::F32 } else { n.one_of(&DType::COMPUTABLE) };
        let (s, shape, offset) = view(&mut n, &extents);
        let mut l = load(i, dtype, &s);
        l.access.offset = Size::from(offset);
        if n.below(4) == 0 {
            let axis = n.below(rank);
            let mut along: SmallVec<[i64; 4]> = smallvec![0; rank];
            along[axis] = 1;
            let extent = n.below(extents[axis] + 1) as i64;
            let guard = Guard { offset: -(n.below(3) as i64), strides: along, extent };
            l.access.guards.push(guard.map(&Size::from));
        }
        form.loads.push(l);
        ins.push(TensorType::new(dtype, shape.as_slice()));
        body.push(ScalarOp::Load(i as u32), &[], Scalar::of(dtype).unwrap());
    }
    let stages = 1 + n.below(3);
    for stage in 0..stages {
        for _ in 0..1 + n.below(12) {
            instruction(&mut n, &mut body, rank);
        }
        let mut sinks = Vec::new();
        for _ in 0..1 + n.below(3) {
            let dtype = if n.below(3) == 0 { n.one_of(&DType::COMPUTABLE) } else { DType::F32 };
            let v = some(&mut n, &mut body, Scalar::of(dtype).unwrap());
            let dense = strides(&extents);
            sinks.push(store(outs.len(), dtype, &dense, v));
            outs.push(TensorType::new(dtype, extents.as_slice()));
        }
        let mut next = Body::default();
        if stage + 1 < stages {
            let ty = n.one_of(&[Scalar::F32, Scalar::F32, Scalar::F64, Scalar::I32, Scalar::I64]);
            let value = some(&mut n, &mut body, ty);
            let reduction = n.one_of(&Reduction::ALL);
            let to = reduction.result(ty);
            sinks.push(Sink::Reduce { reduction, value, register: form.registers.len() });
            next.push(ScalarOp::Register(form.registers.len() as u32), &[], to);
            form.registers.push(to);
            let kept = some(&mut n, &mut body, ty);
            sinks.push(Sink::Keep { value: kept, buffer: form.buffers.len() });
            next.push(ScalarOp::Row(form.buffers.len() as u32), &[], ty);
            form.buffers.push(ty);
            next.push(ScalarOp::Load(0), &[], body.ty(0));
            if body.insts[0].op != ScalarOp::Load(0) {
                next.insts.pop();
            }
        }
        if rank > 1 && n.below(3) == 0 {
            let kept: SmallVec<[bool; 4]> =
                (0..rank).map(|a| a == rank - 1 || n.below(2) == 0).collect();
            let shape: Vec<usize> =
                extents.iter().zip(&kept).filter(|(_, k)| **k).map(|(e, _)| *e).collect();
            let dtype = n.one_of(&[DType::F32, DType::BF16, DType::F16]);
            let value = some(&mut n, &mut body, Scalar::F32);
            let reduction = n.one_of(&[Reduction::Sum, Reduction::Max, Reduction::Prod]);
            sinks.push(Sink::Column { reduction, value, output: outs.len(), dtype, kept });
            outs.push(TensorType::new(dtype, shape.as_slice()));
        }
        form.stages.push(Stage {
            over: Over::Row,
            body: std::mem::replace(&mut body, next),
            sinks,
        });
    }
    nest(ins, outs, &extents, form)
}

#[test]
fn random_kernels_agree_with_the_interpreter() {
    for seed in 0..400 {
        let k = random(seed);
        check(&k, &inputs(&k, seed ^ 0xabcd, seed % 2 == 0));
    }
}
