//! [`Problem`]: the arguments of attention, how threads share it, and the workspace of a thread.

use super::super::driver::Run;
use super::super::micro::Engine;
use super::operands::{Dropped, Place, Rows};
use super::real::Real;
use crate::machine::Cpu;
use crate::routines::{ROW, Scoring, Tiles};
use std::ops::Range;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES, Pass};

/// Queries of a tile.
pub(crate) const QUERIES: usize = 64;

/// Stride of rows of scores: not a power of two, whose rows would share cache sets.
pub(super) const SCORES: usize = KEYS + LANES;

/// Arguments of one launch of attention.
#[derive(Clone, Copy)]
pub(crate) struct Problem<'a> {
    pub(crate) cpu: &'a Cpu,
    /// The sizes.
    pub(crate) extents: Extents<usize>,
    /// Which results there are.
    pub(crate) pass: Pass,
    /// Queries, keys and values.
    pub(crate) operands: [Place; 3],
    /// A mask that is added to scores, or truth values.
    pub(crate) mask: Option<Place>,
    /// Dropout.
    pub(crate) drop: Option<Dropped>,
    /// Backward: the result's gradient, log-sum-exps, what is subtracted from gradients of weights.
    pub(crate) given: Option<[Place; 3]>,
    /// The results.
    pub(crate) results: [Place; 3],
    /// Each query attends to the keys up to its own position.
    pub(crate) causal: bool,
    /// What scores are multiplied by.
    pub(crate) scale: f64,
}

/// Work item of a thread: one head of keys, and all heads of queries that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Index in the batch.
    pub(crate) batch: usize,
    /// The head of keys.
    pub(crate) shared: usize,
    /// Queries from a multiple of [`QUERIES`] on; all of them for gradients of keys.
    pub(crate) queries: Range<usize>,
    /// Keys: all of them, unless gradients of keys alone are computed.
    pub(crate) keys: Range<usize>,
    /// Backward: which gradients are computed.
    pub(crate) gradients: Gradients,
}

/// Gradients that a unit computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// All of them.
    All,
    /// Those of queries.
    OfQueries,
    /// Those of keys and values.
    OfKeys,
}

impl Problem<'_> {
    pub(super) fn tiles(&self) -> &'static Tiles {
        Tiles::of(self.cpu.instructions)
    }

    /// Keys that the queries before `end` attend to.
    pub(super) fn seen(&self, end: usize) -> usize {
        if self.causal { self.extents.keys.min(end) } else { self.extents.keys }
    }

    /// Heads of queries that share one of keys.
    pub(super) fn group(&self) -> usize {
        self.extents.heads.checked_div(self.extents.shared).unwrap_or(1)
    }
}

/// Cuts pieces of these sizes off the workspace, in numbers.
pub(super) fn carve<N, const P: usize>(mut all: &mut [N], pieces: [usize; P]) -> [&mut [N]; P] {
    pieces.map(|count| {
        let (piece, rest) = std::mem::take(&mut all).split_at_mut(count.next_multiple_of(LANES));
        all = rest;
        piece
    })
}

/// The numbers that [`carve`] takes for pieces of these sizes.
pub(super) fn taken(pieces: &[usize]) -> usize {
    pieces.iter().map(|count| count.next_multiple_of(LANES)).sum()
}

/// The mask and the dropout factors of some keys.
pub(super) struct Near<'a, N> {
    pub(super) mask: &'a mut [N],
    pub(super) kept: &'a mut [N],
}

impl<E: Engine<Num: Real>> Run<'_, Problem<'_>, E> {
    /// Rows of an operand; see [`Place::rows`].
    pub(super) fn rows<'n>(
        &self,
        operand: usize,
        at: [usize; 4],
        sizes: [usize; 2],
        to: &'n mut [E::Num],
    ) -> Rows<'n, E::Num> {
        // SAFETY: operands are readable, and nobody writes them.
        unsafe { self.operands[operand].rows(self.tiles(), at, sizes, to) }
    }

    /// Writes contiguous numbers to a result, rounded.
    pub(super) fn put(&self, result: usize, at: [usize; 4], from: &[E::Num]) {
        // SAFETY: results are writable, of dtypes that these numbers are rounded to.
        unsafe { self.results[result].put(self.tiles(), at, from) }
    }

    /// How scores of a query and of `block` keys from `first` on become weights.
    pub(super) fn scoring<'n>(
        &self,
        [batch, at, query]: [usize; 3],
        (first, block): (usize, usize),
        near: &'n mut Near<'_, E::Num>,
    ) -> Scoring<'n, E::Num> {
        let padded = block.next_multiple_of(ROW);
        if let Some(of) = &self.mask {
            // SAFETY: operands are readable.
            unsafe {
                of.row(self.tiles(), [batch, at, query, first], &mut near.mask[..block]);
            };
        }
        if let Some(drop) = &self.drop {
            drop.factors([batch, at, query], first, &mut near.kept[..block]);
        }
        Scoring {
            scale: E::Num::of(self.scale),
            mask: self.mask.map(|_| &near.mask[..padded]),
            seen: self.seen(query + 1).saturating_sub(first).min(block),
            kept: self.drop.map(|_| &near.kept[..padded]),
            dtype: self.operands[0].dtype,
        }
    }
}
