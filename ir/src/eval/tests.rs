//! Kernels by hand, and graphs from the tracer.

use super::{EvalError, Value, graph, kernel};
use crate::kernel::{
    Access, Body, Check, Cmp, Combiner, Form, Guard, Kernel, Load, Nest, Output, Over, Reduction,
    Scalar, ScalarOp, Scatter, Segment, Sink, Stage,
};
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::reduce::Reductions;
use crate::{DType, Size, TensorType, Tracer};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;

fn ty(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn value(shape: &[usize], v: &[f64]) -> Value {
    Value::from_f64s(ty(shape), v).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn load(input: usize, strides: &[i64]) -> Load {
    Load {
        input,
        dtype: DType::F32,
        access: Access { strides: SmallVec::from_slice(strides), ..Access::default() }
            .map(&Size::from),
    }
}

fn store(output: usize, strides: &[i64], value: u32) -> Sink {
    Sink::Store { output, dtype: DType::F32, access: load(0, strides).access, value }
}

fn nest(inputs: &[&[usize]], outputs: &[&[usize]], nest: Nest) -> Kernel {
    Kernel {
        name: "test".to_owned(),
        inputs: inputs.iter().map(|s| ty(s)).collect(),
        outputs: outputs.iter().map(|s| Output { ty: ty(s), update: None }).collect(),
        when: None,
        checks: vec![Check {
            message: "too small".to_owned(),
            op: "test".to_owned(),
            source: "here".to_owned(),
            range: None,
        }],
        arguments: vec![],
        names: vec![],
        form: Form::Nest(nest),
    }
}

fn one(extents: &[usize], inputs: usize, outputs: usize) -> Vec<Segment> {
    vec![Segment {
        extents: extents.iter().map(|n| Size::from(*n)).collect(),
        inputs: (0..inputs).collect(),
        outputs: (0..outputs).collect(),
    }]
}

/// Subtracts the row's maximum, and sums the columns of the result.
#[test]
fn stages_registers_buffers_and_columns() {
    let mut first = Body::default();
    let x = first.push(ScalarOp::Load(0), &[], Scalar::F32);
    let mut second = Body::default();
    let row = second.push(ScalarOp::Row(0), &[], Scalar::F32);
    let max = second.push(ScalarOp::Register(0), &[], Scalar::F32);
    let y = second.binary(ScalarOp::Sub, row, max);
    let column = Sink::Column {
        reduction: Reduction::Sum,
        value: y,
        output: 1,
        dtype: DType::F32,
        kept: smallvec![false, true],
    };
    let k = nest(
        &[&[2, 3]],
        &[&[2, 3], &[3]],
        Nest {
            segments: one(&[2, 3], 1, 2),
            loads: vec![load(0, &[3, 1])],
            registers: vec![Scalar::F32],
            buffers: vec![Scalar::F32],
            stages: vec![
                Stage {
                    over: Over::Row,
                    body: first,
                    sinks: vec![
                        Sink::Reduce { reduction: Reduction::Max, value: x, register: 0 },
                        Sink::Keep { value: x, buffer: 0 },
                    ],
                },
                Stage { over: Over::Row, body: second, sinks: vec![store(0, &[3, 1], y), column] },
            ],
        },
    );
    let out = kernel(&k, &[&value(&[2, 3], &[1.0, 2.0, 3.0, 6.0, 5.0, 4.0]).bytes]).unwrap();
    assert_eq!(floats(&out[0]), [-2.0, -1.0, 0.0, 0.0, -1.0, -2.0]);
    assert_eq!(floats(&out[1]), [-2.0, -2.0, -2.0]);
}

#[test]
fn guards_flags_and_checks() {
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], Scalar::F32);
    let zero = body.constant(Scalar::F32, 0.0);
    let fine = body.cmp(Cmp::Le, zero, x);
    body.push(ScalarOp::Check(0), &[fine], Scalar::Bool);
    let mut guarded = load(0, &[1]);
    guarded.access.offset = Size::from(-1);
    guarded.access.guards =
        smallvec![Guard { offset: -1, strides: smallvec![1], extent: 2 }.map(&Size::from)];
    guarded.access.fill = u64::from(7f32.to_bits());
    let mut k = nest(
        &[&[2], &[]],
        &[&[4]],
        Nest {
            segments: one(&[4], 1, 1),
            loads: vec![guarded],
            registers: vec![],
            buffers: vec![],
            stages: vec![Stage { over: Over::Row, body, sinks: vec![store(0, &[1], x)] }],
        },
    );
    let run = |k: &Kernel, x: &[f64], flag: f64| {
        kernel(k, &[&value(&[2], x).bytes, &value(&[], &[flag]).bytes])
    };
    assert_eq!(floats(&run(&k, &[1.0, 2.0], 0.0).unwrap()[0]), [7.0, 1.0, 2.0, 7.0]);
    let Err(EvalError::Data(raised)) = run(&k, &[1.0, -2.0], 0.0) else {
        panic!("expected a data error")
    };
    assert_eq!((raised.number, raised.check.op.as_str()), (0, "test"));
    k.inputs[0] = ty(&[4]);
    (k.when, k.outputs[0].update) = (Some(1), Some(0));
    let old = value(&[4], &[-1.0, -2.0, -3.0, -4.0]);
    let kept = kernel(&k, &[&old.bytes, &value(&[], &[f64::NAN]).bytes]).unwrap();
    assert_eq!(floats(&kept[0]), [-1.0, -2.0, -3.0, -4.0]);
}

