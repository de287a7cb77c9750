//! What a person meets every day: what is refused and what is accepted, warnings, and progress. A
//! test is named after the row of the list of first impressions that it keeps settled.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::path::Path;
use std::sync::{Arc, Mutex};
use tracecast::checkpoint::Load;
use tracecast::explain::WarningKind;
use tracecast::nn::{Context, Flatten, Linear, Relu, Sequential, Sigmoid, Silu, Tanh};
use tracecast::prelude::*;
use tracecast::{Progress, compile_reported};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::full(f32s(shape), 1.0).unwrap()
}

fn labels(rows: usize) -> Tensor {
    Tensor::zeros(TensorType::new(DType::I64, [rows])).unwrap()
}

fn reference() -> Options {
    Options::new().device("reference")
}

fn step(options: Options) -> TrainStep {
    TrainStep::new(Linear::new(3, 2), |t, m| m.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new(0.01))
        .options(options)
        .build()
        .unwrap()
}

#[test]
fn u4_unused_inputs_are_accepted() {
    let step = step(reference());
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let evaluate = step.evaluation(|t, model| t.output("y", model.forward(t.input("x"))));
    let (x, y, importance) = (ones(&[4, 3]), labels(4), ones(&[4]));
    // One batch for both, with a column that neither uses.
    let batch = [("x", &x), ("y", &y), ("importance", &importance)];
    assert!(step.run(&mut store, &batch).unwrap().loss.is_finite());
    let all = evaluate.run(&mut store, &batch).unwrap();
    let alone = evaluate.run(&mut store, &[("x", &x)]).unwrap();
    assert_eq!(all["y"].bytes(), alone["y"].bytes());
    // Another type of what is not used is no new signature.
    assert!(evaluate.run(&mut store, &[("x", &x), ("y", &importance)]).is_ok());
    assert_eq!(evaluate.recompilations().len(), 1);
    let used = &evaluate.recompilations()[0].inputs;
    assert_eq!(used.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["x"]);

    let graph = trace("double", |t| t.output("y", t.input_of("x", f32s(&[2])) * 2.0)).unwrap();
    let program = compile(graph, &reference()).unwrap();
    let given = ones(&[2]);
    assert!(program.run(&mut Store::new(), &[("z", &x), ("x", &given)]).is_ok());
    let run = |inputs: &[(&str, &Tensor)]| program.run(&mut Store::new(), inputs).unwrap_err();
    // A name that was mistyped is still found out, since the right one is missing.
    let missing = run(&[("X", &given)]).to_string();
    assert!(missing.contains("`x`: is missing") && missing.contains("found `X`"), "{missing}");
    assert!(run(&[("z", &x), ("z", &x), ("x", &given)]).to_string().contains("given twice"));
}

#[test]
fn u4_strict_refuses_unused_inputs() {
    let step = step(reference().strict(true));
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let (x, y) = (ones(&[4, 3]), labels(4));
    let evaluate = step.evaluation(|t, model| t.output("y", model.forward(t.input("x"))));
    let error = evaluate.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err().to_string();
    assert!(error.contains("`y`: is not used") && error.contains("asks for `x`"), "{error}");
    assert!(evaluate.recompilations().is_empty(), "refused before it is compiled");
    assert!(evaluate.run(&mut store, &[("x", &x)]).is_ok());
    // Now there is a program, and it refuses the input itself.
    let error = evaluate.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err().to_string();
    assert!(error.contains("input `y`: is unknown"), "{error}");
    assert!(step.run(&mut store, &[("x", &x), ("y", &y)]).is_ok());
}

#[test]
fn u4_an_input_that_is_asked_for_is_not_ignored() {
    // The rate comes from a schedule, and a run that gives one as well is refused rather than
    // ignored.
    let step = TrainStep::new(Linear::new(3, 2), |t, m| {
        m.forward(t.input("x")).cross_entropy(t.input("y"))
    })
    .optimizer(AdamW::new("lr"))
    .schedule("lr", |_, steps| (steps + 1.0) * 1e-3)
    .options(reference())
    .build()
    .unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let (x, y, lr) = (ones(&[4, 3]), labels(4), Tensor::scalar(0.5f32));
    assert!(step.run(&mut store, &[("x", &x), ("y", &y)]).is_ok());
    let error = step.run(&mut store, &[("x", &x), ("y", &y), ("lr", &lr)]).unwrap_err();
    assert!(error.to_string().contains("`lr` is an input of this run"), "{error}");
}

