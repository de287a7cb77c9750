//! Random straight-line code with many values alive at a time, in vectors of every kind, and the
//! machine code of it all.

use super::random::random;
use super::{Numbers, check, inputs, load, map, nest, no_loops, store, strides};
use crate::code::cache::functions;
use crate::machine::Vectors;
use crate::target::target;
use crate::x86;
use tracecast_ir::kernel::{
    Body, Cmp, Code, Function, Kernel, Over, Reduction, Scalar, ScalarOp, Sink, Stage, Val,
};
use tracecast_ir::{DType, TensorType};

/// The types of a body: lanes of vectors are all of one size.
#[derive(Clone, Copy)]
struct Types {
    float: Scalar,
    int: Scalar,
    dtypes: &'static [DType],
}

const NARROW: Types = Types {
    float: Scalar::F32,
    int: Scalar::I32,
    dtypes: &[DType::F32, DType::BF16, DType::F16, DType::I32, DType::U8, DType::Bool],
};

const WIDE: Types = Types {
    float: Scalar::F64,
    int: Scalar::I64,
    dtypes: &[DType::F64, DType::I64, DType::F64, DType::I64, DType::Bool],
};

/// A value of that type, old or new.
fn some(n: &mut Numbers, body: &mut Body, ty: Scalar) -> Val {
    let all: Vec<Val> = (0..body.insts.len() as Val).filter(|v| body.ty(*v) == ty).collect();
    match n.below(8) {
        0 => body.constant(ty, n.below(9) as f64 - 4.0),
        1 => {
            let any = n.below(body.insts.len()) as Val;
            body.convert(any, ty)
        }
        _ if all.is_empty() => body.constant(ty, 3.0),
        _ => n.one_of(&all),
    }
}

fn instruction(n: &mut Numbers, body: &mut Body, Types { float, int, .. }: Types) {
    let ty = n.one_of(&[float, float, float, int, Scalar::Bool]);
    let (x, y) = (some(n, body, ty), some(n, body, ty));
    match (n.below(10), ty) {
        (0, _) => {
            let c = n.one_of(&[Cmp::Eq, Cmp::Ne, Cmp::Lt, Cmp::Le]);
            body.cmp(c, x, y);
        }
        (1, _) => {
            let c = some(n, body, Scalar::Bool);
            body.select(c, x, y);
        }
        (2, Scalar::F32) => {
            // The others are phases of their own.
            let functions = Function::ALL.into_iter().filter(|f| f.code() == Code::StraightLine);
            let function = n.one_of(&functions.collect::<Vec<_>>());
            let op = n.one_of(&[
                ScalarOp::Round(DType::F16),
                ScalarOp::Round(DType::BF16),
                ScalarOp::Sqrt,
                ScalarOp::Floor,
                ScalarOp::Call(function),
            ]);
            body.unary(op, x);
        }
        (2, Scalar::F64) => {
            let op = n.one_of(&[ScalarOp::Sqrt, ScalarOp::Floor]);
            body.unary(op, x);
        }
        (3, Scalar::F32 | Scalar::I32 | Scalar::F64 | Scalar::I64) => {
            let op = n.one_of(&[ScalarOp::Neg, ScalarOp::Abs]);
            body.unary(op, x);
        }
        (_, Scalar::Bool) => {
            let op = n.one_of(&[ScalarOp::And, ScalarOp::Or, ScalarOp::Max, ScalarOp::Min]);
            let r = body.binary(op, x, y);
            body.unary(ScalarOp::Not, r);
        }
        (4, Scalar::F32 | Scalar::F64) => {
            body.binary(ScalarOp::Div, x, y);
        }
        (5, Scalar::F64) => {
            body.push(ScalarOp::MulAdd, &[x, y, x], ty);
        }
        _ => {
            let op = n.one_of(&[
                ScalarOp::Add,
                ScalarOp::Sub,
                ScalarOp::Mul,
                ScalarOp::Max,
                ScalarOp::Min,
            ]);
            body.binary(op, x, y);
        }
    }
}

