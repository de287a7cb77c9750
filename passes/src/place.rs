//! `place`: casts where they cost least: values lie in memory as narrow as their uses allow.
//!
//! In the precision `exact` rounding points move only across ops that hand elements on unchanged,
//! so every bit of every result stays.
//!
//! * *Narrowing moves up.* If every use of a value, through movement (`reshape`, `permute`,
//!   `expand`, `slice`, `cat`, `pad`, `gather`) and selection (`relu`, `neg`, `abs`, `where`), ends
//!   in a cast to the same narrower dtype, the value is cast right where it is made, once, and what
//!   lies between works on the narrow one. Rounding to nearest is monotone and odd, which is all
//!   that those selections need. `maximum` and `minimum` are not among them: two numbers of
//!   different sign may round to the two zeros, of which they then take the first.
//! * *Widening moves down*, through the same ops and through `maximum` and `minimum` as well, which
//!   find no new zeros among numbers that are merely widened, and ends in front of the arithmetic
//!   that needs it. `fuse` makes it part of a load, as often as needed.
//! * Where some use takes a value as it is, the value stays. Narrow copies stand beside it where
//!   that costs no bytes in the kernels that `fuse` would make, all uses taken together: a minimum
//!   cut finds the best way (`copies`).
//! * `round_to` becomes a narrowing, which can be stored, and a widening.
//!
//! No program moves more bytes than before in the kernels that `fuse` makes of it: these are
//! forecast for both, and a program that would lose stays as it was. Where every use of a value
//! ends in the same 16 bits, no other way to place the casts moves fewer with one kernel for each
//! op. In the kernels of `fuse`, which become others when casts move, 1 program in 100 could be
//! placed better, with f32 uses beside 1 in 30, and the best ways, among those that widen nothing
//! narrow again, move 0.6 and 1.1 % less (`tests/placement.rs` tries all).
//!
//! What is foretold of the program that it ends with stays with that as a note, so that `fuse` does
//! not group its nodes again.
//!
//! In the precision `optimised` values then stay in f32 between ops of one kernel, see `relax`.
//!
//! Before: `%1 = add %0, %0 : f32[4, 8]; %2 = permute %1 {dims = [1, 0]} : f32[8, 4]; %3 = cast %2
//! {to = bf16}`. After: `%1 = add %0, %0 : f32[4, 8]; %2 = cast %1 {to = bf16}; %3 = permute %2
//! {dims = [1, 0]} : bf16[8, 4]`.

mod copies;
mod cut;
mod demand;
mod excess;
mod placer;
mod points;
mod precision;
mod relax;
#[cfg(test)]
mod tests;

pub use precision::Precision;

use crate::fuse::{Forecast, Foreseen, Settings};
use crate::pass::{Pass, swept};
use crate::simplify::{Shared, rewritten};
use copies::{Takes, copies};
use demand::{Demand, demands};
use placer::Placer;
use points::Moved;
use std::collections::HashSet;
use std::sync::Arc;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::{DType, Graph, NodeId, Promise, Reason, Stage, TraceError, Verified};

/// Moves casts to where the fewest bytes are stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    precision: Precision,
    fusion: Settings,
}

impl Place {
    /// The name of the pass.
    pub const NAME: &'static str = "place";

    /// The pass under that precision.
    pub fn new(precision: Precision) -> Self {
        Place { precision, fusion: Settings::default() }
    }

    /// The same pass for a device whose kernels are fused with these settings.
    #[must_use]
    pub fn for_fusion(mut self, fusion: Settings) -> Self {
        self.fusion = fusion;
        self
    }

