//! Contractions: compiled code computes factors and finishes sums, the precompiled routine does the rest.

use crate::error::Result;
use crate::form;
use crate::jit::{Address, Block, Code, Operand, Slots, block_address, contract, with_scratch};
use crate::nest::cost;
use crate::plan::Plan;
use crate::team::{Team, part};
use crate::tile::Tiles;
use std::sync::atomic::AtomicU32;
use tracecast_ir::DType;
use tracecast_ir::kernel::{self as ir, Factor, Kernel, Scalar};

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

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
    cost: usize,
}

/// Where a factor comes from.
#[derive(Debug)]
enum FactorRun {
    /// An operand as it lies in memory.
    Plain { input: usize, dtype: DType, offset: i64, batch: Vec<i64>, row: isize, col: isize },
    /// A function.
    Computed(usize),
}

/// The plans of a contraction.
pub(crate) fn draft(kernel: &Kernel, c: &ir::Contract) -> Result<(Vec<Plan>, ContractRun)> {
    if !matches!(c.acc, Scalar::F32 | Scalar::F64) {
        return Err(form::unsupported(kernel, &format!("a contraction in {}", c.acc.name())));
    }
    let mut plans = vec![form::epilogue(kernel, c)?];
    let mut factor = |f: &Factor, matrix: [usize; 2]| {
        plain(c, f).unwrap_or_else(|| {
            plans.push(form::factor(kernel, c, f, matrix));
            FactorRun::Computed(plans.len() - 1)
        })
    };
    let factors = [factor(&c.a, [c.m, c.k]), factor(&c.b, [c.k, c.n])];
    let acc = if c.acc == Scalar::F64 { DType::F64 } else { DType::F32 };
    let cost = c.k / PER_OPERATION + cost(&c.epilogue.body);
    let run = ContractRun {
        batch: c.batch.clone(),
        m: c.m,
        n: c.n,
        k: c.k,
        acc,
        factors,
        epilogue: 0,
        cost,
    };
    Ok((plans, run))
}

fn plain(c: &ir::Contract, factor: &Factor) -> Option<FactorRun> {
    let load = factor.plain()?;
    let fits = match c.acc {
        Scalar::F64 => load.dtype == DType::F64,
        _ => matches!(load.dtype, DType::F32 | DType::F16 | DType::BF16),
    };
    let axes = c.batch.len();
    let stride = |axis: usize| load.access.strides.get(axis).copied().unwrap_or(0);
    fits.then(|| FactorRun::Plain {
        input: load.input,
        dtype: load.dtype,
        offset: load.access.offset,
        batch: (0..axes).map(stride).collect(),
        row: stride(axes) as isize,
        col: stride(axes + 1) as isize,
    })
}

impl ContractRun {
    /// Runs it.
    pub(crate) fn run(
        &self,
        code: &[Code],
        team: &Team,
        tiles: &Tiles,
        operands: &Slots,
        status: &AtomicU32,
    ) {
        let batches: usize = self.batch.iter().product();
        if batches * self.m * self.n == 0 {
            return;
        }
        let parts = team.parts(batches * self.m * self.n * self.cost.max(1), usize::MAX);
        // Cutting columns repeats the work on the left operand, cutting rows that on the right one.
        let by_columns = self.m <= self.n;
        let (length, unit) = if by_columns { (self.n, 16) } else { (self.m, 6) };
        let cuts = parts.div_ceil(batches).min(length.div_ceil(unit));
        let groups = parts.min(batches);
        team.each(groups * cuts, |i| {
            let range = part(length, unit, cuts, i % cuts);
            let (rows, cols) = if by_columns { (0..self.m, range) } else { (range, 0..self.n) };
            for batch in part(batches, 1, groups, i / cuts) {
                let block = Block { rows: rows.clone(), cols: cols.clone(), k: self.k };
                self.block(code, tiles, operands, batch, block, status);
            }
        });
    }

    fn block(
        &self,
        code: &[Code],
        tiles: &Tiles,
        operands: &Slots,
        batch: usize,
        block: Block,
        status: &AtomicU32,
    ) {
        let mut slots = operands.clone();
        slots.push(operands.get(0));
        let fill = |f: &FactorRun, height: usize| {
            let code = if let FactorRun::Computed(i) = f { Some(&code[*i]) } else { None };
            let slots = slots.clone();
            move |row: usize, rows: usize, col: usize, cols: usize, to: *mut u8| {
                let Some(code) = code.filter(|_| rows > 0 && cols > 0) else { return };
                let first = batch * height + row;
                let mut slots = slots.clone();
                slots.set_last(block_address(to));
                with_scratch(|scratch| {
                    code.call(&slots, first..first + rows, col..col + cols, scratch, status)
                });
            }
        };
        let (left, right) = (fill(&self.factors[0], self.m), fill(&self.factors[1], self.k));
        let a = self.operand(&self.factors[0], operands, batch, &left);
        let b = self.operand(&self.factors[1], operands, batch, &right);
        let epilogue = &code[self.epilogue];
        let mut finish = |row: usize, col: usize, n: usize, sums: Address| {
            slots.set_last(sums);
            let row = batch * self.m + row;
            with_scratch(|scratch| {
                epilogue.call(&slots, row..row + 1, col..col + n, scratch, status)
            });
        };
        contract(tiles, self.acc, block, [a, b], &mut finish);
    }

    fn operand<'a>(
        &self,
        factor: &FactorRun,
        operands: &Slots,
        batch: usize,
        fill: &'a crate::jit::Fill<'a>,
    ) -> Operand<'a> {
        let FactorRun::Plain { input, dtype, offset, batch: strides, row, col } = factor else {
            return Operand::Computed(fill);
        };
        let mut rest = batch;
        let mut element = *offset;
        for (extent, stride) in self.batch.iter().zip(strides).rev() {
            element += (rest % extent) as i64 * stride;
            rest /= extent;
        }
        let base = operands.get(*input).offset(element as isize * dtype.bytes() as isize);
        Operand::Matrix { base, dtype: *dtype, row: *row, col: *col }
    }
}
