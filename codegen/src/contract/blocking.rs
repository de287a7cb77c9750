//! How a contraction is cut so that what is used again is still in a cache.

use super::micro::Engine;
#[cfg(test)]
use crate::machine::Vectors;
use crate::machine::{Caches, Cpu, InstructionSet};

impl Cpu {
    /// This CPU with these of its instructions.
    pub(crate) fn with(instructions: InstructionSet) -> Cpu {
        #[cfg(target_arch = "x86_64")]
        let pairs = instructions == InstructionSet::Avx512 && super::micro::pairs::available();
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = false;
        Cpu { instructions, pairs, caches: Caches::of_machine() }
    }

    /// The same, without the instruction for pairs of bf16 where fused multiply-adds are faster.
    pub(crate) fn fast(instructions: InstructionSet) -> Cpu {
        let cpu = Cpu::with(instructions);
        #[cfg(target_arch = "x86_64")]
        let cpu = Cpu { pairs: cpu.pairs && super::micro::pairs::are_fast(), ..cpu };
        cpu
    }

    /// What this CPU can also use, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Cpu> {
        let small = Caches { l1: 4 << 10, l2: 32 << 10, l3: 64 << 10 };
        let all = Vectors::ALL.map(|vectors| Cpu::with(InstructionSet::of(vectors)));
        let small_caches = all.map(|cpu| Cpu { caches: small, ..cpu });
        let no_pairs = Cpu { pairs: false, ..all[0] };
        all.into_iter().chain(small_caches).chain([no_pairs]).collect()
    }
}

/// The sizes of what is worked on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    /// Rows whose packed left operand and sums stay in the second-level cache.
    pub(super) rows: usize,
    /// Columns whose panels stay in the second-level cache, or in the third where several groups of rows use them.
    pub(super) columns: usize,
    /// Steps of `k` whose part of a panel fills the first-level cache.
    steps: usize,
}

impl Blocking {
    /// For a contraction of that size, in blocks of `block` steps; panel by panel, or as many columns as fit.
    pub(super) fn of<E: Engine>(
        caches: &Caches,
        [m, n, k]: [usize; 3],
        block: usize,
        by_panel: bool,
    ) -> Blocking {
        let size = size_of::<E::Num>();
        // In numbers.
        let [k, block] = [k.div_ceil(E::DEPTH), block / E::DEPTH];
        let kb = k.clamp(1, block);
        let rows = multiple(caches.l2 / 4 / (kb * size), E::ROWS, 24 / E::ROWS + 1);
        let rows = rows.min(MOST_ROWS / E::ROWS * E::ROWS);
        let columns = if by_panel {
            E::WIDTH
        } else if m <= rows {
            caches.l2 / 4 / (kb * size)
        } else {
            (caches.l3 / (k * size).max(1)).min(caches.l2 / 2 / (rows * size))
        };
        let columns = multiple(columns, E::WIDTH, 1).min(MOST_COLUMNS);
        // Even groups.
        let columns =
            n.div_ceil(n.div_ceil(columns).max(1)).next_multiple_of(E::WIDTH).max(E::WIDTH);
        let rows = if m <= rows { rows } else { m.div_ceil(m.div_ceil(rows)) };
        let steps = multiple(caches.l1 / (E::WIDTH * size), 64, 1);
        Blocking { rows, columns, steps }
    }
}

impl Blocking {
    /// Into what parts to cut blocks of a single panel, which few rows use as it is packed: a power of two that divides the block. Where
    /// many rows use a panel, loops read it from the second-level cache as fast, and whole blocks need no sums stored in between.
    pub(super) fn part(&self, block: usize) -> usize {
        (1 << (self.steps / 2).max(1).ilog2()).min(block)
    }
}

/// More rows are not worth it.
const MOST_ROWS: usize = 128;
/// More columns are not worth it.
const MOST_COLUMNS: usize = 1024;

/// The multiple of `unit` that is at most `n` and at least `least` times the unit.
fn multiple(n: usize, unit: usize, least: usize) -> usize {
    (n / unit).max(least) * unit
}
