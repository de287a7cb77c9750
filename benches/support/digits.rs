//! The training step that the benches share: a perceptron of 64, 128 and 10 units with AdamW on
//! batches of 32 rows, as `tracecast train` runs it.

use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::{AdamW, ScalerOptions, Shorthand};
use tracecast::{DType, Options, Store, Tensor, TrainStep};

/// Rows of a batch, pixels of a row, width of the hidden layer, classes.
const SIZES: [usize; 4] = [32, 64, 128, 10];

/// The dtypes of the three columns: f32, autocast to bf16, autocast to f16 with a scaled loss.
pub(crate) const MODES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// A training step with its state and batches.
pub(crate) struct Digits {
    /// The step.
    pub(crate) step: TrainStep,
    /// Parameters, moments, scale.
    pub(crate) store: Store,
    /// Pixels and labels.
    pub(crate) batches: Vec<(Tensor, Tensor)>,
}

impl Digits {
    /// The step in a dtype, with that many batches of random pixels and labels. With more rows than
    /// the network can learn by heart the loss stays where it is, and no gradient becomes so small
    /// that arithmetic takes another time.
    pub(crate) fn new(dtype: DType, batches: usize, options: Options) -> Self {
        let [_, pixels, hidden, classes] = SIZES;
        let model = Sequential::new()
            .named("hidden", Linear::new(pixels, hidden))
            .named("relu", Relu)
            .named("out", Linear::new(hidden, classes));
        let step = TrainStep::new(model, |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        })
        .optimizer(AdamW::new(1e-3))
        .options(options);
        let step = match dtype {
            DType::F32 => step,
            DType::F16 => step.autocast("cpu", DType::F16).scaler(ScalerOptions::default()),
            low => step.autocast("cpu", low),
        };
        let step = step.build().expect("there is an optimizer");
        let mut store = Store::new();
        step.init(&mut store, 0).expect("parameters of these sizes");
        Digits { step, store, batches: (0..batches as u64).map(batch).collect() }
    }
}

/// A batch of random pixels, whole sixteenths, and random labels.
fn batch(seed: u64) -> (Tensor, Tensor) {
    let [rows, pixels, _, classes] = SIZES;
    let numbers = |count: usize, seed: u64, below: f32| {
        let numbers = Tensor::rand([count], seed).and_then(|x| x.to_vec::<f32>());
        let numbers = numbers.expect("a few thousand numbers").into_iter();
        numbers.map(move |x| (x * below).floor())
    };
    let x: Vec<f32> = numbers(rows * pixels, 2 * seed, 17.0).map(|x| x / 16.0).collect();
    let y: Vec<i64> = numbers(rows, 2 * seed + 1, classes as f32).map(|y| y as i64).collect();
    let x = Tensor::new([rows, pixels], &x).expect("as many pixels");
    (x, Tensor::new([rows], &y).expect("as many labels"))
}
