//! Training a model that PyTorch has exported, on arrays from a file.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;
use serde_json::json;
use tracecast::data::Dataset;
use tracecast::prelude::{AdamW, ScalerOptions, Shorthand, Var};
use tracecast::pt2::{self, Model};
use tracecast::{DType, Options, Size, Store, Tensor, Trace, TrainStep};
use tracecast_runtime::npz;

use super::{BATCH, RATE, milliseconds};
use crate::failure::Failure;
use crate::program::Autocast;
use crate::report::median;

/// What the loss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Loss {
    /// The cross entropy of the first result with classes `y`
    #[value(name = "cross_entropy", alias = "cross-entropy")]
    CrossEntropy,
    /// The mean squared difference of the first result and `y`
    Mse,
    /// The only result of the model
    Result,
}

impl Loss {
    fn of<'t>(self, t: &'t Trace, outputs: &[Var<'t>]) -> Var<'t> {
        match (self, outputs) {
            (Loss::CrossEntropy, [first, ..]) => first.cross_entropy(t.input("y")),
            (Loss::Mse, [first, ..]) => first.mean_squared_error(t.input("y")),
            (Loss::Result, [loss]) => *loss,
            _ => t.fail("loss", format!("the model has {} results", outputs.len())),
        }
    }
}

/// What the user chose.
pub(crate) struct Exported<'a> {
    pub(crate) file: &'a Path,
    pub(crate) data: &'a Path,
    pub(crate) loss: Loss,
    pub(crate) autocast: Option<Autocast>,
    pub(crate) epochs: usize,
    pub(crate) seed: u64,
    pub(crate) options: Options,
    pub(crate) save: Option<&'a Path>,
    pub(crate) json: bool,
}

impl Exported<'_> {
    /// Trains, and writes what it comes to: a line for each epoch, or one of JSON.
    pub(crate) fn train(&self, out: &mut impl Write) -> Result<(), Failure> {
        let model = pt2::open(self.file)?;
        let (model, data) = self.fitted(model, npz::read(self.data)?)?;
        let rows = self.rows(&model, &data)?;
        let step = self.step(model)?;
        let mut store = Store::new();
        step.init(&mut store, self.seed)?;
        let (mut times, mut losses, mut skipped) = (Vec::new(), Vec::new(), 0);
        let mut compile_ms = 0.0;
        for epoch in 0..self.epochs {
            let mut sum = 0.0;
            let shuffled = data.shuffled(self.seed.wrapping_add(epoch as u64));
            let batches = shuffled.batches_exact(rows)?;
            let count = batches.len();
            for batch in batches {
                let start = Instant::now();
                if times.is_empty() {
                    step.jit().prepare(&store, &batch.inputs())?;
                    compile_ms = milliseconds(start);
                }
                let start = Instant::now();
                let done = step.run(&mut store, &batch.inputs())?;
                times.push(milliseconds(start));
                sum += f64::from(done.loss);
                skipped += usize::from(done.skipped);
            }
            let mean = sum / count as f64;
            losses.push(mean);
            if !self.json {
                writeln!(out, "epoch {}: loss {mean:.6}", epoch + 1)?;
            }
            if let Some(folder) = self.save {
                step.save(&store, folder.join("model.safetensors"))?;
            }
        }
        let step_ms = median(&times);
        match self.json {
            true => {
                let line = json!({
                    "losses": losses,
                    "median_step_ms": step_ms,
                    "compile_ms": compile_ms,
                    "skipped_steps": skipped,
                });
                writeln!(out, "{line}")?;
            }
            false => writeln!(
                out,
                "{} steps of {rows} rows, {step_ms:.3} ms each; trace and compile {compile_ms:.1} ms; {skipped} skipped",
                times.len()
            )?,
        }
        Ok(())
    }

    fn step(&self, model: Model) -> Result<TrainStep, Failure> {
        let loss = self.loss;
        let step = TrainStep::from_exported(model, move |t, outputs| loss.of(t, outputs))
            .optimizer(AdamW::new(RATE))
            .options(self.options.clone());
        let step = match self.autocast {
            None => step,
            Some(Autocast { device, dtype }) => {
                let step = step.autocast(&device.to_string(), dtype);
                if dtype == DType::F16 { step.scaler(ScalerOptions::default()) } else { step }
            }
        };
        Ok(step.build()?)
    }

    /// The model and its arrays under the same names and in the same dtypes. A model of one input
    /// takes `x`.
    fn fitted(
        &self,
        model: Model,
        arrays: Vec<(String, Tensor)>,
    ) -> Result<(Model, Dataset), Failure> {
        let has = |name: &str| arrays.iter().any(|(known, _)| known == name);
        let only = match model.exported().inputs() {
            [one] if !has(&one.name) => Some(one.name.clone()),
            _ => None,
        };
        let model = match only {
            Some(name) => model.renamed(&name, "x")?,
            None => model,
        };
        let inputs = model.exported().inputs();
        let mut wanted: Vec<(&str, Option<DType>)> =
            inputs.iter().map(|input| (input.name.as_str(), Some(input.ty.dtype))).collect();
        if self.loss != Loss::Result {
            wanted.push(("y", (self.loss == Loss::CrossEntropy).then_some(DType::I64)));
        }
        let names =
            || wanted.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        if let Some((name, _)) =
            arrays.iter().find(|(name, _)| !wanted.iter().any(|(w, _)| w == name))
        {
            let message = format!("no input is called `{name}`: expected {}", names());
            return Err(Failure::in_file(self.data, message));
        }
        let found = wanted.iter().map(|(name, dtype)| {
            let array = arrays.iter().find(|(known, _)| known == name);
            let (_, array) = array.ok_or_else(|| {
                Failure::in_file(
                    self.data,
                    format!("there is no array `{name}`: expected {}", names()),
                )
            })?;
            let to = dtype.filter(|dtype| dtype.is_float() == array.dtype().is_float());
            Ok(((*name).to_owned(), array.cast(to.unwrap_or(array.dtype()))?))
        });
        let data = Dataset::new(found.collect::<Result<Vec<_>, Failure>>()?)?;
        Ok((model, data))
    }

    /// Rows of a batch: those that the model was exported for, or if that size is a name, as many
    /// as the digits have.
    fn rows(&self, model: &Model, data: &Dataset) -> Result<usize, Failure> {
        let sizes =
            model.exported().inputs().iter().filter_map(|input| input.ty.shape.iter().next());
        let fixed = sizes.copied().find_map(Size::number).and_then(|n| usize::try_from(n).ok());
        let rows = fixed.unwrap_or(BATCH.min(data.len()));
        if rows == 0 || data.len() < rows {
            let message = format!("there are {} rows, and a batch has {rows}", data.len());
            return Err(Failure::in_file(self.data, message));
        }
        Ok(rows)
    }
}
