//! Attention, backward: gradients tile by tile. Weights are rematerialised from their log-sum-exp.

use super::super::driver::Run;
use super::super::micro::{Engine, Number};
use super::operands::Rows;
use super::problem::Near;
use super::{
    Gradients, Left, Panels, Problem, QUERIES, Real, SCORES, Unit, carve, panel_room, product,
    weighed,
};
use crate::routines::{ROW, Slopes};
use std::ops::Range;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES};

/// Pieces of the workspace of a unit, in numbers.
pub(super) fn pieces(extents: &Extents<usize>) -> [usize; 16] {
    let Extents { keys, width, value, .. } = *extents;
    let [long, wide] = [width, value].map(|n| n.next_multiple_of(LANES));
    [
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
    ]
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
    near: Near<'a, N>,
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

/// The transpose of a tile of scores.
fn turned<N>(numbers: &[N]) -> Left<'_, N> {
    Left { numbers, row: 1, step: SCORES }
}

impl<E: Engine<Num: Real>> Run<'_, Problem<'_>, E> {
    /// Computes the gradients of a unit.
    pub(super) fn backward(&self, unit: &Unit, memory: &mut [E::Num]) {
        let Extents { width, value, .. } = self.extents;
        let [long, wide] = [width, value].map(|n| n.next_multiple_of(LANES));
        let (first, keys) = (unit.keys.start, unit.keys.len());
        let (zero, scale) = (E::Num::ZERO, E::Num::of(self.scale));
        let [
            plain,
            key_columns,
            key_steps,
            plain_values,
            value_columns,
            of_keys,
            of_values,
            queries,
            packed_queries,
            gradients,
            packed_gradients,
            weights,
            slopes,
            sums,
            mask,
            kept,
        ] = carve(memory, pieces(&self.extents));
        let at = [unit.batch, unit.shared, first, 0];
        let plain = self.rows(1, at, [keys, width], plain);
        let columns = Panels::pack::<E>(plain.numbers, [keys, width], [width, 1], key_columns);
        let steps = Panels::pack::<E>(plain.numbers, [width, keys], [1, width], key_steps);
        let values = self.rows(2, at, [keys, value], plain_values);
        let values = Panels::pack::<E>(values.numbers, [keys, value], [value, 1], value_columns);
        let (of_keys, of_values) = (&mut of_keys[..keys * long], &mut of_values[..keys * wide]);
        of_keys.fill(zero);
        of_values.fill(zero);
        let mut head =
            Head { first, keys: plain, packed: [columns, steps], values, of_keys, of_values };
        let mut room = Room {
            queries,
            packed_queries,
            gradients,
            packed_gradients,
            weights,
            slopes,
            sums,
            near: Near { mask, kept },
        };
        for of_query in 0..self.group() {
            let at = unit.shared * self.group() + of_query;
            for first in unit.queries.clone().step_by(QUERIES) {
                let tile = first..unit.queries.end.min(first + QUERIES);
                self.slopes(unit, [unit.batch, at], tile, &mut head, &mut room);
            }
        }
        if unit.gradients == Gradients::OfQueries {
            return;
        }
        for key in 0..keys {
            let to = [unit.batch, unit.shared, first + key, 0];
            let sums = &mut head.of_keys[key * long..][..width];
            sums.iter_mut().for_each(|sum| *sum = *sum * scale + zero);
            self.put(1, to, sums);
            let sums = &mut head.of_values[key * wide..][..value];
            sums.iter_mut().for_each(|sum| *sum += zero);
            self.put(2, to, sums);
        }
    }

    /// Computes the gradients of a tile of queries of a head.
    fn slopes(
        &self,
        unit: &Unit,
        [batch, at]: [usize; 2],
        tile: Range<usize>,
        head: &mut Head<'_, E::Num>,
        room: &mut Room<'_, E::Num>,
    ) {
        let Extents { width, value, .. } = self.extents;
        let [long, wide] = [width, value].map(|n| n.next_multiple_of(LANES));
        let Some([dy, lse, less]) = &self.given else { return };
        let (tiles, count, base) = (self.tiles(), tile.len(), head.first);
        let keys = self.seen(tile.end).saturating_sub(base).min(unit.keys.len());
        let (zero, scale) = (E::Num::ZERO, E::Num::of(self.scale));
        let from = [batch, at, tile.start, 0];
        let queries = self.rows(0, from, [count, width], room.queries);
        // SAFETY: operands are readable.
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
                // SAFETY: operands are readable.
                unsafe { lse.row(tiles, from, &mut given[..1]) };
                // SAFETY: as above.
                unsafe { less.row(tiles, from, &mut given[1..]) };
                let scoring = self.scoring(query, (base + first, block), &mut room.near);
                let log = if given[0] == E::Num::NEVER { zero } else { given[0] };
                let of = Slopes { log, less: given[1] };
                let weights = &mut room.weights[row * SCORES..][..padded];
                let slopes = &mut room.slopes[row * SCORES..][..padded];
                E::Num::differentiate(self.cpu.instructions, weights, slopes, &scoring, &of);
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
            self.put(0, [batch, at, tile.start + row, 0], sums);
        }
    }
}
