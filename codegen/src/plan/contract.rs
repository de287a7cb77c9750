//! Contractions: the plans of the epilogue and of factors that are computed, and what a run needs
//! to know of the product itself, which is precompiled (`contract`).

use super::columns::{BoundColumn, Column, common_unit};
use super::draft::Calls;
use super::facts::Facts;
use super::from_kernel::{elements_of, fresh, sink, sources, unsupported};
use super::loops::cost;
use super::max_abs::Largest;
use super::numbers::Numbers;
pub(crate) use super::windows::{Axis, Windows};
use super::{Draft, Place, Plan, Source, Stage, loops};
use crate::error::Result;
use smallvec::SmallVec;
use tracecast_ir::kernel::{
    Access, Body, Contract, Factor, Inst, Kernel, Load, Scalar, ScalarOp, Sink, Val,
};
use tracecast_ir::{DType, Size};

/// What sizes are in a binding.
type Evaluated<T> = std::result::Result<T, String>;

/// Multiply-adds that count as one cheap operation.
const PER_OPERATION: usize = 8;

/// A contraction, ready to be run by the functions of its plans.
#[derive(Debug)]
pub(crate) struct ContractDispatch<C = Size, O = Size, L = Column> {
    /// Sizes of the batch axes.
    pub(crate) batch: Vec<C>,
    /// Rows of the result.
    pub(crate) m: C,
    /// Columns of the result.
    pub(crate) n: C,
    /// Steps of the summed axis.
    pub(crate) k: C,
    /// The dtype of the sums: f32 or f64.
    pub(crate) acc: DType,
    /// The left and the right factor.
    pub(crate) factors: [FactorSource<O>; 2],
    /// The function that finishes sums.
    pub(crate) epilogue: usize,
    /// What the epilogue reduces down the columns.
    pub(crate) columns: Vec<L>,
    /// The largest values that the epilogue finds.
    pub(crate) largest: Vec<Largest>,
    /// The operands of which the epilogue writes or reads an element for each sum.
    pub(crate) epilogue_operands: Vec<EpilogueOperand<O>>,
    /// True if the first of these is all that the epilogue writes: sums as they are, or rounded to
    /// its dtype.
    pub(crate) stores_sums: bool,
    /// The bytes that the epilogue writes and reads.
    pub(crate) traffic: C,
    /// What the epilogue costs per element of the result, in cheap operations.
    epilogue_cost: usize,
}

impl ContractDispatch {
    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value, or a size is negative.
    pub(super) fn at(&self, sizes: &Numbers<'_>) -> Evaluated<BoundContract> {
        let [left, right] = &self.factors;
        let batch = self.batch.iter().map(|extent| sizes.count(*extent));
        let operands = self.epilogue_operands.iter().map(|operand| operand.at(sizes));
        Ok(ContractDispatch {
            batch: batch.collect::<Evaluated<_>>()?,
            m: sizes.count(self.m)?,
            n: sizes.count(self.n)?,
            k: sizes.count(self.k)?,
            acc: self.acc,
            factors: [left.at(sizes)?, right.at(sizes)?],
            epilogue: self.epilogue,
            columns: self.columns.iter().map(|c| c.at(sizes)).collect::<Evaluated<_>>()?,
            largest: self.largest.clone(),
            epilogue_operands: operands.collect::<Evaluated<_>>()?,
            stores_sums: self.stores_sums,
            traffic: sizes.count(self.traffic)?,
            epilogue_cost: self.epilogue_cost,
        }
        .with_batches_as_rows())
    }
}

/// A contraction at the sizes of a binding.
pub(crate) type BoundContract = ContractDispatch<usize, i64, BoundColumn>;

impl BoundContract {
    /// The same with the batches as rows of one matrix if they share the right factor, so that it
    /// is packed once. The functions of the epilogue and of factors count rows through all batches
    /// already.
    fn with_batches_as_rows(mut self) -> Self {
        let (extents, m) = (self.batch.clone(), self.m);
        let count: usize = extents.iter().product();
        let [left, right] = &mut self.factors;
        if count < 2 || !right.is_shared() {
            return self;
        }
        let go_on = |row: i64, batch: &[i64]| rows_go_on(&extents, m, row, batch);
        let stores_elsewhere = self
            .epilogue_operands
            .first()
            .is_some_and(|result| self.stores_sums && !go_on(result.row, &result.batch));
        if stores_elsewhere {
            return self;
        }
        left.take_batches_as_rows(&extents, [m, self.k], &go_on);
        right.forget_batches();
        // Operands whose rows do not go on from batch to batch are not prefetched.
        self.epilogue_operands.retain(|operand| go_on(operand.row, &operand.batch));
        self.epilogue_operands.iter_mut().for_each(|operand| operand.batch.clear());
        self.m *= count;
        self.batch.clear();
        self
    }

