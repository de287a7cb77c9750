//! Contractions: compiled code computes factors and finishes sums, the precompiled routine does the rest.

use crate::column::{Accumulators, ColumnsRun, common_unit};
use crate::error::Result;
use crate::form::{self, Largest};
use crate::jit::{
    Address, Block, Code, Operand, Slots, block_address, contract, keep, with_scratch,
};
use crate::kept::{Keeping, Packed};
use crate::largest::{Places, with_places};
use crate::near::{Near, near};
use crate::nest::cost;
use crate::plan::Plan;
use crate::team::{Team, part};
use crate::tile::{Ahead, Cpu, PIECE, Panels, Tiles};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use tracecast_ir::DType;
use tracecast_ir::kernel::{self as ir, Factor, Kernel, Scalar, ScalarOp};

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

/// Rows and columns are cut at multiples of these.
const UNITS: [usize; 2] = [2, 32];

/// What preparing an element of an operand costs, in elements of the result for one step of `k`.
const PREPARING: f64 = 12.0;

/// The same for an element that is packed already and only read.
const READING: f64 = 6.0;

/// From so many rows on packing takes less than a tenth of the time.
const ROWS_WITHOUT_KEEPING: usize = 128;

/// Into how many parts to cut rows and columns, at multiples of these units, for at most that many parts in all: those whose largest
/// part costs least. Every part prepares its rows of the left operand and its columns of the right one, at these costs.
fn grid([m, n]: [usize; 2], units: [usize; 2], preparing: [f64; 2], parts: usize) -> [usize; 2] {
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

/// The parts of a run.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Groups of batches.
    groups: usize,
    /// Parts of the rows and of the columns of each batch.
    grid: [usize; 2],
    /// Rows and columns are cut at multiples of these.
    units: [usize; 2],
}

impl Cut {
    fn tasks(&self) -> usize {
        self.groups * self.grid[0] * self.grid[1]
    }
}

/// A contraction, ready to be run by the functions of its plans.
#[derive(Debug)]
pub(crate) struct ContractRun {
    batch: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
    acc: DType,
    factors: [FactorRun; 2],
    epilogue: usize,
    columns: ColumnsRun,
    /// Rows, counted through all batches, from one multiple of this to another share no accumulator of a column with others.
    unit: usize,
    largest: Vec<Largest>,
    near: Vec<Near>,
    /// The bytes that the epilogue writes and reads.
    traffic: usize,
    cost: usize,
}

/// Where a factor comes from.
#[derive(Debug)]
enum FactorRun {
    /// An operand as it lies in memory.
    Plain {
        input: usize,
        dtype: DType,
        /// The 16-bit float to whose values the elements are rounded.
        round: Option<DType>,
        offset: i64,
        batch: Vec<i64>,
        row: isize,
        col: isize,
    },
    /// Values that a function writes.
    Computed {
        code: usize,
        dtype: DType,
        /// The operands it is computed from; none if it can raise a check.
        inputs: Vec<usize>,
    },
}

impl FactorRun {
    /// The dtype whose values the factor has.
    fn values(&self) -> DType {
        match self {
            FactorRun::Plain { dtype, round, .. } => round.unwrap_or(*dtype),
            FactorRun::Computed { dtype, .. } => *dtype,
        }
    }
}

/// The plans of a contraction.
pub(crate) fn draft(kernel: &Kernel, c: &ir::Contract) -> Result<(Vec<Plan>, ContractRun)> {
    if !matches!(c.acc, Scalar::F32 | Scalar::F64) {
        return Err(form::unsupported(kernel, &format!("a contraction in {}", c.acc.name())));
    }
    let (epilogue, columns, largest) = form::epilogue(kernel, c)?;
    let unit = common_unit(&columns).map_or(epilogue.rows(), |unit| unit).max(1) as usize;
    let traffic = epilogue.traffic() as usize;
    let mut plans = vec![epilogue];
    let mut factor = |f: &Factor, matrix: [usize; 2]| {
        plain(c, f).unwrap_or_else(|| {
            let (plan, dtype) = form::factor(kernel, c, f, matrix);
            plans.push(plan);
            let raises = f.body.insts.iter().any(|i| matches!(i.op, ScalarOp::Check(_)));
            let inputs = f.loads.iter().filter(|_| !raises).map(|l| l.input).collect();
            FactorRun::Computed { code: plans.len() - 1, dtype, inputs }
        })
    };
    let factors = [factor(&c.a, [c.m, c.k]), factor(&c.b, [c.k, c.n])];
    let acc = if c.acc == Scalar::F64 { DType::F64 } else { DType::F32 };
    let cost = c.k / PER_OPERATION + cost(&c.epilogue.body);
    let columns = ColumnsRun::draft(columns, |column| column.output, &mut plans);
    let run = ContractRun {
        batch: c.batch.clone(),
        m: c.m,
        n: c.n,
        k: c.k,
        acc,
        factors,
        epilogue: 0,
        columns,
        unit,
        largest,
        near: near(kernel, c),
        traffic,
        cost,
    };
    Ok((plans, run))
}

