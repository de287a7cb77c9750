//! [`Rate`] and [`Factor`]: learning rates, and other scalars that the updates of all parameters
//! share.

use crate::optim::{Clock, Schedule};
use crate::trace::Trace;
use tracecast_ir::kernel::narrow;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::mul_add::MulAdds;
use tracecast_ir::{DType, TensorType, Var};

/// The learning rate: a number, an input of every run, or a function of the count of steps.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// The same in every step.
    Constant(f64),
    /// The input of that name, f32 or f64 without axes.
    Input(String),
    /// Computed in the program.
    Schedule(Schedule),
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

impl From<Schedule> for Rate {
    fn from(schedule: Schedule) -> Self {
        Rate::Schedule(schedule)
    }
}

impl Rate {
    /// The rate within a trace. `clock` has what [`counts_steps`](Rate::counts_steps) and
    /// [`counts_runs`](Rate::counts_runs) ask for.
    #[track_caller]
    pub fn record<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Factor<'t> {
        let name = match self {
            Rate::Constant(rate) => return Factor::Number(*rate),
            Rate::Schedule(schedule) => {
                let count = if schedule.counts_skipped() { clock.run } else { clock.step };
                return Factor::Value(match count {
                    Some(count) => schedule.at(count - 1.0),
                    None => t.fail("optimizer", "nothing counts the steps that the schedule of the learning rate needs: an eager optimizer counts good steps only"),
                });
            }
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

    /// Whether it is a function of the count of good steps.
    pub fn counts_steps(&self) -> bool {
        matches!(self, Rate::Schedule(schedule) if !schedule.counts_skipped())
    }

    /// Whether it is a function of the count of all steps, skipped ones too.
    pub fn counts_runs(&self) -> bool {
        matches!(self, Rate::Schedule(schedule) if schedule.counts_skipped())
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Rate::Constant(rate) if rate.is_nan() || *rate < 0.0 => {
                Some(format!("the learning rate is {rate}, expected at least 0"))
            }
            Rate::Schedule(schedule) => schedule.problem(),
            _ => None,
        }
    }
}

/// Scalars that the updates of all parameters use, as their optimizer recorded them.
pub type Shared<'t> = Vec<Factor<'t>>;

/// A number that is known when tracing, or a value without axes, in f64.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'t> {
    /// Known.
    Number(f64),
    /// Computed.
    Value(Var<'t>),
}

impl<'t> Factor<'t> {
    /// `x` times this, rounded once: 16-bit numbers meet it in f32, as they meet numbers in
    /// PyTorch.
    #[track_caller]
    pub fn times(self, x: Var<'t>) -> Var<'t> {
        self.meets(x, |x, number| x * number, |x, value| x * value)
    }

    /// `sum + x * this`, rounded once, with this in the dtype of `x`: `sum.add(x, alpha=this)` of
    /// PyTorch on a CPU.
    #[track_caller]
    pub fn adds(self, x: Var<'t>, sum: Var<'t>) -> Var<'t> {
        match self {
            Factor::Number(number) => add_scaled(sum, x, number),
            Factor::Value(value) => x.mul_add(sum, value.cast(x.dtype())),
        }
    }

    /// `x + this * a / b` from left to right: [`addcdiv`](tracecast_ir::ops::mul_add::ADDCDIV).
    #[track_caller]
    pub fn addcdiv(self, x: Var<'t>, a: Var<'t>, b: Var<'t>) -> Var<'t> {
        match self {
            Factor::Number(number) => x.addcdiv(a, b, number),
            Factor::Value(value) => x.addcdiv(a, b, value),
        }
    }

    /// `x` divided by this, rounded once as by [`times`](Factor::times).
    #[track_caller]
    pub fn divides(self, x: Var<'t>) -> Var<'t> {
        self.meets(x, |x, number| x / number, |x, value| x / value)
    }

    #[track_caller]
    fn meets(
        self,
        x: Var<'t>,
        number: impl FnOnce(Var<'t>, f64) -> Var<'t>,
        value: impl FnOnce(Var<'t>, Var<'t>) -> Var<'t>,
    ) -> Var<'t> {
        match self {
            Factor::Number(factor) => number(x, factor),
            Factor::Value(factor) if x.dtype().is_low() => {
                value(x.cast(DType::F32), factor.cast(DType::F32)).cast(x.dtype())
            }
            Factor::Value(factor) => value(x, factor.cast(x.dtype())),
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

    /// For a learning rate: what decoupled weight decay multiplies parameters by,
    /// `1 - rate * share`.
    #[track_caller]
    pub(crate) fn decay(self, share: f64) -> Self {
        self.map(|rate| 1.0 - rate * share, |rate| (rate * share).rsub(1.0))
    }

    /// As a value of the type of `like`.
    #[track_caller]
    pub fn value(self, t: &'t Trace, like: Var<'t>) -> Var<'t> {
        match self {
            Factor::Number(number) => t.full(like.ty(), number),
            Factor::Value(value) => value,
        }
    }
}

/// `sum + x * factor`, rounded once, with the factor as a number of the dtype of `x`.
#[track_caller]
pub(super) fn add_scaled<'t>(sum: Var<'t>, x: Var<'t>, factor: f64) -> Var<'t> {
    let dtype = x.dtype();
    let factor = if dtype.is_low() { narrow::round(dtype, factor as f32).into() } else { factor };
    x.mul_add(sum, factor)
}

/// A gradient with weight decay as part of it.
#[track_caller]
pub(super) fn decayed<'t>(grad: Var<'t>, param: Var<'t>, share: f64) -> Var<'t> {
    if share == 0.0 { grad } else { add_scaled(grad, param, share) }
}
