//! Attention, forward: weighted means of values, tile by tile.

use super::super::driver::Run;
use super::super::micro::{Engine, Number};
use super::operands::Rows;
use super::problem::Near;
use super::{
    Left, Panels, Problem, QUERIES, Real, SCORES, Unit, carve, panel_room, product, weighed,
};
use crate::routines::ROW;
use std::ops::Range;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES};

/// Pieces of the workspace of a unit, in numbers.
pub(super) fn pieces(extents: &Extents<usize>) -> [usize; 11] {
    let Extents { keys, width, value, .. } = *extents;
    let wide = value.next_multiple_of(LANES);
    [
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
    ]
}

/// Workspace of a tile.
struct Room<'a, N> {
    scores: &'a mut [N],
    sums: &'a mut [N],
    largest: &'a mut [N],
    totals: &'a mut [N],
    near: Near<'a, N>,
}

/// Keys and values of a head.
struct Head<'a, N> {
    keys: Panels<'a, N>,
    values: Rows<'a, N>,
    packed: Panels<'a, N>,
}

impl<E: Engine<Num: Real>> Run<'_, Problem<'_>, E> {
    /// Computes a unit.
    pub(super) fn forward(&self, unit: &Unit, memory: &mut [E::Num]) {
        let Extents { width, value, .. } = self.extents;
        let keys = self.seen(unit.queries.end);
        let [plain, of_keys, of_values, packed, queries, scores, sums, largest, totals, mask, kept] =
            carve(memory, pieces(&self.extents));
        let at = [unit.batch, unit.shared, 0, 0];
        let plain = self.rows(1, at, [keys, width], plain);
        let keys_of = Panels::pack::<E>(plain.numbers, [keys, width], [width, 1], of_keys);
        let values = self.rows(2, at, [keys, value], of_values);
        let packed = Panels::pack::<E>(values.numbers, [value, keys], [1, value], packed);
        let head = Head { keys: keys_of, values, packed };
        let mut room = Room { scores, sums, largest, totals, near: Near { mask, kept } };
        for of_query in 0..self.group() {
            let at = unit.shared * self.group() + of_query;
            for first in unit.queries.clone().step_by(QUERIES) {
                let tile = first..unit.queries.end.min(first + QUERIES);
                self.means([unit.batch, at], tile, &head, queries, &mut room);
            }
        }
    }

    /// Computes a tile of queries of a head.
    fn means(
        &self,
        [batch, at]: [usize; 2],
        tile: Range<usize>,
        head: &Head<'_, E::Num>,
        queries: &mut [E::Num],
        room: &mut Room<'_, E::Num>,
    ) {
        let Extents { width, value, .. } = self.extents;
        let wide = value.next_multiple_of(LANES);
        let (count, keys) = (tile.len(), self.seen(tile.end));
        let from = [batch, at, tile.start, 0];
        let queries = self.rows(0, from, [count, width], queries);
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
                self.weigh_row([batch, at, tile.start + row], (first, block), row, room);
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
            self.put(0, to, sums);
            let none = total == zero;
            let log = if none { never } else { room.largest[row] + total.log() };
            self.put(1, to, &[log]);
        }
    }

    /// Turns a row of scores into weights, and rescales what was summed before (online softmax).
    fn weigh_row(
        &self,
        query: [usize; 3],
        (first, block): (usize, usize),
        row: usize,
        room: &mut Room<'_, E::Num>,
    ) {
        let Room { scores, sums, largest, totals, near } = room;
        let wide = self.extents.value.next_multiple_of(LANES);
        let scoring = self.scoring(query, (first, block), near);
        let scores = &mut scores[row * SCORES..][..block.next_multiple_of(ROW)];
        let weighed = E::Num::weigh(self.cpu.instructions, scores, &scoring, largest[row]);
        largest[row] = weighed.largest;
        totals[row] = totals[row].mul_add(weighed.again, weighed.total);
        if weighed.again != E::Num::ONE {
            sums[row * wide..][..wide].iter_mut().for_each(|sum| *sum *= weighed.again);
        }
    }
}
