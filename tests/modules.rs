//! How the parameters of a user's modules are found: without a run where `forward` decides nothing
//! by sizes, else with the type of an input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tracecast::checkpoint::{Load, load_model, save_model};
use tracecast::nn::{Context, ForInput, KvCache, Linear};
use tracecast::prelude::*;

/// A module made of a function.
struct By<F>(F);

impl<F> Module for By<F>
where
    F: for<'t> Fn(&Context<'t>, Var<'t>) -> Var<'t> + Send + Sync,
{
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.0(cx, x)
    }
}

fn by<F>(forward: F) -> By<F>
where
    F: for<'t> Fn(&Context<'t>, Var<'t>) -> Var<'t> + Send + Sync,
{
    By(forward)
}

fn f32s(sizes: &[usize]) -> TensorType {
    TensorType::new(DType::F32, sizes)
}

fn names(module: &impl Module) -> Vec<String> {
    module.entries().unwrap().into_iter().map(|entry| entry.name).collect()
}

/// The error of a module that decides by sizes.
fn refusal(module: &impl Module) -> String {
    let error = module.init(&mut Store::new(), 0).unwrap_err().to_string();
    assert_eq!(error, module.entries().unwrap_err().to_string());
    error
}

fn fc<'t>(cx: &Context<'t>, name: &str, x: Var<'t>) -> Var<'t> {
    cx.call(name, &Linear::new(4, 4), x)
}

const FC: [&str; 2] = ["fc.weight", "fc.bias"];

#[test]
fn lists_of_parts_are_as_long_as_asked_for() {
    let qkv = |cx: &Context<'_>, parts: usize| assert_eq!((parts, cx.path()), (3, ""));
    let module = by(move |cx, x| {
        let p = cx.call("fc", &Linear::new(4, 12), x).chunk(3, -1);
        qkv(cx, p.len());
        p[0] * p[1] + p[2]
    });
    assert_eq!(names(&module), FC);
    assert_eq!(
        names(&by(|cx, x| {
            let p = fc(cx, "fc", x).split_with_sizes(&[1, 3], -1);
            cat(&[p[1], p[0]], -1)
        })),
        FC
    );
    assert_eq!(names(&by(|cx, x| fc(cx, "fc", x).tensor_split(2, -1)[1])), FC);
    assert_eq!(names(&by(|cx, x| fc(cx, "fc", x).split_at(&[1, 2], -1)[2])), FC);
    assert_eq!(names(&by(|cx, x| fc(cx, "fc", x).hsplit(2)[1])), FC);
    assert_eq!(names(&by(|cx, x| broadcast_tensors(&[fc(cx, "fc", x), x])[1])), FC);
}

#[test]
fn sizes_may_be_computed_with() {
    let module = by(|cx, x| {
        let (batch, length) = (x.size(0), x.size(1));
        let y = fc(cx, "fc", x.reshape(sizes![batch * length, 4]));
        y.reshape(sizes![batch, length, -1]) / 2.0
    });
    assert_eq!(names(&module), FC);
    let mut store = Store::new();
    module.init(&mut store, 0).unwrap();
    let run = jit(Options::new(), move |t| {
        t.output("y", module.forward(&Context::evaluation(t), t.input("x")));
    });
    let out = run.run(&mut store, &[("x", &Tensor::rand([2, 3, 4], 0).unwrap())]).unwrap();
    assert_eq!(*out["y"].shape(), tracecast::Shape::from([2, 3, 4]));
}

#[test]
fn what_decides_by_a_type_is_refused_with_its_line() {
    let refused = [
        refusal(&by(|cx, x| if x.rank() == 2 { fc(cx, "fc", x) } else { x })),
        refusal(&by(|cx, x| if x.shape().len() != 2 { x } else { fc(cx, "fc", x) })),
        refusal(&by(|cx, x| if x.size(0) == 1 { x } else { fc(cx, "fc", x) })),
        refusal(&by(|cx, x| if x.dtype() == DType::F32 { x } else { fc(cx, "fc", x) })),
        refusal(&by(|cx, x| {
            if cx.trace().tracer().holds(x.size(0).at_least(2)) { fc(cx, "fc", x) } else { x }
        })),
        refusal(&by(|cx, x| (0..x.size(0).get()).fold(x, |x, i| fc(cx, &i.to_string(), x)))),
        refusal(&by(|cx, x| x.unbind(0).into_iter().fold(x, |sum, x| sum + fc(cx, "fc", x)))),
        refusal(&by(|cx, x| fc(cx, "fc", x).split(2, -1)[1])),
    ];
    for (i, error) in refused.iter().enumerate() {
        assert!(error.contains("for_input"), "{i}: {error}");
        assert!(error.contains("tests/modules.rs:"), "{i}: {error}");
    }
    let wrong = by(|_, _| panic!("a mistake of the module"));
    assert!(refusal(&wrong).contains("a mistake of the module"));
}

