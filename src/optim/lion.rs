//! [`Lion`]: steps of one size, in the direction of a mean of gradient and momentum.

use crate::optim::settings::{betas, not_negative};
use crate::optim::{Clock, Next, Optimizer, Rate, Shared};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;

/// Lion: algorithm 2 of Chen et al., ["Symbolic Discovery of Optimization
/// Algorithms"](https://arxiv.org/abs/2302.06675) (2023). Weight decay comes first, as in the code
/// published with the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    rate: Rate,
    betas: (f64, f64),
    weight_decay: f64,
}

impl Lion {
    /// With a learning rate (a number, the name of an input, or a schedule), betas 0.9 and 0.99,
    /// and no weight decay.
    pub fn new(rate: impl Into<Rate>) -> Self {
        Lion { rate: rate.into(), betas: (0.9, 0.99), weight_decay: 0.0 }
    }

    setters! {
        /// With another share of the momentum in a step, and another decay rate of the momentum.
        betas(first: f64, second: f64) => betas = (first, second);
        /// With this weight decay, apart from the gradient.
        weight_decay(decay: f64) => weight_decay = decay;
    }
}

impl Optimizer for Lion {
    fn moments(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn counts_steps(&self) -> bool {
        self.rate.counts_steps()
    }

    fn counts_runs(&self) -> bool {
        self.rate.counts_runs()
    }

    fn takes_sparse(&self) -> bool {
        false
    }

    fn problem(&self) -> Option<String> {
        let decay = [("the weight decay", self.weight_decay)];
        self.rate.problem().or_else(|| not_negative(&decay)).or_else(|| betas(self.betas))
    }

    /// The negative rate, and what a parameter is multiplied by.
    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        let rate = self.rate.record(t, clock);
        let mut shared = vec![rate.map(|rate| -rate, |rate| -rate)];
        if self.weight_decay != 0.0 {
            shared.push(rate.decay(self.weight_decay));
        }
        shared
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        let (first, second) = self.betas;
        let param = shared.get(1).map_or(param, |decay| decay.times(param));
        let mean = moments[0] * first + grad * (1.0 - first);
        let average = moments[0] * second + grad * (1.0 - second);
        Next { param: param + shared[0].times(sign(mean)), moments: vec![average] }
    }
}

/// 1, 0 or -1; 0 of NaN.
fn sign(x: Var<'_>) -> Var<'_> {
    x.gt(0.0).cast(x.dtype()) - x.lt(0.0).cast(x.dtype())
}
