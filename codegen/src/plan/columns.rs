//! Column reductions: their accumulators, one line for each chunk of rows, and the plans of the functions that add up the chunks and
//! write the output. `run::columns` gives them memory.

use super::from_kernel::padded;
use super::{Access, Place, Plan, Sink, Source, Strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::DType;
use tracecast_ir::kernel::{self as ir, Body, Combine, Reduction, Scalar, ScalarOp};

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
    pub(crate) size: i64,
    /// Rows that go into one element.
    pub(crate) rows: i64,
    /// Rows of the kernel, from one multiple of this to another, share no accumulator with other rows; 0 if there is no such number.
    pub(crate) unit: i64,
    /// The function that adds up the chunks.
    pub(crate) sum: Option<usize>,
    /// The function that makes the output of the accumulators.
    pub(crate) finish: Option<usize>,
}

impl Column {
    /// Chunks of rows.
    pub(crate) fn chunks(&self) -> i64 {
        (self.rows + ir::COLUMN_CHUNK as i64 - 1) / ir::COLUMN_CHUNK as i64
    }

    /// The bytes of the accumulators, in whole cache lines.
    pub(crate) fn bytes(&self) -> usize {
        let chunks = if self.is_direct() { 0 } else { self.chunks() };
        ((chunks * self.size) as usize * self.scalar.dtype().bytes()).next_multiple_of(64)
    }

    /// True if the accumulators are the output itself.
    pub(crate) fn is_direct(&self) -> bool {
        self.chunks() == 1
            && Scalar::of(self.dtype) == Some(self.scalar)
            && !self.dtype.is_low()
            && self.dtype != DType::U8
    }
}

/// Strides of the element and of the reduced row's number, and their counts.
pub(super) fn column_strides(extents: &[i64], kept: &[bool]) -> (Strides, Strides, i64, i64) {
    let rank = extents.len();
    let (mut keep, mut count): (Strides, Strides) = (smallvec![0; rank], smallvec![0; rank]);
    let (mut size, mut rows) = (1, 1);
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

/// Sets the units of the columns that the plan has sinks for.
pub(super) fn set_units(plan: &Plan, columns: &mut [Column]) {
    for (column, sink) in columns.iter_mut().zip(column_sinks(plan)) {
        column.unit = unit(plan, sink);
    }
}

/// A [`Column::unit`] that holds for all columns: 1 if there are none.
pub(super) fn common_unit(columns: &[Column]) -> Option<i64> {
    columns.iter().try_fold(1i64, |unit, c| match c.unit {
        0 => None,
        u if u % unit == 0 => Some(u),
        u if unit % u == 0 => Some(unit),
        _ => None,
    })
}

/// See [`Column::unit`].
fn unit(plan: &Plan, sink: &Sink) -> i64 {
    let Sink::Column { count, .. } = sink else { return 0 };
    let chunk = ir::COLUMN_CHUNK as i64;
    let outer: Vec<(i64, bool)> = (0..plan.row_axis())
        .filter(|a| plan.extents[*a] != 1)
        .map(|a| (plan.extents[a], count[a] != 0))
        .collect();
    let reduced = outer.iter().filter(|(_, r)| *r).map(|(e, _)| e).product::<i64>();
    let kept = outer.iter().filter(|(_, r)| !*r).map(|(e, _)| e).product::<i64>();
    let first_reduced = outer.iter().position(|(_, r)| *r).unwrap_or(outer.len());
    let first_kept = outer.iter().position(|(_, r)| !*r).unwrap_or(outer.len());
    if outer[first_reduced..].iter().all(|(_, r)| *r) {
        // Kept axes come first: a chunk is a run of rows.
        if kept == 1 || reduced % chunk == 0 { chunk } else { reduced.max(1) }
    } else if outer[first_kept..].iter().all(|(_, r)| !*r) {
        chunk * kept
    } else {
        0
    }
}

/// Appends the plans that make the outputs of the accumulators.
pub(super) fn append_steps(columns: &mut [Column], plans: &mut Vec<Plan>) {
    let mut push = |plan: Plan| {
        plans.push(plan);
        plans.len() - 1
    };
    for column in columns {
        column.sum = (column.chunks() > 1).then(|| push(chunk_sum(column)));
        column.finish = (!column.is_direct()).then(|| push(finish(column)));
    }
}

/// `acc[e] = combine(acc[e], chunk[c][e])` for all chunks but the first, which is the accumulator.
fn chunk_sum(column: &Column) -> Plan {
    let dtype = column.scalar.dtype();
    let at = |strides: [i64; 2]| {
        padded(&Access { strides: SmallVec::from_slice(&strides), ..Access::default() }, 2)
    };
    let load = |strides| Source {
        slot: 0,
        dtype,
        place: Place::At(at(strides)),
        elements: column.size,
        read_only: false,
    };
    let mut body = Body::default();
    let acc = body.push(ScalarOp::Load(0), &[], column.scalar);
    let chunk = body.push(ScalarOp::Load(1), &[], column.scalar);
    let Combine::Value(op) = column.reduction.combines() else {
        unreachable!("kernels with positions down a column are refused when plans are made of them")
    };
    let value = body.push(op, &[acc, chunk], column.scalar);
    let store =
        Sink::Store { slot: 0, dtype, place: Place::At(at([0, 1])), value, after: smallvec![0] };
    let loads = vec![load([0, 1]), load([column.size, 1])];
    let mut plan = Plan::map(column.size, 1, loads, body, vec![store]);
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
    let load =
        Source { slot: 0, dtype, place: Place::in_order(), elements: column.size, read_only: true };
    let place = Place::in_order();
    let store = Sink::Store { slot: 1, dtype: column.dtype, place, value, after: SmallVec::new() };
    Plan::map(column.size, 2, vec![load], body, vec![store])
}
