//! Attention, forward: weighted means of values, tile by tile.

use super::super::micro::{Engine, Number};
use super::operands::Rows;
use super::{
    Left, Memory, Panels, Problem, QUERIES, Real, SCORES, Unit, panel_room, product, taken, weighed,
};
use crate::routines::{ROW, Scoring};
use std::ops::Range;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES};

/// Workspace of a unit in numbers.
pub(super) fn numbers(extents: &Extents<usize>) -> usize {
    let Extents { keys, width, value, .. } = *extents;
    let wide = value.next_multiple_of(LANES);
    taken(&[
        keys * width,
        panel_room(keys, width),
        keys * value,
        panel_room(value, keys),
        QUERIES * width,
        QUERIES * SCORES,
        QUERIES * wide,
        QUERIES,
        QUERIES,
        KEYS,
        KEYS,
    ])
}

/// Workspace of a tile.
struct Room<'a, N> {
    scores: &'a mut [N],
    sums: &'a mut [N],
    largest: &'a mut [N],
    totals: &'a mut [N],
    mask: &'a mut [N],
    kept: &'a mut [N],
}

/// Keys and values of a head.
struct Head<'a, N> {
    keys: Panels<'a, N>,
    values: Rows<'a, N>,
    packed: Panels<'a, N>,
}

/// Computes a unit.
///
/// # Safety
///
/// The CPU must be the engine's. Operands must be readable and results writable for the sizes, and
/// nobody else may use the results of the unit.
pub(super) unsafe fn run<E: Engine<Num: Real>>(
    problem: &Problem<'_>,
    unit: &Unit,
    memory: &mut [E::Num],
) {
    let Extents { width, value, .. } = problem.extents;
    let (tiles, keys) = (problem.tiles(), problem.seen(unit.queries.end));
    let mut memory = Memory(memory);
    let [_, of_keys, of_values] = &problem.operands;
    let at = [unit.batch, unit.shared, 0, 0];
    // SAFETY: the caller's contract.
    let plain = unsafe { of_keys.rows(tiles, at, [keys, width], memory.take(keys * width)) };
    let to = memory.take(panel_room(keys, width));
    let packed_keys = Panels::pack::<E>(plain.numbers, [keys, width], [width, 1], to);
    // SAFETY: the caller's contract.
    let values = unsafe { of_values.rows(tiles, at, [keys, value], memory.take(keys * value)) };
    let to = memory.take(panel_room(value, keys));
    let packed = Panels::pack::<E>(values.numbers, [value, keys], [1, value], to);
    let head = Head { keys: packed_keys, values, packed };
    let queries = memory.take(QUERIES * width);
    let mut room = Room {
        scores: memory.take(QUERIES * SCORES),
        sums: memory.take(QUERIES * value.next_multiple_of(LANES)),
        largest: memory.take(QUERIES),
        totals: memory.take(QUERIES),
        mask: memory.take(KEYS),
        kept: memory.take(KEYS),
    };
    for of_query in 0..problem.group() {
        let at = unit.shared * problem.group() + of_query;
        for first in unit.queries.clone().step_by(QUERIES) {
            let tile = first..unit.queries.end.min(first + QUERIES);
            // SAFETY: the caller's contract.
            unsafe { run_tile::<E>(problem, [unit.batch, at], tile, &head, queries, &mut room) };
        }
    }
}

/// Computes a tile of queries of a head.
///
/// # Safety
///
/// The CPU must be the engine's. Operands must be readable and results writable for the unit, and
/// nobody else may use its results.
unsafe fn run_tile<E: Engine<Num: Real>>(
    problem: &Problem<'_>,
    [batch, at]: [usize; 2],
    tile: Range<usize>,
    head: &Head<'_, E::Num>,
    queries: &mut [E::Num],
    room: &mut Room<'_, E::Num>,
) {
    let Extents { width, value, .. } = problem.extents;
    let (tiles, wide) = (problem.tiles(), value.next_multiple_of(LANES));
    let (count, keys) = (tile.len(), problem.seen(tile.end));
    let from = [batch, at, tile.start, 0];
    // SAFETY: the caller's contract.
    let queries = unsafe { problem.operands[0].rows(tiles, from, [count, width], queries) };
    let left = Left { numbers: queries.numbers, row: width, step: 1 };
    let (zero, never) = (E::Num::ZERO, E::Num::NEVER);
    room.sums.fill(zero);
    room.totals.fill(zero);
    room.largest.fill(never);
    for first in (0..keys).step_by(KEYS) {
        let block = KEYS.min(keys - first);
        let out = (&mut *room.scores, SCORES);
        product::<E>([count, block, width], left, head.keys, [first, 0], out, false);
        for row in 0..count {
            // SAFETY: the caller's contract.
            unsafe { weigh_row(problem, [batch, at, tile.start + row], first, block, row, room) };
        }
        let left = Left { numbers: room.scores, row: SCORES, step: 1 };
        let out = (&mut *room.sums, wide);
        weighed::<E>([count, block], left, (&head.values, head.packed), first, out);
    }
    for row in 0..count {
        let (total, sums) = (room.totals[row], &mut room.sums[row * wide..][..value]);
        let part = if total == zero { zero } else { E::Num::ONE / total };
        sums.iter_mut().for_each(|sum| *sum = *sum * part + zero);
        let to = [batch, at, tile.start + row, 0];
        // SAFETY: the caller's contract.
        unsafe { problem.results[0].put(tiles, to, sums) };
        let none = total == zero;
        let log = if none { never } else { room.largest[row] + total.log() };
        // SAFETY: as above.
        unsafe { problem.results[1].put(tiles, to, &[log]) };
    }
}

/// Turns a row of scores into weights, and rescales what was summed before (online softmax).
///
/// # Safety
///
/// The routines must be those of this CPU. A mask must be readable for the query and these keys.
unsafe fn weigh_row<N: Real>(
    problem: &Problem<'_>,
    [batch, at, query]: [usize; 3],
    first: usize,
    block: usize,
    row: usize,
    room: &mut Room<'_, N>,
) {
    let tiles = problem.tiles();
    let Room { scores, sums, largest, totals, mask, kept } = room;
    let wide = problem.extents.value.next_multiple_of(LANES);
    let padded = block.next_multiple_of(ROW);
    if let Some(of) = &problem.mask {
        // SAFETY: the caller's contract.
        unsafe { of.row(tiles, [batch, at, query, first], &mut mask[..block]) };
    }
    if let Some(drop) = &problem.drop {
        drop.factors([batch, at, query], first, &mut kept[..block]);
    }
    let scoring = Scoring {
        scale: N::of(problem.scale),
        mask: problem.mask.map(|_| &mask[..padded]),
        seen: problem.seen(query + 1).saturating_sub(first).min(block),
        kept: problem.drop.map(|_| &kept[..padded]),
        dtype: problem.operands[0].dtype,
    };
    let scores = &mut scores[row * SCORES..][..padded];
    let weighed = N::weigh(problem.instructions(), scores, &scoring, largest[row]);
    largest[row] = weighed.largest;
    totals[row] = totals[row].mul_add(weighed.again, weighed.total);
    if weighed.again != N::ONE {
        sums[row * wide..][..wide].iter_mut().for_each(|sum| *sum *= weighed.again);
    }
}