#[test]
fn u5_integers_out_of_range_are_refused() {
    let x = Tensor::new([1], &[i32::MAX]).unwrap();
    let program = jit(reference(), |t| t.output("y", t.input("x").eq(3e9)));
    let line = line!() - 1;
    let error = program.run(&mut Store::new(), &[("x", &x)]).unwrap_err().to_string();
    for part in ["eq: `scalar` is 3000000000", "i32: -2147483648 to 2147483647", "x: i32[1]"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(error.contains(&format!("everyday.rs:{line}:")), "{error}");
    let fill = trace("fill", |t| {
        t.output("y", t.full(TensorType::new(DType::U8, [2]), 256.0));
    });
    assert!(fill.unwrap_err().to_string().contains("out of range for u8: 0 to 255"));
}

#[test]
fn u6_errors_of_shapes_name_shapes_dtypes_and_lines() {
    let program = jit(reference(), |t| t.output("y", t.input("x").matmul(t.param("w"))));
    let line = line!() - 1;
    let mut store = Store::new().with("w", ones(&[3, 2]));
    let error = program.run(&mut store, &[("x", &ones(&[4, 2]))]).unwrap_err().to_string();
    let expected =
        "matmul: inner sizes differ, 2 and 3\n  given x: f32[4, 2], other: f32[3, 2]\n  at ";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains(&format!("everyday.rs:{line}:")), "{error}");
}

#[test]
fn u6_reports_agree_with_themselves() {
    for micro_batches in [1, 4] {
        let model = Sequential::new().then(Linear::new(16, 32)).then(Relu).then(Linear::new(32, 4));
        let step =
            TrainStep::new(model, |t, m| m.forward(t.input("x")).cross_entropy(t.input("y")))
                .optimizer(AdamW::new(0.01))
                .micro_batches(micro_batches, &["x", "y"])
                .options(reference())
                .build()
                .unwrap();
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let inputs = [("x", &ones(&[64, 16])), ("y", &labels(64))];
        let report = step.jit().prepare(&store, &inputs).unwrap();
        // What backward needs is part of what lies between kernels, and the hidden layer is among
        // it.
        let hidden = 64 / micro_batches * 32 * 4;
        let (saved, peak) = (report.saved_bytes, report.peak_bytes);
        assert!(hidden <= saved && saved <= peak, "{hidden} <= {saved} <= {peak}");
        let text = report.to_string();
        let mut lines: Vec<&str> =
            text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(lines.iter().filter(|line| **line == "trace").count(), 1, "{text}");
        let count = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), count, "a line is listed twice: {text}");
    }
}

#[test]
fn u6_parts_of_a_batch_add_to_one_gradient() {
    let wide = 96;
    let peak = |parts: usize| {
        let model = Sequential::new().then(Linear::new(wide, wide)).then(Relu);
        let step =
            TrainStep::new(model, |t, m| m.forward(t.input("x")).cross_entropy(t.input("y")))
                .optimizer(AdamW::new(0.01))
                .micro_batches(parts, &["x", "y"])
                .options(reference())
                .build()
                .unwrap();
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let inputs = [("x", &ones(&[16, wide])), ("y", &labels(16))];
        step.jit().prepare(&store, &inputs).unwrap().peak_bytes
    };
    let (two, eight) = (peak(2), peak(8));
    assert!(eight < two + wide * wide * 4, "{two} bytes in two parts, {eight} in eight");
}

#[test]
fn u6_forward_programs_save_nothing() {
    let graph = trace("f", |t| t.output("y", t.input_of("x", f32s(&[8, 8])).softmax(1)));
    let (_, report) = compile_reported(graph.unwrap(), &reference()).unwrap();
    assert_eq!(report.saved_bytes, 0);
}

/// What the logger of this process was told.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target() == "tracecast" && record.level() == log::Level::Warn {
            TOLD.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// What the logger was told of the program of that name.
