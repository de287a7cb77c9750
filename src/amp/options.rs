//! The settings of a scaler: [`ScalerOptions`], PyTorch's, and [`ScalerSettings`], what a recorded
//! step can do besides.

use crate::amp::ScalerError;
use crate::amp::policy::ScalePolicy;
use crate::entry::{Entry, Start};
use crate::setters::setters;
use tracecast_ir::{DType, TensorType};

/// The settings that PyTorch's scaler has, with its defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerOptions {
    /// The first scale.
    pub init_scale: f64,
    /// What the scale is multiplied by after `growth_interval` good steps in a row.
    pub growth_factor: f64,
    /// What the scale is multiplied by after a step with a gradient that is not finite.
    pub backoff_factor: f64,
    /// The number of good steps after which the scale grows.
    pub growth_interval: i64,
    /// If false, nothing is scaled and every step is taken.
    pub enabled: bool,
}

impl Default for ScalerOptions {
    fn default() -> Self {
        ScalerOptions {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            enabled: true,
        }
    }
}

impl ScalerOptions {
    /// The entries of the store that hold the scale: `NAME.scale` and `NAME.growth_tracker`.
    pub fn entries(&self, name: &str) -> Vec<Entry> {
        if !self.enabled {
            return Vec::new();
        }
        let (scale, tracker) = (TensorType::scalar(DType::F32), TensorType::scalar(DType::I32));
        vec![
            Entry::state(format!("{name}.scale"), scale, Start::Constant(self.init_scale)),
            Entry::state(format!("{name}.growth_tracker"), tracker, Start::Constant(0.0)),
        ]
    }

    /// What PyTorch's constructor refuses.
    pub(crate) fn check(&self) -> Result<(), ScalerError> {
        if self.enabled && (self.growth_factor.is_nan() || self.growth_factor <= 1.0) {
            return Err(ScalerError::GrowthFactor(self.growth_factor));
        }
        if self.enabled && (self.backoff_factor.is_nan() || self.backoff_factor >= 1.0) {
            return Err(ScalerError::BackoffFactor(self.backoff_factor));
        }
        Ok(())
    }
}

/// The settings of a [`GradScaler`](crate::amp::GradScaler): PyTorch's, and what is better on
/// request.
///
/// ```
/// use tracecast::amp::{LogMax, ScalerOptions, ScalerSettings};
///
/// let options = ScalerOptions { growth_interval: 100, ..ScalerOptions::default() };
/// let settings = ScalerSettings::from(options).min_scale(1.0).check_updates(true).powers_of_two(true);
/// let by_size = ScalerSettings::default().policy(LogMax::default());
/// assert_ne!(settings, by_size);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerSettings {
    pub(crate) options: ScalerOptions,
    pub(crate) parity: bool,
    pub(crate) min_scale: Option<f64>,
    pub(crate) check_updates: bool,
    pub(crate) powers_of_two: bool,
    /// `None` if not said.
    pub(crate) report_after: Option<u32>,
    pub(crate) policy: ScalePolicy,
}

impl From<ScalerOptions> for ScalerSettings {
    fn from(options: ScalerOptions) -> Self {
        ScalerSettings {
            options,
            parity: false,
            min_scale: None,
            check_updates: false,
            powers_of_two: false,
            report_after: None,
            policy: ScalePolicy::BackOff,
        }
    }
}

impl Default for ScalerSettings {
    fn default() -> Self {
        ScalerOptions::default().into()
    }
}

impl ScalerSettings {
    setters! {
        /// With PyTorch's behaviour in every case: the flags of several optimizers are added where
        /// they are combined to 0 or 1 otherwise, the scale has no floor and can reach zero, and
        /// its first value is taken as it is.
        parity(parity: bool) => parity = parity;
        /// With a scale that never falls below this. Without this it stops at 2^-126, the last
        /// whose reciprocal is exact and finite.
        min_scale(floor: f64) => min_scale = Some(floor);
        /// With a second check, of the gradients as the optimizer reads them: it sees what
        /// overflowed while it was divided by a scale below one, and what was done to the gradients
        /// between unscaling and the step.
        check_updates(check: bool) => check_updates = check;
        /// Refuses a first scale or a factor that is not a power of two. With powers of two,
        /// scaling and unscaling are exact as long as nothing overflows or becomes subnormal;
        /// otherwise each rounds. Without this, such a factor is only warned about.
        powers_of_two(need: bool) => powers_of_two = need;
        /// With a count of back-offs in a row, `NAME.backoffs`, and a report after a number of
        /// them: see [`StepResult::warning`](crate::StepResult::warning). A
        /// [`TrainStep`](crate::TrainStep) reports after 20 if this is not said, a scaler in a
        /// program of one's own counts only on request; 0 counts nothing.
        report_after(backoffs: u32) => report_after = Some(backoffs);
        /// With another way to choose the next scale than PyTorch's.
        policy(policy: impl Into<ScalePolicy>) => policy = policy.into();
    }

    /// Everything that a scaler of this name keeps in the store.
    pub fn entries(&self, name: &str) -> Vec<Entry> {
        let mut entries = self.options.entries(name);
        if self.options.enabled {
            entries.extend(self.backoffs(name));
            entries.extend(self.policy.entries(name));
        }
        entries
    }

    /// Where back-offs in a row are counted.
    pub(crate) fn backoffs(&self, name: &str) -> Option<Entry> {
        let ty = TensorType::scalar(DType::I32);
        let entry = || Entry::state(format!("{name}.backoffs"), ty, Start::Constant(0.0));
        self.report_after.is_some_and(|after| after > 0).then(entry)
    }

    /// The least scale there can be: 0 for none.
    pub(crate) fn floor(&self) -> f64 {
        let default = if self.parity { 0.0 } else { f64::from(f32::MIN_POSITIVE) };
        self.min_scale.unwrap_or(default)
    }

    /// What cannot be meant. With `parity`, only what PyTorch refuses.
    pub(crate) fn problem(&self) -> Option<String> {
        let ScalerOptions { init_scale, growth_factor, backoff_factor, enabled, .. } = self.options;
        if !enabled {
            return None;
        }
        if let Err(refusal) = self.options.check() {
            return Some(refusal.to_string());
        }
        let floor = self.floor();
        if !(floor >= 0.0 && floor.is_finite()) {
            return Some(format!(
                "the floor of the scale has to be finite and not negative, found {floor}"
            ));
        }
        if self.powers_of_two
            && let Some((what, value)) = self.inexact().next()
        {
            return Some(format!("the {what} has to be a power of two, found {value}"));
        }
        if self.parity {
            return None;
        }
        let first = init_scale as f32;
        if !(first.is_finite() && f64::from(first) >= floor) {
            return Some(format!(
                "the first scale has to be finite and at least {floor:e}, found {init_scale}"
            ));
        }
        if !growth_factor.is_finite() || backoff_factor <= 0.0 {
            return Some(format!(
                "the factors have to be finite and above 0, found {growth_factor} and {backoff_factor}"
            ));
        }
        self.policy.problem()
    }

    /// What is no power of two.
    pub(crate) fn inexact(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let ScalerOptions { init_scale, growth_factor, backoff_factor, .. } = self.options;
        [
            ("first scale", init_scale),
            ("growth factor", growth_factor),
            ("backoff factor", backoff_factor),
        ]
        .into_iter()
        .filter(|(_, value)| !is_power_of_two(*value))
    }
}

/// True for 2^k with k from -1022 to 1023.
fn is_power_of_two(value: f64) -> bool {
    value.is_normal() && value > 0.0 && value.to_bits() & ((1 << 52) - 1) == 0
}
