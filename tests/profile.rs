//! Profiles: what kernels cost by their loops, and that a profile of a program tells of each of its steps.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tracecast::ir::kernel::Cost;
use tracecast::prelude::*;
use tracecast::{Executable, Limits, Profile, Vectors, measure_limits};

fn program(body: impl FnOnce(&Trace)) -> Executable {
    compile(trace("program", body).unwrap(), &Options::new().threads(1)).unwrap()
}

/// The cost of the only kernel.
fn cost(body: impl FnOnce(&Trace)) -> Cost {
    let program = program(body);
    let steps: Vec<Cost> =
        program.program().steps().filter_map(|(_, kernel)| Some(kernel?.cost())).collect();
    assert_eq!(steps.len(), 1);
    steps[0]
}

fn input<'t>(t: &'t Trace, name: &str, dtype: DType, shape: &[usize]) -> Var<'t> {
    t.input_of(name, TensorType::new(dtype, shape))
}

#[test]
fn maps_count_every_buffer_once_and_every_operation() {
    let found = cost(|t| {
        let (x, b) = (input(t, "x", DType::F32, &[8, 100]), input(t, "b", DType::BF16, &[100]));
        t.output("y", x * x + b.cast(DType::F32));
    });
    assert_eq!(found, Cost { read: 8 * 100 * 4 + 100 * 2, written: 8 * 100 * 4, flops: 2 * 800 });
}

#[test]
fn contractions_count_products_and_what_comes_after() {
    let found = cost(|t| {
        let (x, w) = (input(t, "x", DType::F16, &[3, 20]), input(t, "w", DType::F16, &[7, 20]));
        t.output("y", x.linear(w, None));
    });
    assert_eq!(found, Cost { read: 60 * 2 + 140 * 2, written: 21 * 2, flops: 2 * 3 * 20 * 7 });
}

#[test]
fn views_and_gathers_read_what_they_use_but_not_more_than_there_is() {
    let slice = cost(|t| {
        let x = input(t, "x", DType::F32, &[1000]);
        t.output("y", x.slice(0, 0, 10, 1) * 2.0);
    });
    assert_eq!((slice.read, slice.written), (40, 40));
    let gather = cost(|t| {
        let table = input(t, "table", DType::F32, &[4, 8]);
        t.output("y", table.embedding(input(t, "at", DType::I64, &[100])));
    });
    assert_eq!((gather.read, gather.written), (4 * 8 * 4 + 100 * 8, 100 * 8 * 4));
}

#[test]
fn a_profile_tells_of_every_step_and_runs_like_any_run() {
    let program = program(|t| {
        let total = t.state_of("total", TensorType::new(DType::F32, [100]));
        let x = input(t, "x", DType::F32, &[100]);
        t.update(total, total + x);
        t.output("p", x.softmax(-1));
    });
    let x = Tensor::rand([100], 1).unwrap();
    let zeros = Tensor::zeros(x.ty().clone()).unwrap();
    let mut store = Store::new().with("total", zeros);
    let limits = measure_limits(1, Vectors::Native);
    let profile = Profile::of(&program, &mut store, &[("x", &x)], 3, Some(limits)).unwrap();
    assert_eq!((profile.kernels.len(), profile.runs), (program.program().steps().len(), 3));
    // One run that is not timed comes first.
    let four: Vec<f32> = x.to_vec::<f32>().unwrap().iter().map(|x| x + x + x + x).collect();
    let found = store.get("total").unwrap().to_vec::<f32>().unwrap();
    assert!(found.iter().zip(&four).all(|(a, b)| (a - b).abs() < 1e-6));
    assert!(profile.run >= profile.kernels.iter().map(|k| k.typical.time).sum());
    let ceiling = Limits { flops: 1e9, bytes: 1e9 };
    for kernel in &profile.kernels {
        let least = (kernel.cost.bytes().max(kernel.cost.flops)) as f64 / 1e9;
        let off = kernel.of_limit(ceiling) * kernel.time.as_secs_f64().max(1e-9) / least;
        assert!((off - 1.0).abs() < 1e-9, "{off}");
    }
    assert_eq!(profile.to_string().lines().count(), profile.kernels.len() + 2);
    let none = Profile::of(&program, &mut store, &[("x", &x)], 0, None);
    assert!(none.unwrap_err().to_string().contains("runs"));
}