    /// Rows, counted through all batches, from one multiple of this to another share no accumulator
    /// of a column with others.
    pub(crate) fn unit(&self) -> usize {
        let rows = self.batch.iter().product::<usize>() * self.m;
        common_unit(&self.columns).unwrap_or(rows).max(1)
    }

    /// The operand that sums are stored to, one after another through all batches, if that is all
    /// that becomes of them: as they are, or rounded to a 16-bit float.
    pub(crate) fn stored(&self) -> Option<&EpilogueOperand<i64>> {
        let result = self.epilogue_operands.first().filter(|_| self.stores_sums)?;
        let is_dense = result.row == self.n as i64
            && rows_go_on(&self.batch, self.m, result.row, &result.batch);
        is_dense.then_some(result)
    }

    /// In cheap operations per element of the result.
    pub(crate) fn cost(&self) -> usize {
        self.k / PER_OPERATION + self.epilogue_cost
    }
}

/// True if the rows of each batch, `row` elements apart, go on with those of the next.
fn rows_go_on(extents: &[usize], m: usize, row: i64, batch: &[i64]) -> bool {
    let mut step = row * m as i64;
    extents.iter().zip(batch).rev().all(|(extent, stride)| {
        let fits = *extent == 1 || *stride == step;
        step *= *extent as i64;
        fits
    })
}

/// Where a factor comes from.
#[derive(Debug)]
pub(crate) enum FactorSource<O = Size> {
    /// An operand in place.
    Plain {
        /// The operand.
        input: usize,
        /// Its dtype.
        dtype: DType,
        /// The 16-bit float to whose values the elements are rounded.
        round: Option<DType>,
        /// Element (0, 0) of the first batch.
        offset: O,
        /// From a batch to the next, along each batch axis, in elements.
        batch: Vec<O>,
        /// From a row to the next.
        row: O,
        /// From a column to the next.
        col: O,
    },
    /// An operand of which rows or columns are several axes, with zeros where its elements end.
    Seen(Windows<O>),
    /// Values that a function writes.
    Computed {
        /// The function.
        code: usize,
        /// What it writes.
        dtype: DType,
        /// The operands it is computed from; none if it can raise a check.
        inputs: Vec<usize>,
        /// The positions of the function's row, if a row of the factor is several of them.
        row: Option<O>,
        /// True if all batches have the same values.
        is_shared: bool,
    },
}

impl FactorSource {
    fn at(&self, sizes: &Numbers<'_>) -> Evaluated<FactorSource<i64>> {
        Ok(match self {
            FactorSource::Plain { input, dtype, round, offset, batch, row, col } => {
                FactorSource::Plain {
                    input: *input,
                    dtype: *dtype,
                    round: *round,
                    offset: sizes.number(*offset)?,
                    batch: sizes.numbers(batch)?,
                    row: sizes.number(*row)?,
                    col: sizes.number(*col)?,
                }
            }
            FactorSource::Seen(windows) => FactorSource::Seen(windows.at(sizes)?),
            FactorSource::Computed { code, dtype, inputs, row, is_shared } => {
                FactorSource::Computed {
                    code: *code,
                    dtype: *dtype,
                    inputs: inputs.clone(),
                    row: row.map(|row| sizes.number(row)).transpose()?,
                    is_shared: *is_shared,
                }
            }
        })
    }
}

impl<O> FactorSource<O> {
    /// The dtype whose values the factor has.
    pub(crate) fn values(&self) -> DType {
        match self {
            FactorSource::Plain { dtype, round, .. }
            | FactorSource::Seen(Windows { dtype, round, .. }) => round.unwrap_or(*dtype),
            FactorSource::Computed { dtype, .. } => *dtype,
        }
    }
}

