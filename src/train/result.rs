//! [`StepResult`]: what a step tells.

use crate::error::Result;
use crate::train::recipe::Recipe;
use tracecast_runtime::{ExchangeTiming, Outputs, Tensor};

/// What a step tells.
#[derive(Debug)]
#[non_exhaustive]
pub struct StepResult {
    /// The loss, before scaling; the mean of those of all micro-batches.
    pub loss: f32,
    /// Whether the step was skipped: a gradient was not finite, or a norm that
    /// [`Clip::skip_if_nonfinite`] looks at.
    ///
    /// [`Clip::skip_if_nonfinite`]: crate::optim::Clip::skip_if_nonfinite
    pub skipped: bool,
    /// The scale that the loss was multiplied by; 1 without a scaler.
    pub scale: f32,
    /// How many steps in a row were skipped, this one included; 0 without a scaler.
    pub backoffs: u32,
    /// What to do about it, every time that many steps in a row were skipped that a report was
    /// asked for: see [`ScalerSettings::report_after`](crate::amp::ScalerSettings::report_after);
    /// and in each step that was taken with a loss that is NaN.
    pub warning: Option<String>,
    /// The norm of all gradients together before they were clipped, if they were clipped by norm.
    pub grad_norm: Option<f32>,
    /// What each gradient was like, if
    /// [`report_gradients`](crate::TrainStepBuilder::report_gradients) asked for it.
    pub gradients: Vec<GradientReport>,
    /// What became of each exchange with other ranks, of a step [in parallel](crate::DataParallel).
    pub exchanges: Vec<ExchangeTiming>,
    /// Everything else that the loss closure named with `t.output`, and the above.
    pub outputs: Outputs,
}

/// What the gradient of one parameter was like in a step, unscaled and before clipping.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientReport {
    /// The name of the parameter.
    pub name: String,
    /// True if an element was infinite or NaN.
    pub found_inf: bool,
    /// The largest magnitude of an element; infinite or NaN if one was.
    pub amax: f32,
}

impl StepResult {
    /// What the outputs of a step say.
    pub(crate) fn of(recipe: &Recipe, outputs: Outputs) -> Result<Self> {
        let number = |name: &str| -> Result<Option<f32>> {
            outputs.find(name).map(Tensor::item).transpose()
        };
        let backoffs = outputs.find("backoffs").map(Tensor::item::<i32>).transpose()?;
        let (backoffs, scale) = (backoffs.unwrap_or(0) as u32, number("scale")?.unwrap_or(1.0));
        let mut gradients = Vec::new();
        if recipe.report_gradients {
            for entry in &recipe.entries {
                let (Some(found), Some(amax)) = (
                    number(&format!("found_inf.{}", entry.name))?,
                    number(&format!("amax.{}", entry.name))?,
                ) else {
                    continue;
                };
                gradients.push(GradientReport {
                    name: entry.name.clone(),
                    found_inf: found != 0.0,
                    amax,
                });
            }
        }
        let loss = number("loss")?.unwrap_or(f32::NAN);
        let skipped = number("skipped")?.is_some_and(|found| found != 0.0);
        let spoilt = || {
            let spoilt = loss.is_nan() && !skipped;
            spoilt.then(|| "the loss is NaN, and the step was taken: parameters may be NaN now; look at the targets that count (TrainStep::of_sums), and at the inputs by numerics::check_finite".to_owned())
        };
        let warning = recipe.warning(backoffs, scale).or_else(spoilt);
        if let Some(warning) = &warning {
            log::warn!(target: "tracecast", "{warning}");
        }
        Ok(StepResult {
            loss,
            skipped,
            scale,
            backoffs,
            warning,
            grad_norm: number("grad_norm")?,
            gradients,
            exchanges: Vec::new(),
            outputs,
        })
    }
}