#[test]
fn a_scatter_adds_in_order_and_rounds_once() {
    let mut body = Body::default();
    let at = body.push(ScalarOp::Load(1), &[], Scalar::I64);
    let x = body.push(ScalarOp::Load(0), &[], Scalar::F32);
    let half = TensorType::new(DType::F16, [2]);
    let scatter = Scatter {
        extents: vec![3.into()],
        loads: vec![
            load(0, &[1]),
            Load { input: 1, dtype: DType::I64, access: load(0, &[1]).access },
        ],
        body,
        value: x,
        combiner: Combiner::Add,
        place: Access { strides: smallvec![0], indirect: smallvec![1], ..Access::default() }
            .map(&Size::from),
        index: smallvec![at],
        base: None,
    };
    let index = TensorType::new(DType::I64, [3]);
    let k = Kernel {
        name: "scatter".to_owned(),
        inputs: vec![ty(&[3]), index.clone()],
        outputs: vec![Output { ty: half.clone(), update: None }],
        when: None,
        checks: vec![],
        arguments: vec![],
        names: vec![],
        form: Form::Scatter(scatter),
    };
    let place = Value::from_f64s(index.clone(), &[1.0, 1.0, 1.0]).unwrap();
    let out = kernel(&k, &[&value(&[3], &[2048.0, 1.0, 1.0]).bytes, &place.bytes]).unwrap();
    assert_eq!(Value::new(half, out[0].clone()).unwrap().to_f64s(), [0.0, 2050.0]);
    let outside = Value::from_f64s(index, &[1.0, 2.0, 1.0]).unwrap();
    assert!(matches!(
        kernel(&k, &[&value(&[3], &[0.0; 3]).bytes, &outside.bytes]),
        Err(EvalError::Malformed(_))
    ));
}

#[test]
fn a_graph_is_evaluated_node_by_node() {
    let t = Tracer::new("g");
    let x = t.input("x", TensorType::new(DType::BF16, [2, 3]));
    let s = t.state("s", ty(&[]));
    let mean = x.mean(1);
    t.output("mean", mean);
    t.output("sum", x.add(mean.reshape_to(&[2, 1].into())));
    t.update(s, s.add(1.0));
    let g = t.finish().unwrap();
    let mut inputs = HashMap::new();
    inputs
        .insert("x".to_owned(), Value::from_f64s(x_ty(), &[1.0, 2.0, 3.0, 0.0, 0.0, 1.0]).unwrap());
    assert!(matches!(graph(&g, &inputs), Err(EvalError::Port(_))));
    inputs.insert("s".to_owned(), value(&[], &[41.0]));
    let out = graph(&g, &inputs).unwrap();
    // A third, rounded once to bf16.
    assert_eq!(out.get("mean").unwrap().to_f64s(), [2.0, 0.333_984_375]);
    assert_eq!(out.get("sum").unwrap().to_f64s()[..3], [3.0, 4.0, 5.0]);
    assert_eq!(out.update("s").unwrap().to_f64s(), [42.0]);
}

fn x_ty() -> TensorType {
    TensorType::new(DType::BF16, [2, 3])
}

#[test]
fn empty_tensors_and_symbols() {
    let t = Tracer::new("g");
    let x = t.input("x", ty(&[0, 3]));
    t.output("rows", x.sum(1));
    t.output("columns", x.sum(0));
    t.output("cast", x.cast(DType::F16));
    let inputs = HashMap::from([("x".to_owned(), value(&[0, 3], &[]))]);
    let out = graph(&t.finish().unwrap(), &inputs).unwrap();
    assert!(out.get("rows").unwrap().bytes.is_empty());
    assert_eq!(out.get("columns").unwrap().to_f64s(), [0.0; 3]);
    let t = Tracer::new("g");
    let x = t.input("x", ty(&[]));
    t.output("dx", t.grad(x, &[x])[0]);
    let inputs = HashMap::from([("x".to_owned(), value(&[], &[1.0]))]);
    assert!(graph(&t.finish().unwrap(), &inputs).unwrap_err().to_string().contains("autodiff"));
}