    /// Which results it may change.
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

impl Pass for Place {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn promise(&self) -> Promise {
        match self.precision {
            Precision::Exact => Promise::Moves,
            Precision::Optimised => Promise::Drops,
        }
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        // Before `decompose` there are no kernels to speak of.
        if graph.stage() != Stage::Core {
            return rewritten(graph, |graph| placed_twice(graph, None));
        }
        let before = Foreseen::of(graph, self.fusion);
        let placed = rewritten(graph, |graph| placed_twice(graph, Some(&before)))?;
        if is_same(graph, &placed) {
            return match (self.precision, before.made()) {
                (Precision::Exact, Some(forecast)) => Ok(placed.with_note(forecast)),
                (Precision::Exact, None) => Ok(placed),
                (Precision::Optimised, made) => {
                    let forecast = made.unwrap_or_else(|| Forecast::known(graph, &self.fusion));
                    relax::relaxed(placed, forecast, &self.fusion)
                }
            };
        }
        let (placed, now) = settled(placed, &self.fusion)?;
        let (best, forecast) = match now.moved > before.forecast().moved {
            true => (Graph::clone(graph), before.forecast().clone()),
            false => (placed, now),
        };
        match self.precision {
            Precision::Exact => Ok(best.with_note(forecast)),
            Precision::Optimised => relax::relaxed(best, forecast, &self.fusion),
        }
    }
}

/// So often kernels are looked at again.
const ROUNDS: usize = 4;

/// Kernels become others when casts move: the program with copies as they are best for those that
/// it has now, and its kernels.
fn settled(mut graph: Graph, fusion: &Settings) -> Result<(Graph, Arc<Forecast>), TraceError> {
    let mut forecast = Arc::new(Forecast::of(&graph, fusion));
    for _ in 0..ROUNDS {
        let demands = demands(&graph);
        let copies = copies(&graph, &demands, || &forecast);
        if !copies.values().any(|takes| takes.copies) {
            break;
        }
        let next = placed_with(&graph, &demands, &copies)?;
        let now = Arc::new(Forecast::of(&next, fusion));
        if now.moved > forecast.moved || is_same(&graph, &next) {
            break;
        }
        (graph, forecast) = (next, now);
    }
    Ok((graph, forecast))
}

/// True if both programs have the same ops in the same order.
fn is_same(a: &Graph, b: &Graph) -> bool {
    let same = |id: NodeId| {
        let (x, y) = (a.node(id), b.node(id));
        x.op == y.op && x.attrs == y.attrs && a.args(id) == b.args(id)
    };
    a.len() == b.len() && a.nodes().all(same)
}

/// A value may be rounded from f64 to f32 and from there to 16 bits. The narrower rounding follows
/// the wider one to where that goes.
fn placed_twice(graph: &Graph, kernels: Option<&Foreseen<'_>>) -> Result<Graph, TraceError> {
    let once = placed(graph, kernels)?;
    let rounds = |id: NodeId| -> Option<(DType, DType)> {
        let (node, from) = (once.node(id), once.ty(*once.args(id).first()?).dtype);
        node.attrs.dtype("to").filter(|to| to.is_float() && !from.fits_in(*to)).map(|to| (from, to))
    };
    let roundings: HashSet<_> = once.nodes().filter_map(rounds).collect();
    let follows = |(from, to): &(DType, DType)| {
        roundings.iter().any(|(_, wide)| wide == from && to.bytes() < from.bytes())
    };
    if roundings.iter().any(follows) {
        placed(&once, kernels.map(|kernels| kernels.same_of(&once)).as_ref())
    } else {
        Ok(once)
    }
}

/// `kernels`: those that `fuse` would make of the program, if they can be foreseen.
fn placed(graph: &Graph, kernels: Option<&Foreseen<'_>>) -> Result<Graph, TraceError> {
    let demands = demands(graph);
    let copies = kernels.map(|kernels| copies(graph, &demands, || kernels.forecast()));
    placed_with(graph, &demands, &copies.unwrap_or_default())
}

/// The program with casts where `demands` and `copies` have them.
fn placed_with(
    graph: &Graph,
    demands: &[Demand],
    copies: &FxHashMap<NodeId, Takes>,
) -> Result<Graph, TraceError> {
    let moved = Moved::of(graph, demands);
    let mut is_root = vec![false; graph.len()];
    graph.roots().for_each(|v| is_root[v.node.index()] = true);
    let mut shared = Shared::default();
    let next = graph.retrace(|tracer, id, node, args| {
        let wanted = graph.args(id).iter().map(|a| graph.ty(*a).dtype).collect();
        let widened = graph.args(id).iter().map(|a| &moved.widened[a.node.index()]).collect();
        let (demand, own) = (demands[id.index()], &moved.widened[id.index()]);
        let mut placer = Placer {
            tracer,
            shared: &mut shared,
            graph,
            id,
            node,
            wanted,
            widened,
            demand,
            demanded: &moved.demanded[id.index()],
            takes: copies.get(&id),
        };
        let root = is_root[id.index()].then_some(own);
        tracer.because(Reason::Rewrite, || placer.node(args, root))
    })?;
    swept(next)
}
