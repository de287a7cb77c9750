//! [`Adagrad`]: steps that shrink with the sum of squared gradients.

use crate::optim::{Factor, Next, Optimizer, Rate, Shared};
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;

/// `torch.optim.Adagrad` with sums that start at zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Adagrad {
    rate: Rate,
    rate_decay: f64,
    eps: f64,
    weight_decay: f64,
}

impl Adagrad {
    /// With a learning rate (a number, or the name of an input), eps 1e-10, no decay of the rate and no weight decay.
    pub fn new(rate: impl Into<Rate>) -> Self {
        Adagrad { rate: rate.into(), rate_decay: 0.0, eps: 1e-10, weight_decay: 0.0 }
    }

    /// With a learning rate divided by 1 + `decay` times the number of steps before.
    #[must_use]
    pub fn rate_decay(mut self, decay: f64) -> Self {
        self.rate_decay = decay;
        self
    }

    /// With another number added to the root of the sum.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// With this share of each parameter added to its gradient.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.weight_decay = decay;
        self
    }
}

impl Optimizer for Adagrad {
    fn moments(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn counts_steps(&self) -> bool {
        true
    }

    fn prepare<'t>(&self, t: &'t Trace, step: Option<Var<'t>>) -> Shared<'t> {
        let step = step.expect("steps are counted");
        let minus_rate = match self.rate.record(t) {
            Factor::Number(rate) => t.full(step.ty(), -rate),
            Factor::Value(rate) => -rate,
        };
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
        let grad = if self.weight_decay == 0.0 { grad } else { grad + param * self.weight_decay };
        let sum = moments[0] + grad * grad;
        let step = shared[0].times(grad) / (sum.sqrt() + self.eps);
        Next { param: param + step, moments: vec![sum] }
    }
}
