//! Temporary.
#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use tracecast_ir::kernel::*;
use tracecast_ir::{DType, TensorType};
use tracecast_codegen::*;
use tracecast_runtime::Device;
use std::time::Instant;
fn empty() -> Nest { Nest { segments: Vec::new(), loads: Vec::new(), registers: Vec::new(), buffers: Vec::new(), stages: Vec::new() } }
fn map(extents: &[usize], from: &[DType], to: &[DType], make: impl Fn(&mut Body, &[Val]) -> Vec<Val>) -> Kernel {
    let mut body = Body::default();
    let dense = strides(extents);
    let mut form = empty();
    let mut values = Vec::new();
    for (i, dtype) in from.iter().enumerate() {
        form.loads.push(load(i, *dtype, &dense));
        values.push(body.push(ScalarOp::Load(i as u32), &[], Scalar::of(*dtype).unwrap()));
    }
    let results = make(&mut body, &values);
    let sinks = results.iter().zip(to).enumerate().map(|(i, (v, dtype))| store(i, *dtype, &dense, *v)).collect();
    form.stages.push(Stage { over: Over::Row, body, sinks });
    let ty = |d: &DType| TensorType::new(*d, extents);
    nest(from.iter().map(ty).collect(), to.iter().map(ty).collect(), extents, form)
}
fn axpb(n: usize, d: DType) -> Kernel { map(&[n], &[d], &[d], |b, x| { let a = b.constant(Scalar::F32, 1.5); let c = b.constant(Scalar::F32, 0.5); let y = b.binary(ScalarOp::Mul, x[0], a); vec![b.binary(ScalarOp::Add, y, c)] }) }
fn gelu(n: usize, d: DType) -> Kernel { map(&[n], &[d], &[d], |b, x| {
    let c = b.constant(Scalar::F32, 0.044715); let k = b.constant(Scalar::F32, 0.7978845608); let h = b.constant(Scalar::F32, 0.5); let one = b.constant(Scalar::F32, 1.0);
    let x2 = b.binary(ScalarOp::Mul, x[0], x[0]); let x3 = b.binary(ScalarOp::Mul, x2, x[0]); let t = b.binary(ScalarOp::Mul, x3, c); let t = b.binary(ScalarOp::Add, x[0], t); let t = b.binary(ScalarOp::Mul, t, k);
    let t = b.unary(ScalarOp::Call(Function::Tanh), t); let t = b.binary(ScalarOp::Add, t, one); let y = b.binary(ScalarOp::Mul, x[0], h); vec![b.binary(ScalarOp::Mul, y, t)] }) }
