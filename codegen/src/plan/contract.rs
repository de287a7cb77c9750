//! Contractions: compiled code computes factors and finishes sums; these are its plans.

use super::columns::{ColumnsDispatch, common_unit};
use super::max_abs::Largest;
use super::nest::cost;
use super::{Plan, from_kernel};
use crate::error::Result;
use tracecast_ir::DType;
use tracecast_ir::kernel::{self as ir, Access, Contract, Factor, Kernel, Scalar, ScalarOp, Sink};

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

/// A contraction, ready to be run by the functions of its plans.
#[derive(Debug)]
pub(crate) struct ContractDispatch {
    /// Sizes of the batch axes.
    pub(crate) batch: Vec<usize>,
    /// Rows of the result.
    pub(crate) m: usize,
    /// Columns of the result.
    pub(crate) n: usize,
    /// Steps of the summed axis.
    pub(crate) k: usize,
    /// The dtype of the sums: f32 or f64.
    pub(crate) acc: DType,
    /// The left and the right factor.
    pub(crate) factors: [FactorSource; 2],
    /// The function that finishes sums.
    pub(crate) epilogue: usize,
    /// What the epilogue reduces down the columns.
    pub(crate) columns: ColumnsDispatch,
    /// Rows, counted through all batches, from one multiple of this to another share no accumulator of a column with others.
    pub(crate) unit: usize,
    /// The largest values that the epilogue finds.
    pub(crate) largest: Vec<Largest>,
    /// The operands of which the epilogue writes or reads an element for each sum.
    pub(crate) near: Vec<Near>,
    /// The bytes that the epilogue writes and reads.
    pub(crate) traffic: usize,
    /// In cheap operations per element of the result.
    pub(crate) cost: usize,
}

/// Where a factor comes from.
#[derive(Debug)]
pub(crate) enum FactorSource {
    /// An operand as it lies in memory.
    Plain {
        /// The operand.
        input: usize,
        /// Its dtype.
        dtype: DType,
        /// The 16-bit float to whose values the elements are rounded.
        round: Option<DType>,
        /// Element (0, 0) of the first batch.
        offset: i64,
        /// From a batch to the next, along each batch axis, in elements.
        batch: Vec<i64>,
        /// From a row to the next.
        row: isize,
        /// From a column to the next.
        col: isize,
    },
    /// Values that a function writes.
    Computed {
        /// The function.
        code: usize,
        /// What it writes.
        dtype: DType,
        /// The operands it is computed from; none if it can raise a check.
        inputs: Vec<usize>,
    },
}

impl FactorSource {
    /// The dtype whose values the factor has.
    pub(crate) fn values(&self) -> DType {
        match self {
            FactorSource::Plain { dtype, round, .. } => round.unwrap_or(*dtype),
            FactorSource::Computed { dtype, .. } => *dtype,
        }
    }
}

/// The plans of a contraction.
pub(crate) fn draft(kernel: &Kernel, c: &ir::Contract) -> Result<(Vec<Plan>, ContractDispatch)> {
    if !matches!(c.acc, Scalar::F32 | Scalar::F64) {
        return Err(from_kernel::unsupported(
            kernel,
            &format!("a contraction in {}", c.acc.name()),
        ));
    }
    let (epilogue, columns, largest) = from_kernel::epilogue(kernel, c)?;
    let unit = common_unit(&columns).map_or(epilogue.rows(), |unit| unit).max(1) as usize;
    let traffic = epilogue.traffic() as usize;
    let mut plans = vec![epilogue];
    let mut factor = |f: &Factor, matrix: [usize; 2]| {
        plain(c, f).unwrap_or_else(|| {
            let (plan, dtype) = from_kernel::factor(kernel, c, f, matrix);
            plans.push(plan);
            let raises = f.body.insts.iter().any(|i| matches!(i.op, ScalarOp::Check(_)));
            let inputs = f.loads.iter().filter(|_| !raises).map(|l| l.input).collect();
            FactorSource::Computed { code: plans.len() - 1, dtype, inputs }
        })
    };
    let factors = [factor(&c.a, [c.m, c.k]), factor(&c.b, [c.k, c.n])];
    let acc = if c.acc == Scalar::F64 { DType::F64 } else { DType::F32 };
    let cost = c.k / PER_OPERATION + cost(&c.epilogue.body);
    let columns = ColumnsDispatch::draft(columns, |column| column.output, &mut plans);
    let run = ContractDispatch {
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

fn plain(c: &ir::Contract, factor: &Factor) -> Option<FactorSource> {
    let (load, round) = factor.in_memory()?;
    let fits = match (c.acc, round) {
        (Scalar::F64, _) => load.dtype == DType::F64 && round.is_none(),
        (_, Some(_)) => load.dtype == DType::F32,
        _ => matches!(load.dtype, DType::F32 | DType::F16 | DType::BF16),
    };
    let axes = c.batch.len();
    let stride = |axis: usize| load.access.strides.get(axis).copied().unwrap_or(0);
    fits.then(|| FactorSource::Plain {
        input: load.input,
        dtype: load.dtype,
        round,
        offset: load.access.offset,
        batch: (0..axes).map(stride).collect(),
        row: stride(axes) as isize,
        col: stride(axes + 1) as isize,
    })
}

/// An operand of which the epilogue writes or reads an element for each sum: elements of a row lie side by side.
#[derive(Debug)]
pub(crate) struct Near {
    /// The kernel's operand.
    pub(crate) slot: usize,
    /// Its dtype.
    pub(crate) dtype: DType,
    /// Element (0, 0) of the first batch.
    pub(crate) offset: i64,
    /// From a batch to the next, along each batch axis, in elements.
    pub(crate) batch: Vec<i64>,
    /// From a row to the next.
    pub(crate) row: i64,
}

/// All of them.
fn near(kernel: &Kernel, c: &Contract) -> Vec<Near> {
    let axes = c.batch.len();
    let one = |slot: usize, dtype: DType, access: &Access| {
        let stride = |axis: usize| access.strides.get(axis).copied().unwrap_or(0);
        let plain = access.guards.is_empty() && access.indirect.is_empty();
        (plain && stride(axes) != 0 && stride(axes + 1) == 1).then(|| Near {
            slot,
            dtype,
            offset: access.offset,
            batch: (0..axes).map(stride).collect(),
            row: stride(axes),
        })
    };
    let stores = c.epilogue.sinks.iter().filter_map(|sink| match sink {
        Sink::Store { output, dtype, access, .. } => {
            one(kernel.inputs.len() + output, *dtype, access)
        }
        _ => None,
    });
    let loads = c.loads.iter().filter_map(|load| one(load.input, load.dtype, &load.access));
    stores.chain(loads).collect()
}
