//! Cost model of contractions that read an image, a padded copy of the input, in cycles.

use super::super::engines::with_engine;
use super::super::micro::Engine;
use super::Image;
use crate::machine::{Cpu, InstructionSet};
use tracecast_ir::DType;

/// Cycles to fill an image with sixteen contiguous numbers.
const FILLING: f64 = 4.0;
/// Cycles to transpose sixteen sums.
const TURNING: f64 = 4.0;

/// Cost of a contraction whose vectors go across rows.
pub(crate) struct Across {
    /// Rows that are accumulated together.
    pub(crate) unit: usize,
    /// Size of the image in numbers.
    pub(crate) room: usize,
    /// As [`Image::cost`].
    pub(crate) cost: f64,
}

impl Image {
    /// Estimated cycles for sixteen columns of a step. `widened`: elements become f32 unrounded.
    pub(crate) fn cost(
        &self,
        [m, n, k]: [usize; 3],
        instructions: InstructionSet,
        widened: bool,
    ) -> f64 {
        let lanes = if instructions == InstructionSet::Avx512 { 16 } else { 8 };
        let vain = self.span().next_multiple_of(lanes) as f64 / n as f64;
        let filling = self.room() as f64 / (n * k) as f64;
        vain * products(m, self.depth() == 2) + self.filling(instructions, widened) * filling
    }

    /// Cost with vectors across rows, which waste no column and take windows of any stride. `None`
    /// if rows do not fill pairs of vectors, or the engine or the image rules it out.
    pub(crate) fn across(
        &self,
        cpu: &Cpu,
        acc: DType,
        [m, n, k]: [usize; 3],
        pairs: bool,
    ) -> Option<Across> {
        let (lanes, spots) = with_engine!(cpu, acc, pairs, E => (E::LANES, E::SPOTS));
        let unit = 2 * lanes;
        if !m.is_multiple_of(unit) || spots <= 2 || !self.is_near() {
            return None;
        }
        let places = self.place_by_place();
        let places = if pairs { places.in_pairs() } else { places };
        if pairs && places.depth() == 1 {
            return None;
        }
        let room = places.room();
        let filling = FILLING * room as f64 / (n * k) as f64;
        let cost = products(m, pairs) + filling + TURNING * m as f64 / k as f64;
        Some(Across { unit, room, cost })
    }

    /// Estimated cycles to fill sixteen numbers.
    fn filling(&self, instructions: InstructionSet, widened: bool) -> f64 {
        let [.., inner] = &self.along;
        match instructions {
            // One by one.
            _ if self.blocks.is_some() && !self.joins_lines() => 16.0 * FILLING,
            // Phases are split one by one, unless two are deinterleaved while elements are widened.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 if inner.phases.len() > 1 && !(widened && inner.alternates()) => {
                40.0
            }
            _ => FILLING,
        }
    }
}

/// Estimated cycles to multiply sixteen columns of a step by `m` rows, in pairs or not.
pub(super) fn products(m: usize, pairs: bool) -> f64 {
    let products = (m as f64 / 2.0).max(1.0);
    if pairs { products / 2.0 } else { products }
}
