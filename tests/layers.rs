//! Layers beyond what `tests/opinfo` compares with PyTorch: what is random, masks, lengths, starts,
//! and what is refused.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use tracecast::nn::*;
use tracecast::prelude::*;
use tracecast::runtime::Outputs;
use tracecast::{Entry, Result};

/// Runs what `body` names as outputs, with a store that has `entries`.
fn run(
    entries: &[Entry],
    inputs: &[(&str, &Tensor)],
    body: impl Fn(&Trace) + Send + Sync + 'static,
) -> Result<Outputs> {
    let mut store = Store::new();
    entries.iter().try_for_each(|entry| entry.put(&mut store, 7))?;
    jit(Options::new().device("reference"), body).run(&mut store, inputs)
}

fn numbers(out: &Outputs, name: &str) -> Vec<f32> {
    out[name].to_vec::<f32>().unwrap()
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 + 1e-5 * b.abs())
}

/// What a module makes of `x`, while it trains.
fn trained(module: impl Module + 'static, x: &Tensor) -> Result<Vec<f32>> {
    let entries = module.entries().unwrap();
    let out = run(&entries, &[("x", x)], move |t| {
        t.output("y", module.forward(&Context::training(t), t.input("x")));
    });
    Ok(numbers(&out?, "y"))
}

#[test]
fn dropouts_of_channels_drop_whole_channels() {
    let x = Tensor::full(TensorType::new(DType::F32, [8, 16, 3, 4]), 1.0).unwrap();
    let y = trained(Dropout2d::new(0.5), &x).unwrap();
    let channels: Vec<&[f32]> = y.chunks(12).collect();
    assert!(channels.iter().all(|c| c.iter().all(|v| *v == c[0]) && [0.0, 2.0].contains(&c[0])));
    let dropped = channels.iter().filter(|c| c[0] == 0.0).count();
    assert!((30..98).contains(&dropped), "{dropped} of 128");
    // Without a batch the channels come first.
    let x = Tensor::full(TensorType::new(DType::F32, [64, 5]), 1.0).unwrap();
    let y = trained(Dropout1d::new(0.5), &x).unwrap();
    assert!(y.chunks(5).all(|c| c.iter().all(|v| *v == c[0])));
    assert!(y.contains(&0.0) && y.contains(&2.0));
    let error = trained(Dropout3d::new(0.5), &x).unwrap_err().to_string();
    assert!(error.contains("Dropout3d: takes 4 or 5 axes, found f32[64, 5]"), "{error}");
}

#[test]
fn alpha_dropouts_keep_mean_and_variance() {
    let x = Tensor::randn([200, 100], 3).unwrap();
    for (y, most) in [
        (trained(AlphaDropout::new(0.3), &x).unwrap(), 0.05),
        (trained(FeatureAlphaDropout::new(0.3), &x).unwrap(), 0.05),
    ] {
        let mean = y.iter().sum::<f32>() / 20_000.0;
        let variance = y.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < most && (variance - 1.0).abs() < 2.0 * most, "{mean} {variance}");
    }
}

/// How often each class of a row is drawn, in a number of draws.
fn drawn(weights: &[f32], draws: usize) -> Vec<usize> {
    let x = Tensor::new([weights.len()], weights).unwrap();
    let out = run(&[], &[("x", &x)], move |t| {
        let rng = t.constant(DType::I64, &[2], &[5.0, 6.0]);
        t.output("y", t.input("x").multinomial(rng, draws as i64, true, 0));
    });
    let mut counts = vec![0; weights.len()];
    out.unwrap()["y"]
        .to_vec::<i64>()
        .unwrap()
        .iter()
        .for_each(|class| counts[*class as usize] += 1);
    counts
}

#[test]
fn classes_are_drawn_in_the_ratio_of_their_weights() {
    let near = |found: usize, share: f64| (found as f64 / 20_000.0 - share).abs() < 0.015;
    let thirds = drawn(&[1.0, 0.0, 3.0], 20_000);
    assert!(near(thirds[0], 0.25) && thirds[1] == 0 && near(thirds[2], 0.75), "{thirds:?}");
    let large = drawn(&[2e38, 2e38, 1.0], 20_000);
    assert!(near(large[0], 0.5) && near(large[1], 0.5) && large[2] == 0, "{large:?}");
    // Among that number of draws some are zero, which must not let a class win that has next to no
    // weight.
    let rare = drawn(&[&[1.0][..], &vec![1e-30; 500_000]].concat(), 64);
    assert_eq!(rare[0], 64);
}

