//! A boxed optimizer is one, so that which it is can be chosen when a program runs.

use super::{Clock, Next, Optimizer, Shared};
use crate::entry::Entry;
use crate::trace::Trace;
use tracecast_ir::{DType, Var};

/// ```
/// use tracecast::optim::{Adam, Optimizer, Sgd};
///
/// let name = "sgd";
/// let rule: Box<dyn Optimizer> = if name == "sgd" { Box::new(Sgd::new(0.1)) } else { Box::new(Adam::new(0.1)) };
/// assert!(rule.moments().is_empty());
/// ```
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn moments(&self) -> &'static [&'static str] {
        (**self).moments()
    }

    fn moment_start(&self, moment: &str) -> f64 {
        (**self).moment_start(moment)
    }

    fn moment_dtype(&self) -> Option<DType> {
        (**self).moment_dtype()
    }

    fn counts_steps(&self) -> bool {
        (**self).counts_steps()
    }

    fn counts_runs(&self) -> bool {
        (**self).counts_runs()
    }

    fn takes_sparse(&self) -> bool {
        (**self).takes_sparse()
    }

    fn problem(&self) -> Option<String> {
        (**self).problem()
    }

    fn rule_for(&self, param: &str) -> Option<&dyn Optimizer> {
        (**self).rule_for(param)
    }

    fn idle_patterns(&self, params: &[&str]) -> Vec<String> {
        (**self).idle_patterns(params)
    }

    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        (**self).prepare(t, clock)
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        (**self).advance(shared, param, grad, moments)
    }

    fn entries(&self, name: &str, params: &[Entry]) -> Vec<Entry> {
        (**self).entries(name, params)
    }
}
