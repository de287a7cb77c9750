//! Attention, backward: gradients tile by tile. Weights are rematerialised from their log-sum-exp.

use super::super::micro::{Engine, Number};
use super::operands::Rows;
use super::{
    Gradients, Left, Memory, Panels, Problem, QUERIES, Real, SCORES, Unit, panel_room, product,
    taken, weighed,
};
use crate::routines::{ROW, Scoring, Slopes};
use std::ops::Range;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES};

/// Workspace of a unit in numbers.
pub(super) fn numbers(extents: &Extents<usize>) -> usize {
    let Extents { keys, width, value, .. } = *extents;
    let [long, wide] = [width, value].map(|n| n.next_multiple_of(LANES));
    taken(&[
        keys * width,
        panel_room(keys, width),
        panel_room(width, keys),
        keys * value,
        panel_room(keys, value),
        keys * long,
        keys * wide,
        QUERIES * width,
        panel_room(width, QUERIES),
        QUERIES * value,
        panel_room(value, QUERIES),
        QUERIES * SCORES,
        QUERIES * SCORES,
        QUERIES * long,
        KEYS,
        KEYS,
    ])
}

/// Workspace of a tile.
struct Room<'a, N> {
    queries: &'a mut [N],
    packed_queries: &'a mut [N],
    gradients: &'a mut [N],
    packed_gradients: &'a mut [N],
    weights: &'a mut [N],
    slopes: &'a mut [N],
    sums: &'a mut [N],
    mask: &'a mut [N],
    kept: &'a mut [N],
}

/// Keys and values of a unit, and their gradients so far.
struct Head<'a, N> {
    /// The first of them.
    first: usize,
    keys: Rows<'a, N>,
    /// Keys packed as columns, and as steps.
    packed: [Panels<'a, N>; 2],
    /// Values packed as columns.
    values: Panels<'a, N>,
    of_keys: &'a mut [N],
    of_values: &'a mut [N],
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
    let [long, wide] = [width, value].map(|n| n.next_multiple_of(LANES));
    let (tiles, first, keys) = (problem.tiles(), unit.keys.start, unit.keys.len());
    let (zero, scale) = (E::Num::ZERO, E::Num::of(problem.scale));
    let mut memory = Memory(memory);
    let [_, of_keys, of_values] = &problem.operands;
    let at = [unit.batch, unit.shared, first, 0];
    // SAFETY: the caller's contract.
    let plain = unsafe { of_keys.rows(tiles, at, [keys, width], memory.take(keys * width)) };
    let to = memory.take(panel_room(keys, width));
    let columns = Panels::pack::<E>(plain.numbers, [keys, width], [width, 1], to);
    let to = memory.take(panel_room(width, keys));
    let steps = Panels::pack::<E>(plain.numbers, [width, keys], [1, width], to);
    // SAFETY: the caller's contract.
    let values = unsafe { of_values.rows(tiles, at, [keys, value], memory.take(keys * value)) };
    let to = memory.take(panel_room(keys, value));
    let values = Panels::pack::<E>(values.numbers, [keys, value], [value, 1], to);
    let (of_keys, of_values) = (memory.take(keys * long), memory.take(keys * wide));
    of_keys.fill(zero);
    of_values.fill(zero);
    let mut head =
        Head { first, keys: plain, packed: [columns, steps], values, of_keys, of_values };
    let mut room = Room {
        queries: memory.take(QUERIES * width),
        packed_queries: memory.take(panel_room(width, QUERIES)),
        gradients: memory.take(QUERIES * value),
        packed_gradients: memory.take(panel_room(value, QUERIES)),
        weights: memory.take(QUERIES * SCORES),
        slopes: memory.take(QUERIES * SCORES),
        sums: memory.take(QUERIES * long),
        mask: memory.take(KEYS),
        kept: memory.take(KEYS),
    };
    for of_query in 0..problem.group() {
        let at = unit.shared * problem.group() + of_query;
        for first in unit.queries.clone().step_by(QUERIES) {
            let tile = first..unit.queries.end.min(first + QUERIES);
            // SAFETY: the caller's contract.
            unsafe {
                run_tile::<E>(problem, unit, [unit.batch, at], tile, &mut head, &mut room);
            };
        }
    }
    if unit.gradients == Gradients::OfQueries {
        return;
    }
    for key in 0..keys {
        let to = [unit.batch, unit.shared, first + key, 0];
        let sums = &mut head.of_keys[key * long..][..width];
        sums.iter_mut().for_each(|sum| *sum = *sum * scale + zero);
        // SAFETY: the caller's contract.
        unsafe { problem.results[1].put(tiles, to, sums) };
        let sums = &mut head.of_values[key * wide..][..value];
        sums.iter_mut().for_each(|sum| *sum += zero);
        // SAFETY: as above.
        unsafe { problem.results[2].put(tiles, to, sums) };
    }
}