fn bias(m: usize, n: usize) -> Kernel {
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], Scalar::F32); let y = body.push(ScalarOp::Load(1), &[], Scalar::F32); let z = body.binary(ScalarOp::Add, x, y);
    let zero = body.constant(Scalar::F32, 0.0); let z = body.binary(ScalarOp::Max, z, zero);
    let s = [n as i64, 1];
    let form = Nest { loads: vec![load(0, DType::F32, &s), load(1, DType::F32, &[0, 1])], stages: vec![Stage { over: Over::Row, body, sinks: vec![store(0, DType::F32, &s, z)] }], ..empty() };
    nest(vec![TensorType::new(DType::F32, [m, n]), TensorType::new(DType::F32, [n])], vec![TensorType::new(DType::F32, [m, n])], &[m, n], form)
}
fn softmax(m: usize, n: usize) -> Kernel {
    let s = [n as i64, 1];
    let mut first = Body::default(); let x = first.push(ScalarOp::Load(0), &[], Scalar::F32);
    let first = Stage { over: Over::Row, body: first, sinks: vec![Sink::Reduce { reduction: Reduction::Max, value: x, register: 0 }] };
    let mut second = Body::default(); let x = second.push(ScalarOp::Load(0), &[], Scalar::F32); let max = second.push(ScalarOp::Register(0), &[], Scalar::F32);
    let d = second.binary(ScalarOp::Sub, x, max); let e = second.unary(ScalarOp::Call(Function::Exp), d);
    let second = Stage { over: Over::Row, body: second, sinks: vec![Sink::Reduce { reduction: Reduction::Sum, value: e, register: 1 }, Sink::Keep { value: e, buffer: 0 }] };
    let mut once = Body::default(); let sum = once.push(ScalarOp::Register(1), &[], Scalar::F32); let one = once.constant(Scalar::F32, 1.0); let inv = once.binary(ScalarOp::Div, one, sum);
    let once = Stage { over: Over::Once, body: once, sinks: vec![Sink::Set { value: inv, register: 2 }] };
    let mut third = Body::default(); let e = third.push(ScalarOp::Row(0), &[], Scalar::F32); let inv = third.push(ScalarOp::Register(2), &[], Scalar::F32); let y = third.binary(ScalarOp::Mul, e, inv);
    let third = Stage { over: Over::Row, body: third, sinks: vec![store(0, DType::F32, &s, y)] };
    let form = Nest { loads: vec![load(0, DType::F32, &s)], registers: vec![Scalar::F32; 3], buffers: vec![Scalar::F32], stages: vec![first, second, once, third], ..empty() };
    let t = TensorType::new(DType::F32, [m, n]); nest(vec![t.clone()], vec![t], &[m, n], form)
}
fn colsum(m: usize, n: usize) -> Kernel {
    let s = [n as i64, 1];
    let mut b = Body::default(); let x = b.push(ScalarOp::Load(0), &[], Scalar::F32);
    let form = Nest { loads: vec![load(0, DType::F32, &s)], stages: vec![Stage { over: Over::Row, body: b, sinks: vec![Sink::Column { reduction: Reduction::Sum, value: x, output: 0, dtype: DType::F32, kept: [false, true][..].into() }] }], ..empty() };
    nest(vec![TensorType::new(DType::F32, [m, n])], vec![TensorType::new(DType::F32, [n])], &[m, n], form)
}
fn matmul(m: usize, n: usize, k: usize, d: DType) -> Kernel {
    let f = |i: usize, s: [i64; 2]| { let mut body = Body::default(); let v = body.push(ScalarOp::Load(0), &[], Scalar::F32); Factor { loads: vec![load(i, d, &s)], body, value: v } };
    let mut body = Body::default(); let v = body.push(ScalarOp::Acc, &[], Scalar::F32);
    let c = Contract { batch: vec![], m, n, k, acc: Scalar::F32, a: f(0, [k as i64, 1]), b: f(1, [n as i64, 1]), loads: vec![], epilogue: Stage { over: Over::Row, body, sinks: vec![store(0, d, &[n as i64, 1], v)] } };
    kernel(vec![TensorType::new(d, [m, k]), TensorType::new(d, [k, n])], vec![TensorType::new(d, [m, n])], Form::Contract(c))
}
fn time(name: &str, k: &Kernel, threads: usize, portable: bool) {
    let dev = CpuDevice::new(CpuOptions { threads: Some(threads), portable }).unwrap();
    let t = Instant::now();
    let ins = inputs(k, 1, false);
    let t0 = t.elapsed(); let t = Instant::now();
    let p = place(&dev, k, &ins);
    let compile = t.elapsed(); let _ = t0;
    let n: usize = k.outputs[0].ty.numel().max(k.inputs[0].numel());
    let mut best = f64::MAX;
    dev.run_step(&mut || {
        for _ in 0..15 {
            let reps = (2_000_000 / n).clamp(1, 20000);
            let t = Instant::now();
            for _ in 0..reps { p.bound.run().unwrap(); }
            best = best.min(t.elapsed().as_secs_f64() * 1e9 / reps as f64);
        }
        Ok(())
    }).unwrap();
    println!("{name:28} t{threads} {} n={n:8} {:10.1} ns/run {:8.3} ns/elem  place {:.2} ms", if portable { "portable" } else { "native" }, best, best / n as f64, compile.as_secs_f64() * 1e3);
}
fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let all: Vec<(String, Kernel)> = vec![
        ("axpb f32".into(), axpb(1 << 20, DType::F32)), ("axpb f32".into(), axpb(1024, DType::F32)), ("axpb f32".into(), axpb(65536, DType::F32)), ("axpb f32".into(), axpb(10, DType::F32)), ("axpb f32".into(), axpb(1, DType::F32)),
        ("axpb bf16".into(), axpb(65536, DType::BF16)), ("axpb f16".into(), axpb(65536, DType::F16)),
        ("gelu f32".into(), gelu(1 << 20, DType::F32)), ("gelu f32".into(), gelu(65536, DType::F32)), ("gelu bf16".into(), gelu(65536, DType::BF16)), ("gelu f16".into(), gelu(65536, DType::F16)),
        ("bias relu 512x768".into(), bias(512, 768)), ("bias relu 4096x10".into(), bias(4096, 10)),
        ("softmax 256x64".into(), softmax(256, 64)), ("softmax 256x768".into(), softmax(256, 768)), ("softmax 256x10".into(), softmax(256, 10)), ("softmax 16x4096".into(), softmax(16, 4096)),
        ("colsum 1024x768".into(), colsum(1024, 768)), ("colsum 4096x10".into(), colsum(4096, 10)),
        ("matmul f32 256^3".into(), matmul(256, 256, 256, DType::F32)), ("matmul bf16 256^3".into(), matmul(256, 256, 256, DType::BF16)), ("matmul f32 128x784x128".into(), matmul(128, 128, 784, DType::F32)), ("matmul 128x128x10".into(), matmul(128, 10, 128, DType::F32)),
    ];
    for (name, k) in &all { if name.contains(&only) { for (t, p) in [(1, false), (2, false), (1, true)] { time(name, k, t, p); } } }
    if only == "clif" { let dev = CpuDevice::new(CpuOptions::default()).unwrap(); println!("{}", dev.load(&gelu(1 << 20, DType::F32)).unwrap().text().unwrap()); }
}
