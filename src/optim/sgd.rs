//! [`Sgd`]: steps down the gradient, with momentum if wanted.

use crate::optim::{Next, Optimizer, Rate, Shared};
use crate::trace::Trace;
use tracecast_ir::Var;

/// Stochastic gradient descent, as `torch.optim.SGD` without dampening.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    rate: Rate,
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
}

impl Sgd {
    /// With a learning rate: a number, or the name of an input.
    pub fn new(rate: impl Into<Rate>) -> Self {
        Sgd { rate: rate.into(), momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// With a share of the last step in each step.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// With Nesterov's form of momentum.
    #[must_use]
    pub fn nesterov(mut self) -> Self {
        self.nesterov = true;
        self
    }

    /// With this share of each parameter added to its gradient.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.weight_decay = decay;
        self
    }
}

impl Optimizer for Sgd {
    fn moments(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn counts_steps(&self) -> bool {
        false
    }

    fn prepare<'t>(&self, t: &'t Trace, _: Option<Var<'t>>) -> Shared<'t> {
        if self.nesterov && self.momentum <= 0.0 {
            t.fail("sgd", "Nesterov's form needs a momentum above 0");
        }
        vec![self.rate.record(t).map(|rate| -rate, |rate| -rate)]
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        let minus_rate = shared[0];
        let grad = if self.weight_decay == 0.0 { grad } else { grad + param * self.weight_decay };
        let Some(&buffer) = moments.first() else {
            return Next { param: param + minus_rate.times(grad), moments: Vec::new() };
        };
        let buffer = buffer * self.momentum + grad;
        let step = if self.nesterov { grad + buffer * self.momentum } else { buffer };
        Next { param: param + minus_rate.times(step), moments: vec![buffer] }
    }
}
