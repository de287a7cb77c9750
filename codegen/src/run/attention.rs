//! Runs attention: threads take units of work, of one head of keys each.

use super::memory::{Place, attend, bytes, doubles_mut, place, with_scratch};
use super::{Invocation, Slots};
use crate::contract::{
    Dropped, Gradients, Problem, QUERIES, Shared, Unit, chosen_for_attention, numbers,
};
use crate::machine::{Cpu, Machine};
use crate::plan::attention::BoundAttention;
use crate::threads::part;
use smallvec::SmallVec;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Extents, Pass, Placed, kept_scale};

/// Units for each thread, where a head can be cut: so that none waits long for another.
const UNITS: usize = 4;

/// Runs it.
pub(super) fn run(attention: &BoundAttention, invocation: &Invocation<'_>) {
    let machine = invocation.machine;
    let problem = problem(attention, &machine.cpu, invocation.operands);
    let units = Units::of(&attention.extents, problem.pass, machine.threads);
    let parts = parts(attention, machine);
    let needed = numbers_of_thread(attention);
    invocation.team.each(parts, |i| {
        with_scratch(|scratch| {
            let memory = doubles_mut(scratch.reserve(needed * size_of::<f64>()), needed);
            // One after the other, since the first ones of a causal head have less to do.
            for unit in (i..units.count()).step_by(parts) {
                attend(&problem, &units.unit(unit), memory);
            }
        });
    });
}

/// The scratch of each thread.
pub(super) fn bytes_of_thread(attention: &BoundAttention) -> usize {
    numbers_of_thread(attention).saturating_mul(size_of::<f64>())
}

/// The same in f64.
fn numbers_of_thread(attention: &BoundAttention) -> usize {
    let dtype = attention.operands[attention.attend.operands[0].input].0;
    numbers(&attention.extents, attention.attend.pass, dtype)
}

/// Into how many parts a run is cut.
pub(super) fn parts(attention: &BoundAttention, machine: &Machine) -> usize {
    let Extents { batch, heads, queries, keys, width, value, .. } = attention.extents;
    // A product is much cheaper than other operations.
    let work = batch * heads * queries * keys * (width + value) / 16;
    let units = Units::of(&attention.extents, attention.attend.pass, machine.threads);
    machine.parts(work, units.count())
}

/// What is chosen, and how threads cut the run.
pub(super) fn chosen(attention: &BoundAttention, machine: &Machine) -> Shared {
    let pass = attention.attend.pass;
    let units = Units::of(&attention.extents, pass, machine.threads).count();
    let chosen = chosen_for_attention();
    (chosen, [("units", units), ("threads", parts(attention, machine)), ("rows", 1)])
}

/// Units of work: heads of keys, each cut along its queries, along its keys, or not at all.
struct Units<'a> {
    extents: &'a Extents<usize>,
    /// Of queries, for means or for gradients of queries, and of keys, for their gradients alone.
    cuts: [usize; 2],
    pass: Pass,
}

impl<'a> Units<'a> {
    fn of(extents: &'a Extents<usize>, pass: Pass, threads: usize) -> Units<'a> {
        let heads = extents.batch * extents.shared;
        let wanted = (UNITS * threads).div_ceil(heads.max(1));
        let cuts = |rows: usize| wanted.min(rows.div_ceil(QUERIES)).max(1);
        let cuts = match pass {
            Pass::Forward => [cuts(extents.queries), 0],
            Pass::Backward if is_worth_twice(heads, threads) => {
                [cuts(extents.queries), cuts(extents.keys)]
            }
            Pass::Backward => [1, 0],
        };
        Units { extents, cuts, pass }
    }

    fn count(&self) -> usize {
        self.extents.batch * self.extents.shared * (self.cuts[0] + self.cuts[1])
    }

    fn unit(&self, number: usize) -> Unit {
        let Extents { shared, queries, keys, .. } = *self.extents;
        let [of_queries, of_keys] = self.cuts;
        let (head, at) = (number / (of_queries + of_keys), number % (of_queries + of_keys));
        let (batch, shared) = (head / shared, head % shared);
        match (self.pass, at.checked_sub(of_queries)) {
            (_, Some(at)) => {
                let (keys, gradients) = (part(keys, QUERIES, of_keys, at), Gradients::OfKeys);
                Unit { batch, shared, queries: 0..queries, keys, gradients }
            }
            (pass, None) => {
                let both = pass == Pass::Backward && of_keys == 0;
                let gradients = if both { Gradients::All } else { Gradients::OfQueries };
                let queries = part(queries, QUERIES, of_queries, at);
                Unit { batch, shared, queries, keys: 0..keys, gradients }
            }
        }
    }
}

/// Whether heads of a backward pass are so few that they are cut along queries and along keys: then
/// weights and their gradients, two products of five, are computed once for each.
fn is_worth_twice(heads: usize, threads: usize) -> bool {
    let (whole, cut) = (5 * threads * heads.div_ceil(threads), 7 * heads);
    cut < whole
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
        Dropped { seeds, stream: drop.stream, p: p as f32, scale: kept_scale(p) }
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
        scale: attend.scale(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_heads_are_cut_and_many_are_not() {
        let extents = |heads: usize| Extents {
            batch: 1,
            heads,
            shared: heads,
            queries: 1000,
            keys: 500,
            width: 8,
            value: 8,
        };
        let count = |heads, pass, threads| Units::of(&extents(heads), pass, threads).count();
        assert_eq!(count(1, Pass::Backward, 1), 1);
        assert_eq!(count(8, Pass::Backward, 2), 8);
        assert_eq!(count(3, Pass::Backward, 2), 3);
        assert!(count(1, Pass::Backward, 2) > 8 && count(5, Pass::Backward, 4) > 10);
        assert!(count(1, Pass::Forward, 4) > 8);
    }

    #[test]
    fn units_make_every_gradient_once() {
        let extents =
            Extents { batch: 2, heads: 2, shared: 1, queries: 300, keys: 130, width: 8, value: 8 };
        let units = Units::of(&extents, Pass::Backward, 8);
        let (mut of_queries, mut of_keys) = ([[0; 300]; 2], [[0; 130]; 2]);
        for unit in (0..units.count()).map(|i| units.unit(i)) {
            let Unit { batch, queries, keys, gradients, .. } = unit;
            if gradients != Gradients::OfKeys {
                assert_eq!(keys, 0..130);
                of_queries[batch][queries.clone()].iter_mut().for_each(|times| *times += 1);
            }
            if gradients != Gradients::OfQueries {
                assert_eq!(queries, 0..300);
                of_keys[batch][keys].iter_mut().for_each(|times| *times += 1);
            }
        }
        assert_eq!((of_queries, of_keys), ([[1; 300]; 2], [[1; 130]; 2]));
    }
}