#[test]
fn random_slopes_lie_between_their_bounds() {
    let x = Tensor::full(TensorType::new(DType::F32, [1000]), -1.0).unwrap();
    let y = trained(RRelu::default(), &x).unwrap();
    assert!(y.iter().all(|v| (-1.0 / 3.0..=-0.125).contains(v)), "{y:?}");
    let mean = y.iter().sum::<f32>() / 1000.0;
    assert!((mean + 0.2292).abs() < 0.01, "{mean}");
}

#[test]
fn pixels_and_channels_change_places_and_back() {
    let x = Tensor::from_fn(TensorType::new(DType::F32, [2, 8, 3, 5]), |i| i as f64).unwrap();
    let back = Sequential::new().then(PixelShuffle::new(2)).then(PixelUnshuffle::new(2));
    assert_eq!(trained(back, &x).unwrap(), x.to_vec::<f32>().unwrap());
    let small = Tensor::from_fn(TensorType::new(DType::F32, [1, 4, 1, 2]), |i| i as f64).unwrap();
    let shuffled = trained(PixelShuffle::new(2), &small).unwrap();
    assert_eq!(shuffled, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    let six = Tensor::from_fn(TensorType::new(DType::F32, [1, 6, 1]), |i| i as f64).unwrap();
    assert_eq!(trained(ChannelShuffle::new(2), &six).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let error = trained(PixelShuffle::new(3), &x).unwrap_err().to_string();
    assert!(error.contains("pixel_shuffle: 8 is no multiple of 9"), "{error}");
    let row = Tensor::zeros(TensorType::new(DType::F32, [2, 6])).unwrap();
    assert_eq!(trained(Unflatten::new(1, [2, -1]), &row).unwrap().len(), 12);
}

#[test]
fn a_module_called_twice_has_its_parameters_once() {
    struct Twice(Linear);
    impl Module for Twice {
        fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
            // The size of `x` is not known while parameters are asked for.
            let n = x.size(0);
            let y = cx.call("fc", &self.0, x).reshape([n, 3.into()]);
            cx.call("fc", &self.0, y)
        }
    }
    let names: Vec<String> =
        Twice(Linear::new(3, 3)).entries().unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["fc.weight", "fc.bias"]);
}

/// A module that calls a composite one twice, the second time from deeper in the stack.
struct Deep(TransformerEncoderLayer);

impl Deep {
    #[inline(never)]
    fn deeper<'t>(&self, cx: &Context<'t>, x: Var<'t>, depth: usize) -> Var<'t> {
        let room = std::hint::black_box([depth; 100]);
        if room[0] == 0 { cx.apply("block", &self.0, x) } else { self.deeper(cx, x, depth - 1) }
    }
}

impl Module for Deep {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.deeper(cx, self.deeper(cx, x, 0), 3)
    }
}

#[test]
fn a_composite_module_called_from_two_places_has_its_parameters_once() {
    let block = TransformerEncoderLayer::new(4, 2);
    let names = |entries: Vec<Entry>, path: &str| -> Vec<String> {
        // The generator belongs to the whole program.
        let own = entries.into_iter().filter(|e| e.name != "rng");
        own.map(|e| format!("{path}{}", e.name)).collect()
    };
    let once = names(block.entries().unwrap(), "block.");
    let twice = names(Deep(block).entries().unwrap(), "");
    assert_eq!(twice, once);
}

