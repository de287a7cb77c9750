//! Gathers operands that step through memory along the row, such as a transposed matrix, into the scratch, so that loops load vectors.
//!
//! ```text
//! y[i, j] = x[j, i] + b[i, j]     rows 16 k to 16 k + 15 of x transposed are gathered together: they share lines of the cache
//! ```

use super::nest::positions_independent;
use super::{Draft, Place, Plan, Source, StridedRows};

/// The positions of a call where rows can be cut: of sixteen rows of f32 they are 64 KiB.
pub(crate) const POSITIONS: i64 = 1024;

/// The longest rows that are brought whole.
const WHOLE: i64 = 4096;

/// Shorter rows are not worth a call.
const LEAST: i64 = 16;

/// Has loads of the first plan that step along the row find their elements in the scratch. Rows are cut into calls of [`POSITIONS`] where
/// positions are independent.
pub(super) fn gather(draft: &mut Draft<'_>) {
    if draft.calls.as_planned {
        let cut = positions_independent(draft);
        gather_strided(&mut draft.plans[0], cut);
    }
}

fn gather_strided(plan: &mut Plan, cut: bool) {
    let row = plan.row();
    if row < LEAST || !cut && row > WHOLE {
        return;
    }
    let positions = if cut { row.min(POSITIONS) } else { row };
    let outer = plan.row_axis().checked_sub(1).map(|axis| (axis, plan.extents[axis]));
    for number in 0..plan.loads.len() {
        // Stages that run once per row know nothing of the positions of a call.
        let (mut along, mut once) = (false, false);
        for stage in plan.stages.iter().filter(|s| s.loads(number as u32)) {
            *(if stage.once { &mut once } else { &mut along }) = true;
        }
        if once || !along {
            continue;
        }
        let source = &mut plan.loads[number];
        let Some(rows) = strided_rows(source, outer, positions) else { continue };
        source.place = Place::Gathered(plan.strided.len());
        plan.strided.push(rows);
    }
}

/// How a load is brought together, if it steps along the row and nothing writes what it reads.
fn strided_rows(
    source: &Source,
    outer: Option<(usize, i64)>,
    positions: i64,
) -> Option<StridedRows> {
    let Place::At(access) = &source.place else { return None };
    let plain = source.read_only && access.guards.is_empty() && access.indirect.is_empty();
    if !plain || matches!(source.place.row_stride(), 0 | 1) {
        return None;
    }
    let size = source.dtype.bytes() as i64;
    // As many rows as share a line of the cache.
    let neighbours = outer.is_some_and(|(axis, extent)| access.strides[axis] == 1 && extent > 1);
    let rows = if neighbours { 64 / size } else { 1 };
    Some(StridedRows { slot: source.slot, size, access: access.clone(), rows, positions })
}