/// Its parameters lie behind an early return.
fn early() -> ForInput<impl Module> {
    by(|cx, x| {
        if x.rank() != 2 {
            return x;
        }
        let parts = fc(cx, "fc", x).unbind(1);
        parts[3] * parts[0]
    })
    .for_input(f32s(&[1, 4]))
}

#[test]
fn with_the_type_of_an_input_everything_works() {
    let module = early();
    assert_eq!(names(&module), FC);
    // Inside of others, too.
    assert_eq!(names(&nn::Sequential::new().then(Linear::new(4, 4)).then(early())).len(), 4);

    let path = std::env::temp_dir().join(format!("early-{}.safetensors", std::process::id()));
    let mut store = Store::new();
    module.init(&mut store, 0).unwrap();
    save_model(&module, &store, &path).unwrap();
    load_model(&module, &mut Store::new(), &path, &Load::strict()).unwrap();
    std::fs::remove_file(&path).unwrap();

    let step = TrainStep::new(module, |t, model| model.forward(t.input("x")).sum(()))
        .optimizer(Sgd::new(0.1))
        .build()
        .unwrap();
    step.init(&mut store, 0).unwrap();
    let before = store.get("fc.weight").unwrap();
    step.run(&mut store, &[("x", &Tensor::rand([5, 4], 0).unwrap())]).unwrap();
    assert_ne!(before, store.get("fc.weight").unwrap());
}

#[test]
fn an_input_of_a_wrong_type_is_told_by_the_op_that_refuses_it() {
    let module = by(|cx, x| fc(cx, "fc", x).unbind(0)[0]).for_input(f32s(&[1, 5]));
    let error = refusal(&module);
    assert!(error.contains("linear") && error.contains("[1, 5]"), "{error}");
}

#[test]
fn a_step_says_what_its_module_needs() {
    let module = by(|cx, x| if x.rank() == 2 { fc(cx, "fc", x) } else { x });
    let built = TrainStep::new(module, |t, model| model.forward(t.input("x")).sum(()));
    let error = built.optimizer(Sgd::new(0.1)).build().unwrap_err().to_string();
    assert!(error.contains("for_input"), "{error}");
}

/// A layer whose second input may be absent.
struct Pair;

impl Layer for Pair {
    type Input<'t> = (Var<'t>, Option<Var<'t>>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x, y): (Var<'t>, Option<Var<'t>>)) -> Var<'t> {
        let x = if x.rank() == 2 { fc(cx, "first", x) } else { x };
        y.map_or(x, |y| x + fc(cx, "second", y))
    }
}

#[test]
fn layers_take_the_types_of_their_inputs() {
    assert!(Pair.init(&mut Store::new(), 0).unwrap_err().to_string().contains("for_input"));
    assert_eq!(Pair.for_inputs([f32s(&[1, 4])]).entries().unwrap().len(), 2);
    assert_eq!(Pair.for_inputs([f32s(&[1, 4]), f32s(&[1, 4])]).entries().unwrap().len(), 4);
}

#[test]
fn parameters_have_types_without_a_run() {
    let module = by(|cx, x| {
        let scale = cx.parameter("scale", f32s(&[3]), nn::Start::Constant(1.0));
        scale.unbind(0).into_iter().fold(x, |x, each| x * each)
    });
    assert_eq!(names(&module), ["scale"]);
}

#[test]
fn caches_of_several_lengths_are_known_without_a_run() {
    let module = by(|cx, x| {
        let lengths =
            cx.buffer("lengths", TensorType::new(DType::I64, [2]), nn::Start::Constant(0.0));
        let cache = KvCache::new(2, 1, 8, 4);
        cache.extend_each(cx, [x, x], lengths, Size::from(4)).0[0]
    });
    assert_eq!(names(&module).len(), 4);
}

