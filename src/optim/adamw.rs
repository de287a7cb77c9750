//! [`AdamW`]: Adam with weight decay apart from the gradient.

use crate::optim::{Factor, Next, Optimizer, Rate, Shared};
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;

/// `torch.optim.AdamW`, with the order of operations of its single-tensor form: the factors of a step in f64, the rest in the
/// dtype of the parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    rate: Rate,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
}

impl AdamW {
    /// With a learning rate (a number, or the name of an input), betas 0.9 and 0.999, eps 1e-8 and weight decay 0.01.
    pub fn new(rate: impl Into<Rate>) -> Self {
        AdamW { rate: rate.into(), betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }

    /// With other decay rates of the two averages.
    #[must_use]
    pub fn betas(mut self, first: f64, second: f64) -> Self {
        self.betas = (first, second);
        self
    }

    /// With another number added to the root of the second average.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// With another weight decay.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.weight_decay = decay;
        self
    }
}

impl Optimizer for AdamW {
    fn moments(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn counts_steps(&self) -> bool {
        true
    }

    /// What a parameter is multiplied by, the negative step size, and the root of the second bias correction.
    fn prepare<'t>(&self, t: &'t Trace, step: Option<Var<'t>>) -> Shared<'t> {
        let (first, second) = self.betas;
        if !(0.0..1.0).contains(&first) || !(0.0..1.0).contains(&second) {
            t.fail("adamw", format!("betas are from 0 to below 1, found {first} and {second}"));
        }
        let step = step.expect("steps are counted");
        let rate = self.rate.record(t);
        let decay = rate.map(
            |rate| 1.0 - rate * self.weight_decay,
            |rate| (rate * self.weight_decay).rsub(1.0),
        );
        let minus_rate = match rate {
            Factor::Number(rate) => t.full(step.ty(), -rate),
            Factor::Value(rate) => -rate,
        };
        let step_size = minus_rate / correction(first, step);
        vec![decay, Factor::Value(step_size), Factor::Value(correction(second, step).sqrt())]
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        let [decay, step_size, root] = shared[..] else {
            unreachable!("three scalars are prepared")
        };
        let (first, second) = self.betas;
        let average = moments[0] + (grad - moments[0]) * (1.0 - first);
        let square = moments[1] * second + grad * (1.0 - second) * grad;
        let below = root.divides(square.sqrt()) + self.eps;
        let param = decay.times(param) + step_size.times(average) / below;
        Next { param, moments: vec![average, square] }
    }
}

/// `1 - beta ^ step`, in f64.
fn correction(beta: f64, step: Var<'_>) -> Var<'_> {
    if beta == 0.0 {
        return step.tracer().ones_like(step);
    }
    (step * beta.ln()).exp().rsub(1.0)
}
