//! Batches that share their left factor, gone over together: as one product with the columns of
//! all.
//!
//! The examples of a convolution have few columns each where images are small, and one weight.
//! Packing it for each of them takes as long as a quarter of the product. Together they have as
//! many columns as one large image; each sum is the same chain as before.

use super::factors::{seen, source};
use crate::contract::Product;
use crate::machine::Cpu;
use crate::plan::contract::{self as plan, BoundContract};
use smallvec::SmallVec;

/// From this number of columns on, a batch is worth packing its left factor for, whose rows lie one
/// by one,
const ENOUGH_COLUMNS: usize = 512;
/// or are seen through windows or otherwise apart.
const ENOUGH_FOR_APART: usize = 4096;
/// Where a batch has fewer columns, those that fill no vector, some of which are summed twice, take
/// as long as packing.
const SOME_COLUMNS: usize = 128;

/// Which batch axes are gone over together, and which one after another.
pub(super) struct Together {
    /// For each batch axis, its extent, and whether it is one of those.
    axes: SmallVec<[(usize, bool); 4]>,
    /// The batches that are left, one after another.
    pub(super) batches: usize,
    /// The batches that are one.
    pub(super) count: usize,
    /// The columns of each.
    columns: usize,
}

impl Together {
    /// All batches one after another.
    pub(super) fn none(contract: &BoundContract) -> Together {
        Together::along(contract, &|_| false)
    }

    /// As many as share the left factor, if columns are few, would be packed, and rows need no
    /// order.
    pub(super) fn of(contract: &BoundContract, cpu: &Cpu) -> Together {
        // The same numbers in every batch along an axis.
        let is_shared = |axis: usize| match &contract.factors[0] {
            plan::FactorSource::Plain { batch, .. } => batch[axis] == 0,
            plan::FactorSource::Seen(windows) => {
                let axis = &windows.batch[axis];
                axis.stride == 0 && axis.bounded.iter().all(|step| *step == 0)
            }
            plan::FactorSource::Computed { .. } => false,
        };
        let in_runs = match &contract.factors[1] {
            plan::FactorSource::Plain { col, .. } => *col == 1,
            plan::FactorSource::Seen(_) => true,
            plan::FactorSource::Computed { .. } => false,
        };
        let enough = match &contract.factors[0] {
            plan::FactorSource::Plain { col: 1, .. } => ENOUGH_COLUMNS,
            _ => ENOUGH_FOR_APART,
        };
        let few = (1..enough).contains(&contract.n);
        if in_runs && few && contract.columns.is_empty() && !is_read_in_place(contract, cpu) {
            Together::along(contract, &is_shared)
        } else {
            Together::none(contract)
        }
    }

    fn along(contract: &BoundContract, is_shared: &dyn Fn(usize) -> bool) -> Together {
        let extents = contract.batch.iter().enumerate();
        let axes: SmallVec<[(usize, bool); 4]> =
            extents.map(|(axis, extent)| (*extent, *extent > 1 && is_shared(axis))).collect();
        let product =
            |of: bool| axes.iter().filter(|(_, own)| *own == of).map(|(n, _)| n).product();
        Together { batches: product(false), count: product(true), columns: contract.n, axes }
    }

    /// The columns of all that are one.
    pub(super) fn columns(&self) -> usize {
        self.count * self.columns
    }

    /// The batch of the contraction that is this one of those together in this one of the batches
    /// that are left.
    pub(super) fn batch(&self, left: usize, one: usize) -> usize {
        let (mut rest, mut total, mut step) = ([left, one], 0, 1);
        for (extent, own) in self.axes.iter().rev() {
            let rest = &mut rest[usize::from(*own)];
            total += *rest % extent * step;
            *rest /= extent;
            step *= extent;
        }
        total
    }

    /// Calls `each` with the columns of each batch among these: which one, the first within it, how
    /// many, and how many came before.
    pub(super) fn cut(
        &self,
        from: usize,
        count: usize,
        mut each: impl FnMut(usize, usize, usize, usize),
    ) {
        let (mut at, end) = (from, from + count);
        while at < end {
            let (one, column) = (at / self.columns, at % self.columns);
            let width = (self.columns - column).min(end - at);
            each(one, column, width, at - from);
            at += width;
        }
    }

    /// The right factor of all that are one, in the first of these batches: columns are those of
    /// one after another.
    pub(super) fn right(
        &self,
        factor: &plan::FactorSource<i64>,
        k: usize,
    ) -> Option<plan::Windows<i64>> {
        let own = |axes: &[plan::Axis<i64>]| -> Vec<plan::Axis<i64>> {
            axes.iter()
                .zip(&self.axes)
                .filter(|(_, (_, own))| *own)
                .map(|(a, _)| a.clone())
                .collect()
        };
        let axis = |extent: usize, stride: i64| plan::Axis {
            extent: extent as i64,
            stride,
            bounded: Vec::new(),
        };
        match factor {
            plan::FactorSource::Seen(windows) => {
                let columns = [own(&windows.batch), windows.columns.clone()].concat();
                Some(plan::Windows { columns, ..windows.clone() })
            }
            plan::FactorSource::Plain { input, dtype, round, offset, batch, row, col }
                if self.count > 1 =>
            {
                let extents = self.axes.iter().map(|(extent, _)| *extent);
                let batch: Vec<plan::Axis<i64>> =
                    extents.zip(batch).map(|(extent, stride)| axis(extent, *stride)).collect();
                let columns = [own(&batch), vec![axis(self.columns, *col)]].concat();
                Some(plan::Windows {
                    input: *input,
                    dtype: *dtype,
                    round: *round,
                    offset: *offset,
                    batch,
                    rows: vec![axis(k, *row)],
                    columns,
                    bounds: Vec::new(),
                })
            }
            _ => None,
        }
    }
}

/// True if the columns of a batch are read in place, and are enough for that.
fn is_read_in_place(contract: &BoundContract, cpu: &Cpu) -> bool {
    let BoundContract { acc, m, n, k, ref factors, .. } = *contract;
    if n < SOME_COLUMNS {
        return false;
    }
    let [left, plan::FactorSource::Plain { .. }] = factors else { return false };
    let left_seen = match left {
        plan::FactorSource::Seen(windows) => Some(seen(windows, |_| 0)),
        plan::FactorSource::Plain { .. } | plan::FactorSource::Computed { .. } => None,
    };
    let factors = [source(left, left_seen.as_ref(), None), source(&factors[1], None, None)];
    Product::new(cpu, acc, [0..m, 0..n], k, factors).reads_in_place()
}
