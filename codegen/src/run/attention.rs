//! Runs attention: threads take units of work, of one head of keys each. In f64 one thread runs what defines it.

use super::memory::{Place, attend, bytes, bytes_mut, floats_mut, place, with_scratch};
use super::{Invocation, Slots};
use crate::contract::{Cpu, Dropped, Problem, Unit, cut, most_cuts, numbers};
use crate::plan::attention::BoundAttention;
use crate::threads::{Team, part};
use smallvec::SmallVec;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Extents, Pass, Placed, kept_scale};

/// Units for each thread, where queries can be cut: so that none waits long for another.
const UNITS: usize = 4;

/// Runs it.
pub(super) fn run(attention: &BoundAttention, invocation: &Invocation<'_>) {
    if in_f64(attention) {
        return define(attention, invocation.operands);
    }
    let extents = &attention.extents;
    let cpu = Cpu::with(invocation.target.instructions);
    let problem = problem(attention, &cpu, invocation.operands);
    let pass = attention.attend.pass;
    let (heads, cuts) = (extents.batch * extents.shared, cuts(attention, invocation.team));
    let parts = parts(attention, invocation.team);
    let needed = numbers(extents, pass);
    invocation.team.each(parts, |i| {
        with_scratch(|scratch| {
            let memory = floats_mut(scratch.reserve(needed * size_of::<f32>()), needed);
            for unit in part(heads * cuts, 1, parts, i) {
                let (head, at) = (unit / cuts, unit % cuts);
                let queries = cut(extents, cuts, at);
                let (batch, shared) = (head / extents.shared, head % extents.shared);
                attend(&problem, &Unit { batch, shared, queries }, memory);
            }
        });
    });
}

/// The scratch of each thread.
pub(super) fn bytes_of_thread(attention: &BoundAttention) -> usize {
    if in_f64(attention) {
        return 0;
    }
    numbers(&attention.extents, attention.attend.pass).saturating_mul(size_of::<f32>())
}

/// Into how many parts a run is cut.
pub(super) fn parts(attention: &BoundAttention, team: &Team) -> usize {
    let Extents { batch, heads, shared, queries, keys, width, value } = attention.extents;
    if in_f64(attention) {
        return 1;
    }
    // A product is much cheaper than other operations.
    let work = batch * heads * queries * keys * (width + value) / 16;
    team.parts(work, batch * shared * cuts(attention, team))
}

/// Into how many units the queries of a head of keys are cut.
fn cuts(attention: &BoundAttention, team: &Team) -> usize {
    let extents = &attention.extents;
    let wanted = (UNITS * team.threads()).div_ceil((extents.batch * extents.shared).max(1));
    wanted.min(most_cuts(extents, attention.attend.pass)).max(1)
}

fn in_f64(attention: &BoundAttention) -> bool {
    attention.operands[attention.attend.operands[0].input].0 == DType::F64
}

/// Inputs as bytes.
fn inputs<'a>(attention: &BoundAttention, operands: &'a Slots) -> SmallVec<[(&'a [u8], DType); 9]> {
    let count = attention.operands.len() - results(attention.attend.pass);
    let all = attention.operands.iter().take(count).enumerate();
    all.map(|(i, (dtype, n))| (bytes(operands.get(i), 0, n * dtype.bytes()), *dtype)).collect()
}

/// How many results there are.
fn results(pass: Pass) -> usize {
    match pass {
        Pass::Forward => 2,
        Pass::Backward => 3,
    }
}

/// Runs what defines it.
fn define(attention: &BoundAttention, operands: &Slots) {
    let inputs = inputs(attention, operands);
    let all = attention.operands.iter().enumerate().skip(inputs.len());
    let mut outputs: SmallVec<[(&mut [u8], DType); 3]> = all
        .map(|(i, (dtype, n))| (bytes_mut(operands.get(i), 0, n * dtype.bytes()), *dtype))
        .collect();
    let done = attention.attend.run(&inputs, &mut outputs);
    done.expect("operands have been checked against the kernel");
}

fn problem<'a>(attention: &BoundAttention, cpu: &'a Cpu, operands: &Slots) -> Problem<'a> {
    let BoundAttention { attend, extents, operands: types } = attention;
    let of = |placed: &Placed<i64>| {
        let strides = placed.strides.map(|stride| stride as isize);
        place(operands.get(placed.input), types[placed.input].0, placed.offset as isize, strides)
    };
    let seeds = attend.seeds(&inputs(attention, operands));
    let seeds = seeds.expect("operands have been checked against the kernel");
    let drop = attend.drop.as_ref().zip(seeds).map(|(drop, seeds)| {
        let p = f64::from_bits(drop.p);
        Dropped { seeds, stream: drop.stream, p: p as f32, scale: kept_scale(p) as f32 }
    });
    let given = attend.given.as_ref().map(|[dy, lse, less]| {
        let dy = of(dy);
        let [batch, query, head, value] = dy.strides;
        [Place { strides: [batch, head, query, value], ..dy }, of(lse), of(less)]
    });
    let first = types.len() - results(attend.pass);
    let Extents { heads, shared, queries, keys, width, value, .. } = *extents;
    // Over batch, heads, positions and numbers; positions lie before heads.
    let turned = |positions: usize, heads: usize, width: usize| {
        [positions * heads * width, width, heads * width, 1].map(|stride| stride as isize)
    };
    let lse = [heads * queries, queries, 1, 1].map(|stride| stride as isize);
    let strides = match attend.pass {
        Pass::Forward => [turned(queries, heads, value), lse, lse],
        Pass::Backward => {
            let of_shared = |width| turned(keys, shared, width);
            [turned(queries, heads, width), of_shared(width), of_shared(value)]
        }
    };
    let result = |i: usize| {
        let at = first + i.min(results(attend.pass) - 1);
        place(operands.get(at), types[at].0, 0, strides[i])
    };
    Problem {
        cpu,
        extents: *extents,
        pass: attend.pass,
        operands: attend.operands.each_ref().map(of),
        mask: attend.mask.as_ref().map(of),
        drop,
        given,
        results: [0, 1, 2].map(result),
        causal: attend.causal,
        scale: attend.scale() as f32,
    }
}
