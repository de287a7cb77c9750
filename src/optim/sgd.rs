//! [`Sgd`]: steps down the gradient, with momentum if wanted.

use crate::optim::rate::{add_scaled, decayed};
use crate::optim::settings::not_negative;
use crate::optim::{Clock, Factor, Next, Optimizer, Rate, Shared};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;

/// Stochastic gradient descent: the formula of
/// [`torch.optim.SGD`](https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html), in the
/// order of its single-tensor form.
///
/// ```
/// use tracecast::optim::{Optimizer, Sgd};
///
/// let rule = Sgd::new(0.1).momentum(0.9).nesterov().weight_decay(1e-4);
/// assert_eq!(rule.moments(), ["momentum_buffer"]);
/// assert!(Sgd::new(-1.0).problem().is_some());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    rate: Rate,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    weight_decay: f64,
    maximize: bool,
}

impl Sgd {
    /// With a learning rate: a number, the name of an input, or a schedule.
    pub fn new(rate: impl Into<Rate>) -> Self {
        Sgd {
            rate: rate.into(),
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            maximize: false,
        }
    }

    setters! {
        /// With a share of the last step in each step.
        momentum(momentum: f64) => momentum = momentum;
        /// With so much less of each gradient but the first in the momentum.
        dampening(dampening: f64) => dampening = dampening;
        /// With Nesterov's form of momentum.
        nesterov() => nesterov = true;
        /// With this share of each parameter added to its gradient.
        weight_decay(decay: f64) => weight_decay = decay;
        /// Up the gradient instead of down.
        maximize() => maximize = true;
    }

    /// True if the first step differs from the others.
    fn first_differs(&self) -> bool {
        self.momentum != 0.0 && self.dampening != 0.0
    }
}

impl Optimizer for Sgd {
    fn moments(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn counts_steps(&self) -> bool {
        self.first_differs() || self.rate.counts_steps()
    }

    fn counts_runs(&self) -> bool {
        self.rate.counts_runs()
    }

    fn problem(&self) -> Option<String> {
        let numbers = [("the momentum", self.momentum), ("the weight decay", self.weight_decay)];
        let nesterov = self.nesterov && (self.momentum <= 0.0 || self.dampening != 0.0);
        self.rate.problem().or_else(|| not_negative(&numbers)).or_else(|| {
            if self.dampening.is_nan() {
                return Some("the dampening is NaN".to_owned());
            }
            let why = "Nesterov's form needs a momentum above 0 and no dampening";
            nesterov.then(|| why.to_owned())
        })
    }

    /// The negative rate, and in a first step that differs what momentum and gradient are
    /// multiplied by.
    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        let minus_rate = self.rate.record(t, clock).map(|rate| -rate, |rate| -rate);
        if !self.first_differs() {
            return vec![minus_rate];
        }
        let step = clock.step.expect("steps are counted");
        let number = |number: f64| t.full(step.ty(), number);
        let share = step.gt(1.0).choose(number(1.0 - self.dampening), number(1.0));
        vec![minus_rate, Factor::Value(share)]
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
        let Some(&buffer) = moments.first() else {
            return Next { param: minus_rate.adds(grad, param), moments: Vec::new() };
        };
        let kept = buffer * self.momentum;
        let buffer = shared.get(1).map_or_else(|| kept + grad, |share| share.adds(grad, kept));
        let step = if self.nesterov { add_scaled(grad, buffer, self.momentum) } else { buffer };
        Next { param: minus_rate.adds(step, param), moments: vec![buffer] }
    }
}
