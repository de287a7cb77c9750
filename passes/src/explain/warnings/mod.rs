//! Warnings: numbers that do not fit the precision chosen for them, and choices without effect.
//!
//! All of them are seen when a program is compiled, from its ops, its dtypes and the numbers
//! written in it: none needs a run. `numbers` looks at single ops, `losses` at what is
//! differentiated, `crossed` at shapes on the way to a loss, `choices` at regions and rules.

mod choices;
mod crossed;
mod losses;
mod numbers;
mod warning;

pub use warning::{Warning, WarningKind};

use tracecast_ir::Graph;
use tracecast_ir::policy::PolicySet;
use tracecast_ir::text::Names;
use warning::Warnings;

/// What is odd about a traced program, given the same program with its casts, and the policies it
/// was traced under.
pub fn warnings(traced: &Graph, cast: &Graph, policies: &PolicySet) -> Vec<Warning> {
    let names = Names::new(traced);
    let mut found = Warnings { traced, cast, names, found: Vec::new() };
    numbers::look(&mut found);
    losses::look(&mut found);
    crossed::look(&mut found);
    // In the order of the program, one about each op of each kind.
    found.found.sort_by_key(|warning| (warning.node, warning.kind));
    found.found.dedup_by(|a, b| a.node.is_some() && (a.node, a.kind) == (b.node, b.kind));
    found.found.extend(of_choices(traced, policies));
    found.found
}

/// Which regions and which rules of the policy set have no effect on a traced program.
pub fn of_choices(traced: &Graph, policies: &PolicySet) -> Vec<Warning> {
    choices::look(traced, policies)
}