fn told(program: &str) -> Vec<String> {
    let of = format!("@{program}: ");
    TOLD.lock().unwrap().iter().filter(|line| line.starts_with(&of)).cloned().collect()
}

fn listen() {
    // Whichever test is first sets it.
    drop(log::set_logger(&Listener));
    log::set_max_level(log::LevelFilter::Warn);
}

#[test]
fn u10_a_loss_that_broadcasts_warns_with_shapes_and_line() {
    listen();
    let program = jit(reference(), |t| {
        let (x, w, y) = (t.input("x"), t.param("w"), t.input("y"));
        let gap = x.matmul(w) - y; // this line
        let loss = (gap * gap).mean(());
        t.update(w, w - t.grad(loss, &[w])[0] * 0.1);
        t.output("loss", loss);
    })
    .named("crossed");
    let line = line!() - 6;
    let mut store = Store::new().with("w", ones(&[3, 1]));
    for rows in [8, 6] {
        program.run(&mut store, &[("x", &ones(&[rows, 3])), ("y", &ones(&[rows]))]).unwrap();
    }
    // Nobody asked for the report. Another number of rows is another warning, the same one is told
    // once.
    let told = told("crossed");
    assert_eq!(told.len(), 2, "{told:?}");
    for part in ["[8, 1] and [8]", "[8, 8]", &format!("everyday.rs:{line}:"), "[crossed-loss]"] {
        assert!(told[0].contains(part), "expected {part} in {}", told[0]);
    }
    let kinds: Vec<_> = program.report().unwrap().warnings.iter().map(|w| w.kind).collect();
    assert_eq!(kinds, [WarningKind::CrossedLoss]);
    program.run(&mut store, &[("x", &ones(&[8, 3])), ("y", &ones(&[8, 1]))]).unwrap();
    assert!(program.report().unwrap().warnings.is_empty());
}

#[test]
fn warnings_go_through_log() {
    listen();
    let graph = |name: &str| {
        trace(name, |t| {
            let x = t.input_of("x", TensorType::new(DType::F16, [300, 300]));
            t.output("y", x.sum(()));
        })
        .unwrap()
    };
    let (_, report) = compile_reported(graph("logged"), &reference()).unwrap();
    let expected: Vec<String> =
        report.warnings.iter().map(|warning| format!("@logged: {warning}")).collect();
    assert!(expected.len() == 1 && expected[0].contains("[low-reduction]"), "{expected:?}");
    assert_eq!(told("logged"), expected);
    // What tracing notices is told as well, and the same for another signature only once.
    let program = jit(reference(), |t| {
        t.warn("mind the gap");
        t.output("y", t.input("x") * 2.0);
    })
    .named("noticed");
    for size in [1, 2] {
        program.run(&mut Store::new(), &[("x", &ones(&[size]))]).unwrap();
    }
    assert_eq!(told("noticed"), ["@noticed: mind the gap [tracing]"]);
    assert_eq!(program.report().unwrap().warnings.len(), 1);
}

#[test]
fn progress_is_told_phase_by_phase() {
    type Told = (String, String, usize, usize);
    let seen: Arc<Mutex<Vec<Told>>> = Arc::default();
    let hook = seen.clone();
    let options = reference().progress(move |now: &Progress<'_>| {
        let told = (now.program.to_owned(), now.phase.to_owned(), now.done, now.total);
        hook.lock().unwrap().push(told);
    });
    let double = jit(options, |t| t.output("y", t.input("x") * 2.0)).named("double");
    let run = || double.run(&mut Store::new(), &[("x", &ones(&[2]))]).unwrap();
    run();
    let told = seen.lock().unwrap().clone();
    let mut phases = tracecast::passes::names();
    phases.extend(["plan", "load", "ready"]);
    assert_eq!(told.iter().map(|(_, phase, ..)| phase.as_str()).collect::<Vec<_>>(), phases);
    for (at, (program, _, done, total)) in told.iter().enumerate() {
        assert_eq!((program.as_str(), *done, *total), ("double", at, phases.len() - 1));
    }
    run();
    assert_eq!(seen.lock().unwrap().len(), told.len(), "nothing was compiled");
}

