//! Column reductions: their accumulators, one line for each chunk of rows, and the plans of the
//! functions that add up the chunks and write the output. `run::columns` gives them memory.

use super::loops::padded;
use super::numbers::Numbers;
use super::{Place, Plan, Sink, Source, Strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{self as ir, Body, Combine, Reduction, Scalar, ScalarOp};
use tracecast_ir::{DType, Size};

/// A column reduction of a kernel: its accumulators, and how they become the output.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// How.
    pub(crate) reduction: Reduction,
    /// The type of the accumulators.
    pub(crate) scalar: Scalar,
    /// The output, as an operand of the kernel.
    pub(crate) output: usize,
    /// Its dtype.
    pub(crate) dtype: DType,
    /// Elements of the output.
    pub(crate) size: Size,
    /// Rows that go into one element.
    pub(crate) rows: Size,
    /// The sizes of the outer axes, and whether each is reduced; known from `column-units` on.
    pub(crate) outer: Option<SmallVec<[(Size, bool); 4]>>,
    /// The function that adds up the chunks.
    pub(crate) sum: Option<usize>,
    /// The function that makes the output of the accumulators.
    pub(crate) finish: Option<usize>,
}

/// A column reduction at the sizes of a binding.
#[derive(Debug)]
pub(crate) struct BoundColumn {
    /// How.
    pub(crate) reduction: Reduction,
    /// The type of the accumulators.
    pub(crate) scalar: Scalar,
    /// The output, as an operand of the kernel.
    pub(crate) output: usize,
    /// Elements of the output.
    pub(crate) size: usize,
    /// Rows that go into one element.
    pub(crate) rows: usize,
    /// Chunks of rows, at least one.
    pub(crate) chunks: usize,
    /// The bytes of the accumulators, in whole cache lines. What has no rows has accumulators for
    /// what it starts from.
    pub(crate) bytes: usize,
    /// True if the accumulators are the output itself.
    pub(crate) is_direct: bool,
    /// Rows of the kernel, from one multiple of this to another, share no accumulator with other
    /// rows; 0 if there is no such number.
    pub(crate) unit: usize,
    /// The function that adds up the chunks.
    pub(crate) sum: Option<usize>,
    /// The function that makes the output of the accumulators, if they are not the output.
    pub(crate) finish: Option<usize>,
}

impl Column {
    /// True if the accumulators of a single chunk may be the output itself.
    fn holds_accumulators(&self) -> bool {
        Scalar::of(self.dtype) == Some(self.scalar)
            && !self.dtype.is_low()
            && self.dtype != DType::U8
    }

    /// Chunks of rows.
    pub(crate) fn chunks(&self) -> Size {
        (self.rows + (ir::COLUMN_CHUNK - 1)) / ir::COLUMN_CHUNK
    }

    /// True if the accumulators are the output itself, whatever names are.
    pub(crate) fn is_direct(&self) -> bool {
        self.chunks() == 1 && self.holds_accumulators()
    }

    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value.
    pub(crate) fn at(&self, sizes: &Numbers<'_>) -> Result<BoundColumn, String> {
        let Column { reduction, scalar, output, sum, .. } = *self;
        let (size, rows) = (sizes.count(self.size)?, sizes.count(self.rows)?);
        let chunks = rows.div_ceil(ir::COLUMN_CHUNK);
        let is_direct = chunks == 1 && self.holds_accumulators();
        let lines = if is_direct { 0 } else { chunks.max(1) };
        let axis = |(size, reduced): &(Size, bool)| Ok((sizes.count(*size)?, *reduced));
        let outer = self.outer.as_ref();
        let outer = outer.map(|outer| outer.iter().map(axis).collect::<Result<Outer, String>>());
        Ok(BoundColumn {
            reduction,
            scalar,
            output,
            size,
            rows,
            chunks: chunks.max(1),
            bytes: (lines * size * scalar.dtype().bytes()).next_multiple_of(64),
            is_direct,
            unit: outer.transpose()?.map_or(0, |outer| unit(&outer)),
            sum,
            finish: self.finish.filter(|_| !is_direct),
        })
    }
}

/// The sizes of outer axes, and whether each is reduced.
type Outer = SmallVec<[(usize, bool); 4]>;

/// See [`BoundColumn::unit`].
fn unit(outer: &Outer) -> usize {
    let chunk = ir::COLUMN_CHUNK;
    let outer = || outer.iter().filter(|(size, _)| *size != 1);
    let product =
        |of: bool| outer().filter(|(_, r)| *r == of).map(|(size, _)| size).product::<usize>();
    let (reduced, kept) = (product(true), product(false));
    let first = |of: bool| outer().position(|(_, r)| *r == of).unwrap_or(usize::MAX);
    if outer().skip(first(true)).all(|(_, r)| *r) {
        // Kept axes come first: a chunk is a run of rows.
        if kept == 1 || reduced.is_multiple_of(chunk) { chunk } else { reduced.max(1) }
    } else if outer().skip(first(false)).all(|(_, r)| !*r) {
        chunk * kept
    } else {
        0
    }
}

