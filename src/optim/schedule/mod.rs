//! [`Schedule`]: a learning rate as a function of the count of steps, computed in the program.
//!
//! The count is a state of the program, which a skipped step leaves as it is: with a loss scaler
//! the rate follows the steps that were taken. [`Schedule::count_skipped`] asks for the other. The
//! formulae are the closed ones of
//! [`torch.optim.lr_scheduler`](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate),
//! in f64; step numbers start at 0.

mod one_cycle;

pub use one_cycle::OneCycle;

use crate::setters::setters;
use std::f64::consts::PI;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;

/// A learning rate for each step.
///
/// ```
/// use tracecast::optim::{Schedule, Sgd};
///
/// let schedule = Schedule::cosine(0.1, 900, 1e-3).warm_up(100, 0.01);
/// assert_eq!(schedule.rate(0), 0.001);
/// assert_eq!(schedule.rate(100), 0.1);
/// assert!((schedule.rate(1000) - 1e-3).abs() < 1e-15);
/// let rule = Sgd::new(schedule).momentum(0.9);
/// # let _ = rule;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    curve: Curve,
    skipped: bool,
}

/// A rate as a function of the step.
#[derive(Clone, Debug, PartialEq)]
enum Curve {
    Constant(f64),
    Step {
        rate: f64,
        every: u64,
        factor: f64,
    },
    MultiStep {
        rate: f64,
        milestones: Vec<u64>,
        factor: f64,
    },
    Exponential {
        rate: f64,
        factor: f64,
    },
    Cosine {
        rate: f64,
        steps: u64,
        least: f64,
    },
    Linear {
        rate: f64,
        from: f64,
        to: f64,
        steps: u64,
    },
    OneCycle(OneCycle),
    /// The first, and from that step on the second, which counts from there.
    Then(Box<Curve>, u64, Box<Curve>),
}

impl Schedule {
    fn of(curve: Curve) -> Self {
        Schedule { curve, skipped: false }
    }

    /// The same rate in every step.
    pub fn constant(rate: f64) -> Self {
        Schedule::of(Curve::Constant(rate))
    }

    /// Multiplied by `factor` after every `every` steps (`StepLR`).
    pub fn step(rate: f64, every: u64, factor: f64) -> Self {
        Schedule::of(Curve::Step { rate, every, factor })
    }

    /// Multiplied by `factor` at each of these steps (`MultiStepLR`).
    pub fn multi_step(rate: f64, milestones: &[u64], factor: f64) -> Self {
        Schedule::of(Curve::MultiStep { rate, milestones: milestones.to_vec(), factor })
    }

    /// Multiplied by `factor` after every step (`ExponentialLR`).
    pub fn exponential(rate: f64, factor: f64) -> Self {
        Schedule::of(Curve::Exponential { rate, factor })
    }

    /// Half a cosine from `rate` down to `least` in `steps` steps (`CosineAnnealingLR`); then it
    /// stays, where PyTorch's rises again.
    pub fn cosine(rate: f64, steps: u64, least: f64) -> Self {
        Schedule::of(Curve::Cosine { rate, steps, least })
    }

    /// In a straight line from `rate * from` to `rate * to` in `steps` steps (`LinearLR`); then it
    /// stays.
    pub fn linear(rate: f64, from: f64, to: f64, steps: u64) -> Self {
        Schedule::of(Curve::Linear { rate, from, to, steps })
    }

    /// Up and down again in `steps` steps (`OneCycleLR`), with PyTorch's defaults; then it stays,
    /// where PyTorch's refuses to go on.
    pub fn one_cycle(max_rate: f64, steps: u64) -> Self {
        OneCycle::new(max_rate, steps).into()
    }

    /// This one, and another from a step on, which counts from there (`SequentialLR`).
    #[must_use]
    pub fn then(mut self, at: u64, next: Schedule) -> Self {
        self.curve = Curve::Then(Box::new(self.curve), at, Box::new(next.curve));
        self
    }

    /// A straight line from `from` times the first rate up to it in `steps` steps, and then this
    /// one.
    #[must_use]
    pub fn warm_up(self, steps: u64, from: f64) -> Self {
        let first = Schedule::linear(self.rate(0), from, 1.0, steps);
        Schedule { skipped: self.skipped, ..first.then(steps, self) }
    }

    setters! {
        /// As a function of all steps: a skipped one counts too.
        count_skipped() => skipped = true;
    }

    /// Whether skipped steps count.
    pub fn counts_skipped(&self) -> bool {
        self.skipped
    }