/// What fails after an op has failed is not told, and is no panic.
#[test]
fn a_trace_ends_where_the_type_of_a_failed_op_is_asked_for() {
    let failed = trace("g", |t| {
        let x = t.input_of("x", f32s(&[2, 3])).reshape([5, 5]);
        let parts = x.unbind(0);
        t.output("y", parts[4]);
        unreachable!("the recording has ended");
    });
    assert!(failed.unwrap_err().to_string().contains("reshape"));
}

fn model() -> nn::Sequential {
    let inner = nn::Sequential::new().then(Linear::new(8, 8)).then(nn::BatchNorm1d::new(8));
    nn::Sequential::new().named("in", Linear::new(4, 8)).named("body", inner).then(nn::Relu)
}

#[test]
fn a_summary_has_parameters_bytes_and_dtypes_by_module() {
    let plain = model().summary().unwrap();
    let paths = |summary: &nn::Summary| -> Vec<String> {
        summary.modules.iter().map(|module| module.path.clone()).collect()
    };
    assert_eq!(paths(&plain), ["in", "body.0", "body.1", ""]);
    // 40 + 72 + 16, and what a batch norm keeps.
    assert_eq!((plain.trained(), plain.count()), (128, 145));
    let low = model().summary_of(f32s(&[2, 4]), Some(&Autocast::new("cpu").dtype(DType::BF16)));
    let low = low.unwrap();
    assert_eq!(paths(&low), ["in", "body.0", "body.1", "body", "2", ""]);
    let dtypes: Vec<String> =
        low.modules.iter().map(|module| module.result.as_ref().unwrap().to_string()).collect();
    assert_eq!(dtypes[..2], ["bf16[2, 8]", "bf16[2, 8]"]);
    assert_eq!((low.bytes(), low.count()), (plain.bytes(), plain.count()));
    let text = low.to_string();
    assert!(
        text.contains("in       bf16[2, 8]       40    160  weight f32[8, 4], bias f32[8]"),
        "{text}"
    );
    assert!(text.contains("running_mean f32[8] (not trained)"), "{text}");
    let wrong = model().summary_of(f32s(&[2, 5]), None).unwrap_err().to_string();
    assert!(wrong.contains("linear"), "{wrong}");
}

#[test]
fn results_of_modules_are_outputs_by_name() {
    for parts in [1, 2] {
        let step = TrainStep::new(model(), |t, model| model.forward(t.input("x")).sum(()))
            .optimizer(Sgd::new(0.1))
            .micro_batches(parts, &["x"])
            .watch(&["in", "body.*", "nothing.*"])
            .build()
            .unwrap();
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let x = Tensor::rand([4, 4], 0).unwrap();
        let outputs = step.run(&mut store, &[("x", &x)]).unwrap().outputs;
        let shape = |name: &str| outputs.get(name).unwrap().shape().numbers().to_vec();
        for name in ["in", "body.0", "body.1"] {
            match parts {
                1 => assert_eq!(shape(name), [4, 8]),
                _ => assert_eq!(shape(&format!("{name}.1")), [2, 8]),
            }
        }
        let warnings = step.jit().report().unwrap().warnings;
        let told: String = warnings.iter().map(ToString::to_string).collect();
        assert!(told.contains("no module fits `nothing.*`") && !told.contains("`in`"), "{told}");
    }
    // A module that is called twice.
    let twice = by(|cx, x| fc(cx, "fc", fc(cx, "fc", x)));
    let run = jit(Options::new(), move |t| {
        let y = twice.forward(&Context::evaluation(t).watching(&["**"]), t.input("x"));
        t.output("y", y);
    });
    let mut store = Store::new();
    Linear::new(4, 4).init(&mut store, 0).unwrap();
    let mut named = Store::new();
    for name in ["weight", "bias"] {
        named.insert(&format!("fc.{name}"), store.get(name).unwrap());
    }
    let out = run.run(&mut named, &[("x", &Tensor::rand([2, 4], 0).unwrap())]).unwrap();
    assert_eq!(out["fc#1"], out["y"]);
    assert_ne!(out["fc"], out["y"]);
}