/// Strides of the element and of the reduced row's number, and their counts.
pub(super) fn column_strides(extents: &[Size], kept: &[bool]) -> (Strides, Strides, Size, Size) {
    let rank = extents.len();
    let none: Strides = smallvec![Size::from(0); rank];
    let (mut keep, mut count) = (none.clone(), none);
    let (mut size, mut rows) = (Size::from(1), Size::from(1));
    for axis in (0..rank).rev() {
        // The row is always kept.
        if axis == rank - 1 || kept.get(axis).copied().unwrap_or(false) {
            keep[axis] = size;
            size *= extents[axis];
        } else {
            count[axis] = rows;
            rows *= extents[axis];
        }
    }
    (keep, count, size, rows)
}

fn column_sinks(plan: &Plan) -> impl Iterator<Item = &Sink> {
    plan.stages.iter().flat_map(|s| &s.sinks).filter(|s| matches!(s, Sink::Column { .. }))
}

/// Notes the outer axes of the columns that the plan has sinks for.
pub(super) fn set_outer(plan: &Plan, columns: &mut [Column]) {
    for (column, sink) in columns.iter_mut().zip(column_sinks(plan)) {
        if let Sink::Column { count, .. } = sink {
            let axis = |axis: usize| (plan.extents[axis], count[axis] != 0);
            column.outer = Some((0..plan.row_axis()).map(axis).collect());
        }
    }
}

/// A [`BoundColumn::unit`] that holds for all columns: 1 if there are none.
pub(super) fn common_unit(columns: &[BoundColumn]) -> Option<usize> {
    columns.iter().try_fold(1, |unit, c| match c.unit {
        0 => None,
        u if u % unit == 0 => Some(u),
        u if unit % u == 0 => Some(unit),
        _ => None,
    })
}

/// Appends the plans that make the outputs of the accumulators.
pub(super) fn append_steps(columns: &mut [Column], plans: &mut Vec<Plan>) {
    let mut push = |plan: Plan| {
        plans.push(plan);
        plans.len() - 1
    };
    for column in columns {
        // Of rows whose number is a name, a run may have one chunk or several.
        let several = column.chunks().number().is_none_or(|chunks| chunks > 1);
        column.sum = several.then(|| push(chunk_sum(column)));
        column.finish = (!column.is_direct()).then(|| push(finish(column)));
    }
}

/// `acc[e] = combine(acc[e], chunk[c][e])`, where `acc` is the first chunk of a group.
fn chunk_sum(column: &Column) -> Plan {
    let dtype = column.scalar.dtype();
    let at = |strides: [Size; 2]| {
        padded(&ir::Access { strides: SmallVec::from_slice(&strides), ..ir::Access::default() }, 2)
    };
    let load = |slot, strides| Source::new(slot, dtype, Place::At(at(strides)), column.size, false);
    let [none, one] = [0, 1].map(Size::from);
    let mut body = Body::default();
    let acc = body.push(ScalarOp::Load(0), &[], column.scalar);
    let chunk = body.push(ScalarOp::Load(1), &[], column.scalar);
    let Combine::Value(op) = column.reduction.combines() else {
        unreachable!("kernels with positions down a column are refused when plans are made of them")
    };
    let value = body.push(op, &[acc, chunk], column.scalar);
    let store = Sink::Store {
        slot: 0,
        dtype,
        place: Place::At(at([none, one])),
        value,
        after: smallvec![0],
    };
    let loads = vec![load(0, [none, one]), load(1, [column.size, one])];
    let mut plan = Plan::map(column.size, 2, loads, body, vec![store]);
    plan.extents.insert(0, column.chunks());
    plan
}

/// The output from the accumulators, or from nothing if there were no rows.
fn finish(column: &Column) -> Plan {
    let mut body = Body::default();
    let dtype = column.scalar.dtype();
    let value = if column.rows == 0 {
        body.push(ScalarOp::Const(column.reduction.identity(column.scalar)), &[], column.scalar)
    } else {
        body.push(ScalarOp::Load(0), &[], column.scalar)
    };
    let load = Source::new(0, dtype, Place::in_order(), column.size, true);
    let place = Place::in_order();
    let store = Sink::Store { slot: 1, dtype: column.dtype, place, value, after: SmallVec::new() };
    Plan::map(column.size, 2, vec![load], body, vec![store])
}