impl FactorSource<i64> {
    /// True if all batches have the same elements.
    fn is_shared(&self) -> bool {
        match self {
            FactorSource::Plain { batch, .. } => batch.iter().all(|stride| *stride == 0),
            FactorSource::Seen(windows) => windows
                .batch
                .iter()
                .all(|axis| axis.stride == 0 && axis.bounded.iter().all(|step| *step == 0)),
            FactorSource::Computed { is_shared, .. } => *is_shared,
        }
    }

    /// The same without batches, all of which have the same elements.
    fn forget_batches(&mut self) {
        match self {
            FactorSource::Plain { batch, .. } => batch.clear(),
            FactorSource::Seen(windows) => windows.batch.clear(),
            FactorSource::Computed { .. } => {}
        }
    }

    /// Makes rows of the batches of a left factor of `m` rows and `k` columns. Rows that are not
    /// evenly apart are several axes.
    fn take_batches_as_rows(
        &mut self,
        extents: &[usize],
        [m, k]: [usize; 2],
        go_on: &dyn Fn(i64, &[i64]) -> bool,
    ) {
        match self {
            FactorSource::Plain { batch, row, .. } if go_on(*row, batch) => batch.clear(),
            FactorSource::Plain { input, dtype, round, offset, batch, row, col } => {
                let axis = |extent: usize, stride: i64| Axis {
                    extent: extent as i64,
                    stride,
                    bounded: Vec::new(),
                };
                let rows = extents.iter().zip(&*batch).map(|(n, stride)| axis(*n, *stride));
                *self = FactorSource::Seen(Windows {
                    input: *input,
                    dtype: *dtype,
                    round: *round,
                    offset: *offset,
                    batch: Vec::new(),
                    rows: rows.chain([axis(m, *row)]).collect(),
                    columns: vec![axis(k, *col)],
                    bounds: Vec::new(),
                });
            }
            FactorSource::Seen(windows) => {
                let rows = std::mem::take(&mut windows.rows);
                windows.rows = std::mem::take(&mut windows.batch);
                windows.rows.extend(rows);
            }
            // Its function counts rows through all batches.
            FactorSource::Computed { .. } => {}
        }
    }
}

/// A contraction as plans: the epilogue, then the factors that are computed.
///
/// # Errors
/// If it accumulates in no float, or its epilogue has sinks that no epilogue can have.
pub(super) fn draft<'k>(kernel: &'k Kernel, c: &Contract, facts: Facts) -> Result<Draft<'k>> {
    if !matches!(c.acc, Scalar::F32 | Scalar::F64) {
        return Err(unsupported(kernel, &format!("a contraction in {}", c.acc.name())));
    }
    let mut draft = epilogue(kernel, c, facts)?;
    for (factor, matrix) in [(&c.a, [c.m, c.k]), (&c.b, [c.k, c.n])] {
        if in_memory(c, factor, matrix).is_none() {
            draft.plans.push(computed(kernel, c, factor, matrix));
        }
    }
    Ok(draft)
}

/// Where the left and the right factor come from.
pub(super) fn factors(c: &Contract) -> [FactorSource; 2] {
    // The epilogue is the first function; those of the factors follow.
    let mut next = 1;
    [(&c.a, [c.m, c.k]), (&c.b, [c.k, c.n])].map(|(factor, matrix)| {
        in_memory(c, factor, matrix).unwrap_or_else(|| {
            next += 1;
            let raises = factor.body.insts.iter().any(|i| matches!(i.op, ScalarOp::Check(_)));
            let inputs = factor.loads.iter().filter(|_| !raises).map(|l| l.input).collect();
            let split = factor.split.as_ref().filter(|split| split.columns.len() > 1);
            let row = split.and_then(|split| split.columns.last().copied());
            let (code, dtype) = (next - 1, written(c, factor).1);
            FactorSource::Computed { code, dtype, inputs, row, is_shared: is_shared(c, factor) }
        })
    })
}

/// How a run divides a contraction.
pub(super) fn dispatch(draft: &Draft<'_>, c: &Contract) -> ContractDispatch {
    ContractDispatch {
        batch: c.batch.clone(),
        m: c.m,
        n: c.n,
        k: c.k,
        acc: c.acc.dtype(),
        factors: factors(c),
        epilogue: 0,
        epilogue_operands: epilogue_operands(draft.kernel, c),
        stores_sums: stores_sums(c),
        traffic: draft.plans[0].traffic(),
        epilogue_cost: cost(&c.epilogue.body),
        columns: draft.columns.clone(),
        largest: draft.largest.clone(),
    }
}

