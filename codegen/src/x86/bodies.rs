//! [`Bodies`]: the bodies of the loops of a function.

use super::inst::Inst;
use super::order::{needed, one_by_one, pressure};
use super::select::{BodyKind, Select, Tables};
use super::task::Task;

/// The bodies of a function's loops, which run one after the other, each for the positions that are
/// left.
#[derive(Debug)]
pub(super) struct Bodies {
    pub(super) main: Option<Vec<Inst>>,
    /// The main body with non-temporal stores, for aligned results.
    pub(super) non_temporal: Option<Vec<Inst>>,
    pub(super) single: Option<Vec<Inst>>,
    pub(super) tail: Option<Vec<Inst>>,
}

impl Bodies {
    /// Those that the row asks for, without what nothing needs.
    pub(super) fn select(task: &Task<'_>, tables: &mut Tables) -> Result<Bodies, String> {
        let mut body = |wanted: bool, kind: BodyKind| match wanted {
            true => Select::body(task, tables, kind).map(|body| Some(needed(body))),
            false => Ok(None),
        };
        let plan = task.plan;
        let pairs = plan.may_reach(i64::from(2 * task.lanes()));
        let main = body(pairs, BodyKind::Pair)?;
        let non_temporal = body(pairs && task.streams, BodyKind::NonTemporal)?;
        let single = body(task.lanes() == 16 && plan.may_reach(16), BodyKind::Single)?;
        let tail = body(!plan.aligned, BodyKind::Tail)?;
        let non_temporal = non_temporal.filter(|_| !tables.streamed.is_empty());
        Ok(Bodies { main, non_temporal, single, tail })
    }

    /// Orders their instructions so that they need fewer registers, if there are no more than
    /// `room`. Returns how many the main one needs, or the single one where that is all there is.
    pub(super) fn order(&mut self, room: usize) -> usize {
        let order = |body: &mut Vec<Inst>| {
            let side_by_side = pressure(body);
            if side_by_side < room {
                return side_by_side;
            }
            let other = one_by_one(body);
            let peak = pressure(&other);
            if peak < side_by_side {
                *body = other;
            }
            peak.min(side_by_side)
        };
        let Bodies { main, non_temporal, single, tail } = self;
        let [main, single, ..] =
            [main, single, non_temporal, tail].map(|body| body.as_mut().map(order));
        main.or(single).unwrap_or(0)
    }
}
