//! [`Groups`]: other rules for some parameters.

use crate::optim::{Clock, Next, Optimizer, Shared};
use crate::trace::Trace;
use tracecast_ir::Var;
use tracecast_ir::policy::matches_name;

/// An optimizer that updates some parameters by other rules: with another rate, without weight
/// decay, or in another way altogether.
///
/// ```
/// use tracecast::optim::{AdamW, Groups, Optimizer};
///
/// let rule = Groups::new(AdamW::new(1e-3))
///     .of(&["**.bias", "norm.**"], AdamW::new(1e-3).weight_decay(0.0))
///     .of(&["head.*"], AdamW::new(1e-2));
/// assert!(rule.rule_for("0.bias").is_some());
/// ```
pub struct Groups {
    rest: Box<dyn Optimizer>,
    groups: Vec<Group>,
}

/// A rule, and the patterns of the names it is for.
struct Group {
    names: Vec<String>,
    rule: Box<dyn Optimizer>,
}

impl Groups {
    /// This rule for all parameters.
    pub fn new(rest: impl Optimizer + 'static) -> Self {
        Groups { rest: Box::new(rest), groups: Vec::new() }
    }

    /// Another rule for the parameters that one of the patterns fits and no group before took. In a
    /// pattern `*` stands for any run of characters without a dot, `**` for any run at all; a name
    /// fits itself. A pattern that fits no parameter is a warning of the compilation.
    #[must_use]
    pub fn of(mut self, names: &[&str], rule: impl Optimizer + 'static) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.groups.push(Group { names, rule: Box::new(rule) });
        self
    }
}

impl Optimizer for Groups {
    fn moments(&self) -> &'static [&'static str] {
        self.rest.moments()
    }

    fn moment_start(&self, moment: &str) -> f64 {
        self.rest.moment_start(moment)
    }

    fn counts_steps(&self) -> bool {
        self.rest.counts_steps()
    }

    fn counts_runs(&self) -> bool {
        self.rest.counts_runs()
    }

    fn problem(&self) -> Option<String> {
        let all = [&self.rest].into_iter().chain(self.groups.iter().map(|group| &group.rule));
        all.filter_map(|rule| rule.problem()).next()
    }

    fn rule_for(&self, param: &str) -> Option<&dyn Optimizer> {
        let fits = |group: &&Group| group.names.iter().any(|name| matches_name(name, param));
        let rule = self.groups.iter().find(fits).map_or(&self.rest, |group| &group.rule);
        Some(rule.rule_for(param).unwrap_or(rule.as_ref()))
    }

    fn idle_patterns(&self, params: &[&str]) -> Vec<String> {
        let own = self.groups.iter().flat_map(|group| &group.names);
        let idle = own.filter(|name| !params.iter().any(|param| matches_name(name, param)));
        let inside = [&self.rest].into_iter().chain(self.groups.iter().map(|group| &group.rule));
        idle.cloned().chain(inside.flat_map(|rule| rule.idle_patterns(params))).collect()
    }

    fn prepare<'t>(&self, t: &'t Trace, clock: Clock<'t>) -> Shared<'t> {
        self.rest.prepare(t, clock)
    }

    fn advance<'t>(
        &self,
        shared: &Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> Next<'t> {
        self.rest.advance(shared, param, grad, moments)
    }
}