/// The transpose of a tile of scores.
fn turned<N>(numbers: &[N]) -> Left<'_, N> {
    Left { numbers, row: 1, step: SCORES }
}

/// Computes the gradients of a tile of queries of a head.
///
/// # Safety
///
/// The CPU must be the engine's. Operands must be readable and results writable for the unit, and
/// nobody else may use its results.
unsafe fn run_tile<E: Engine<Num: Real>>(
    problem: &Problem<'_>,
    unit: &Unit,
    [batch, at]: [usize; 2],
    tile: Range<usize>,
    head: &mut Head<'_, E::Num>,
    room: &mut Room<'_, E::Num>,
) {
    let Extents { width, value, .. } = problem.extents;
    let [long, wide] = [width, value].map(|n| n.next_multiple_of(LANES));
    let Some([dy, lse, less]) = &problem.given else { return };
    let (tiles, count, base) = (problem.tiles(), tile.len(), head.first);
    let keys = problem.seen(tile.end).saturating_sub(base).min(unit.keys.len());
    let (zero, scale) = (E::Num::ZERO, E::Num::of(problem.scale));
    let from = [batch, at, tile.start, 0];
    // SAFETY: the caller's contract.
    let queries = unsafe { problem.operands[0].rows(tiles, from, [count, width], room.queries) };
    // SAFETY: as above.
    let gradients = unsafe { dy.rows(tiles, from, [count, value], room.gradients) };
    let packed_queries =
        Panels::pack::<E>(queries.numbers, [width, count], [1, width], room.packed_queries);
    let packed_gradients =
        Panels::pack::<E>(gradients.numbers, [value, count], [1, value], room.packed_gradients);
    room.sums.fill(zero);
    for first in (0..keys).step_by(KEYS) {
        let block = KEYS.min(keys - first);
        let padded = block.next_multiple_of(ROW);
        let left = Left { numbers: queries.numbers, row: width, step: 1 };
        let out = (&mut *room.weights, SCORES);
        product::<E>([count, block, width], left, head.packed[0], [first, 0], out, false);
        let left = Left { numbers: gradients.numbers, row: value, step: 1 };
        let out = (&mut *room.slopes, SCORES);
        product::<E>([count, block, value], left, head.values, [first, 0], out, false);
        for row in 0..count {
            let query = [batch, at, tile.start + row];
            let from = [batch, at, tile.start + row, 0];
            let mut given = [zero; 2];
            // SAFETY: the caller's contract.
            unsafe { lse.row(tiles, from, &mut given[..1]) };
            // SAFETY: as above.
            unsafe { less.row(tiles, from, &mut given[1..]) };
            if let Some(mask) = &problem.mask {
                let from = [batch, at, tile.start + row, base + first];
                // SAFETY: as above.
                unsafe { mask.row(tiles, from, &mut room.mask[..block]) };
            }
            if let Some(drop) = &problem.drop {
                drop.factors(query, base + first, &mut room.kept[..block]);
            }
            let mask = problem.mask.map(|_| &room.mask[..padded]);
            let seen = problem.seen(query[2] + 1).saturating_sub(base + first).min(block);
            let kept = problem.drop.map(|_| &room.kept[..padded]);
            let scoring = Scoring { scale, mask, seen, kept, dtype: problem.operands[0].dtype };
            let log = if given[0] == E::Num::NEVER { zero } else { given[0] };
            let of = Slopes { log, less: given[1] };
            let weights = &mut room.weights[row * SCORES..][..padded];
            let slopes = &mut room.slopes[row * SCORES..][..padded];
            E::Num::differentiate(problem.instructions(), weights, slopes, &scoring, &of);
        }
        if unit.gradients != Gradients::OfQueries {
            let out = (&mut head.of_values[first * wide..], wide);
            let of = (&gradients, packed_gradients);
            weighed::<E>([block, count], turned(room.weights), of, 0, out);
            let (of, out) = ((&queries, packed_queries), &mut head.of_keys[first * long..]);
            weighed::<E>([block, count], turned(room.slopes), of, 0, (out, long));
        }
        if unit.gradients != Gradients::OfKeys {
            let left = Left { numbers: room.slopes, row: SCORES, step: 1 };
            let out = (&mut *room.sums, long);
            weighed::<E>([count, block], left, (&head.keys, head.packed[1]), first, out);
        }
    }
    if unit.gradients == Gradients::OfKeys {
        return;
    }
    for row in 0..count {
        let sums = &mut room.sums[row * long..][..width];
        sums.iter_mut().for_each(|sum| *sum = *sum * scale + zero);
        // SAFETY: the caller's contract.
        unsafe { problem.results[0].put(tiles, [batch, at, tile.start + row, 0], sums) };
    }
}
