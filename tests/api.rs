//! The trace-and-compile interface: signatures, reasons, errors, regions, and use by several
//! threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use tracecast::nn::{Context, Linear, Model, Relu, Sequential};
use tracecast::passes::{Fuse, Pipeline};
use tracecast::prelude::*;
use tracecast::{Graph, compile_reported};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::full(f32s(shape), 1.0).unwrap()
}

/// The message of the error of a trace.
fn refusal(body: impl FnOnce(&Trace)) -> String {
    trace("bad", body).unwrap_err().to_string()
}

fn dtype_of(graph: &Graph, output: &str) -> DType {
    let (_, value) = graph.outputs().iter().find(|(name, _)| name == output).unwrap();
    graph.ty(*value).dtype
}

#[test]
fn one_error_for_tensors_texts_passes_and_runs() {
    fn tensor() -> tracecast::Result<Tensor> {
        Tensor::new([2], &[1.0f32])
    }
    fn text(text: &str) -> tracecast::Result<Graph> {
        let graph = tracecast::ir::text::parse(text)?;
        Ok(tracecast::ir::verify(graph, tracecast::ir::Stage::Traced)?.into_graph())
    }
    use tracecast::Error;
    let missing: tracecast::runtime::Result<_> =
        jit(Options::new(), |t| t.output("y", t.input("x"))).run(&mut Store::new(), &[]);
    assert!(matches!(tensor(), Err(Error::Tensor(_))));
    assert!(matches!(text("graph"), Err(Error::Parse(_))));
    assert!(matches!(missing, Err(Error::Trace(_) | Error::Input { .. })));
}

#[test]
fn a_new_signature_is_a_new_program_with_a_reason() {
    let double = jit(Options::new().programs(2), |t| {
        let x = t.input("x");
        t.output("y", x + x);
    });
    let run =
        |tensor: &Tensor| double.run(&mut Store::new(), &[("x", tensor)]).unwrap()["y"].to_f64s();
    assert_eq!(run(&ones(&[3])), [2.0; 3]);
    assert_eq!(run(&ones(&[3])), [2.0; 3]);
    assert_eq!(run(&ones(&[2])), [2.0; 2]);
    assert_eq!(run(&ones(&[3])), [2.0; 3]);
    assert_eq!(run(&ones(&[3]).cast(DType::I64).unwrap()), [2.0; 3]);
    assert_eq!(run(&ones(&[2])), [2.0; 2]);
    let reasons: Vec<String> = double.recompilations().into_iter().map(|r| r.reason).collect();
    assert_eq!(
        reasons,
        [
            "first run",
            "input `x` is f32[2], was f32[3]",
            "input `x` is i64[3], was f32[3]",
            "input `x` is f32[2], was i64[3]; its program was dropped, at most 2 are kept",
        ]
    );
}

#[test]
fn a_smaller_last_batch_is_a_second_signature_of_the_same_training() {
    let model = Sequential::new().then(Linear::new(4, 8)).then(Relu).then(Linear::new(8, 1));
    let step = TrainStep::new(model, |t, model| {
        model.forward(t.input("x")).mean_squared_error(t.input("y"))
    })
    .optimizer(AdamW::new("rate"))
    .build()
    .unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    for rows in [6, 6, 2, 6, 2] {
        let inputs = [
            ("x", &ones(&[rows, 4])),
            ("y", &ones(&[rows, 1])),
            ("rate", &Tensor::scalar(1e-3f32)),
        ];
        step.run(&mut store, &inputs).unwrap();
    }
    assert_eq!(store.get("optim.step").unwrap().item::<f32>().unwrap(), 5.0);
    let reasons = step.jit().recompilations();
    assert_eq!(reasons.len(), 2);
    assert_eq!(reasons[1].reason, "input `x` is f32[2, 4], was f32[6, 4]");
}

#[test]
fn a_new_type_in_the_store_is_a_reason_too() {
    let program = jit(Options::new(), |t| t.output("y", t.param("w") * 2.0));
    program.run(&mut Store::new().with("w", ones(&[2])), &[]).unwrap();
    program.run(&mut Store::new().with("w", ones(&[3])).with("other", ones(&[1])), &[]).unwrap();
    program.run(&mut Store::new().with("w", ones(&[2])), &[]).unwrap();
    let reasons = program.recompilations();
    assert_eq!(reasons.len(), 2);
    assert_eq!(reasons[1].reason, "`w` of the store is f32[3], was f32[2]");
}

