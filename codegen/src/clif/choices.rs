//! [`Choices`]: what code does differently if what it goes over fits a cache of this machine.
//! Chosen before any code is emitted, so that all questions about sizes with names have been asked
//! when code is looked for.

use super::{prefetch, row_pairs};
use crate::plan::facts::Facts;
use crate::plan::{Plan, Sink};
use crate::target::Target;
use tracecast_ir::Size;

/// Positions of a row, at least, whose results go past the caches: each row waits until they are in
/// memory.
const LONG: i64 = 1024;

/// What was chosen for a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    /// How many rows are worked on at a time.
    pub(super) rows: usize,
    /// Results go past the caches.
    pub(super) streams: bool,
    /// Lines of results are asked for a pass before they are written.
    pub(super) prefetches: bool,
    /// Rows of a table are asked for some rows before they are taken.
    pub(super) takes_ahead: bool,
}

impl Choices {
    /// For the function of a plan.
    pub(crate) fn of(target: &Target, plan: &Plan, facts: &Facts) -> Choices {
        let own = target.vector_width.is_some();
        Choices {
            rows: row_pairs::rows(target, plan, facts),
            streams: own
                && has_streams(plan)
                && facts.asks(plan.row().at_least(Size::from(LONG)))
                && !goes_over_less(plan, target.streamed_from, facts),
            prefetches: own && prefetch::pays(target, plan, facts),
            takes_ahead: own && prefetch::takes_ahead(target, plan, facts),
        }
    }
}

/// True if a run goes over fewer bytes than that.
pub(super) fn goes_over_less(plan: &Plan, bytes: i64, facts: &Facts) -> bool {
    facts.asks(Size::from(bytes).at_least(plan.traffic() + 1))
}

/// True if there are results that may go past the caches. In rows of several stages they come in
/// bursts, which would wait for memory.
fn has_streams(plan: &Plan) -> bool {
    let streams = |sink: &Sink| matches!(sink, Sink::Store { slot, .. } if plan.may_stream(*slot));
    plan.stages.len() == 1 && plan.stages[0].sinks.iter().any(streams)
}