/// The epilogue for a part of a row. Slots are the kernel's inputs and outputs, one for the sums,
/// one for the accumulators of each column, and one for each largest value so far.
fn epilogue<'k>(kernel: &'k Kernel, c: &Contract, facts: Facts) -> Result<Draft<'k>> {
    let sums = kernel.inputs.len() + kernel.outputs.len();
    let extents: Vec<Size> = c.batch.iter().chain(&[c.m, c.n]).copied().collect();
    let updated = |input: usize| kernel.outputs.iter().any(|o| o.update == Some(input));
    let mut plan = Plan {
        fresh: fresh(kernel, &c.loads, None),
        loads: sources(&c.loads, extents.len(), elements_of(kernel), updated),
        ..Plan::new(extents, sums + 1)
    };
    let load = plan.loads.len() as u32;
    let (dtype, place) = (c.acc.dtype(), Place::Stream);
    plan.loads.push(Source::new(sums, dtype, place, Size::from(0), true));
    let load = |inst: &Inst| match inst.op {
        ScalarOp::Acc => Inst { op: ScalarOp::Load(load), ..inst.clone() },
        _ => inst.clone(),
    };
    let body = Body::from(c.epilogue.body.insts.iter().map(load).collect::<Vec<_>>());
    // The contraction's loops count in the kernel's own rows and positions.
    let calls = Calls { merge_row: false, by_sixteens: false, as_planned: false };
    let mut draft = Draft::new(kernel, facts, vec![plan], calls);
    let mut one = |s: &Sink| match s {
        Sink::Store { .. } | Sink::Column { .. } | Sink::Largest { .. } => {
            sink(&mut draft, None, &body, s)
        }
        Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {
            Err(unsupported(kernel, "an epilogue with other sinks"))
        }
    };
    let sinks = c.epilogue.sinks.iter().map(&mut one).collect::<Result<_>>()?;
    draft.plans[0].stages.push(Stage::along_row(body, sinks));
    Ok(draft)
}

/// The plan that computes a block of a factor. Slots are the kernel's inputs and outputs, and one
/// for the block.
fn computed(kernel: &Kernel, c: &Contract, factor: &Factor, matrix: [Size; 2]) -> Plan {
    let slot = kernel.inputs.len() + kernel.outputs.len();
    let (value, dtype) = written(c, factor);
    let extents = [c.batch.as_slice(), &factor.axes(matrix)].concat();
    let place = Place::Stream;
    let store = loops::Sink::Store { slot, dtype, place, value, after: SmallVec::new() };
    Plan {
        loads: sources(&factor.loads, extents.len(), elements_of(kernel), |_| false),
        stages: vec![Stage::along_row(factor.body.clone(), vec![store])],
        ..Plan::new(extents, slot + 1)
    }
}

/// True if nothing that a computed factor is made of differs between batches.
fn is_shared(c: &Contract, factor: &Factor) -> bool {
    let batches = c.batch.len();
    let is_fixed = |strides: &[Size]| strides.iter().take(batches).all(|stride| *stride == 0);
    let of_load = |load: &Load| {
        let guards = load.access.guards.iter().all(|guard| is_fixed(&guard.strides));
        guards && is_fixed(&load.access.strides)
    };
    let of_inst = |inst: &Inst| match inst.op {
        ScalarOp::Index(axis) => axis as usize >= batches,
        _ => true,
    };
    factor.loads.iter().all(of_load) && factor.body.insts.iter().all(of_inst)
}

/// What a factor's function writes, and as what: bf16 where the values are numbers of bf16, which
/// some CPUs multiply faster.
fn written(c: &Contract, factor: &Factor) -> (Val, DType) {
    let Inst { op, args, ty } = &factor.body.insts[factor.value as usize];
    match op {
        _ if c.acc == Scalar::F64 => (factor.value, DType::F64),
        // Writing rounds.
        ScalarOp::Round(DType::BF16) if *ty == Scalar::F32 => (args[0], DType::BF16),
        ScalarOp::Load(l) if is_brain(factor.loads[*l as usize].dtype) => {
            (factor.value, DType::BF16)
        }
        _ => (factor.value, DType::F32),
    }
}

