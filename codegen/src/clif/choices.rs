//! Makes the [`Choices`]: what code does differently if its working set fits a cache of this
//! machine. Chosen before any code is emitted, so that all facts about named sizes are known
//! when the code cache is queried.

use super::emitter::Choices;
use super::{prefetch, row_pairs};
use crate::plan::facts::Facts;
use crate::plan::{Plan, Sink};
use crate::target::Target;
use tracecast_ir::Size;

/// The least row length in elements for non-temporal stores: a row waits until they are in memory.
const LONG: i64 = 1024;

impl Choices {
    /// For the function of a plan.
    pub(crate) fn of(target: &Target, plan: &Plan, facts: &Facts) -> Choices {
        let own = target.vector_width.is_some();
        Choices {
            rows: row_pairs::rows(target, plan, facts),
            streams: own
                && has_streams(plan)
                && facts.asks(plan.row().at_least(Size::from(LONG)))
                && !facts.asks(plan.goes_over_less(target.streamed_from)),
            prefetches: own && prefetch::pays(target, plan, facts),
            takes_ahead: own && prefetch::takes_ahead(target, plan, facts),
        }
    }
}

/// True if some results may use non-temporal stores. Rows of several stages store in bursts, which
/// would wait for memory.
fn has_streams(plan: &Plan) -> bool {
    let streams = |sink: &Sink| matches!(sink, Sink::Store { slot, .. } if plan.may_stream(*slot));
    plan.stages.len() == 1 && plan.stages[0].sinks.iter().any(streams)
}
