//! Gathers operands that step through memory along the row, such as a transposed matrix, or of
//! which some positions are not there, such as one that is seen through windows, into the scratch,
//! so that loops load vectors.
//!
//! ```text
//! y[i, j] = x[j, i] + b[i, j]     rows 16 k to 16 k + 15 of x transposed are gathered together: they share lines of the cache
//! y[j] = x[3 j] + x[3 j + 1] + ..  the three loads are gathered together for the same reason
//! ```

use super::facts::Facts;
use super::{Draft, Neighbours, Place, Plan, Source, StridedRows};
use tracecast_ir::kernel::Access;
use tracecast_ir::{DType, Size};

/// The positions of a call where rows can be cut: of sixteen rows of f32 they are 64 KiB.
pub(crate) const POSITIONS: i64 = 1024;

/// The longest rows that are brought whole.
const WHOLE: i64 = 4096;

/// Shorter rows are not worth a call.
const LEAST: i64 = 8;

/// Has loads of the first plan that step along the row, or leave the operand at its ends, find
/// their elements in the scratch. Rows are cut into calls of [`POSITIONS`] where positions are
/// independent.
pub(super) fn gather(draft: &mut Draft<'_>) {
    if draft.calls.as_planned {
        let cut = draft.positions_independent();
        gather_strided(&mut draft.plans[0], cut, &draft.facts);
    }
}

fn gather_strided(plan: &mut Plan, cut: bool, facts: &Facts) {
    let row = plan.row();
    if facts.proves(Size::from(LEAST - 1).at_least(row)) {
        return;
    }
    // Asked as soon as there is something to gather.
    let positions = || match cut {
        true => Some(facts.most(row).map_or(POSITIONS, |most| most.min(POSITIONS))),
        false => facts.asks(Size::from(WHOLE).at_least(row)).then(|| facts.capacity(row)),
    };
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
        let Some(rows) = strided_rows(source, outer) else { continue };
        let Some(positions) = positions() else { return };
        let rows = StridedRows { positions, ..rows };
        let first = plan.strided.iter().position(|first| follows(first, &rows));
        source.place = match first {
            Some(first) => {
                plan.strided[first].rows += 1;
                Place::Gathered { rows: first, row: plan.strided[first].rows - 1 }
            }
            None => {
                plan.strided.push(rows);
                Place::Gathered { rows: plan.strided.len() - 1, row: 0 }
            }
        };
    }
}

/// How a load is gathered, in calls of any number of positions, if it steps along the row and
/// nothing writes what it reads.
fn strided_rows(source: &Source, outer: Option<(usize, Size)>) -> Option<StridedRows> {
    let Place::At(access) = &source.place else { return None };
    if !source.read_only || !access.indirect.is_empty() || source.place.row_stride() == 0 {
        return None;
    }
    let size = source.dtype.bytes() as i64;
    let of = |rows, neighbours| {
        let access = access.clone();
        StridedRows { slot: source.slot, size, access, rows, neighbours, positions: 0 }
    };
    if !access.guards.is_empty() {
        return is_within(source, access).then(|| of(1, Neighbours::Loads));
    }
    if source.place.row_stride() == 1 {
        return None;
    }
    // As many rows as share a line of the cache.
    let several = |extent: Size| extent.number().is_none_or(|extent| extent > 1);
    let neighbours =
        outer.is_some_and(|(axis, extent)| access.strides[axis] == 1 && several(extent));
    Some(match neighbours {
        true => of(64 / size, Neighbours::Positions),
        false => of(1, Neighbours::Loads),
    })
}

/// True if a load's row is the neighbour of those of the loads that are brought already.
fn follows(first: &StridedRows, next: &StridedRows) -> bool {
    let loads = [first, next].map(|rows| rows.neighbours) == [Neighbours::Loads; 2];
    let (a, b) = (&first.access, &next.access);
    let plain = a.guards.is_empty() && b.guards.is_empty();
    loads
        && plain
        && (first.slot, first.size, first.positions) == (next.slot, next.size, next.positions)
        && a.strides == b.strides
        && a.offset + Size::from(first.rows) == b.offset
}

/// True for a load whose guards let it leave the operand at the ends of a row, or that steps along
/// it, and is filled by bits that are those of an element.
fn is_within(source: &Source, access: &Access) -> bool {
    let steps = || access.guards.iter().filter_map(|guard| guard.strides.last().copied());
    let along = steps().any(|step| step != 0) || source.place.row_stride() != 1;
    let ahead = steps().all(|step| step.number().is_some_and(|step| step >= 0));
    let is_scalar = matches!(source.dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64);
    along && ahead && (access.fill == 0 || is_scalar)
}
