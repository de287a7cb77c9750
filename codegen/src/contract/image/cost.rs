//! Cost model of contractions that read an image, a padded copy of the input, in cycles.

use super::super::engines::with_engine;
use super::super::micro::Engine;
use super::{Along, Image};
use crate::machine::{Cpu, InstructionSet};
use tracecast_ir::DType;

/// Cycles to fill an image with sixteen contiguous numbers, and with as many one by one.
const FILLING: f64 = 4.0;
const FILLING_SINGLY: f64 = 40.0;
/// Cycles of a call that copies lines of a plane, and of a line that is copied by itself.
const CALL: f64 = 80.0;
const LINE: f64 = 20.0;
/// Cycles to lay out an image, once for all batches.
const LAYOUT: f64 = 1000.0;
/// Cycles to copy or to transpose sixteen sums.
const STAGING: f64 = 4.0;

/// Cost of a contraction whose vectors go across rows.
pub(crate) struct Across {
    /// Rows that are accumulated together.
    pub(crate) unit: usize,
    /// Size of the image in numbers.
    pub(crate) room: usize,
    /// As [`Image::cost`].
    pub(crate) cost: f64,
}

/// What the cost of an image depends on, beside its layout.
pub(crate) struct ProductSizes {
    pub(crate) batches: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Elements become f32 unrounded.
    pub(crate) widened: bool,
    /// A product of packed operands stores its sums from registers.
    pub(crate) stored: bool,
}

impl ProductSizes {
    /// Cycles of the whole, for sixteen columns of a step.
    fn each(&self, cycles: f64) -> f64 {
        16.0 * cycles / (self.n * self.k) as f64
    }

    /// Cycles to copy sums, for sixteen columns of a step.
    fn staging(&self) -> f64 {
        STAGING * self.m as f64 / self.k as f64
    }
}

impl Image {
    /// Estimated cycles for sixteen columns of a step.
    pub(crate) fn cost(&self, of: &ProductSizes, instructions: InstructionSet) -> f64 {
        let lanes = if instructions == InstructionSet::Avx512 { 16 } else { 8 };
        let vain = self.span().next_multiple_of(lanes) as f64 / of.n as f64;
        let staging = if of.stored && !self.has_whole_vectors(lanes) { of.staging() } else { 0.0 };
        vain * products(of.m, self.depth() == 2) + self.filling(of, instructions) + staging
    }

    /// Cost with vectors across rows, which waste no column and take windows of any stride. `None`
    /// if rows do not fill pairs of vectors, or the engine or the image rules it out.
    pub(crate) fn across(
        &self,
        cpu: &Cpu,
        acc: DType,
        of: &ProductSizes,
        pairs: bool,
    ) -> Option<Across> {
        let (lanes, spots) = with_engine!(cpu, acc, pairs, E => (E::LANES, E::SPOTS));
        let unit = 2 * lanes;
        if !of.m.is_multiple_of(unit) || spots <= 2 || !self.is_near() {
            return None;
        }
        let places = self.place_by_place();
        let places = if pairs { places.in_pairs() } else { places };
        if pairs && places.depth() == 1 {
            return None;
        }
        let filling = places.filling(of, cpu.instructions);
        let cost = products(of.m, pairs) + filling + of.staging();
        Some(Across { unit, room: places.room(), cost })
    }

    /// Estimated cycles to fill it, for sixteen columns of a step.
    fn filling(&self, of: &ProductSizes, instructions: InstructionSet) -> f64 {
        let [outer, middle, inner] = &self.along;
        let there = |along: &Along| along.phases.iter().map(|p| along.there(*p).len()).sum();
        let [far, near]: [usize; 2] = [there(outer), there(middle)];
        let is_split = inner.step as isize * inner.stride != 1;
        let two_phases = match instructions {
            // Two phases are deinterleaved while elements are widened.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => of.widened && inner.alternates(),
            _ => inner.alternates(),
        };
        let (each, calls, lines) = match &self.blocks {
            Some(blocks) => {
                let blocks = self.room_of(blocks) / self.next_block() * outer.size();
                let each = if self.joins_lines() { FILLING } else { FILLING_SINGLY };
                (each, 2 * blocks, blocks * middle.size())
            }
            None => {
                let calls = self.planes() * far * middle.phases.len();
                let is_single = if is_split { !two_phases } else { self.second.is_some() };
                let lines = if is_single { self.planes() * far * near } else { 0 };
                let each = if is_split && !two_phases { FILLING_SINGLY } else { FILLING };
                (each, calls, lines)
            }
        };
        let batch = each * self.room() as f64 / 16.0 + CALL * calls as f64 + LINE * lines as f64;
        of.each(batch + LAYOUT / of.batches as f64)
    }
}

/// Estimated cycles to multiply sixteen columns of a step by `m` rows, in pairs or not.
pub(super) fn products(m: usize, pairs: bool) -> f64 {
    let products = (m as f64 / 2.0).max(1.0);
    if pairs { products / 2.0 } else { products }
}
