//! Maps that become epilogues: what only computes with the elements of a contraction's result,
//! position by position, does so before they leave the registers.
//!
//! Before, where the contraction stays as it is because nobody replaces its result alone:
//! `contract` stores `a`, a map reads it, computes `a / (1 + exp(-a))` and stores that. After: one
//! kernel, which stores the latter only. Nothing is computed twice.
//!
//! Maps of 16-bit numbers take 32 of them at once, which an epilogue, whose sums are in f32,
//! cannot: `silu` of 1024 × 1024 sums takes 0.2 ms less in f32 than as a map, but in bf16, where
//! half as many bytes are saved, 0.07 more. So such maps stay.

use super::column::takes_columns;
use super::grouping::{Groups, Growing};
use super::reach::Read;
use tracecast_ir::NodeId;
use tracecast_ir::hash::FxHashSet;
use tracecast_ir::kernel::build::{domain, lowering};
use tracecast_ir::kernel::{FormKind, Joins};
use tracecast_ir::op::{Lower, View};

impl Groups<'_> {
    /// Makes each map part of the contraction that saves most by it.
    pub(super) fn take_epilogues(&mut self) {
        if self.growing.iter().all(|g| g.form.joins() != Joins::Epilogue) {
            return;
        }
        for map in 0..self.growing.len() {
            if !self.can_be_epilogue(&self.growing[map]) {
                continue;
            }
            if let Some(contraction) = self.best_producer(map) {
                self.merge(contraction, map);
            }
        }
    }

    /// True for elementwise code over wide floats and truth values, all of one shape, perhaps with
    /// sums down its columns, that is part of the program proper.
    fn can_be_epilogue(&self, map: &Growing) -> bool {
        let is_wide = |n: &NodeId| {
            let dtype = self.graph.node(*n).results[0].dtype;
            !dtype.is_low() && !dtype.is_int()
        };
        let is_epilogue = |n: &NodeId| {
            let is_here = match lowering(self.graph, *n) {
                Some(Lower::Map(_)) => self.graph.node(*n).results[0].shape == map.group.domain,
                Some(Lower::ReduceColumn) => *domain(self.graph, *n) == map.group.domain,
                Some(Lower::View(View::Reshape)) => true,
                _ => false,
            };
            is_here && is_wide(n) && self.reads[n.index()].iter().all(|read| is_wide(&read.node))
        };
        map.into.is_none()
            && map.form == FormKind::Nest
            && !map.step
            && !map.sweeps
            && map.group.members.iter().all(is_epilogue)
    }

    /// The contraction whose epilogue saves the most bytes by this map, the latest of several; it
    /// reads their results where they are made, and no third kernel lies between.
    fn best_producer(&self, map: usize) -> Option<usize> {
        let makers = self.read_by(map).filter_map(|read| self.of[read.node.index()]);
        let own = &self.growing[map].group;
        let is_column =
            |n: &&NodeId| matches!(lowering(self.graph, **n), Some(Lower::ReduceColumn));
        let columns: Vec<NodeId> = own.members.iter().filter(is_column).copied().collect();
        let fits = |c: &usize| {
            let Growing { form, group, .. } = &self.growing[*c];
            let takes = |n: &NodeId| takes_columns(self.graph, *n, &own.domain, self.steps(*c));
            form.joins() == Joins::Epilogue
                && group.domain == own.domain
                && self.growing[*c].leads == self.growing[map].leads
                && self.growing[*c].late.fits(&self.growing[map].late)
                && columns.iter().all(takes)
                && !self.needs.are_apart(*c, map)
                && !self.needs.leads_around(*c, map)
        };
        let producers: FxHashSet<usize> = makers.filter(fits).collect();
        let producers =
            producers.into_iter().map(|c| (self.saved(c, map), self.growing[c].number, c));
        producers.max().map(|(.., c)| c)
    }

    /// The bytes that need not be read, or written, if a map becomes part of a contraction.
    fn saved(&self, contraction: usize, map: usize) -> usize {
        let made = self.read_by(map).map(|read| read.node);
        let made: FxHashSet<NodeId> =
            made.filter(|n| self.of[n.index()] == Some(contraction)).collect();
        let within = |n: NodeId| {
            let both = self.growing[contraction]
                .group
                .members
                .iter()
                .chain(&self.growing[map].group.members);
            both.filter(|m| self.reads[m.index()].iter().any(|read| read.node == n)).count()
        };
        let times = |n: NodeId| {
            let is_kept = self.reach().program.is_root[n.index()]
                || self.readers[n.index()] as usize > within(n);
            if is_kept { 1 } else { 2 }
        };
        made.into_iter().map(|n| times(n) * self.bytes(n)).sum()
    }

    fn read_by(&self, kernel: usize) -> impl Iterator<Item = &Read> {
        self.growing[kernel].group.members.iter().flat_map(|m| &self.reads[m.index()])
    }
}