#[test]
fn states_go_on_under_autocast() {
    let (cell, lstm) = (RnnCell::new(3, 4), Lstm::new(3, 4).proj(2));
    let mut entries = cell.entries().unwrap();
    entries.extend(lstm.entries().unwrap());
    let x = Tensor::randn([2, 3], 1).unwrap();
    let out = run(&entries, &[("x", &x)], move |t| {
        let (cx, x) = (Context::evaluation(t), t.input("x"));
        autocast(t, "cpu", None, || {
            let h = cell.forward(&cx, x.into());
            assert_eq!(h.dtype(), DType::BF16);
            t.output("h", cell.forward(&cx, (x, h).into()).cast(DType::F32));
            let (_, state) = lstm.forward(&cx, x.into());
            t.output("y", lstm.forward(&cx, (x, state).into()).0.cast(DType::F32));
        });
    });
    let out = out.unwrap();
    assert!(numbers(&out, "h").iter().chain(&numbers(&out, "y")).all(|v| v.abs() < 1.0));
}

/// The dtypes of a layer's result and states in a bf16 region, two layers one on the other, for an
/// input and states of these dtypes.
fn dtypes_in_a_region(
    layer: &'static str,
    x: DType,
    h: Option<DType>,
    c: Option<DType>,
) -> Vec<DType> {
    let lstm = Lstm::new(3, 4).layers(2).proj(if layer == "proj" { 2 } else { 0 });
    let (gru, rnn) = (Gru::new(3, 4).layers(2), Rnn::new(3, 4).layers(2));
    let entries = match layer {
        "gru" => gru.entries(),
        "rnn" => rnn.entries(),
        _ => lstm.entries(),
    }
    .unwrap();
    let input = Tensor::zeros(TensorType::new(x, [5, 2, 3])).unwrap();
    let out = run(&entries, &[("x", &input)], move |t| {
        let (cx, x) = (Context::training(t), t.input("x"));
        let state = |dtype, n| t.tracer().full(TensorType::new(dtype, [2, 2, n]), 0.0);
        let width = if layer == "proj" { 2 } else { 4 };
        let h = h.map(|h| state(h, width));
        let out = autocast(t, "cpu", DType::BF16, || match layer {
            "gru" => <[Var<'_>; 2]>::from(gru.forward(&cx, Steps { x, state: h })).to_vec(),
            "rnn" => <[Var<'_>; 2]>::from(rnn.forward(&cx, Steps { x, state: h })).to_vec(),
            _ => {
                let state = h.zip(c.map(|c| state(c, 4)));
                let (y, (h, c)) = lstm.forward(&cx, Steps { x, state });
                vec![y, h, c]
            }
        });
        out.iter().enumerate().for_each(|(i, out)| t.output(&i.to_string(), *out));
    });
    let out = out.unwrap();
    (0..out.len()).map(|i| out[&i.to_string()[..]].dtype()).collect()
}

/// As PyTorch 2.15 has them on the CPU.
#[test]
fn recurrent_layers_have_the_dtypes_of_pytorch_under_autocast() {
    const F: Option<DType> = Some(DType::F32);
    const B: Option<DType> = Some(DType::BF16);
    let of = dtypes_in_a_region;
    use DType::{BF16, F32};
    for (x, h, c) in [(F32, None, None), (F32, F, F), (F32, B, B), (F32, F, B), (BF16, F, F)] {
        assert_eq!(of("lstm", x, h, c), [BF16; 3], "lstm {x} {h:?} {c:?}");
        assert_eq!(of("rnn", x, h, c), [BF16; 2], "rnn {x} {h:?}");
    }
    for (x, h, wanted) in
        [(F32, None, F32), (F32, F, F32), (F32, B, BF16), (BF16, None, BF16), (BF16, F, F32)]
    {
        assert_eq!(of("gru", x, h, None), [wanted; 2], "gru {x} {h:?}");
    }
    for (x, h, c, wanted) in [
        (F32, None, None, F32),
        (F32, B, B, BF16),
        (F32, F, B, BF16),
        (BF16, None, None, BF16),
        (BF16, F, F, F32),
    ] {
        assert_eq!(of("proj", x, h, c), [BF16, BF16, wanted], "projected {x} {h:?} {c:?}");
    }
}

#[test]
fn a_loss_at_the_top_brings_its_weights() {
    let weights = || Tensor::new([2], &[1f32, 3.0]).unwrap();
    let step = TrainStep::new(Linear::new(4, 2), move |t, model| {
        let (y, labels) = (model.forward(t.input("x")), t.input("y"));
        let loss = CrossEntropyLoss::new().weight(weights());
        loss.forward(model.context(), (y, labels)) + 0.0 * y.sum(())
    });
    let step = step.optimizer(Sgd::new(0.0)).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let x = Tensor::zeros(TensorType::new(DType::F32, [2, 4])).unwrap();
    let y = Tensor::new([2], &[0i64, 1]).unwrap();
    store.insert("bias", Tensor::new([2], &[0f32, 1.0]).unwrap());
    let loss = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap().loss;
    // Of the first class it is log(1 + e), of the second log(1 + e) - 1, and that one counts three
    // times.
    let expected = (1f32 + 1f32.exp()).ln() - 0.75;
    assert!((loss - expected).abs() < 1e-6, "{loss}, expected {expected}");
}

#[test]
fn steps_of_a_layer_are_those_of_its_cell() {
    let layer = Lstm::new(3, 4).dropout(0.5);
    let cell = LstmCell::new(3, 4);
    let x = Tensor::randn([5, 2, 3], 1).unwrap();
    let out = run(&layer.entries().unwrap(), &[("x", &x)], move |t| {
        let cx = Context::training(t);
        let (y, (h, c)) = layer.forward(&cx, t.input("x").into());
        t.output("y", y.select(0, 4));
        t.output("h", h.select(0, 0));
        t.output("c", c.select(0, 0));
        // The cell has the parameters of the layer under names of its own.
        let of = |name: &str| t.param(&format!("{name}_l0"));
        let mut state = None;
        for x in t.input("x").unbind(0) {
            let gates = x.linear(of("weight_ih"), Some(of("bias_ih")));
            let zeros = t.tracer().full(TensorType::new(DType::F32, [2, 4]), 0.0);
            let (h, c) = state.unwrap_or((zeros, zeros));
            let gates = gates + h.linear(of("weight_hh"), Some(of("bias_hh")));
            let [i, f, g, o] = [0, 4, 8, 12].map(|at| gates.slice(-1, at, at + 4, 1));
            let c = f.sigmoid() * c + i.sigmoid() * g.tanh();
            state = Some((o.sigmoid() * c.tanh(), c));
        }
        let (h, c) = state.unwrap();
        t.output("h by hand", h);
        t.output("c by hand", c);
    });
    let out = out.unwrap();
    assert_eq!(numbers(&out, "y"), numbers(&out, "h"));
    assert!(close(&numbers(&out, "h"), &numbers(&out, "h by hand")));
    assert!(close(&numbers(&out, "c"), &numbers(&out, "c by hand")));
    assert_eq!(cell.entries().unwrap().len(), 4);
}

#[test]
fn gradients_of_inputs_go_through_all_steps() {
    let layer = Gru::new(2, 3).layers(2).bidirectional().batch_first();
    let entries = layer.entries().unwrap();
    assert!(entries.iter().any(|e| e.name == "bias_hh_l1_reverse"));
    let x = Tensor::randn([2, 4, 2], 5).unwrap();
    let read = move |t: &Trace| {
        let x = t.param("x");
        let (y, _) = layer.forward(&Context::training(t), x.into());
        let loss = (y * y).sum(());
        t.output("loss", loss);
        t.output("dx", t.tracer().grad(loss, &[x])[0]);
    };
    let mut store = Store::new();
    entries.iter().for_each(|entry| entry.put(&mut store, 7).unwrap());
    let program = jit(Options::new().device("reference"), read);
    let mut loss = |x: &Tensor| {
        store.insert("x", x.clone());
        let out = program.run(&mut store, &[]).unwrap();
        (out["loss"].item::<f32>().unwrap(), numbers(&out, "dx"))
    };
    let dx = loss(&x).1;
    let mut moved = x.to_vec::<f32>().unwrap();
    for (i, expected) in dx.iter().enumerate() {
        let step = 1e-2;
        let mut at = |by: f32| {
            moved[i] += by;
            let value = loss(&Tensor::new([2, 4, 2], &moved).unwrap()).0;
            moved[i] -= by;
            value
        };
        let slope = (at(step) - at(-step)) / (2.0 * step);
        assert!((slope - expected).abs() < 2e-3, "{i}: {slope} for {expected}");
    }
}

#[test]
fn recurrent_layers_refuse_what_does_not_fit() {
    let refused = |x: &[usize], h: Option<&[usize]>| {
        let zeros = |shape: &[usize]| Tensor::zeros(TensorType::new(DType::F32, shape)).unwrap();
        let layer = Rnn::new(3, 4).layers(2);
        let inputs = [("x", zeros(x)), ("h", zeros(h.unwrap_or(&[1])))];
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        let has_state = h.is_some();
        let result = run(&layer.entries().unwrap(), &inputs, move |t| {
            let steps = Steps { x: t.input("x"), state: has_state.then(|| t.input("h")) };
            t.output("y", layer.forward(&Context::evaluation(t), steps).0);
        });
        result.unwrap_err().to_string()
    };
    for (x, h, why) in [
        (&[5, 2, 4][..], None, "takes 3 numbers at each step, of f32[5, 2, 4]"),
        (&[5], None, "takes two or three axes"),
        (&[0, 2, 3], None, "takes at least one step"),
        (&[5, 2, 3], Some(&[2, 2, 3][..]), "the state is f32[2, 2, 3], expected f32[2, 2, 4]"),
    ] {
        let error = refused(x, h);
        assert!(error.contains("Rnn: ") && error.contains(why), "{error}");
    }
}

#[test]
fn masks_of_every_kind_hide_keys() {
    let layer = MultiheadAttention::new(4, 2).batch_first();
    let x = Tensor::randn([1, 3, 4], 2).unwrap();
    let causal = Tensor::new([3, 3], &[false, true, true, false, false, true, false, false, false]);
    let added =
        [0.0f32, f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0, 0.0];
    let added = Tensor::new([3, 3], &added).unwrap();
    let padding = Tensor::new([1, 3], &[false, false, true]).unwrap();
    let inputs = [("x", &x), ("mask", &causal.unwrap()), ("added", &added), ("padding", &padding)];
    let out = run(&layer.entries().unwrap(), &inputs, move |t| {
        let cx = Context::evaluation(t);
        let attend = || Attend::from(t.input("x"));
        let weights = |given| layer.forward(&cx, given).1.unwrap();
        t.output("causal", weights(attend().causal()));
        t.output("mask", weights(attend().mask(t.input("mask"))));
        t.output("added", weights(attend().mask(t.input("added"))));
        t.output("padding", weights(attend().key_padding(t.input("padding"))));
    });
    let out = out.unwrap();
    let causal = numbers(&out, "causal");
    assert!(causal[0] == 1.0 && causal[5] == 0.0 && causal[8] > 0.0, "{causal:?}");
    assert_eq!(causal, numbers(&out, "mask"));
    assert_eq!(causal, numbers(&out, "added"));
    let padding = numbers(&out, "padding");
    assert!(padding.chunks(3).all(|row| row[2] == 0.0 && close(&[row[0] + row[1]], &[1.0])));
    let odd = MultiheadAttention::new(4, 3);
    let error = run(&odd.entries().unwrap(), &[("x", &x)], move |t| {
        t.output("y", odd.forward(&Context::evaluation(t), t.input("x").into()).0);
    });
    assert!(error.unwrap_err().to_string().contains("3 heads do not divide 4"));
}

#[test]
fn starts_are_those_of_the_layers() {
    let start = |entries: &[Entry], name: &str| {
        entries.iter().find(|entry| entry.name == name).unwrap().start.clone()
    };
    let lstm = Lstm::new(3, 16).entries().unwrap();
    assert_eq!(start(&lstm, "weight_ih_l0"), Start::Uniform(-0.25, 0.25));
    let attention = MultiheadAttention::new(4, 2).entries().unwrap();
    assert_eq!(start(&attention, "out_proj.bias"), Start::Constant(0.0));
    assert_eq!(start(&attention, "out_proj.weight"), Start::Uniform(-0.5, 0.5));
    // sqrt(6 / (4 + 12)) for in_proj_weight: [12, 4].
    let Start::Uniform(_, bound) = start(&attention, "in_proj_weight") else { panic!() };
    assert!((bound - 0.375f64.sqrt()).abs() < 1e-12);
    // A whole transformer starts its matrices alike.
    let model = Transformer::new(4, 2).layers(1, 1).feedforward(8).entries().unwrap();
    let Start::Uniform(_, bound) = start(&model, "encoder.layers.0.linear1.weight") else {
        panic!()
    };
    assert!((bound - 0.5f64.sqrt()).abs() < 1e-12);
    let table = Embedding::new(5, 2).padding(-1).entries().unwrap()[0].tensor(3).unwrap();
    let table = table.to_vec::<f32>().unwrap();
    assert!(table[8..] == [0.0, 0.0] && table[..8].iter().all(|v| *v != 0.0), "{table:?}");
}

/// The store behind a step of a batch norm that is skipped, since the slope of its loss is
/// infinite.
fn skipped(hold: bool, parts: usize) -> Store {
    let model = Sequential::new().then(BatchNorm1d::new(2)).then(Linear::new(2, 1));
    let step = TrainStep::new(model, |t, model| {
        let slope = t.input_of("slope", TensorType::scalar(DType::F32));
        (model.forward(t.input("x")) * slope).mean(())
    });
    let step = step.optimizer(Sgd::new(0.1)).scaler(ScalerOptions::default());
    let step = step.micro_batches(parts, &["x"]).hold_statistics(hold);
    let step = step.options(Options::new().device("reference")).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let x = Tensor::new([4, 2], &[0.0f32, 0.0, 2.0, 4.0, 1.0, 1.0, 3.0, 5.0]).unwrap();
    let slope = Tensor::scalar(f32::INFINITY);
    assert!(step.run(&mut store, &[("x", &x), ("slope", &slope)]).unwrap().skipped);
    assert_eq!(store.get("0.weight").unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
    store
}

#[test]
fn running_statistics_move_in_skipped_steps_unless_they_are_held() {
    let get = |store: &Store, name| store.get(name).unwrap().to_vec::<f32>().unwrap();
    let moved = skipped(false, 1);
    assert!(close(&get(&moved, "0.running_mean"), &[0.15, 0.25]));
    assert!(close(&get(&moved, "0.running_var"), &[0.9 + 0.5 / 3.0, 0.9 + 1.7 / 3.0]));
    assert_eq!(moved.get("0.num_batches_tracked").unwrap().to_vec::<i64>().unwrap(), [1]);
    let held = skipped(true, 1);
    assert_eq!(get(&held, "0.running_mean"), [0.0; 2]);
    assert_eq!(get(&held, "0.running_var"), [1.0; 2]);
    assert_eq!(held.get("0.num_batches_tracked").unwrap().to_vec::<i64>().unwrap(), [0]);
    // Each micro-batch is a batch of its own.
    let twice = skipped(false, 2);
    assert!(close(&get(&twice, "0.running_mean"), &[0.29, 0.48]));
    assert_eq!(twice.get("0.num_batches_tracked").unwrap().to_vec::<i64>().unwrap(), [2]);
}

#[test]
fn norms_refuse_what_has_no_statistics() {
    let x = Tensor::full(TensorType::new(DType::F32, [1, 4]), 1.0).unwrap();
    let error = trained(BatchNorm1d::new(4), &x).unwrap_err().to_string();
    assert!(error.contains("more than one number for each channel"), "{error}");
    let error = trained(BatchNorm2d::new(4), &x).unwrap_err().to_string();
    assert!(error.contains("takes 4 axes, found f32[1, 4]"), "{error}");
    let error = trained(GroupNorm::new(3, 4), &x).unwrap_err().to_string();
    assert!(error.contains("3 groups do not divide the 4 channels"), "{error}");
    let wide = Tensor::full(TensorType::new(DType::F32, [3, 5, 2]), 1.0).unwrap();
    let error = trained(BatchNorm1d::new(4), &wide).unwrap_err().to_string();
    assert!(error.contains("`weight` is f32[4], expected f32[5]"), "{error}");
    assert!(error.contains("layers.rs"), "{error}");
}