#[test]
fn what_becomes_of_a_store_between_runs_is_noticed() {
    let program = jit(Options::new(), |t| {
        let w = t.param("w");
        t.update(w, w + t.param("by"));
    });
    let mut store = Store::new().with("w", ones(&[2])).with("by", ones(&[2]));
    let run = |store: &mut Store| program.run(store, &[]).map(|_| ()).map_err(|e| e.to_string());
    run(&mut store).unwrap();
    run(&mut store).unwrap();
    assert!(store.discard("by"));
    let error = run(&mut store).unwrap_err();
    assert!(error.contains("`by`") && error.contains("is not in the store"), "{error}");
    store.insert("by", ones(&[1]));
    run(&mut store).unwrap();
    store.insert("by", Tensor::scalar(2f32));
    run(&mut store).unwrap();
    assert_eq!(program.counters().misses, 3, "one for each type of `by`");
    assert_eq!(store.get("w").unwrap().to_vec::<f32>().unwrap(), [6.0, 6.0]);
    let mut other = Store::new();
    store.transfer("w", &mut other, "w").unwrap();
    assert!(run(&mut store).is_err() && run(&mut other).is_err());
    other.insert("by", ones(&[2]));
    run(&mut other).unwrap();
    assert_eq!(other.get("w").unwrap().to_vec::<f32>().unwrap(), [7.0, 7.0]);
    assert_eq!(program.run(&mut other.snapshot().to_store(), &[]).map(|_| ()).ok(), Some(()));
}

/// What a user calls is what an error names, whatever is recorded for it; and with the prelude
/// alone all of it can be called.
#[test]
fn errors_name_the_call() {
    let named = |call: &str, body: fn(&Trace)| {
        let message = refusal(body);
        assert!(message.starts_with(&format!("{call}: ")), "{message}");
        assert!(message.contains("tests/api.rs:"), "{message}");
    };
    named("full", |t| {
        t.full(TensorType::new(DType::U8, [2]), 300.0);
    });
    named("zeros", |t| {
        t.zeros(f32s(&[1 << 40, 1 << 40]));
    });
    named("cross_entropy", |t| {
        let x = t.input_of("x", f32s(&[2, 3]));
        x.cross_entropy(x.to(DType::I64));
    });
    named("eye", |t| {
        t.eye(1 << 40, 1 << 40, DType::F32);
    });
    named("stack", |t| {
        stack(&[t.input_of("x", f32s(&[2])), t.ones(f32s(&[3]))], 0);
    });
    named("uniform", |t| {
        let rng = t.constant(DType::I64, &[2], &[0.0, 0.0]);
        t.ones(f32s(&[2])).uniform(rng, 1.0, 0.0, 0);
    });
}

#[test]
fn what_is_missing_is_named() {
    let program = jit(Options::new(), |t| t.output("y", t.input("x").matmul(t.param("w"))));
    let x = ones(&[2, 2]);
    let error = |store: Store, inputs: &[(&str, &Tensor)]| {
        let mut store = store;
        program.run(&mut store, inputs).unwrap_err().to_string()
    };
    let missing = error(Store::new().with("w", ones(&[2, 2])), &[("z", &x)]);
    assert!(
        missing.contains("`x` was not given to this run, which gave `z`")
            && missing.contains(file!()),
        "{missing}"
    );
    let missing = error(Store::new().with("v", ones(&[2, 2])), &[("x", &x)]);
    assert!(missing.contains("`w` is not in the store, which has `v`"), "{missing}");
    let twice = error(Store::new().with("w", ones(&[2, 2])), &[("x", &x), ("x", &x)]);
    assert!(twice.contains("`x`"), "{twice}");
    let shapes = error(Store::new().with("w", ones(&[3, 2])), &[("x", &x)]);
    assert!(
        shapes.contains("matmul") && shapes.contains("inner sizes differ, 2 and 3"),
        "{shapes}"
    );
    assert!(program.run(&mut Store::new().with("w", ones(&[2, 2])), &[("x", &x)]).is_ok());
}

#[test]
fn two_modules_of_one_name_are_refused() {
    let model = |second| {
        let model = Sequential::new().named("fc", Linear::new(4, 4)).then(Relu);
        model.named(second, Linear::new(4, 4))
    };
    // A number that is given by hand is a name like any other.
    for name in ["fc", "1"] {
        let model = model(name);
        let message = refusal(|t| {
            let model = Model::new(&model, Context::training(t));
            t.output("y", model.forward(t.input_of("x", f32s(&[2, 4]))));
        });
        let why = format!("Sequential: has two modules that are called `{name}`");
        assert!(message.contains(&why) && message.contains(file!()), "{message}");
    }
}

#[test]
fn errors_point_at_the_line_and_the_module() {
    let model = Sequential::new().named("wide", Linear::new(5, 3));
    let message = refusal(|t| {
        let model = Model::new(&model, Context::training(t));
        t.output("y", model.forward(t.input_of("x", f32s(&[2, 4]))));
    });
    assert!(
        message.contains("linear") && message.contains(file!()) && message.contains("in wide"),
        "{message}"
    );
    let message = refusal(|t| {
        Recorded::new(t, &Sgd::new(0.1), &[]);
    });
    assert!(message.contains("`optim` has no parameters"), "{message}");
    let unknown =
        compile(trace("empty", |_| {}).unwrap(), &Options::new().device("npu")).unwrap_err();
    assert!(unknown.to_string().contains("npu"), "{unknown}");
}