/// True for the low-precision floats whose numbers bf16 has.
fn is_brain(dtype: DType) -> bool {
    dtype.is_low() && dtype.fits_in(DType::BF16)
}

/// The floats that packing reads and rounds to. Others are computed: a factor's function widens or
/// rounds them, block by block.
const PACKED: [DType; 2] = [DType::F16, DType::BF16];

/// As many bounds as packing knows: one for each axis that windows of a convolution move over.
pub(crate) const MOST_BOUNDS: usize = 3;

/// A factor that lies in memory as the contraction can read it.
fn in_memory(c: &Contract, factor: &Factor, matrix: [Size; 2]) -> Option<FactorSource> {
    let (load, round) = factor.from_one_load()?;
    let fits = match (c.acc, round) {
        (Scalar::F64, _) => load.dtype == DType::F64 && round.is_none(),
        (_, Some(to)) => load.dtype == DType::F32 && PACKED.contains(&to),
        (_, None) => load.dtype == DType::F32 || PACKED.contains(&load.dtype),
    };
    if !fits || load.access.guards.len() > MOST_BOUNDS {
        return None;
    }
    if factor.in_memory().is_none() {
        return Some(FactorSource::Seen(Windows::of(c, factor, matrix, (load, round))));
    }
    let axes = c.batch.len();
    let stride = |axis: usize| load.access.strides.get(axis).copied().unwrap_or_default();
    Some(FactorSource::Plain {
        input: load.input,
        dtype: load.dtype,
        round,
        offset: load.access.offset,
        batch: (0..axes).map(stride).collect(),
        row: stride(axes),
        col: stride(axes + 1),
    })
}

/// An operand of which the epilogue writes or reads an element for each sum: elements of a row lie
/// side by side.
#[derive(Debug)]
pub(crate) struct EpilogueOperand<O = Size> {
    /// The kernel's operand.
    pub(crate) slot: usize,
    /// Its dtype.
    pub(crate) dtype: DType,
    /// Element (0, 0) of the first batch.
    pub(crate) offset: O,
    /// From a batch to the next, along each batch axis, in elements.
    pub(crate) batch: Vec<O>,
    /// From a row to the next.
    pub(crate) row: O,
}

impl EpilogueOperand {
    fn at(&self, sizes: &Numbers<'_>) -> Evaluated<EpilogueOperand<i64>> {
        let EpilogueOperand { slot, dtype, offset, batch, row } = self;
        Ok(EpilogueOperand {
            slot: *slot,
            dtype: *dtype,
            offset: sizes.number(*offset)?,
            batch: sizes.numbers(batch)?,
            row: sizes.number(*row)?,
        })
    }
}

/// True if the epilogue does nothing but store sums, or round f32 to the 16-bit float that is
/// stored.
fn stores_sums(c: &Contract) -> bool {
    let insts = &c.epilogue.body.insts;
    let [Sink::Store { dtype, value, .. }] = &c.epilogue.sinks[..] else { return false };
    let is_sum = |value: Val| matches!(insts[value as usize].op, ScalarOp::Acc);
    let rounded = |inst: &Inst| {
        let to = matches!(inst.op, ScalarOp::Round(to) if to == *dtype);
        to && c.acc == Scalar::F32 && dtype.is_low() && is_sum(inst.args[0])
    };
    // Nothing is read, so that the first operand of the epilogue is the one that is written.
    let is_stored = *dtype == c.acc.dtype() && insts.len() == 1 && is_sum(*value);
    c.loads.is_empty() && (is_stored || insts.len() == 2 && rounded(&insts[*value as usize]))
}

/// All of them.
pub(super) fn epilogue_operands(kernel: &Kernel, c: &Contract) -> Vec<EpilogueOperand> {
    let axes = c.batch.len();
    let one = |slot: usize, dtype: DType, access: &Access| {
        let stride = |axis: usize| access.strides.get(axis).copied().unwrap_or_default();
        let plain = access.guards.is_empty() && access.indirect.is_empty();
        (plain && stride(axes) != 0 && stride(axes + 1) == 1).then(|| EpilogueOperand {
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
