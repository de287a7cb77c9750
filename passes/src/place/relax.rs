//! The `optimised` precision: between ops of one kernel values stay in f32.
//!
//! Each 16-bit op becomes the f32 op that it is inside, with the roundings that it made as casts
//! behind it; whoever is in the same kernel reads what lies before the cast. See [`Excess`] for who
//! takes what.
//!
//! What `fuse` would make of a program tells its kernels, and what it would make of the new program
//! tells whether these are still the same: where a value would now lie in memory in f32, it is
//! rounded after all, and if more bytes were moved, everything is.
//!
//! Before: `%0 = mul %x, %x : bf16[8]; %1 = exp %0 : bf16[8]`. After: `%0 = cast %x {to = f32}; %1
//! = mul %0, %0 : f32[8]; %2 = exp %1 : f32[8]; %3 = cast %2 {to = bf16} : bf16[8]`.

use super::excess::{Excess, Kind, holds};
use super::points::Points;
use crate::fuse::{Forecast, Settings};
use crate::simplify::{Shared, simply};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_ir::ops::cast;
use tracecast_ir::{
    Args, Attrs, DType, Graph, Node, NodeId, OpRef, Reason, Results, TraceError, Tracer, ValueId,
    Var,
};

/// So often values that would lie in memory in f32 are rounded after all, before everything is.
const ROUNDS: usize = 4;

/// The program without the roundings between ops of one kernel; `forecast` are its kernels. The
/// forecast for the new one is left with it.
pub(super) fn relaxed(
    graph: Graph,
    forecast: Arc<Forecast>,
    fusion: &Settings,
) -> Result<Graph, TraceError> {
    let mut kept = vec![false; graph.len()];
    for _ in 0..ROUNDS {
        let excess = Excess::of(&graph, &forecast, &kept);
        let (next, made) = recorded(&graph, &excess)?;
        let now = Arc::new(Forecast::of(&next, fusion));
        let stored = made.iter().filter(|(_, new)| now.is_stored(*new));
        let stored: Vec<NodeId> = stored.map(|(old, _)| *old).collect();
        if stored.is_empty() {
            return Ok(match now.moved > forecast.moved {
                true => graph.with_note(forecast),
                false => next.with_note(now),
            });
        }
        stored.iter().for_each(|old| kept[old.index()] = true);
    }
    Ok(graph.with_note(forecast))
}

/// The program with excess versions, and for each of the values that have one of their own where it
/// is.
fn recorded(graph: &Graph, excess: &Excess) -> Result<(Graph, Vec<(NodeId, NodeId)>), TraceError> {
    let tracer = Tracer::explicit(graph.name());
    let mut relaxer = Relaxer {
        graph,
        excess,
        shared: Shared::default(),
        versions: HashMap::new(),
        computed: Vec::new(),
    };
    graph.retrace_into(&tracer, |t, id, node, args| {
        t.because(Reason::Rewrite, || relaxer.node(t, id, node, args))
    })?;
    let computed = relaxer.computed;
    let with_dead = tracer.finish()?;
    let tracer = Tracer::explicit(graph.name());
    let places = with_dead.retrace_into(&tracer, |t, id, _, args| t.carry(&with_dead, id, args))?;
    let place = |(old, at): (NodeId, ValueId)| {
        Some((old, places[at.node.index()].get(usize::from(at.result))?.node))
    };
    Ok((tracer.finish()?, computed.into_iter().filter_map(place).collect()))
}

/// The excess version of a value, and what rounding it stands for.
struct Version {
    value: ValueId,
    points: Points,
}

struct Relaxer<'a> {
    graph: &'a Graph,
    excess: &'a Excess,
    shared: Shared,
    versions: HashMap<NodeId, Version>,
    /// The versions that are results of ops of their own.
    computed: Vec<(NodeId, ValueId)>,
}

