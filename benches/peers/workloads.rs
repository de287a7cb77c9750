//! The workloads, as programs: what `workloads.py` computes with its frameworks.

use crate::data::{cast, fill, labels, magnitude, weight};
use crate::transformer::{Shapes, Transformer};
use crate::{operators, programs};
use tracecast::ir::ops::amp::LossScaling;
use tracecast::nn::{Context, Conv2d, Flatten, Layer, Linear, Lstm, MaxPool2d, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::Outputs;
use tracecast::{Precision, TrainStepBuilder};

/// What a run is asked for: workload, dtype, threads and precision, as on the command line.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) workload: String,
    pub(crate) dtype: DType,
    pub(crate) threads: usize,
    pub(crate) precision: Precision,
}

/// A program with its data.
pub(crate) struct Workload {
    run: Box<Run>,
    store: Store,
    /// The inputs of a run; several take turns.
    inputs: Vec<Vec<(&'static str, Tensor)>>,
    check: Box<Check>,
    runs: usize,
    last: Option<Outputs>,
}

/// Runs a program on a store and inputs.
type Run = dyn Fn(&mut Store, &[(&str, &Tensor)]) -> tracecast::Result<Outputs>;

/// Sums up the outputs of a run, or what it did to the store.
type Check = dyn Fn(&Store, &Outputs) -> f64;

impl Workload {
    fn new(
        run: impl Fn(&mut Store, &[(&str, &Tensor)]) -> tracecast::Result<Outputs> + 'static,
        check: impl Fn(&Store, &Outputs) -> f64 + 'static,
    ) -> Self {
        let (run, check) = (Box::new(run), Box::new(check));
        Workload { run, store: Store::new(), inputs: vec![Vec::new()], check, runs: 0, last: None }
    }

    /// One run.
    pub(crate) fn step(&mut self) {
        let inputs = &self.inputs[self.runs % self.inputs.len()];
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        self.last = Some((self.run)(&mut self.store, &inputs).expect("a run"));
        self.runs += 1;
    }

