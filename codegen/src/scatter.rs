//! Scatters: the base is copied, sources are added in order, 16-bit results are rounded once at the end.

use crate::error::Result;
use crate::form::{self, is_half, scatter_dtype};
use crate::jit::{Code, Slots, with_scratch, with_shared};
use crate::nest::{cost, over_positions};
use crate::plan::{Plan, Sink, Source};
use crate::team::{Team, part};
use smallvec::SmallVec;
use std::sync::atomic::AtomicU64;
use tracecast_ir::DType;
use tracecast_ir::kernel::{self as ir, Body, Kernel, Scalar, ScalarOp};

/// A scatter, ready to be run by the functions of its plans: copy the base, add, and, for 16-bit floats, round.
#[derive(Debug)]
pub(crate) struct ScatterRun {
    rows: usize,
    row: usize,
    /// True if different positions of a row never meet in the output.
    positions_apart: bool,
    size: usize,
    base: Option<usize>,
    output: usize,
    half: bool,
    cost: usize,
}

/// The plans of a scatter, in the order above.
pub(crate) fn draft(kernel: &Kernel, s: &ir::Scatter) -> Result<(Vec<Plan>, ScatterRun)> {
    let output = &kernel.outputs[0];
    let size = output.ty.numel();
    let (dtype, acc) = (output.ty.dtype, scatter_dtype(kernel));
    let scalar = Scalar::of(dtype)
        .ok_or_else(|| form::unsupported(kernel, &format!("a scatter of {dtype}")))?;
    let main = form::scatter(kernel, s)?;
    let half = is_half(dtype);
    let mut plans = vec![copy(size as i64, scalar, s.base.map(|_| dtype), acc)];
    let run = ScatterRun {
        rows: main.rows() as usize,
        row: main.row() as usize,
        positions_apart: positions_apart(&main),
        size,
        base: s.base,
        output: kernel.inputs.len(),
        half,
        cost: cost(&s.body),
    };
    plans.push(main);
    if half {
        plans.push(copy(size as i64, scalar, Some(acc), dtype));
    }
    Ok((plans, run))
}

/// Slot 1 from slot 0, or from zeros.
fn copy(size: i64, scalar: Scalar, from: Option<DType>, to: DType) -> Plan {
    let mut body = Body::default();
    let value = match from {
        Some(_) => body.push(ScalarOp::Load(0), &[], scalar),
        None => body.push(ScalarOp::Const(0), &[], scalar),
    };
    let dtype = from.unwrap_or(to);
    let load = Source { slot: 0, dtype, place: form::in_order(), elements: size, fixed: true };
    let store =
        Sink::Store { slot: 1, dtype: to, place: form::in_order(), value, after: SmallVec::new() };
    form::flat(size, 2, vec![load], body, vec![store])
}

/// True if the row moves by less than everything else moves at least.
fn positions_apart(plan: &Plan) -> bool {
    let Some(Sink::Add { access, .. }) = plan.stages[0].sinks.first() else { return false };
    let row = plan.row_axis();
    let step = access.strides[row].unsigned_abs();
    let others = access.strides[..row].iter().chain(&access.indirect);
    let common = others.fold(0u64, |g, s| gcd(g, s.unsigned_abs()));
    let reach = step * plan.extents[row].saturating_sub(1).max(0) as u64;
    // Varying indices come from the same places: their strides count among the others.
    step > 0 && (common == 0 || reach < common)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl ScatterRun {
    /// Into how many parts a run is cut.
    pub(crate) fn parts(&self, team: &Team) -> usize {
        let most = if self.positions_apart { self.row.div_ceil(16) } else { 1 };
        team.parts(self.rows * self.row * self.cost, most)
    }

    /// Runs it.
    pub(crate) fn run(&self, code: &[Code], team: &Team, operands: &Slots, status: &AtomicU64) {
        let bytes = if self.half { self.size * DType::F32.bytes() } else { 0 };
        with_shared(bytes, |memory| {
            let output = operands.get(self.output);
            let acc = if self.half { memory } else { output };
            let base = self.base.map_or(output, |b| operands.get(b));
            let pair = |a, b| {
                let mut slots = Slots::default();
                slots.push(a);
                slots.push(b);
                slots
            };
            if self.base.is_none() || base != acc {
                over_positions(&code[0], team, &pair(base, acc), 0..1, self.size, status);
            }
            let mut slots = operands.clone();
            slots.push(acc);
            if self.rows > 0 && self.row > 0 {
                self.add(&code[1], team, &slots, status);
            }
            if self.half {
                over_positions(&code[2], team, &pair(acc, output), 0..1, self.size, status);
            }
        });
    }

    fn add(&self, code: &Code, team: &Team, slots: &Slots, status: &AtomicU64) {
        let parts = self.parts(team);
        team.each(parts, |i| {
            let positions = part(self.row, 16, parts, i);
            with_scratch(|scratch| code.call(slots, 0..self.rows, positions, scratch, status));
        });
    }
}
