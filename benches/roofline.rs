//! How far kernels are from what the machine can do: the peak of fused multiply-adds and the
//! bandwidth of memory are measured in the same run, and each kernel's least time by them is
//! compared with the time it takes.
//!
//! `cargo bench --bench roofline -- [--threads N] [NAME…]`. Maps and rows are too large for any
//! cache; a kernel whose results stay in a cache that cores share may exceed the limit.

#[path = "support/programs.rs"]
mod programs;

use std::io::Write;
use tracecast::ir::ops::amp::LossScaling;
use tracecast::optim::Recorded;
use tracecast::prelude::*;
use tracecast::{Limits, Profile, Vectors, compile, measure_limits};

/// Rows and columns of a tensor: 64 MiB in f32.
const WIDE: [usize; 2] = [4096, 4096];

/// Runs of each kernel; the median counts.
const RUNS: usize = 7;

/// A kernel and the dtypes it is measured in.
struct Case {
    name: &'static str,
    dtypes: &'static [DType],
    body: fn(&Trace, DType),
}

const FLOATS: &[DType] = &[DType::F32, DType::BF16, DType::F16];
const F32: &[DType] = &[DType::F32];
const HALF: &[DType] = &[DType::BF16, DType::F16];

const CASES: [Case; 10] = [
    Case { name: "matmul", dtypes: FLOATS, body: matmul },
    Case {
        name: "add",
        dtypes: FLOATS,
        body: |t, d| write(t, "y", read(t, "x", d) + read(t, "r", d)),
    },
    Case { name: "chain", dtypes: FLOATS, body: chain },
    Case {
        name: "softmax",
        dtypes: FLOATS,
        body: |t, d| write(t, "y", read(t, "x", d).softmax(-1)),
    },
    Case { name: "layernorm", dtypes: FLOATS, body: layer_norm },
    Case { name: "column sum", dtypes: FLOATS, body: |t, d| write(t, "y", read(t, "x", d).sum(0)) },
    Case {
        name: "narrow",
        dtypes: HALF,
        body: |t, d| write(t, "y", read(t, "x", DType::F32).cast(d)),
    },
    Case {
        name: "widen",
        dtypes: HALF,
        body: |t, d| write(t, "y", read(t, "x", d).cast(DType::F32)),
    },
    Case { name: "unscale", dtypes: F32, body: unscale },
    Case { name: "adamw", dtypes: F32, body: adamw },
];

/// State that a program reads.
fn read<'t>(t: &'t Trace, name: &str, dtype: DType) -> Var<'t> {
    t.state_of(name, TensorType::new(dtype, WIDE))
}

/// State that a program replaces: nothing is copied in or out.
fn write(t: &Trace, name: &str, value: Var<'_>) {
    t.update(t.state_of(name, value.ty()), value);
}

fn matmul(t: &Trace, dtype: DType) {
    let [a, b] = ["a", "b"].map(|name| t.state_of(name, TensorType::new(dtype, [1024, 1024])));
    write(t, "y", a.matmul(b));
}

fn chain(t: &Trace, dtype: DType) {
    let bias = t.state_of("b", TensorType::new(dtype, [WIDE[1]]));
    let bell = (read(t, "x", dtype) + bias).gelu(Some("tanh"));
    write(t, "y", bell * 0.5 + read(t, "r", dtype));
}

fn layer_norm(t: &Trace, dtype: DType) {
    let [w, b] = ["w", "b"].map(|name| t.state_of(name, TensorType::new(dtype, [WIDE[1]])));
    write(t, "y", read(t, "x", dtype).layer_norm(w, b, [WIDE[1] as i64], 1e-5));
}

fn unscale(t: &Trace, dtype: DType) {
    let gradient = read(t, "g", dtype);
    let checked = gradient.unscale_check(t.state_of("one", TensorType::scalar(dtype))).results();
    t.update(gradient, checked[0]);
    write(t, "found", checked[1]);
}

fn adamw(t: &Trace, dtype: DType) {
    let [param, gradient] = ["p", "g"].map(|name| read(t, name, dtype));
    let rule = AdamW::new(1e-3);
    let mut recorded = Recorded::new(t, &rule, &[param]);
    recorded.set_grads(vec![gradient]);
    recorded.step();
}

/// Ones, or random numbers from 0 to 1 that come again after some thousands: making more would take
/// longer than measuring.
fn numbers(ty: &TensorType, ones: bool, seed: u64) -> Tensor {
    let count = ty.numel().get().min(1 << 14);
    let some = if ones {
        Tensor::full(TensorType::new(DType::F32, [count]), 1.0)
    } else {
        Tensor::rand([count], seed)
    };
    let some = some.and_then(|x| x.cast(ty.dtype)).expect("a few numbers");
    let bytes = some.bytes().repeat(ty.numel().get().div_ceil(count.max(1)));
    Tensor::from_bytes(ty.clone(), bytes).expect("a multiple of the size of a number")
}

/// The kernel of a case that takes longest, as a row of the table.
fn row(case: &Case, dtype: DType, threads: usize, limits: Limits) -> String {
    let graph = trace(case.name, |t| (case.body)(t, dtype)).expect("a program");
    let mut store = Store::new();
    for (seed, port) in graph.ports().iter().enumerate() {
        store.insert(&port.name, numbers(&port.ty, port.name == "one", seed as u64));
    }
    let options = programs::written(Options::new().threads(threads).keep_weights(false));
    let program = compile(graph, &options).expect("code");
    if programs::folder().is_some() {
        return format!("{} {} is written", case.name, dtype.name());
    }
    let profile = Profile::of(&program, &mut store, &[], RUNS, Some(limits)).expect("runs");
    let longest = profile.kernels.iter().max_by_key(|kernel| kernel.time).expect("a kernel");
    format!(
        "{:<11} {:<5} {:>8.2} ms {:>8.1} GFLOP/s {:>7.2} GB/s {:>5.0} %",
        case.name,
        dtype.name(),
        longest.time.as_secs_f64() * 1e3,
        longest.gflops(),
        longest.gbytes(),
        100.0 * longest.of_limit(limits)
    )
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let (mut threads, mut names) = (1, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threads" => {
                let number = args.next().and_then(|n| n.parse().ok());
                threads = number.expect("--threads takes a number");
            }
            _ => names.push(arg),
        }
    }
    let mut out = std::io::stdout().lock();
    let limits = measure_limits(threads, Vectors::Native);
    let (flops, bytes) = (limits.flops / 1e9, limits.bytes / 1e9);
    writeln!(out, "limits on {threads} threads: {flops:.1} GFLOP/s, {bytes:.2} GB/s")
        .expect("output");
    let asked =
        |case: &&Case| names.is_empty() || names.iter().any(|name| case.name.contains(&**name));
    for case in CASES.iter().filter(asked) {
        for dtype in case.dtypes {
            writeln!(out, "{}", row(case, *dtype, threads, limits)).expect("output");
        }
    }
}
