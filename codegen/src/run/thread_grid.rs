//! The thread grid of a contraction: into how many parts its batches, rows and columns are cut.

use super::batches::Together;
use crate::contract::PIECE;
use crate::machine::Machine;
use crate::plan::contract::BoundContract;

/// Rows and columns are cut at multiples of these.
const UNITS: [usize; 2] = [2, 32];

/// What preparing an element of an operand costs, in elements of the result for one step of `k`.
const PREPARING: f64 = 12.0;

/// The same for an element that is packed already and only read.
const READING: f64 = 6.0;

/// The parts of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Groups of batches.
    pub(super) groups: usize,
    /// Parts of the rows and of the columns of each batch.
    pub(super) grid: [usize; 2],
    /// Rows and columns are cut at multiples of these.
    pub(super) units: [usize; 2],
}

impl Cut {
    pub(super) fn tasks(&self) -> usize {
        self.groups * self.grid[0] * self.grid[1]
    }
}

/// Into how many parts a run is cut, at most.
pub(super) fn parts(contract: &BoundContract, machine: &Machine) -> usize {
    let elements = contract.batch.iter().product::<usize>() * contract.m * contract.n;
    machine.parts(elements * contract.cost().max(1), usize::MAX)
}

/// Into how many parts to cut rows and columns, at multiples of these units, for at most that many
/// parts in all: those whose largest part costs least. Every part prepares its rows of the left
/// operand and its columns of the right one, at these costs.
pub(super) fn grid(
    [m, n]: [usize; 2],
    units: [usize; 2],
    preparing: [f64; 2],
    parts: usize,
) -> [usize; 2] {
    let [units_down, units_across] = [m.div_ceil(units[0]), n.div_ceil(units[1])];
    let cost = |down: usize| {
        let across = (parts / down).min(units_across).max(1);
        let rows = (units_down.div_ceil(down) * units[0]).min(m) as f64;
        let cols = (units_across.div_ceil(across) * units[1]).min(n) as f64;
        (rows * cols + preparing[0] * rows + preparing[1] * cols, [down, across])
    };
    let all = (1..=parts.clamp(1, units_down.max(1))).map(cost);
    all.min_by(|a, b| a.0.total_cmp(&b.0)).map_or([1, 1], |(_, grid)| grid)
}

/// How a run is cut: no two parts share an accumulator of a column.
pub(super) fn cut(
    contract: &BoundContract,
    machine: &Machine,
    together: &Together,
    is_kept: bool,
) -> Cut {
    let batches = together.batches;
    let parts = parts(contract, machine);
    let unit = contract.unit();
    let apart = batches <= 1 || contract.m.is_multiple_of(unit);
    let groups = if apart { parts.min(batches).max(1) } else { 1 };
    let rows = if apart { unit.next_multiple_of(UNITS[0]) } else { contract.m.max(1) };
    let (columns, preparing) = if is_kept { (PIECE, READING) } else { (UNITS[1], PREPARING) };
    let units = [rows, columns];
    let parts = parts.div_ceil(groups);
    let grid = grid([contract.m, together.columns()], units, [PREPARING, preparing], parts);
    Cut { groups, grid, units }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_both_cut() {
        let cut = |m, n, parts| grid([m, n], UNITS, [PREPARING; 2], parts);
        assert_eq!(cut(1024, 1024, 1), [1, 1]);
        assert_eq!(cut(1024, 1024, 4), [2, 2]);
        assert_eq!(cut(4096, 64, 4), [4, 1]);
        assert_eq!(cut(3, 4096, 4), [1, 4]);
        assert_eq!(cut(2048, 512, 16), [8, 2]);
        // Too little to cut.
        assert_eq!(cut(1, 32, 8), [1, 1]);
        for (m, n, parts) in [(7, 100, 3), (100, 7, 5), (1000, 1000, 7)] {
            let [down, across] = cut(m, n, parts);
            assert!(down * across <= parts);
        }
    }

    #[test]
    fn rows_that_share_a_column_stay_together() {
        let cut = |m, n, parts| grid([m, n], [256, UNITS[1]], [PREPARING; 2], parts);
        assert_eq!(cut(256, 1024, 2), [1, 2]);
        assert_eq!(cut(4096, 64, 4), [4, 1]);
        assert_eq!(cut(300, 32, 8), [2, 1]);
    }
}