#[test]
fn data_without_meaning_leaves_the_store_alone() {
    let step = TrainStep::new(Linear::new(4, 3), |t, model| {
        model.forward(t.input("x")).cross_entropy(t.input("y"))
    })
    .optimizer(AdamW::new(0.1))
    .build()
    .unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let before: Vec<Tensor> = store.iter().map(|entry| entry.unwrap().1).collect();
    let labels = Tensor::new([2], &[0i64, 3]).unwrap();
    let error =
        step.run(&mut store, &[("x", &ones(&[2, 4])), ("y", &labels)]).unwrap_err().to_string();
    assert!(error.contains(file!()), "{error}");
    let after: Vec<Tensor> = store.iter().map(|entry| entry.unwrap().1).collect();
    assert_eq!(before, after);
    let labels = Tensor::new([2], &[0i64, 2]).unwrap();
    step.run(&mut store, &[("x", &ones(&[2, 4])), ("y", &labels)]).unwrap();
}

#[test]
fn one_program_runs_on_several_threads() {
    let step = Arc::new(
        TrainStep::new(Linear::new(4, 3), |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        })
        .optimizer(AdamW::new(0.1))
        .autocast("cpu", DType::BF16)
        .build()
        .unwrap(),
    );
    let train = |step: &TrainStep| {
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let (x, y) =
            (Tensor::rand([6, 4], 3).unwrap(), Tensor::new([6], &[0i64, 1, 2, 2, 1, 0]).unwrap());
        (0..20)
            .map(|_| step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap().loss)
            .collect::<Vec<f32>>()
    };
    let spawn = |_| {
        let step = step.clone();
        std::thread::spawn(move || train(&step))
    };
    let threads: Vec<_> = (0..4).map(spawn).collect();
    let losses: Vec<Vec<f32>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(losses.iter().all(|one| *one == train(&step)));
    assert_eq!(step.jit().recompilations().len(), 1);
}

#[test]
fn regions_nest_as_in_pytorch() {
    let graph = trace("regions", |t| {
        let (x, w) = (t.input_of("x", f32s(&[2, 2])), t.param_of("w", f32s(&[2, 2])));
        autocast(t, "cpu", DType::F16, || {
            t.output("low", x.matmul(w));
            autocast(t, "cpu", None, || t.output("current", x.matmul(w)));
            Autocast::new("cpu").enabled(false).run(t, || t.output("island", x.matmul(w)));
            autocast(t, "cpu:0", DType::F64, || t.output("refused", x.matmul(w)));
            autocast(t, "cuda", DType::BF16, || t.output("elsewhere", x.matmul(w)));
        });
        t.output("outside", x.matmul(w));
        autocast(t, "cpu", None, || t.output("default", x.matmul(w)));
    })
    .unwrap();
    let expected = [
        ("low", DType::F16),
        ("current", DType::F16),
        ("island", DType::F32),
        ("refused", DType::F32),
        ("elsewhere", DType::F16),
        ("outside", DType::F32),
        ("default", DType::BF16),
    ];
    for (output, dtype) in expected {
        assert_eq!(dtype_of(&graph, output), dtype, "{output}");
    }
    let scopes: Vec<u32> = graph.regions().iter().map(|region| region.scope()).collect();
    assert_eq!(
        scopes,
        [0, 1, 1, 1, 1, 2],
        "one scope for each outermost region: {:?}",
        graph.regions()
    );
    let unknown =
        refusal(|t| autocast(t, "tpu", DType::BF16, || t.output("x", t.input_of("x", f32s(&[1])))));
    assert!(unknown.contains("unknown device type `tpu`"), "{unknown}");
}

#[test]
fn a_refused_dtype_is_a_warning_in_the_report() {
    let program = jit(Options::new(), |t| {
        let x = t.input("x");
        autocast(t, "cpu", DType::F64, || t.output("y", x.matmul(x)));
    });
    let out = program.run(&mut Store::new(), &[("x", &ones(&[2, 2]))]).unwrap();
    assert_eq!(out["y"].dtype(), DType::F32);
    let report = program.report().unwrap();
    assert!(
        report.warnings.len() == 1 && report.warnings[0].message.contains("f64"),
        "{:?}",
        report.warnings
    );
}

