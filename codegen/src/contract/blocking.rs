//! Cache blocking of a contraction: rows (mc), columns (nc), `k`-range (kc). Also makes [`Cpu`]s.

use super::micro::Engine;
#[cfg(test)]
use crate::machine::Vectors;
use crate::machine::{Caches, Cpu, InstructionSet};

impl Cpu {
    /// This CPU with the given instruction set.
    pub(crate) fn with(instructions: InstructionSet) -> Cpu {
        #[cfg(target_arch = "x86_64")]
        let pairs = instructions == InstructionSet::Avx512 && super::micro::pairs::available();
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = false;
        Cpu { instructions, pairs, caches: Caches::of_machine() }
    }

    /// The same, without bf16 pairs where fused multiply-adds are faster.
    pub(crate) fn fast(instructions: InstructionSet) -> Cpu {
        let cpu = Cpu::with(instructions);
        #[cfg(target_arch = "x86_64")]
        let cpu = Cpu { pairs: cpu.pairs && super::micro::pairs::are_fast(), ..cpu };
        cpu
    }

    /// All CPUs that this one can stand for in tests, small caches included.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Cpu> {
        let small = Caches { l1: 4 << 10, l2: 32 << 10, l3: 64 << 10 };
        let all = Vectors::ALL.map(|vectors| Cpu::with(InstructionSet::of(vectors)));
        let small_caches = all.map(|cpu| Cpu { caches: small, ..cpu });
        let no_pairs = Cpu { pairs: false, ..all[0] };
        all.into_iter().chain(small_caches).chain([no_pairs]).collect()
    }
}

/// Block sizes of a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    /// Rows (mc) whose packed left operand and sums stay in L2.
    pub(super) rows: usize,
    /// Columns (nc) whose panels stay in L2, or in L3 if several groups of rows use them.
    pub(super) columns: usize,
    /// Steps of `k` whose part of a panel fills L1.
    steps: usize,
}

impl Blocking {
    /// Blocking of an `[m, n, k]` product with blocks of `block` steps. `by_panel`: panel by panel.
    pub(super) fn of<E: Engine>(
        caches: &Caches,
        [m, n, k]: [usize; 3],
        block: usize,
        by_panel: bool,
    ) -> Blocking {
        let size = size_of::<E::Num>();
        // In packed elements, which hold `DEPTH` steps.
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
        // Groups of even size.
        let columns =
            n.div_ceil(n.div_ceil(columns).max(1)).next_multiple_of(E::WIDTH).max(E::WIDTH);
        let rows = if m <= rows { rows } else { m.div_ceil(m.div_ceil(rows)) };
        let steps = multiple(caches.l1 / (E::WIDTH * size), 64, 1);
        Blocking { rows, columns, steps }
    }
}

impl Blocking {
    /// The `k`-range (kc) for a single panel that few rows use: a power of two that divides
    /// `block`. Many rows read a panel from L2 as fast, and whole blocks store no sums in between.
    pub(super) fn part(&self, block: usize) -> usize {
        (1 << (self.steps / 2).max(1).ilog2()).min(block)
    }
}

/// Most rows (mc): more bring no speed.
const MOST_ROWS: usize = 128;
/// Most columns (nc): more bring no speed.
const MOST_COLUMNS: usize = 1024;

/// The largest multiple of `unit` up to `n`, but at least `least` units.
fn multiple(n: usize, unit: usize, least: usize) -> usize {
    (n / unit).max(least) * unit
}
