//! Profiles: what kernels cost by their loops, and that a profile of a program tells of each of its
//! steps.
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

/// A step on two layers, state for it, and a batch.
fn step() -> (TrainStep, Store, [(&'static str, Tensor); 2]) {
    let model = nn::Sequential::new()
        .named("up", nn::Linear::new(8, 16))
        .then(nn::Relu)
        .named("down", nn::Linear::new(16, 3));
    let step = TrainStep::new(model, |t, m| m.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new(1e-2))
        .options(Options::new().threads(1))
        .build()
        .unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let y = Tensor::new([4], &[0i64, 1, 2, 0]).unwrap();
    (step, store, [("x", Tensor::rand([4, 8], 1).unwrap()), ("y", y)])
}

#[test]
fn a_profile_of_a_training_step_names_modules_and_lines_and_trains() {
    let (train, mut store, batch) = step();
    let inputs = batch.each_ref().map(|(name, x)| (*name, x));
    let limits = Limits { flops: 1e9, bytes: 1e9 };
    let profile = train.profile(&mut store, &inputs, 3, Some(limits)).unwrap();
    // A product goes by its own module, though the ReLU of another is fused with it.
    for module in ["up", "down"] {
        let of = profile.kernels.iter().filter(|kernel| kernel.module == module);
        let of: Vec<_> =
            of.map(|kernel| kernel.source_line.trim_start_matches("grad of ")).collect();
        assert!(!of.is_empty(), "no kernel of `{module}`:\n{profile}");
        assert!(of.iter().all(|line| line.starts_with("tests/profile.rs:")), "{of:?}");
    }
    let optimizer = profile.kernels.iter().find(|kernel| kernel.module == "optim");
    assert!(optimizer.is_some_and(|kernel| kernel.source_line.contains("profile.rs")), "{profile}");

    // 85 % of the operations or 80 % of the bytes, whichever takes longer.
    let attainable = |kernel: &tracecast::KernelProfile| {
        (kernel.cost.flops as f64 / 0.85e9).max(kernel.cost.bytes() as f64 / 0.8e9)
    };
    let sum: f64 = profile.kernels.iter().map(attainable).sum();
    let found = profile.attainable().unwrap().as_secs_f64();
    assert!((found - sum).abs() < 1e-9 * profile.kernels.len() as f64, "{found} {sum}");
    let table = profile.to_string();
    assert!(
        table.contains("down, tests/profile.rs:") && table.contains("at 85 % and 80 %"),
        "{table}"
    );

    // Two steps that are not timed and three that are.
    let (plain, mut trained, _) = step();
    (0..5).for_each(|_| drop(plain.run(&mut trained, &inputs).unwrap()));
    for name in ["up.weight", "down.bias"] {
        assert_eq!(store.get(name).unwrap(), trained.get(name).unwrap(), "{name}");
    }
}

#[test]
fn a_profile_of_a_step_refuses_what_a_run_refuses() {
    let (train, mut store, [(_, x), (_, y)]) = step();
    let none = train.profile(&mut store, &[("x", &x), ("y", &y)], 0, None).unwrap_err();
    assert!(none.to_string().contains("at least one run"), "{none}");
    let missing = train.profile(&mut store, &[("x", &x)], 1, None).unwrap_err();
    assert!(missing.to_string().contains("`y`"), "{missing}");
    let empty = Tensor::zeros(TensorType::new(DType::F32, [0, 8])).unwrap();
    let empty = train.profile(&mut store, &[("x", &empty), ("y", &y)], 1, None).unwrap_err();
    assert!(empty.to_string().contains("at least one row"), "{empty}");
}

#[test]
fn a_program_with_named_sizes_is_profiled_at_those_of_the_inputs() {
    let double = jit(Options::new().threads(1), |t| t.output("y", t.input("x") * 2.0));
    let double = double.sizes("x: [n]");
    for n in [1000, 3000] {
        let x = Tensor::rand([n], 1).unwrap();
        let profile = double.profile(&mut Store::new(), &[("x", &x)], 1, None).unwrap();
        assert_eq!((profile.kernels[0].cost.read, profile.attainable()), (4 * n as u64, None));
    }
    assert_eq!(double.recompilations().len(), 1);
}