fn plain(c: &ir::Contract, factor: &Factor) -> Option<FactorRun> {
    let (load, round) = factor.in_memory()?;
    let fits = match (c.acc, round) {
        (Scalar::F64, _) => load.dtype == DType::F64 && round.is_none(),
        (_, Some(_)) => load.dtype == DType::F32,
        _ => matches!(load.dtype, DType::F32 | DType::F16 | DType::BF16),
    };
    let axes = c.batch.len();
    let stride = |axis: usize| load.access.strides.get(axis).copied().unwrap_or(0);
    fits.then(|| FactorRun::Plain {
        input: load.input,
        dtype: load.dtype,
        round,
        offset: load.access.offset,
        batch: (0..axes).map(stride).collect(),
        row: stride(axes) as isize,
        col: stride(axes + 1) as isize,
    })
}

impl ContractRun {
    /// Into how many parts a run is cut, at most.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        let elements = self.batch.iter().product::<usize>() * self.m * self.n;
        team.parts(elements * self.cost.max(1), usize::MAX)
    }

    /// How it keeps its right operand from run to run, if that is made of these operands alone and worth it.
    pub(crate) fn keeping(&self, tiles: &Tiles, lasting: &[usize]) -> Option<Keeping> {
        let few_rows = (1..ROWS_WITHOUT_KEEPING).contains(&self.m);
        let batches: usize = self.batch.iter().product();
        if !few_rows || self.k == 0 || batches == 0 {
            return None;
        }
        let (inputs, same) = match &self.factors[1] {
            FactorRun::Plain { input, batch, .. } => {
                (vec![*input], batch.iter().all(|stride| *stride == 0))
            }
            FactorRun::Computed { inputs, .. } => (inputs.clone(), false),
        };
        let lasts = !inputs.is_empty() && inputs.iter().all(|input| lasting.contains(input));
        let values = [&self.factors[0], &self.factors[1]].map(FactorRun::values);
        let panels = Panels::new(&Cpu::of(tiles), self.acc, values, [self.k, self.n]);
        // A few columns are soon packed, and would take more memory than they do.
        let fills = panels.width() < 2 * self.n;
        let batches = if same { 1 } else { batches };
        (lasts && fills).then_some(Keeping { panels, batches, inputs })
    }

    /// Packs all of the right operand. Returns the least of its numbers.
    pub(crate) fn pack(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        operands: &Slots,
        to: &Packed,
        status: &AtomicU64,
    ) -> u16 {
        let pieces = self.n.div_ceil(PIECE);
        let least = AtomicU16::new(u16::MAX);
        team.each(to.batches() * pieces, |task| {
            let (batch, piece) = (task / pieces, task % pieces);
            let columns = piece * PIECE..self.n.min((piece + 1) * PIECE);
            self.with_operands(code, operands, batch, None, status, |[_, b]| {
                let place = to.place(batch);
                let found = keep(tiles, to.panels(), columns, &b, place);
                least.fetch_min(found, Ordering::Relaxed);
            });
        });
        least.into_inner()
    }

    /// Runs it; with its right operand packed if an earlier run has kept it.
    pub(crate) fn run(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        operands: &Slots,
        kept: Option<&Packed>,
        status: &AtomicU64,
    ) {
        let cut = self.cut(team, kept.is_some());
        let tasks = cut.tasks();
        let work = (cut, kept);
        with_places(&self.largest, tasks, std::slice::from_ref(operands), |places| {
            if self.columns.is_empty() {
                return self.tasks(code, team, tiles, (operands, None, places), work, status);
            }
            self.columns.with(code, team, operands, status, |columns| {
                self.tasks(code, team, tiles, (operands, Some(columns), places), work, status);
            });
        });
    }

    /// How a run is cut: no two parts share an accumulator of a column.
    fn cut(&self, team: &Team, is_kept: bool) -> Cut {
        let batches: usize = self.batch.iter().product();
        let parts = self.parts(team);
        let apart = batches <= 1 || self.m.is_multiple_of(self.unit);
        let groups = if apart { parts.min(batches).max(1) } else { 1 };
        let rows = if apart { self.unit.next_multiple_of(UNITS[0]) } else { self.m.max(1) };
        let (columns, preparing) = if is_kept { (PIECE, READING) } else { (UNITS[1], PREPARING) };
        let units = [rows, columns];
        let parts = parts.div_ceil(groups);
        let grid = grid([self.m, self.n], units, [PREPARING, preparing], parts);
        Cut { groups, grid, units }
    }

    /// Runs every part.
    fn tasks(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        (operands, columns, places): (&Slots, Option<Accumulators<'_>>, Places),
        (cut, kept): (Cut, Option<&Packed>),
        status: &AtomicU64,
    ) {
        let batches: usize = self.batch.iter().product();
        if batches * self.m * self.n == 0 {
            return;
        }
        let [down, across] = cut.grid;
        team.each(cut.tasks(), |task| {
            let (i, group) = (task % (down * across), task / (down * across));
            let rows = part(self.m, cut.units[0], down, i / across);
            let cols = part(self.n, cut.units[1], across, i % across);
            for batch in part(batches, 1, cut.groups, group) {
                let block = Block { rows: rows.clone(), cols: cols.clone(), k: self.k };
                let work = (batch, block, kept);
                self.block(code, tiles, (operands, columns, places, task), work, status);
            }
        });
    }

    fn block(
        &self,
        code: &[Code],
        tiles: &Tiles,
        (operands, columns, places, task): (&Slots, Option<Accumulators<'_>>, Places, usize),
        (batch, block, kept): (usize, Block, Option<&Packed>),
        status: &AtomicU64,
    ) {
        let last = operands.len();
        let mut slots = operands.clone();
        slots.push(operands.get(0));
        if let Some(columns) = columns {
            columns.push(&mut slots);
        }
        places.push(&mut slots, task, 0);
        let epilogue = &code[self.epilogue];
        let mut finish = |row: usize, rows: usize, col: usize, cols: usize, sums: Address| {
            slots.set(last, sums);
            let row = batch * self.m + row;
            with_scratch(|scratch| {
                epilogue.call(&slots, row..row + rows, col..col + cols, scratch, status)
            });
        };
        let ahead = self.ahead(tiles, operands, batch);
        self.with_operands(code, operands, batch, kept, status, |factors| {
            contract(tiles, self.acc, block, factors, &ahead, &mut finish);
        });
    }

    /// What the epilogue of a batch is going to write and read, if it is so much that it lies in far caches, and not so much that results go
    /// past them: small results are near still from the last run, where asking for them only costs.
    fn ahead(&self, tiles: &Tiles, operands: &Slots, batch: usize) -> SmallVec<[Ahead; 4]> {
        let caches = Cpu::of(tiles).caches;
        if !(caches.far_from()..caches.passed_from()).contains(&self.traffic) {
            return SmallVec::new();
        }
        let one = |near: &Near| near.ahead(operands, |strides| self.in_batch(batch, strides));
        self.near.iter().map(one).collect()
    }

    /// Where a batch begins, for strides along the batch axes.
    fn in_batch(&self, batch: usize, strides: &[i64]) -> i64 {
        let mut rest = batch;
        let mut element = 0;
        for (extent, stride) in self.batch.iter().zip(strides).rev() {
            element += (rest % extent) as i64 * stride;
            rest /= extent;
        }
        element
    }

    /// Hands on the operands of a batch.
    fn with_operands(
        &self,
        code: &[Code],
        operands: &Slots,
        batch: usize,
        kept: Option<&Packed>,
        status: &AtomicU64,
        run: impl FnOnce([Operand<'_>; 2]),
    ) {
        let last = operands.len();
        let mut slots = operands.clone();
        slots.push(operands.get(0));
        let fill = |f: &FactorRun, height: usize| {
            let code = match f {
                FactorRun::Computed { code: i, .. } => Some(&code[*i]),
                FactorRun::Plain { .. } => None,
            };
            let slots = slots.clone();
            move |row: usize, rows: usize, col: usize, cols: usize, to: *mut u8| {
                let Some(code) = code.filter(|_| rows > 0 && cols > 0) else { return };
                let first = batch * height + row;
                let mut slots = slots.clone();
                slots.set(last, block_address(to));
                with_scratch(|scratch| {
                    code.call(&slots, first..first + rows, col..col + cols, scratch, status)
                });
            }
        };
        let (left, right) = (fill(&self.factors[0], self.m), fill(&self.factors[1], self.k));
        let a = self.operand(&self.factors[0], operands, batch, &left);
        let b = match kept {
            Some(kept) => kept.operand(batch),
            None => self.operand(&self.factors[1], operands, batch, &right),
        };
        run([a, b]);
    }

    fn operand<'a>(
        &self,
        factor: &FactorRun,
        operands: &Slots,
        batch: usize,
        fill: &'a crate::jit::Fill<'a>,
    ) -> Operand<'a> {
        let (input, dtype, round, offset, strides, row, col) = match factor {
            FactorRun::Computed { dtype, .. } => return Operand::Computed(fill, *dtype),
            FactorRun::Plain { input, dtype, round, offset, batch, row, col } => {
                (input, dtype, round, offset, batch, row, col)
            }
        };
        let element = offset + self.in_batch(batch, strides);
        let base = operands.get(*input).offset(element as isize * dtype.bytes() as isize);
        Operand::Matrix { base, dtype: *dtype, round: *round, row: *row, col: *col }
    }
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
