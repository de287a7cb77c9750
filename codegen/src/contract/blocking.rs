//! Cache blocking of a contraction: rows (mc) and columns (nc). Also makes [`Cpu`]s.

use super::micro::Engine;
#[cfg(test)]
use crate::machine::Vectors;
use crate::machine::{Caches, Cpu, InstructionSet};
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

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
}

impl Blocking {
    /// Blocking of an `[m, n, k]` product.
    pub(super) fn of<E: Engine>(caches: &Caches, [m, n, k]: [usize; 3]) -> Blocking {
        let size = size_of::<E::Num>();
        // In packed elements, which hold `DEPTH` steps.
        let [k, block] = [k, CONTRACT_BLOCK].map(|steps| steps.div_ceil(E::DEPTH));
        let kb = k.clamp(1, block);
        let rows = multiple(caches.l2 / 4 / (kb * size), E::ROWS, 24 / E::ROWS + 1);
        let rows = rows.min(MOST_ROWS / E::ROWS * E::ROWS);
        let columns = if m <= rows {
            caches.l2 / 4 / (kb * size)
        } else {
            (caches.l3 / (k * size).max(1)).min(caches.l2 / 2 / (rows * size))
        };
        let columns = multiple(columns, E::WIDTH, 1).min(MOST_COLUMNS);
        // Groups of even size.
        let columns =
            n.div_ceil(n.div_ceil(columns).max(1)).next_multiple_of(E::WIDTH).max(E::WIDTH);
        let rows = if m <= rows { rows } else { m.div_ceil(m.div_ceil(rows)) };
        Blocking { rows, columns }
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
