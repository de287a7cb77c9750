//! Optimizers: how a parameter and what is remembered of it become those of the next step.
//!
//! An [`Optimizer`] is a rule without numbers of its own. [`Recorded`] is one of them within a trace: it holds parameters and
//! gradients, and records their next values. All parameters get the same elementwise program over the same few scalars, so that
//! one kernel can do them all.

mod adagrad;
mod adamw;
mod recorded;
mod sgd;

pub use adagrad::Adagrad;
pub use adamw::AdamW;
pub use recorded::Recorded;
pub use sgd::Sgd;

use crate::entry::{Entry, Start};
use crate::trace::Trace;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::{DType, TensorType, Var};

/// How parameters are updated.
pub trait Optimizer: Send + Sync {
    /// What is remembered of each parameter, in its type and starting at zero: `exp_avg`, …
    fn moments(&self) -> &'static [&'static str];

    /// Whether good steps are counted: then `OPTIMIZER.step` is a state of the program.
    fn counts_steps(&self) -> bool;

    /// Records the scalars that all parameters share. `step` is the number of this step, counted from 1, in f64.
    fn prepare<'t>(&self, t: &'t Trace, step: Option<Var<'t>>) -> Shared<'t>;

    /// Records the next value of one parameter, and those of its moments. Everything is f32 or f64.
    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t>;

    /// What an optimizer of this name keeps in the store for these parameters.
    fn entries(&self, name: &str, params: &[Entry]) -> Vec<Entry> {
        let step = self.counts_steps().then(|| step_entry(name));
        let moments = params
            .iter()
            .filter(|param| param.role == tracecast_ir::Role::Param)
            .flat_map(|param| {
                self.moments()
                    .iter()
                    .map(|moment| moment_entry(name, &param.name, moment, param.ty.clone()))
            });
        step.into_iter().chain(moments).collect()
    }
}

/// Scalars that the updates of all parameters use, as their optimizer recorded them.
pub type Shared<'t> = Vec<Factor<'t>>;

/// The next value of a parameter and of its moments.
#[derive(Clone, Debug)]
pub struct Next<'t> {
    /// Of the parameter.
    pub param: Var<'t>,
    /// In the order of [`Optimizer::moments`].
    pub moments: Vec<Var<'t>>,
}

/// A number that is known when tracing, or a value without axes, in f64.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'t> {
    /// Known.
    Number(f64),
    /// Computed.
    Value(Var<'t>),
}

impl<'t> Factor<'t> {
    /// `x` times this, rounded to the dtype of `x` first.
    #[track_caller]
    pub fn times(self, x: Var<'t>) -> Var<'t> {
        match self {
            Factor::Number(number) => x * number,
            Factor::Value(value) => x * value.cast(x.dtype()),
        }
    }

    /// `x` divided by this, rounded to the dtype of `x` first.
    #[track_caller]
    pub fn divides(self, x: Var<'t>) -> Var<'t> {
        match self {
            Factor::Number(number) => x / number,
            Factor::Value(value) => x / value.cast(x.dtype()),
        }
    }

    /// The same as another number or value.
    #[track_caller]
    #[must_use]
    pub fn map(
        self,
        number: impl FnOnce(f64) -> f64,
        value: impl FnOnce(Var<'t>) -> Var<'t>,
    ) -> Self {
        match self {
            Factor::Number(v) => Factor::Number(number(v)),
            Factor::Value(v) => Factor::Value(value(v)),
        }
    }
}

/// The learning rate: a number, or an input of every run.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// The same in every step.
    Constant(f64),
    /// The input of that name, f32 or f64 without axes.
    Input(String),
}

impl From<f64> for Rate {
    fn from(rate: f64) -> Self {
        Rate::Constant(rate)
    }
}

impl From<&str> for Rate {
    fn from(name: &str) -> Self {
        Rate::Input(name.to_owned())
    }
}

impl Rate {
    /// The rate within a trace.
    #[track_caller]
    pub fn record<'t>(&self, t: &'t Trace) -> Factor<'t> {
        let name = match self {
            Rate::Constant(rate) => return Factor::Number(*rate),
            Rate::Input(name) => name,
        };
        let ty = t.input_type(name).unwrap_or(TensorType::scalar(DType::F32));
        if ty.shape.rank() != 0 || !matches!(ty.dtype, DType::F32 | DType::F64) {
            return Factor::Value(t.fail(
                "optimizer",
                format!("the learning rate `{name}` is {ty}, expected f32[] or f64[]"),
            ));
        }
        Factor::Value(t.input_of(name, ty).cast(DType::F64))
    }
}

fn step_entry(name: &str) -> Entry {
    Entry::state(format!("{name}.step"), TensorType::scalar(DType::F32), Start::Constant(0.0))
}

fn moment_entry(name: &str, param: &str, moment: &str, ty: TensorType) -> Entry {
    Entry::state(format!("{name}.{param}.{moment}"), ty, Start::Constant(0.0))
}
