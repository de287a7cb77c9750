//! About how long contractions take with an image.

use super::super::micro::Engine;
use super::super::with_engine;
use super::Image;
use crate::machine::{Cpu, InstructionSet};
use tracecast_ir::DType;

/// About how many cycles filling takes for sixteen numbers that lie in order,
const FILLING: f64 = 4.0;
/// and turning so many sums.
const TURNING: f64 = 4.0;

/// What a contraction takes whose vectors go across rows.
pub(crate) struct Across {
    /// So many rows are summed together.
    pub(crate) unit: usize,
    /// Numbers of an image.
    pub(crate) room: usize,
    /// As [`Image::cost`].
    pub(crate) cost: f64,
}

impl Image {
    /// About how many cycles a contraction of that many rows, columns and steps takes with the image for sixteen columns of a step. Elements become f32 as they are, or not.
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

    /// What a contraction takes whose vectors go across rows: nothing is summed in vain, and windows may be some places apart. `None` if rows are no whole pairs of
    /// vectors, or the engine sums too few columns of an image at once.
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

    /// About how many cycles filling takes for sixteen numbers.
    fn filling(&self, instructions: InstructionSet, widened: bool) -> f64 {
        let [.., inner] = &self.along;
        match instructions {
            // One by one.
            _ if self.blocks.is_some() && !self.joins_lines() => 16.0 * FILLING,
            // Of several phases, if these do not alternate, or elements are rounded or become f64: they are told apart one by one.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 if inner.phases.len() > 1 && !(widened && inner.alternates()) => {
                40.0
            }
            _ => FILLING,
        }
    }
}

/// About how many cycles the products of sixteen columns of a step take by so many rows, in pairs or not.
pub(super) fn products(m: usize, pairs: bool) -> f64 {
    let products = (m as f64 / 2.0).max(1.0);
    if pairs { products / 2.0 } else { products }
}
