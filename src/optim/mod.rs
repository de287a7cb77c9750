//! Optimizers: how a parameter and what is remembered of it become those of the next step.
//!
//! An [`Optimizer`] is a rule without numbers of its own. [`Recorded`] is one of them within a
//! trace: it holds parameters and gradients, and records their next values. All parameters get the
//! same elementwise program over the same few scalars, so that one kernel can do them all.
//!
//! A learning rate is a number, an input, or a [`Schedule`] of the count of steps. [`Clip`] limits
//! gradients, [`Groups`] gives some parameters another rule, [`LowMoments`] keeps what is
//! remembered in bf16. All of them are part of the program: the host decides nothing.

mod adagrad;
mod adam;
mod boxed;
mod clip;
mod groups;
mod lion;
mod low;
mod rate;
mod recorded;
mod rmsprop;
mod schedule;
mod settings;
mod sgd;

pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use clip::{Clip, Clipped, NormKind};
pub use groups::Groups;
pub use lion::Lion;
pub use low::{LowMoments, stochastic_round};
pub use rate::{Factor, Rate, Shared};
pub use recorded::Recorded;
pub use rmsprop::RmsProp;
pub use schedule::{OneCycle, Schedule};
pub use sgd::Sgd;

use crate::entry::{Entry, Start};
use crate::trace::Trace;
use tracecast_ir::{DType, Role, TensorType, Var};

/// How parameters are updated.
pub trait Optimizer: Send + Sync {
    /// What is remembered of each parameter, in its type: `exp_avg`, …
    fn moments(&self) -> &'static [&'static str];

    /// What every element of that moment starts with.
    fn moment_start(&self, moment: &str) -> f64 {
        let _ = moment;
        0.0
    }

    /// The dtype in which moments are kept, if not that of the parameter. They are rounded to it
    /// stochastically.
    fn moment_dtype(&self) -> Option<DType> {
        None
    }

    /// Whether good steps are counted: then `OPTIMIZER.step` is a state of the program.
    fn counts_steps(&self) -> bool;

    /// Whether all steps are counted, skipped ones too: then `OPTIMIZER.run` is a state of the
    /// program.
    fn counts_runs(&self) -> bool {
        false
    }

    /// True if it updates parameters with sparse gradients.
    fn takes_sparse(&self) -> bool {
        true
    }

    /// What is wrong with its settings, if anything is.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Which rule is for the parameter of that name; `None` if this one is.
    fn rule_for(&self, param: &str) -> Option<&dyn Optimizer> {
        let _ = param;
        None
    }

    /// Patterns of names that fit none of these parameters: a mistake that is told as a warning.
    fn idle_patterns(&self, params: &[&str]) -> Vec<String> {
        let _ = params;
        Vec::new()
    }

    /// Records the scalars that all parameters share.
    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t>;

    /// Records the next value of one parameter, and those of its moments. Everything has one float
    /// dtype.
    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t>;

    /// What an optimizer of this name keeps in the store for these parameters.
    fn entries(&self, name: &str, params: &[Entry]) -> Vec<Entry> {
        let trained = || params.iter().filter(|param| param.role == Role::Param);
        let rules: Vec<&dyn Optimizer> =
            trained().filter_map(|param| self.rule_for(&param.name)).collect();
        let any = |asks: &dyn Fn(&dyn Optimizer) -> bool| rules.iter().any(|rule| asks(*rule));
        let mut entries = Vec::new();
        if self.counts_steps() || any(&|rule| rule.counts_steps()) {
            entries.push(count_entry(name, STEP));
        }
        if self.counts_runs() || any(&|rule| rule.counts_runs()) {
            entries.push(count_entry(name, RUN));
        }
        if self.moment_dtype().is_some() || any(&|rule| rule.moment_dtype().is_some()) {
            entries.push(seed_entry(name));
        }
        for param in trained() {
            entries.extend(match self.rule_for(&param.name) {
                Some(rule) => moment_entries(rule, name, &param.name, &param.ty),
                None => moment_entries(self, name, &param.name, &param.ty),
            });
        }
        entries
    }
}

/// Which step this is, counted from 1, in f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock<'t> {
    /// Among the good ones, if those are counted.
    pub step: Option<Var<'t>>,
    /// Among all, if those are counted.
    pub run: Option<Var<'t>>,
}

/// The next value of a parameter and of its moments.
#[derive(Clone, Debug)]
pub struct Next<'t> {
    /// Of the parameter.
    pub param: Var<'t>,
    /// In the order of [`Optimizer::moments`].
    pub moments: Vec<Var<'t>>,
}

/// The names of the counts.
const STEP: &str = "step";
const RUN: &str = "run";

fn count_entry(name: &str, count: &str) -> Entry {
    Entry::state(format!("{name}.{count}"), TensorType::scalar(DType::F32), Start::Constant(0.0))
}

/// The key and the step number of the random numbers that moments are rounded with.
fn seed_entry(name: &str) -> Entry {
    Entry::state(format!("{name}.rng"), TensorType::new(DType::I64, [2]), Start::Seed)
}

/// What a rule remembers of one parameter.
pub(crate) fn moment_entries<O: Optimizer + ?Sized>(
    rule: &O,
    name: &str,
    param: &str,
    ty: &TensorType,
) -> Vec<Entry> {
    let ty = rule.moment_dtype().map_or_else(|| ty.clone(), |dtype| ty.with_dtype(dtype));
    let entry = |moment: &&str| {
        let start = Start::Constant(rule.moment_start(moment));
        Entry::state(format!("{name}.{param}.{moment}"), ty.clone(), start)
    };
    rule.moments().iter().map(entry).collect()
}
