//! [`RmsProp`]: steps by the gradient over the root of its average square.

use crate::optim::rate::decayed;
use crate::optim::settings::not_negative;
use crate::optim::{Clock, Next, Optimizer, Rate, Shared};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::mul_add::MulAdds;

/// RMSprop: the formula of
/// [`torch.optim.RMSprop`](https://docs.pytorch.org/docs/stable/generated/torch.optim.RMSprop.html),
/// in the order of operations of its single-tensor form.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsProp {
    rate: Rate,
    alpha: f64,
    eps: f64,
    weight_decay: f64,
    momentum: f64,
    centered: bool,
    maximize: bool,
}

impl RmsProp {
    /// With a learning rate (a number, the name of an input, or a schedule), alpha 0.99, eps 1e-8,
    /// no weight decay and no momentum.
    pub fn new(rate: impl Into<Rate>) -> Self {
        RmsProp {
            rate: rate.into(),
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            maximize: false,
        }
    }

    setters! {
        /// With another decay rate of the averages.
        alpha(alpha: f64) => alpha = alpha;
        /// With another number added to the root.
        eps(eps: f64) => eps = eps;
        /// With this share of each parameter added to its gradient.
        weight_decay(decay: f64) => weight_decay = decay;
        /// With a share of the last step in each step.
        momentum(momentum: f64) => momentum = momentum;
        /// With the square of the average gradient taken off the average square: by the variance.
        centered() => centered = true;
        /// Up the gradient instead of down.
        maximize() => maximize = true;
    }
}

impl Optimizer for RmsProp {
    fn moments(&self) -> &'static [&'static str] {
        match (self.centered, self.momentum != 0.0) {
            (false, false) => &["square_avg"],
            (true, false) => &["square_avg", "grad_avg"],
            (false, true) => &["square_avg", "momentum_buffer"],
            (true, true) => &["square_avg", "grad_avg", "momentum_buffer"],
        }
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
        let numbers = [
            ("eps", self.eps),
            ("the momentum", self.momentum),
            ("the weight decay", self.weight_decay),
            ("alpha", self.alpha),
        ];
        self.rate.problem().or_else(|| not_negative(&numbers))
    }

    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        vec![self.rate.record(t, clock).map(|rate| -rate, |rate| -rate)]
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        let minus_rate = shared[0];
        let grad = if self.maximize { -grad } else { grad };
        let grad = decayed(grad, param, self.weight_decay);
        let square = (moments[0] * self.alpha).addcmul(grad, grad, 1.0 - self.alpha);
        let mean = self.centered.then(|| moments[1].lerp(grad, 1.0 - self.alpha));
        let variance = mean.map_or(square, |mean| square.addcmul(mean, mean, -1.0));
        let below = variance.sqrt() + self.eps;
        let mut next: Vec<Var<'t>> = [square].into_iter().chain(mean).collect();
        if self.momentum == 0.0 {
            return Next { param: minus_rate.addcdiv(param, grad, below), moments: next };
        }
        let buffer = (moments[next.len()] * self.momentum).addcdiv(grad, below, 1.0);
        next.push(buffer);
        Next { param: minus_rate.adds(buffer, param), moments: next }
    }
}
