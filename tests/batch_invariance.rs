//! Batch invariance: in evaluation a row has the same bits alone and in any batch, on any number of
//! threads and with any vector instructions, for models whose ops do not mix rows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tracecast::Vectors;
use tracecast::nn::*;
use tracecast::prelude::*;

/// Batch sizes.
const BATCHES: [usize; 5] = [1, 2, 3, 8, 17];
/// Rows that are compared.
const ROWS: usize = 17;
/// Without autocast, and with it.
const PRECISIONS: [Option<DType>; 3] = [None, Some(DType::BF16), Some(DType::F16)];

/// Rows longer than one chunk of a reduction, and products longer than one block of `k`.
fn perceptron() -> Sequential {
    let first = Sequential::new().then(LayerNorm::new(4200)).then(Linear::new(4200, 48));
    first.then(Gelu).then(Linear::new(48, 10)).then(LogSoftmax::new(1))
}

/// Dense convolutions with batch norm and pooling, as in a ResNet.
fn residual() -> Sequential {
    let conv = |inputs, outputs| Conv2d::new(inputs, outputs, [3, 3]).padding([1, 1]);
    let first = Sequential::new().then(conv(3, 16)).then(BatchNorm2d::new(16)).then(Relu);
    let second = first.then(MaxPool2d::new([2, 2])).then(conv(16, 32).stride([2, 2]));
    let pooled = second.then(BatchNorm2d::new(32)).then(Relu).then(AdaptiveAvgPool2d::new([1, 1]));
    pooled.then(Flatten::new()).then(Linear::new(32, 10))
}

/// Depthwise convolutions of both sizes and strides, and pointwise ones, as in a MobileNet.
fn depthwise() -> Sequential {
    let conv = |kernel: usize, stride| {
        let around = (kernel / 2) as i64;
        let conv = Conv2d::new(24, 24, [kernel, kernel]).padding([around, around]);
        conv.stride([stride, stride]).groups(24).without_bias()
    };
    let first = Sequential::new().then(Conv2d::new(3, 24, [1, 1])).then(Hardswish);
    let second = first.then(conv(3, 1)).then(BatchNorm2d::new(24)).then(Relu6);
    let third =
        second.then(conv(5, 1)).then(Silu).then(conv(3, 2)).then(Conv2d::new(24, 16, [1, 1]));
    third.then(AvgPool2d::new([2, 2])).then(Flatten::new()).then(Linear::new(16 * 25, 10))
}

/// Transposed convolutions, group norm and resizing, as in the decoder of images.
fn decoder() -> Sequential {
    let first =
        Sequential::new().then(Linear::new(20, 16 * 25)).then(Unflatten::new(1, [16, 5, 5]));
    let up = ConvTranspose2d::new(16, 12, [4, 4]).stride([2, 2]).padding([1, 1]);
    let second = first.then(up).then(GroupNorm::new(4, 12)).then(Silu);
    let third = second.then(Upsample::by([2.0]).mode("bilinear"));
    third.then(Conv2d::new(12, 3, [3, 3]).padding([1, 1])).then(Tanh)
}

/// Attention over the positions of a row.
struct Encoder;

impl Module for Encoder {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let layer = TransformerEncoderLayer::new(32, 4).feedforward(64).batch_first();
        let x = cx.call("in", &Linear::new(8, 32), x);
        let y = cx.apply("encoder", &TransformerEncoder::new(layer, 2).norm(), x);
        cx.call("out", &Linear::new(32, 10), y.mean(1))
    }
}

/// Recurrent steps over the positions of a row.
struct Recurrent;

impl Module for Recurrent {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let (y, _) = cx.apply("lstm", &Lstm::new(8, 24).batch_first(), x);
        cx.call("out", &Linear::new(24, 10), y.select(1, -1))
    }
}

/// The program of a model in evaluation.
fn program(model: impl Module + 'static, low: Option<DType>, options: Options) -> Jit {
    jit(options, move |t| {
        let x = t.input("x");
        let forward = || model.forward(&Context::evaluation(t), x);
        let y = if low.is_some() { autocast(t, "cpu", low, forward) } else { forward() };
        t.output("y", y);
    })
}

/// The results of rows from `first` on as bits, one list a row.
fn rows(program: &Jit, store: &mut Store, x: &Tensor, first: usize, batch: usize) -> Vec<Vec<u64>> {
    let part = x.slice(0, first..first + batch).unwrap();
    let y = program.run(store, &[("x", &part)]).unwrap()["y"].to_f64s();
    assert!(y.iter().all(|number| number.is_finite()));
    y.chunks(y.len() / batch).map(|row| row.iter().map(|y| y.to_bits()).collect()).collect()
}

/// The settings whose bits are compared with those of one row on one thread.
fn settings() -> Vec<(String, Options)> {
    let mut found = Vec::new();
    for vectors in Vectors::ALL {
        for threads in [1, 2] {
            let options = Options::new().threads(threads).vectors(vectors);
            let exact = options.clone().infer_sizes(false);
            found.push((format!("{vectors}, {threads} threads"), exact));
            if threads == 2 {
                found.push((format!("{vectors}, {threads} threads, a named batch"), options));
            }
        }
    }
    found
}

/// Compares rows in batches, in all settings, with the same rows one by one.
fn check<M: Module + 'static>(model: fn() -> M, shape: &[usize]) {
    let shape: Vec<usize> = [ROWS].iter().chain(shape).copied().collect();
    let x = Tensor::randn(shape.as_slice(), 7).unwrap();
    let mut wrong = Vec::new();
    for low in PRECISIONS {
        let mut store = Store::new();
        model().init(&mut store, 3).unwrap();
        let alone = program(model(), low, Options::new().threads(1));
        let wanted: Vec<Vec<u64>> =
            (0..ROWS).flat_map(|row| rows(&alone, &mut store, &x, row, 1)).collect();
        assert!(wanted[1..].iter().all(|row| *row != wanted[0]), "rows differ");
        for (setting, options) in settings() {
            let program = program(model(), low, options);
            for batch in BATCHES {
                let first = (5 * batch) % (ROWS + 1 - batch);
                let found = rows(&program, &mut store, &x, first, batch);
                let differing = found.iter().zip(&wanted[first..]).filter(|(a, b)| a != b).count();
                if differing > 0 {
                    let low = low.map_or_else(|| "f32".to_owned(), |low| low.to_string());
                    wrong.push(format!("{low}, batch {batch}, {setting}: {differing} rows"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "rows with other bits than alone:\n{}", wrong.join("\n"));
}

#[test]
fn rows_of_a_perceptron_have_the_bits_that_they_have_alone() {
    check(perceptron, &[4200]);
}

#[test]
fn rows_of_a_residual_network_have_the_bits_that_they_have_alone() {
    check(residual, &[3, 20, 20]);
}

#[test]
fn rows_of_a_depthwise_network_have_the_bits_that_they_have_alone() {
    check(depthwise, &[3, 20, 20]);
}

#[test]
fn rows_of_a_decoder_have_the_bits_that_they_have_alone() {
    check(decoder, &[20]);
}

#[test]
fn rows_of_an_encoder_have_the_bits_that_they_have_alone() {
    check(|| Encoder, &[12, 8]);
}

#[test]
fn rows_of_a_recurrent_network_have_the_bits_that_they_have_alone() {
    check(|| Recurrent, &[6, 8]);
}
