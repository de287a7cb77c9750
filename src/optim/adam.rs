//! [`Adam`] and [`AdamW`]: steps by the average gradient over the root of its average square.

use crate::optim::rate::decayed;
use crate::optim::settings::{betas, not_negative};
use crate::optim::{Clock, Factor, Next, Optimizer, Rate, Shared};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::mul_add::MulAdds;

/// The settings and the rule of both.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    rate: Rate,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    /// True if the decay is not part of the gradient.
    apart: bool,
    amsgrad: bool,
    maximize: bool,
}

macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $apart:literal, $decay:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name(Rule);

        impl $name {
            #[doc = concat!("With a learning rate (a number, the name of an input, or a schedule), betas 0.9 and 0.999, eps 1e-8 and weight decay ", stringify!($decay), ".")]
            pub fn new(rate: impl Into<Rate>) -> Self {
                $name(Rule {
                    rate: rate.into(),
                    betas: (0.9, 0.999),
                    eps: 1e-8,
                    weight_decay: $decay,
                    apart: $apart,
                    amsgrad: false,
                    maximize: false,
                })
            }

            setters! {
                /// With other decay rates of the two averages.
                betas(first: f64, second: f64) => 0.betas = (first, second);
                /// With another number added to the root of the second average.
                eps(eps: f64) => 0.eps = eps;
                /// With another weight decay.
                weight_decay(decay: f64) => 0.weight_decay = decay;
                /// With the largest second average so far in the place of the last one.
                amsgrad() => 0.amsgrad = true;
                /// Up the gradient instead of down.
                maximize() => 0.maximize = true;
            }
        }

        impl Optimizer for $name {
            fn moments(&self) -> &'static [&'static str] {
                self.0.moments()
            }

            fn counts_steps(&self) -> bool {
                true
            }

            fn counts_runs(&self) -> bool {
                self.0.rate.counts_runs()
            }

            fn takes_sparse(&self) -> bool {
                false
            }

            fn problem(&self) -> Option<String> {
                self.0.problem()
            }

            fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
                self.0.prepare(t, clock)
            }

            fn advance<'t>(
                &self,
                shared: &Shared<'t>,
                param: Var<'t>,
                grad: Var<'t>,
                moments: &[Var<'t>],
            ) -> Next<'t> {
                self.0.advance(shared, param, grad, moments)
            }
        }
    };
}

adam! {
    /// Adam with weight decay as part of the gradient: the formula of
    /// [`torch.optim.Adam`](https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html),
    /// in the order of operations of its single-tensor form: the factors of a step in f64, the rest
    /// in the dtype of the parameter.
    Adam, false, 0.0
}

adam! {
    /// Adam with weight decay apart from the gradient: the formula of
    /// [`torch.optim.AdamW`](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html),
    /// in the order of operations of its single-tensor form: the factors of a step in f64, the rest
    /// in the dtype of the parameter.
    AdamW, true, 0.01
}

impl Rule {
    fn moments(&self) -> &'static [&'static str] {
        if self.amsgrad {
            &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        } else {
            &["exp_avg", "exp_avg_sq"]
        }
    }

    fn problem(&self) -> Option<String> {
        let numbers = [("eps", self.eps), ("the weight decay", self.weight_decay)];
        self.rate.problem().or_else(|| not_negative(&numbers)).or_else(|| betas(self.betas))
    }

    /// The negative step size, the root of the second bias correction, and what a parameter is
    /// multiplied by.
    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        let (first, second) = self.betas;
        let step = clock.step.expect("steps are counted");
        let rate = self.rate.record(t, clock);
        let minus_rate = rate.map(|rate| -rate, |rate| -rate).value(t, step);
        let step_size = minus_rate / correction(first, step);
        let mut shared =
            vec![Factor::Value(step_size), Factor::Value(correction(second, step).sqrt())];
        if self.apart && self.weight_decay != 0.0 {
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
        let (step_size, root) = (shared[0], shared[1]);
        let (first, second) = self.betas;
        let grad = if self.maximize { -grad } else { grad };
        let (param, grad) = match shared.get(2) {
            Some(decay) => (decay.times(param), grad),
            None => (param, decayed(grad, param, self.weight_decay)),
        };
        let average = moments[0].lerp(grad, 1.0 - first);
        let square = (moments[1] * second).addcmul(grad, grad, 1.0 - second);
        let largest = moments.get(2).map(|before| before.maximum(square));
        let below = root.divides(largest.unwrap_or(square).sqrt()) + self.eps;
        let param = step_size.addcdiv(param, average, below);
        Next { param, moments: [average, square].into_iter().chain(largest).collect() }
    }
}

/// `1 - beta ^ step`, in f64.
fn correction(beta: f64, step: Var<'_>) -> Var<'_> {
    if beta == 0.0 {
        return step.tracer().ones_like(step);
    }
    (step * beta.ln()).exp().rsub(1.0)
}