    /// The number by which the last run is compared with that of the peers.
    pub(crate) fn check(&self) -> f64 {
        self.last.as_ref().map_or(f64::NAN, |outputs| (self.check)(&self.store, outputs))
    }
}

/// The workloads there are programs for.
pub(crate) const WORKLOADS: [&str; 34] = [
    "chain",
    "softmax",
    "layernorm",
    "matmul",
    "unscale",
    "adamw",
    "mlp-train",
    "cnn-train",
    "gpt-train",
    "mlp-infer-1",
    "mlp-infer-8",
    "mlp-infer-32",
    "lstm",
    "cumsum",
    "sort",
    "topk",
    "index-add",
    "embedding-bag",
    "var-rows",
    "var-columns",
    "batch-norm",
    "batch-norm-backward",
    "max-pool-3",
    "max-pool-3-backward",
    "max-pool-2",
    "max-pool-2-backward",
    "avg-pool-3",
    "avg-pool-3-backward",
    "avg-pool-2",
    "avg-pool-2-backward",
    "adaptive-avg",
    "adaptive-avg-backward",
    "bilinear",
    "bilinear-backward",
];

/// The workloads whose check is made of the first three steps; that of the others is made of the
/// first.
pub(crate) fn checks_three(workload: &str) -> bool {
    matches!(workload, "adamw" | "mlp-train" | "cnn-train" | "gpt-train")
}

/// The workloads that are defined in f32 only.
pub(crate) fn only_f32(workload: &str) -> bool {
    matches!(workload, "unscale" | "adamw" | "lstm")
}

/// The workload of a case, with its data.
///
/// # Errors
/// If there is none.
pub(crate) fn workload(case: &Case) -> Result<Workload, String> {
    let Case { workload, dtype, .. } = case;
    if only_f32(workload) && *dtype != DType::F32 {
        return Err(format!("`{workload}` is defined in f32 only, found {dtype}"));
    }
    let options = Options::new().threads(case.threads).precision(case.precision);
    let options = programs::written(options);
    Ok(match workload.as_str() {
        "chain" => chain(options, *dtype),
        "softmax" => {
            let data = [("x", fill(&WIDE, 1, -4.0, 4.0))];
            kernel(options, *dtype, data, |t| t.input("x").softmax(-1))
        }
        "layernorm" => layernorm(options, *dtype),
        "matmul" => {
            let [x, y] = [1, 2].map(|seed| fill(&[1024, 1024], seed, -1.0, 1.0));
            kernel(options, *dtype, [("x", x), ("y", y)], |t| t.input("x").matmul(t.input("y")))
        }
        "unscale" => unscale(options),
        "adamw" => adamw(options),
        "mlp-train" => mlp(options, *dtype),
        "cnn-train" => cnn(options, *dtype),
        "gpt-train" => gpt(options, *dtype),
        "mlp-infer-1" => inference(options, *dtype, 1),
        "mlp-infer-8" => inference(options, *dtype, 8),
        "mlp-infer-32" => inference(options, *dtype, 32),
        "lstm" => lstm(options),
        other => {
            return operators::workload(other, options, *dtype).ok_or_else(|| {
                format!("no workload `{other}`: expected one of {}", WORKLOADS.join(", "))
            });
        }
    })
}

/// The shape of the elementwise and the row workloads.
pub(crate) const WIDE: [usize; 2] = [4096, 1024];

/// A program of inputs, which are put into the dtype, and one output.
pub(crate) fn kernel<const N: usize>(
    options: Options,
    dtype: DType,
    data: [(&'static str, Tensor); N],
    body: impl for<'t> Fn(&'t Trace) -> Var<'t> + Send + Sync + 'static,
) -> Workload {
    kernel_of(options, dtype, data, [], body)
}

/// As [`kernel`], with further inputs in the dtypes that they have.
pub(crate) fn kernel_of<const N: usize, const M: usize>(
    options: Options,
    dtype: DType,
    data: [(&'static str, Tensor); N],
    others: [(&'static str, Tensor); M],
    body: impl for<'t> Fn(&'t Trace) -> Var<'t> + Send + Sync + 'static,
) -> Workload {
    let program = jit(options, move |t| t.output("out", body(t)));
    let run = move |store: &mut Store, inputs: &[(&str, &Tensor)]| program.run(store, inputs);
    let mut workload = Workload::new(run, |_, outputs| magnitude(&outputs["out"]));
    let data = data.into_iter().map(|(name, x)| (name, cast(&x, dtype)));
    workload.inputs = vec![data.chain(others).collect()];
    workload
}

fn chain(options: Options, dtype: DType) -> Workload {
    let [x, r] = [1, 2].map(|seed| fill(&WIDE, seed, -1.0, 1.0));
    let b = fill(&WIDE[1..], 3, -1.0, 1.0);
    kernel(options, dtype, [("x", x), ("r", r), ("b", b)], |t| {
        (t.input("x") + t.input("b")).gelu(Some("tanh")) * 0.5 + t.input("r")
    })
}

fn layernorm(options: Options, dtype: DType) -> Workload {
    let x = fill(&WIDE, 1, -1.0, 1.0);
    let [weight, bias] = [2, 3].map(|seed| fill(&WIDE[1..], seed, -1.0, 1.0));
    kernel(options, dtype, [("x", x), ("weight", weight), ("bias", bias)], |t| {
        t.input("x").layer_norm(Some(t.input("weight")), Some(t.input("bias")), [1024], 1e-5)
    })
}

/// Gradients that are unscaled in place.
const GRADS: usize = 64;

/// The scale is 0.5 and 2 in turn, so that the gradients stay what they are.
fn unscale(options: Options) -> Workload {
    let shape = [256, 1024];
    let name = |i: usize| format!("grad.{i}");
    let program = jit(options, move |t| {
        let mut any: Option<Var<'_>> = None;
        for i in 0..GRADS {
            let grad = t.state_of(&name(i), TensorType::new(DType::F32, shape));
            let done = grad.unscale_check(t.input("inverse"));
            t.update(grad, done);
            let found = done.result(1);
            any = Some(any.map_or(found, |any| any.maximum(found)));
        }
        if let Some(any) = any {
            t.output("found", any);
        }
    });
    let check = move |store: &Store, outputs: &Outputs| {
        let grads = (0..GRADS).map(|i| magnitude(&store.get(&name(i)).expect("a gradient")));
        magnitude(&outputs["found"]) + grads.sum::<f64>()
    };
    let mut workload = Workload::new(move |store, inputs| program.run(store, inputs), check);
    for i in 0..GRADS {
        workload.store.insert(&name(i), fill(&shape, 50 + i as u32, -1.0, 1.0));
    }
    workload.inputs = [2f32, 0.5].map(|x| vec![("inverse", Tensor::scalar(x))]).into();
    workload
}

/// Parameters of the `adamw` workload.
const PARAMS: usize = 10;

fn adamw(options: Options) -> Workload {
    let shape = [1024, 1024];
    let named = |kind: &str, i: usize| format!("{kind}.{i}");
    let program = jit(options, move |t| {
        let ty = TensorType::new(DType::F32, shape);
        let params: Vec<_> =
            (0..PARAMS).map(|i| t.param_of(&named("param", i), ty.clone())).collect();
        let grads = (0..PARAMS).map(|i| t.state_of(&named("grad", i), ty.clone())).collect();
        let rule = AdamW::new(1e-3);
        let mut optimizer = Recorded::new(t, &rule, &params);
        optimizer.set_grads(grads);
        optimizer.step();
    });
    let check = move |store: &Store, _: &Outputs| {
        magnitude(&store.get(&named("param", 0)).expect("a parameter"))
    };
    let mut workload = Workload::new(move |store, inputs| program.run(store, inputs), check);
    for i in 0..PARAMS {
        workload.store.insert(&named("param", i), fill(&shape, i as u32, -1.0, 1.0));
        workload.store.insert(&named("grad", i), fill(&shape, 100 + i as u32, -1.0, 1.0));
    }
    workload
}

/// Three layers with activations between them.
fn network(sizes: [usize; 4]) -> Sequential {
    let layer = |l: usize| Linear::new(sizes[l], sizes[l + 1]);
    Sequential::new()
        .named("0", layer(0))
        .named("relu0", Relu)
        .named("1", layer(1))
        .named("relu1", Relu)
        .named("2", layer(2))
}

/// The parameters of a network.
fn parameters(sizes: [usize; 4], store: &mut Store) {
    for l in 0..3 {
        let [inputs, outputs, seed] = [sizes[l], sizes[l + 1], 10 + 2 * l];
        let values = weight(&[outputs, inputs], seed as u32, inputs);
        store.insert(&format!("{l}.weight"), values);
        store.insert(&format!("{l}.bias"), weight(&[outputs], seed as u32 + 1, inputs));
    }
}

/// A network that has been trained, on a few examples; 16 bits by autocast.
fn inference(options: Options, dtype: DType, examples: usize) -> Workload {
    let sizes = [784, 3072, 768, 10];
    let model = network(sizes);
    let program = jit(options, move |t| {
        let logits = || model.forward(&Context::evaluation(t), t.input("x"));
        let out = match dtype {
            DType::F32 => logits(),
            low => autocast(t, "cpu", low, logits),
        };
        t.output("out", out);
    });
    let run = move |store: &mut Store, inputs: &[(&str, &Tensor)]| program.run(store, inputs);
    let mut workload = Workload::new(run, |_, outputs| magnitude(&outputs["out"]));
    parameters(sizes, &mut workload.store);
    workload.inputs = vec![vec![("x", fill(&[examples, 784], 1, 0.0, 1.0))]];
    workload
}

fn mlp(options: Options, dtype: DType) -> Workload {
    let sizes = [784, 1024, 1024, 10];
    let mut workload = trained(classifier(network(sizes), 0.1), options, dtype);
    parameters(sizes, &mut workload.store);
    workload.inputs = vec![vec![("x", fill(&[256, 784], 1, 0.0, 1.0)), ("y", labels(256, 10, 2))]];
    workload
}

/// Three convolutions, each with an activation and largest elements of 2 × 2, and a linear layer.
fn cnn(options: Options, dtype: DType) -> Workload {
    let channels = [3, 32, 64, 128];
    let mut model = Sequential::new();
    for l in 0..3 {
        model = model
            .named(format!("conv{l}"), Conv2d::new(channels[l], channels[l + 1], [3, 3]).same())
            .named(format!("relu{l}"), Relu)
            .named(format!("pool{l}"), MaxPool2d::new([2, 2]));
    }
    let width = channels[3] * 16;
    let model = model.named("flat", Flatten::new()).named("out", Linear::new(width, 10));
    let mut workload = trained(classifier(model, 0.05), options, dtype);
    let store = &mut workload.store;
    for l in 0..3 {
        let [inputs, outputs, seed] = [channels[l], channels[l + 1], 400 + 2 * l];
        let kernel = weight(&[outputs, inputs, 3, 3], seed as u32, inputs * 9);
        store.insert(&format!("conv{l}.weight"), kernel);
        let bias = weight(&[outputs], seed as u32 + 1, inputs * 9);
        store.insert(&format!("conv{l}.bias"), bias);
    }
    store.insert("out.weight", weight(&[10, width], 410, width));
    store.insert("out.bias", weight(&[10], 411, width));
    let x = fill(&[32, 3, 32, 32], 1, -1.0, 1.0);
    workload.inputs = vec![vec![("x", x), ("y", labels(32, 10, 2))]];
    workload
}

/// Four blocks of a transformer on eight sequences of 128 tokens; the matrix of its head is that of
/// its tokens.
fn gpt(options: Options, dtype: DType) -> Workload {
    let shapes = Shapes { layers: 4, width: 256, heads: 4, symbols: 512, batch: [8, 128] };
    let Shapes { layers, width, symbols, batch: [sequences, length], .. } = shapes;
    let step = TrainStep::new(Transformer(shapes), |t, model| {
        model.forward(t.input("x")).cross_entropy(t.input("y").reshape([-1]))
    });
    let mut workload = trained(step.optimizer(AdamW::new(1e-3)), options, dtype);
    let store = &mut workload.store;
    store.insert("tokens.weight", fill(&[symbols, width], 100, -0.05, 0.05));
    store.insert("positions.weight", fill(&[length, width], 101, -0.05, 0.05));
    for layer in 0..layers {
        let parts = [("qkv", 3, 1), ("mix", 1, 1), ("up", 4, 1), ("down", 1, 4)];
        for (seed, (part, rows, columns)) in (200 + 20 * layer as u32..).step_by(2).zip(parts) {
            let [rows, columns] = [rows * width, columns * width];
            let name = format!("block{layer}.{part}");
            store.insert(&format!("{name}.weight"), weight(&[rows, columns], seed, columns));
            store.insert(&format!("{name}.bias"), weight(&[rows], seed + 1, columns));
        }
    }
    // Each sequence has a token more than are read: the next of every token.
    let tokens = labels(sequences * (length + 1), symbols, 900).to_vec::<i64>().expect("indices");
    let from = |first: usize| {
        let rows = tokens.chunks(length + 1).flat_map(|row| &row[first..][..length]);
        Tensor::new([sequences, length], &rows.copied().collect::<Vec<_>>()).expect("a batch")
    };
    workload.inputs = vec![vec![("x", from(0)), ("y", from(1))]];
    workload
}

/// A model that learns classes by gradient descent with momentum 0.9.
fn classifier(model: Sequential, rate: f64) -> TrainStepBuilder {
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")));
    step.optimizer(Sgd::new(rate).momentum(0.9))
}

/// A model that learns, without data and with parameters of any kind.
fn trained(step: TrainStepBuilder, options: Options, dtype: DType) -> Workload {
    let step = step.options(options);
    let step = match dtype {
        DType::F32 => step,
        DType::F16 => {
            let options = ScalerOptions { init_scale: 4096.0, ..ScalerOptions::default() };
            step.autocast("cpu", DType::F16).scaler(options)
        }
        low => step.autocast("cpu", low),
    };
    let step = step.build().expect("there is an optimizer");
    let mut store = Store::new();
    step.init(&mut store, 0).expect("parameters of these sizes");
    let run = move |store: &mut Store, inputs: &[(&str, &Tensor)]| step.jit().run(store, inputs);
    let mut workload = Workload::new(run, |_, outputs| outputs["loss"].to_f64s()[0]);
    workload.store = store;
    workload
}

/// Two layers of long short-term memory over 64 steps of 32 examples, with the gradients of all
/// parameters.
fn lstm(options: Options) -> Workload {
    let (width, steps, examples) = (128, 64, 32);
    let model = Lstm::new(width, width).layers(2);
    let mut store = Store::new();
    for (seed, entry) in (600..).zip(model.entries().expect("its parameters are known")) {
        store.insert(&entry.name, weight(&entry.ty.shape.numbers(), seed, width));
    }
    let program = jit(options, move |t| {
        let (y, _) = model.forward(&Context::training(t), t.input("x").into());
        let loss = (y * y).mean(());
        let params = t.params();
        t.output("loss", loss);
        for (param, grad) in params.iter().zip(t.grad(loss, &params)) {
            t.output(&t.name_of(*param).unwrap_or_default(), grad);
        }
    });
    let check = |_: &Store, outputs: &Outputs| {
        outputs["loss"].to_f64s()[0] + magnitude(&outputs["weight_hh_l0"])
    };
    let mut workload = Workload::new(move |store, inputs| program.run(store, inputs), check);
    workload.store = store;
    workload.inputs = vec![vec![("x", fill(&[steps, examples, width], 599, -1.0, 1.0))]];
    workload
}
