//! [`Adagrad`]: steps that shrink with the sum of squared gradients.

use crate::optim::rate::decayed;
use crate::optim::settings::not_negative;
use crate::optim::{Clock, Factor, Next, Optimizer, Rate, Shared};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::mul_add::MulAdds;

/// Adagrad: the formula of
/// [`torch.optim.Adagrad`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Adagrad.html),
/// in the order of operations of its single-tensor form.
#[derive(Clone, Debug, PartialEq)]
pub struct Adagrad {
    rate: Rate,
    rate_decay: f64,
    eps: f64,
    weight_decay: f64,
    start: f64,
    maximize: bool,
}

impl Adagrad {
    /// With a learning rate (a number, the name of an input, or a schedule), eps 1e-10, no decay of
    /// the rate, no weight decay, and sums that start at zero.
    pub fn new(rate: impl Into<Rate>) -> Self {
        Adagrad {
            rate: rate.into(),
            rate_decay: 0.0,
            eps: 1e-10,
            weight_decay: 0.0,
            start: 0.0,
            maximize: false,
        }
    }

    setters! {
        /// With a learning rate divided by 1 + `decay` times the number of steps before.
        rate_decay(decay: f64) => rate_decay = decay;
        /// With another number added to the root of the sum.
        eps(eps: f64) => eps = eps;
        /// With this share of each parameter added to its gradient.
        weight_decay(decay: f64) => weight_decay = decay;
        /// With sums that start at this number.
        initial_sum(sum: f64) => start = sum;
        /// Up the gradient instead of down.
        maximize() => maximize = true;
    }
}

impl Optimizer for Adagrad {
    fn moments(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn moment_start(&self, _: &str) -> f64 {
        self.start
    }

    fn counts_steps(&self) -> bool {
        true
    }

    fn counts_runs(&self) -> bool {
        self.rate.counts_runs()
    }

    fn problem(&self) -> Option<String> {
        let numbers = [
            ("the decay of the learning rate", self.rate_decay),
            ("eps", self.eps),
            ("the weight decay", self.weight_decay),
            ("the first sum", self.start),
        ];
        self.rate.problem().or_else(|| not_negative(&numbers))
    }

    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        let step = clock.step.expect("steps are counted");
        let minus_rate = self.rate.record(t, clock).map(|rate| -rate, |rate| -rate).value(t, step);
        let below = (step - 1.0) * self.rate_decay + 1.0;
        vec![Factor::Value(minus_rate / below)]
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        let grad = if self.maximize { -grad } else { grad };
        let grad = decayed(grad, param, self.weight_decay);
        let sum = moments[0].addcmul(grad, grad, 1.0);
        Next { param: shared[0].addcdiv(param, grad, sum.sqrt() + self.eps), moments: vec![sum] }
    }
}
