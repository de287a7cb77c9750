//! Asks what code has to know of a row whose length is a name: the questions that make classes of
//! sizes, on the finished plans.
//!
//! A row that is reduced and has fewer than 16 positions is combined in order; row buffers have
//! room for a number of positions; with at most 4096, a reduction has one chunk, and two rows may
//! be worked on at a time. Everything else that depends on the length is a compare in the code.
//! Sizes that are numbers leave nothing to ask.

use super::facts::Facts;
use super::{Place, Plan, Sink, Source};
use tracecast_ir::Size;
use tracecast_ir::kernel::{ROW_CHUNK, SHORT_ROW};

/// Asks what the code of a plan has to know of its row.
pub(super) fn ask(plan: &mut Plan, facts: &Facts) {
    let row = plan.row();
    ask_guarded(plan, facts);
    if !row.has_names() {
        return;
    }
    let reduces =
        |sink: &Sink| matches!(sink, Sink::Reduce { reduction, .. } if !reduction.is_position());
    let reduces = plan.stages.iter().flat_map(|stage| &stage.sinks).any(reduces);
    let within = |most: i64| facts.asks(Size::from(most).at_least(row)).then_some(most);
    plan.most = facts.most(row);
    if reduces {
        let (short, single) = (SHORT_ROW as i64 - 1, ROW_CHUNK as i64);
        plan.most = within(short).or(plan.most).or_else(|| match plan.buffers.is_empty() {
            true => within(single),
            false => None,
        });
    }
    if !plan.buffers.is_empty() && plan.most.is_none() {
        plan.most = Some(facts.capacity(row));
    }
}

/// Vector loops read on when a guard of the whole row fails.
fn ask_guarded(plan: &mut Plan, facts: &Facts) {
    let row = plan.row();
    for source in &mut plan.loads {
        let Source { place: Place::At(access), elements, .. } = source else { continue };
        let of_rows = |strides: &super::Strides| strides.last().is_none_or(|stride| *stride == 0);
        if !access.guards.is_empty() && access.guards.iter().all(|guard| of_rows(&guard.strides)) {
            source.spans_row = facts.asks(elements.at_least(row));
        }
    }
}