/// Records calls of a scaler on one parameter, and returns why they are refused.
fn misuse(calls: impl for<'t> FnOnce(&mut GradScaler<'t>, &mut Recorded<'t, '_>)) -> String {
    refusal(|t| {
        let w = t.param_of("w", f32s(&[3]));
        let rule = Sgd::new(0.1);
        let mut optimizer = Recorded::new(t, &rule, &[w]);
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        optimizer.backward(scaler.scale(w.sum(())));
        calls(&mut scaler, &mut optimizer);
    })
}

#[test]
fn calls_of_a_scaler_in_the_wrong_order_are_refused() {
    let cases = [
        ("step() was already called", misuse(|s, o| (s.step(o), s.step(o)).0)),
        ("unscale_() was already called", misuse(|s, o| (s.unscale_(o), s.unscale_(o)).0)),
        ("unscale_() after step()", misuse(|s, o| (s.step(o), s.unscale_(o)).0)),
        ("no gradient was checked", misuse(|s, _| s.update())),
        ("update() was already called", misuse(|s, o| (s.step(o), s.update(), s.update()).0)),
    ];
    for (says, found) in cases {
        assert!(found.contains(says) && found.contains(file!()), "expected {says}, found {found}");
    }
    for options in [
        ScalerOptions { growth_factor: 1.0, ..ScalerOptions::default() },
        ScalerOptions { backoff_factor: 1.0, ..ScalerOptions::default() },
    ] {
        assert!(refusal(|t| drop(GradScaler::recorded(t, "amp", options))).contains("factor"));
    }
    let half = refusal(|t| {
        let w = t.param_of("w", TensorType::new(DType::F16, [3]));
        let rule = Sgd::new(0.1);
        let mut optimizer = Recorded::new(t, &rule, &[w]);
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        optimizer.backward(scaler.scale(w.sum(())));
        scaler.step(&mut optimizer);
    });
    assert!(half.contains("f16 gradients are not unscaled"), "{half}");
}

#[test]
fn a_disabled_scaler_does_nothing() {
    let graph = trace("plain", |t| {
        let w = t.param_of("w", f32s(&[3]));
        let rule = Sgd::new(0.1);
        let mut optimizer = Recorded::new(t, &rule, &[w]);
        let mut scaler = GradScaler::recorded(
            t,
            "amp",
            ScalerOptions { enabled: false, ..ScalerOptions::default() },
        );
        let loss = w.sum(());
        assert_eq!(scaler.scale(loss).id(), loss.id());
        optimizer.backward(loss);
        scaler.unscale_(&mut optimizer);
        scaler.step(&mut optimizer);
        scaler.update();
    })
    .unwrap();
    assert_eq!(graph.ports().len(), 1);
}

#[test]
fn reports_tell_what_became_of_a_program() {
    let step = TrainStep::new(
        Sequential::new().then(Linear::new(16, 32)).then(Relu).then(Linear::new(32, 4)),
        |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")),
    )
    .optimizer(AdamW::new(1e-3))
    .autocast("cpu", DType::F16)
    .scaler(ScalerOptions::default())
    .options(Options::new().keep_history(true))
    .build()
    .unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let inputs =
        [("x", &ones(&[8, 16])), ("y", &Tensor::zeros(TensorType::new(DType::I64, [8])).unwrap())];
    let report = step.jit().prepare(&store, &inputs).unwrap();
    assert_eq!(report.standalone_casts, 0, "{}", report.history.last().unwrap().1);
    assert!(report.kernels > 0 && report.kernels == report.forms.values().sum::<usize>());
    assert!(
        report.saved_bytes >= 8 * 32 * 2 && report.saved_bytes < 4096,
        "{}",
        report.saved_bytes
    );
    assert!(report.peak_bytes > 0 && report.total() > report.trace);
    let passes: Vec<&str> = report.history.iter().map(|(pass, _)| pass.as_str()).collect();
    assert_eq!((passes[0], passes[passes.len() - 1]), (Pipeline::TRACED, Fuse::NAME));
    let text = step.jit().graph(&store, &inputs).unwrap().to_string();
    assert!(text.contains("linear") && text.contains("unscale"), "{text}");
}

#[test]
fn a_graph_can_be_compiled_by_hand() {
    let graph = trace("head", |t| {
        let w = t.param_of("w", f32s(&[2]));
        t.update(w, w * 3.0);
        t.output("sum", w.sum(()));
    })
    .unwrap();
    for device in ["reference", if cfg!(feature = "cpu") { "cpu" } else { "reference" }] {
        let (program, report) =
            compile_reported(graph.clone(), &Options::new().device(device)).unwrap();
        let mut store = Store::new().with("w", ones(&[2]));
        assert_eq!(program.run(&mut store, &[]).unwrap()["sum"].item::<f32>().unwrap(), 2.0);
        assert_eq!(program.run(&mut store, &[]).unwrap()["sum"].item::<f32>().unwrap(), 6.0);
        assert!(report.trace.is_zero());
    }
}