impl Relaxer<'_> {
    /// Records what stands in the place of a node, and its excess version beside it.
    fn node<'t>(&mut self, t: &'t Tracer, id: NodeId, node: &Node, args: Args<'t>) -> Results<'t> {
        let (kind, wanted) = (self.excess.kind(id), self.excess.is_wanted(id));
        let takes = self.graph.args(id).iter().any(|a| self.excess.takes(self.graph, id, a.node));
        let taken = self.taken(id);
        if kind == Kind::Fixed || !wanted && !takes {
            return self.record(t, node.op.clone(), args, node.attrs.clone());
        }
        let wide =
            t.because(Reason::Inside(node.op.name()), || self.wide(t, kind, id, node, &args));
        let points = match kind {
            Kind::Arithmetic | Kind::Contract | Kind::Rounding | Kind::Fixed => Points::new(),
            Kind::Narrow => node.origin.points.clone(),
            Kind::Selection | Kind::Widen | Kind::View => taken,
        };
        // Recorded even if nobody needs it: what reads the excess version may have to round in its
        // place.
        let rounded = || self.cast(t, wide, node.results[0].dtype);
        let rounded =
            t.because(Reason::Inside(node.op.name()), || t.standing_for(&points, rounded));
        let exact = if self.excess.is_inline(id) {
            self.record(t, node.op.clone(), args, node.attrs.clone())[0]
        } else {
            rounded
        };
        if wanted {
            let points = if points.is_empty() { points_of(t, rounded) } else { points };
            self.versions.insert(id, Version { value: wide.id(), points });
            if !matches!(kind, Kind::Narrow | Kind::Widen) {
                self.computed.push((id, wide.id()));
            }
        }
        SmallVec::from_elem(exact, 1)
    }

    /// What the roundings stand for that the node's operands have not gone through; nothing if it
    /// takes them as they are.
    fn taken(&self, id: NodeId) -> Points {
        let mut points = Points::new();
        let args = self.graph.args(id).into_iter();
        let taken = args.filter(|arg| self.excess.takes(self.graph, id, arg.node));
        for version in taken.filter_map(|arg| self.versions.get(&arg.node)) {
            points.extend_from_slice(&version.points);
        }
        points.sort_unstable();
        points.dedup();
        points
    }

    /// The node in f32, before it rounds.
    fn wide<'t>(
        &mut self,
        t: &'t Tracer,
        kind: Kind,
        id: NodeId,
        node: &Node,
        args: &Args<'t>,
    ) -> Var<'t> {
        if kind == Kind::Contract {
            let attrs = node.attrs.clone().with("dtype", DType::F32);
            return self.record(t, node.op.clone(), args.clone(), attrs)[0];
        }
        let mut vars: SmallVec<[Var<'t>; 4]> = SmallVec::new();
        for (var, arg) in args.vars.iter().zip(self.graph.args(id)) {
            let takes = self.excess.takes(self.graph, id, arg.node);
            vars.push(match self.versions.get(&arg.node).filter(|_| takes) {
                Some(version) => t.var(version.value),
                None if holds(var.dtype()) => self.cast(t, *var, DType::F32),
                None => *var,
            });
        }
        match kind {
            Kind::Narrow | Kind::Widen => vars[0],
            _ => {
                let args = Args { vars, groups: args.groups.clone() };
                self.record(t, node.op.clone(), args, node.attrs.clone())[0]
            }
        }
    }

    fn cast<'t>(&mut self, t: &'t Tracer, x: Var<'t>, to: DType) -> Var<'t> {
        if x.dtype() == to {
            return x;
        }
        self.record(t, (&cast::CAST).into(), Args::of(&[x]), Attrs::new().with("to", to))[0]
    }

    fn record<'t>(
        &mut self,
        t: &'t Tracer,
        op: OpRef,
        args: Args<'t>,
        attrs: Attrs,
    ) -> Results<'t> {
        simply(t, &mut self.shared, op, args, attrs)
    }
}

/// What a cast that has been recorded stands for.
fn points_of(t: &Tracer, cast: Var<'_>) -> Points {
    if cast.is_poison() {
        return Points::new();
    }
    t.with_graph(|g| g.node(cast.id().node).origin.points.clone())
}