/// A kernel of up to 120 instructions over up to nine operands, with as many results, and a
/// reduction of each kind.
fn wide_body(seed: u64, types: Types) -> Kernel {
    let mut n = Numbers(seed);
    let width = n.one_of(&[1, 7, 15, 16, 17, 31, 48, 100, 133]);
    let extents = [n.one_of(&[1, 2, 3, 17]), width];
    let dense = strides(&extents);
    let mut form = no_loops();
    let (mut ins, mut outs) = (Vec::new(), Vec::new());
    let mut body = Body::default();
    for i in 0..1 + n.below(9) {
        let dtype = n.one_of(types.dtypes);
        form.loads.push(load(i, dtype, &dense));
        ins.push(TensorType::new(dtype, extents));
        body.push(ScalarOp::Load(i as u32), &[], Scalar::of(dtype).unwrap());
    }
    for _ in 0..10 + n.below(110) {
        instruction(&mut n, &mut body, types);
    }
    let mut sinks = Vec::new();
    let mut rest = Stage { over: Over::Once, body: Body::default(), sinks: Vec::new() };
    for _ in 0..n.below(5) {
        let ty = n.one_of(&[types.float, types.int]);
        let reduction = n.one_of(&[Reduction::Sum, Reduction::Max, Reduction::Min]);
        let register = form.registers.len();
        let value = some(&mut n, &mut body, ty);
        sinks.push(Sink::Reduce { reduction, value, register });
        form.registers.push(ty);
        let result = rest.body.push(ScalarOp::Register(register as u32), &[], ty);
        let of = |d: &&DType| Scalar::of(**d) == Some(ty);
        let dtype = *types.dtypes.iter().find(of).unwrap();
        rest.sinks.push(store(outs.len(), dtype, &[1, 0], result));
        outs.push(TensorType::new(dtype, [extents[0]]));
    }
    for _ in 0..1 + n.below(9) {
        let dtype = n.one_of(types.dtypes);
        let value = some(&mut n, &mut body, Scalar::of(dtype).unwrap());
        sinks.push(store(outs.len(), dtype, &dense, value));
        outs.push(TensorType::new(dtype, extents));
    }
    form.stages.push(Stage { over: Over::Row, body, sinks });
    if !rest.sinks.is_empty() {
        form.stages.push(rest);
    }
    nest(ins, outs, &extents, form)
}

#[test]
fn random_bodies_agree_with_the_interpreter() {
    for seed in 0..300 {
        let k = wide_body(seed, if seed % 3 == 1 { WIDE } else { NARROW });
        check(&k, &inputs(&k, seed ^ 0x77, seed % 3 == 0));
    }
}

/// Every bf16, and f32 of all kinds, NaNs with any bits among them, rounded and stored.
#[test]
fn rounding_takes_every_number() {
    let n = 1 << 16;
    for dtype in [DType::BF16, DType::F32] {
        let to = [DType::BF16, DType::F16, DType::F32, DType::BF16, DType::F32];
        let k = map(&[n], &[dtype], &to, |b, x| {
            let minus = b.unary(ScalarOp::Neg, x[0]);
            let product = b.binary(ScalarOp::Mul, x[0], minus);
            let near = b.unary(ScalarOp::Round(DType::BF16), product);
            let half = b.unary(ScalarOp::Round(DType::F16), minus);
            let again = b.unary(ScalarOp::Round(DType::BF16), half);
            vec![minus, minus, near, product, again]
        });
        let bits = |i: u32| match dtype {
            DType::BF16 => (i as u16).to_le_bytes().to_vec(),
            _ => (i << 16 | i).to_le_bytes().to_vec(),
        };
        check(&k, &[(0..n as u32).flat_map(bits).collect()]);
    }
}

#[test]
fn machine_code_is_made_of_instructions() {
    let target = target(Vectors::Native).unwrap();
    let Some(width) = target.vector_width else { return };
    let mut count = 0;
    for seed in 0..200 {
        for kernel in [random(seed), wide_body(seed, NARROW), wide_body(seed, WIDE)] {
            for function in functions(&target, &kernel).unwrap() {
                for wide in &function.loops {
                    x86::tests::is_sound(width, &wide.bytes, wide.instructions);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 300, "{count} loops");
}