    /// The rate of the step of that number, counted from 0, within a trace: f64 from an f64 without
    /// axes.
    #[track_caller]
    pub fn at<'t>(&self, step: Var<'t>) -> Var<'t> {
        self.curve.at(step)
    }

    /// The rate of the step of that number, counted from 0, up to rounding in the last places.
    pub fn rate(&self, step: u64) -> f64 {
        self.curve.rate(step)
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        self.curve.problem()
    }
}

impl From<OneCycle> for Schedule {
    fn from(cycle: OneCycle) -> Self {
        Schedule::of(Curve::OneCycle(cycle))
    }
}

impl Curve {
    fn at<'t>(&self, step: Var<'t>) -> Var<'t> {
        let t = step.tracer();
        let number = |number: f64| t.full(step.ty(), number);
        let done = |steps: u64| (step / steps as f64).minimum(t.ones_like(step));
        match self {
            Curve::Constant(rate) => number(*rate),
            Curve::Step { rate, every, factor } => {
                power(*factor, (step / *every as f64).floor()) * *rate
            }
            Curve::MultiStep { rate, milestones, factor } => {
                let mut sorted = milestones.clone();
                sorted.sort_unstable();
                let rates = (1..).map(|passed| rate * factor.powi(passed));
                sorted.iter().zip(rates).fold(number(*rate), |so_far, (milestone, rate)| {
                    step.ge(*milestone as f64).choose(number(rate), so_far)
                })
            }
            Curve::Exponential { rate, factor } => power(*factor, step) * *rate,
            Curve::Cosine { rate, steps, least } => {
                ((done(*steps) * PI).cos() + 1.0) * (rate - least) / 2.0 + *least
            }
            Curve::Linear { rate, from, to, steps } => (done(*steps) * (to - from) + *from) * *rate,
            Curve::OneCycle(cycle) => cycle.at(step),
            Curve::Then(first, at, second) => {
                let later = step - *at as f64;
                let later = later.maximum(t.zeros_like(step));
                step.lt(*at as f64).choose(first.at(step), second.at(later))
            }
        }
    }

    fn rate(&self, step: u64) -> f64 {
        let done = |steps: u64| (step as f64 / steps as f64).min(1.0);
        match self {
            Curve::Constant(rate) => *rate,
            Curve::Step { rate, every, factor } => {
                rate * factor.powf((step / (*every).max(1)) as f64)
            }
            Curve::MultiStep { rate, milestones, factor } => {
                let passed = milestones.iter().filter(|at| **at <= step).count();
                rate * factor.powi(passed as i32)
            }
            Curve::Exponential { rate, factor } => rate * factor.powf(step as f64),
            Curve::Cosine { rate, steps, least } => {
                (1.0 + (PI * done(*steps)).cos()) * (rate - least) / 2.0 + least
            }
            Curve::Linear { rate, from, to, steps } => rate * (from + (to - from) * done(*steps)),
            Curve::OneCycle(cycle) => cycle.rate(step),
            Curve::Then(first, at, _) if step < *at => first.rate(step),
            Curve::Then(_, at, second) => second.rate(step - at),
        }
    }

    fn problem(&self) -> Option<String> {
        let not_negative = |rate: f64| {
            (rate.is_nan() || rate < 0.0)
                .then(|| format!("the learning rate is {rate}, expected at least 0"))
        };
        let steps = |steps: u64| {
            (steps == 0).then(|| "a schedule takes 0 steps, expected at least 1".to_owned())
        };
        let positive = |factor: f64| {
            (factor.is_nan() || factor <= 0.0)
                .then(|| format!("the factor of a schedule is {factor}, expected above 0"))
        };
        match self {
            Curve::Constant(rate) => not_negative(*rate),
            Curve::Step { rate, every, factor } => {
                not_negative(*rate).or_else(|| steps(*every)).or_else(|| positive(*factor))
            }
            Curve::MultiStep { rate, factor, .. } | Curve::Exponential { rate, factor } => {
                not_negative(*rate).or_else(|| positive(*factor))
            }
            Curve::Cosine { rate, steps: all, least } => {
                not_negative(*rate).or_else(|| not_negative(*least)).or_else(|| steps(*all))
            }
            Curve::Linear { rate, from, to, steps: all } => not_negative(*rate)
                .or_else(|| not_negative(*from))
                .or_else(|| not_negative(*to))
                .or_else(|| steps(*all)),
            Curve::OneCycle(cycle) => not_negative(cycle.max_rate()).or_else(|| cycle.problem()),
            Curve::Then(first, _, second) => first.problem().or_else(|| second.problem()),
        }
    }
}

/// A positive number to a power.
fn power(base: f64, exponent: Var<'_>) -> Var<'_> {
    (exponent * base.ln()).exp()
}