#[test]
fn a_run_without_first_values_says_what_puts_them_there() {
    let (x, y) = (ones(&[4, 3]), labels(4));
    let step = step(reference());
    let mut store = Store::new();
    let error = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err().to_string();
    for part in
        ["state `weight`: is not in the store", "1 other", "it has nothing", "`init`", "`load`"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert!(store.is_empty(), "what a run puts there by itself is taken out again");
    let evaluate = step.evaluation(|t, model| t.output("y", model.forward(t.input("x"))));
    let mut wrong = Store::new().with("weight.", ones(&[2, 3]));
    let error = evaluate.run(&mut wrong, &[("x", &x)]).unwrap_err().to_string();
    assert!(error.contains("it has `weight.`") && error.contains("`init`"), "{error}");
    // An error that has another reason keeps it.
    step.init(&mut store, 0).unwrap();
    let far = Tensor::from([0i64, 1, 9, 0]);
    let error = step.run(&mut store, &[("x", &x), ("y", &far)]).unwrap_err().to_string();
    assert!(error.contains("index out of range"), "{error}");
}

#[test]
fn what_main_prints_is_the_message() {
    let graph = trace("narrow", |t| t.output("y", t.input_of("x", f32s(&[2])).reshape([3])));
    let error = graph.unwrap_err();
    assert!(error.to_string().starts_with("reshape: "), "{error}");
    assert_eq!(format!("{error:?}"), error.to_string());
    let of_a_tensor = Tensor::from([1.0f32]).item::<f64>().unwrap_err();
    assert_eq!(format!("{of_a_tensor:?}"), of_a_tensor.to_string());
    let reshaped = ones(&[4, 2]).reshape([3, 3]).unwrap_err().to_string();
    assert!(reshaped.contains("f32[4, 2] does not have as many elements as [3, 3]"), "{reshaped}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-tensors.safetensors");
    std::fs::write(&file, "hello, here are no tensors").unwrap();
    let error =
        step(reference()).load_model(&mut Store::new(), &file, &Load::strict()).unwrap_err();
    assert!(error.to_string().contains("is no safetensors file"), "{error}");
}

#[test]
fn numbers_stand_on_either_side() {
    let program = jit(reference(), |t| {
        let x = t.input("x");
        t.output("sum", 2.0 + x);
        t.output("difference", 2.0 - x);
        t.output("product", 2.0 * x);
        t.output("mixed", 2.5 - t.input("i"));
    });
    let x = Tensor::from([3.0f32, -1.0]);
    // Beside a fraction, whole numbers are f32.
    let whole = Tensor::from([1i64]);
    let out = program.run(&mut Store::new(), &[("x", &x), ("i", &whole)]).unwrap();
    assert_eq!(out["mixed"], Tensor::from([1.5f32]));
    let got = |name: &str| out[name].to_vec::<f32>().unwrap();
    assert_eq!(
        [got("sum"), got("difference"), got("product")],
        [[5.0, 1.0], [-1.0, 3.0], [6.0, -2.0]]
    );
}

#[test]
fn modules_without_parameters_do_what_they_are_called() {
    let parts = || Sequential::new().then(Flatten::new()).then(Tanh).then(Sigmoid).then(Silu);
    let program = jit(reference(), move |t| {
        let cx = Context::evaluation(t);
        t.output("y", parts().forward(&cx, t.input("x")));
        let x = t.input("x");
        t.output("expected", x.reshape([-1, 6]).tanh().sigmoid().silu());
    });
    for rows in [1, 4, 5] {
        let x = Tensor::randn([rows, 2, 3], 1).unwrap();
        let out = program.run(&mut Store::new(), &[("x", &x)]).unwrap();
        assert_eq!(out["y"], out["expected"]);
        assert_eq!(out["y"].shape()[..], [rows, 6]);
    }
    assert!(
        program.recompilations().len() <= 2,
        "sizes have names: {:?}",
        program.recompilations()
    );
    let flat = jit(reference(), |t| {
        t.output("y", Flatten::new().forward(&Context::evaluation(t), t.input("x")))
    });
    let run = |x: Tensor| flat.run(&mut Store::new(), &[("x", &x)]);
    assert_eq!(run(ones(&[3])).unwrap()["y"].shape()[..], [3, 1]);
    assert!(run(Tensor::scalar(1.0f32)).unwrap_err().to_string().contains("Flatten: takes a row"));
}
