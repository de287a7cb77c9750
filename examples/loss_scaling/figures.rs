//! Trainings that show what a loss scaler is for: a loss too small for f16, handwritten digits in
//! three precisions, and gradients that are made infinite at random.

use flate2::read::GzDecoder;
use std::io::Read;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;

/// In what precision a model is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Precision {
    /// Everything in f32.
    F32,
    /// Autocast to bf16.
    Bf16,
    /// Autocast to f16 without a scaler.
    F16,
    /// Autocast to f16 with a scaled loss.
    F16Scaled,
}

/// Images of 64 pixels from 0 to 1, and the digits they show. Every fifth row is for testing.
pub(crate) struct Digits {
    rows: Vec<(Vec<f32>, i64)>,
}

/// What a training came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// The share of test rows that the model gets right, in percent.
    pub(crate) accuracy: f64,
    /// How many steps were skipped.
    pub(crate) skipped: usize,
    /// In how many steps the loss was multiplied by infinity or NaN.
    pub(crate) poisoned: usize,
}

const BATCH: usize = 32;

impl Digits {
    /// The table that comes with the command line tool.
    pub(crate) fn load() -> Digits {
        let packed: &[u8] = include_bytes!("../../cli/data/digits.csv.gz");
        let mut table = String::new();
        GzDecoder::new(packed).read_to_string(&mut table).expect("a table of digits");
        let row = |line: &str| {
            let numbers: Vec<u8> =
                line.split(',').map(|field| field.parse().expect("a small number")).collect();
            let (label, pixels) = numbers.split_last().expect("a row is not empty");
            (pixels.iter().map(|pixel| f32::from(*pixel) / 16.0).collect(), i64::from(*label))
        };
        Digits { rows: table.lines().map(row).collect() }
    }

    fn part(&self, test: bool) -> Vec<usize> {
        (0..self.rows.len()).filter(|row| row.is_multiple_of(5) == test).collect()
    }

    fn batch(&self, rows: &[usize]) -> (Tensor, Tensor) {
        let x: Vec<f32> = rows.iter().flat_map(|row| self.rows[*row].0.clone()).collect();
        let y: Vec<i64> = rows.iter().map(|row| self.rows[*row].1).collect();
        let x = Tensor::new([rows.len(), 64], &x).expect("as many pixels");
        (x, Tensor::new([rows.len()], &y).expect("as many labels"))
    }

    /// Trains a perceptron with one hidden layer of 128 by AdamW. About `poison` of a thousand
    /// steps get a loss of infinity or NaN.
    ///
    /// # Errors
    /// Those of compiling and running.
    pub(crate) fn train(
        &self,
        precision: Precision,
        seed: u64,
        epochs: usize,
        poison: u64,
    ) -> tracecast::Result<Outcome> {
        let model =
            Sequential::new().then(Linear::new(64, 128)).then(Relu).then(Linear::new(128, 10));
        let step = TrainStep::new(model, |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y")) * t.input("poison")
        });
        let step = precise(step.optimizer(AdamW::new(1e-3)), precision).build()?;
        let mut store = Store::new();
        step.init(&mut store, seed)?;
        let mut random = Random(seed + 1);
        let mut rows = self.part(false);
        let mut outcome = Outcome { accuracy: 0.0, skipped: 0, poisoned: 0 };
        for _ in 0..epochs {
            random.shuffle(&mut rows);
            // Batches of one size, so that one program does all.
            for rows in rows.chunks_exact(BATCH) {
                let (x, y) = self.batch(rows);
                let bad = random.below(1000) < poison;
                let factor = match random.below(2) {
                    0 if bad => f32::INFINITY,
                    _ if bad => f32::NAN,
                    _ => 1.0,
                };
                let inputs = [("x", &x), ("y", &y), ("poison", &Tensor::scalar(factor))];
                outcome.poisoned += usize::from(bad);
                outcome.skipped += usize::from(step.run(&mut store, &inputs)?.skipped);
            }
        }
        let evaluate = step.evaluation(|t, model| {
            t.output("class", model.forward(t.input("x")).argmax(1));
        });
        let (x, y) = self.batch(&self.part(true));
        let (found, y) =
            (evaluate.run(&mut store, &[("x", &x)])?["class"].to_vec::<i64>()?, y.to_vec::<i64>()?);
        let right = found.iter().zip(&y).filter(|(found, label)| found == label).count();
        outcome.accuracy = 100.0 * right as f64 / y.len() as f64;
        Ok(outcome)
    }
}

/// The first and the last loss of a training by SGD on a loss that is multiplied by 2^-20, with a
/// rate that makes up for it. The losses are told without that factor.
///
/// # Errors
/// Those of compiling and running.
pub(crate) fn tiny_loss(precision: Precision, steps: u64) -> tracecast::Result<(f32, f32)> {
    let shrink = f64::from(-20).exp2();
    let model = Sequential::new().then(Linear::new(8, 32)).then(Relu).then(Linear::new(32, 3));
    let step = TrainStep::new(model, move |t, model| {
        let loss = model.forward(t.input("x")).cross_entropy(t.input("y"));
        t.output("whole", loss);
        loss * shrink
    });
    let step = precise(step.optimizer(Sgd::new(0.2 / shrink)), precision).build()?;
    let mut store = Store::new();
    step.init(&mut store, 1)?;
    let mut losses = (0.0, 0.0);
    for number in 0..steps {
        // Three classes, distinguished by where the largest of three sums of inputs is.
        let x = Tensor::randn([64, 8], number)?;
        let numbers = x.to_vec::<f32>()?;
        let label = |row: &[f32]| {
            let sums = [row[0] + row[3], row[1] - row[4], row[2] + row[5]];
            (0..3).max_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap_or(0) as i64
        };
        let y: Vec<i64> = numbers.chunks(8).map(label).collect();
        let done = step.run(&mut store, &[("x", &x), ("y", &Tensor::new([64], &y)?)])?;
        losses.1 = done.outputs["whole"].item::<f32>()?;
        if number == 0 {
            losses.0 = losses.1;
        }
    }
    Ok(losses)
}

fn precise(step: tracecast::TrainStepBuilder, precision: Precision) -> tracecast::TrainStepBuilder {
    match precision {
        Precision::F32 => step,
        Precision::Bf16 => step.autocast("cpu", DType::BF16),
        Precision::F16 => step.autocast("cpu", DType::F16),
        Precision::F16Scaled => step.autocast("cpu", DType::F16).scaler(ScalerOptions::default()),
    }
}

/// Numbers that are the same in every run, by the generator `splitmix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn shuffle(&mut self, rows: &mut [usize]) {
        for last in (1..rows.len()).rev() {
            rows.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
