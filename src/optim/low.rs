//! [`LowMoments`]: what an optimizer remembers, in 16 bits and right on average.

use crate::optim::{Clock, Next, Optimizer, Shared};
use crate::setters::setters;
use crate::trace::Trace;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{DType, Var};

/// An optimizer that keeps its moments in bf16: half the memory, and fewer bytes to move in every
/// step.
///
/// An average that moves by less than half a unit in the last place would stand still if it were
/// rounded to nearest. So it is rounded up or down at random, with such odds that the mean is
/// exact. The numbers are drawn from `OPTIMIZER.rng`, a key and a step, whose step grows with every
/// step that is not skipped.
///
/// ```
/// use tracecast::optim::{AdamW, LowMoments, Optimizer};
/// use tracecast::DType;
///
/// let rule = LowMoments::new(AdamW::new(1e-3));
/// assert_eq!(rule.moment_dtype(), Some(DType::BF16));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LowMoments<O> {
    rule: O,
    dtype: DType,
}

impl<O: Optimizer> LowMoments<O> {
    /// An optimizer with moments in bf16.
    pub fn new(rule: O) -> Self {
        LowMoments { rule, dtype: DType::BF16 }
    }

    setters! {
        /// With moments in another 16-bit float. In f16 what is above 65,504 becomes infinite, and
        /// squares of gradients below 2^-12 are zero more often than not.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl<O: Optimizer> Optimizer for LowMoments<O> {
    fn moments(&self) -> &'static [&'static str] {
        self.rule.moments()
    }

    fn moment_start(&self, moment: &str) -> f64 {
        self.rule.moment_start(moment)
    }

    fn moment_dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }

    fn counts_steps(&self) -> bool {
        self.rule.counts_steps()
    }

    fn counts_runs(&self) -> bool {
        self.rule.counts_runs()
    }

    fn problem(&self) -> Option<String> {
        let dtype = (!self.dtype.is_low())
            .then(|| format!("moments are kept in {}, expected a 16-bit float", self.dtype));
        dtype.or_else(|| self.rule.problem())
    }

    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        self.rule.prepare(t, clock)
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        self.rule.advance(shared, param, grad, moments)
    }
}

/// `x` as one of its two neighbours in a 16-bit float: with `unit` evenly distributed from 0 to
/// below 1 in multiples of 2^-24, its mean is `x`. What is infinite, NaN or already such a number
/// stays as it is.
///
/// The neighbour on the other side of the nearest one, `n`, is found without a look at bits: `n`
/// moved by a little more than 2^-p of itself, for p bits of significand, lies nearest to it.
#[track_caller]
pub fn stochastic_round<'t>(x: Var<'t>, unit: Var<'t>, dtype: DType) -> Var<'t> {
    let t = x.tracer();
    let Some(float) = dtype.storage().float.filter(|_| dtype.is_low()) else {
        return t.fail("stochastic_round", format!("to {dtype}, expected a 16-bit float"));
    };
    let near = x.round_to(dtype);
    let away = x - near;
    let step = near.abs() * (f64::exp2(-f64::from(float.digits())) * (1.0 + f64::exp2(-10.0)));
    let step = step.maximum(t.full(x.ty(), 0.75 * float.smallest()));
    let other = away.lt(0.0).choose(near - step, near + step).round_to(dtype);
    let gap = (other - near).abs();
    (unit * gap).lt(away.abs()).choose(other, near).cast(dtype)
}
