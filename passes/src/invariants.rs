//! What has to hold of a program that scales its loss, whatever recorded it. The scaler pass checks
//! it before anything is folded.
//!
//! | rule | what is refused |
//! |---|---|
//! | S1 | a gradient unscaled by the reciprocal of another value than the one that scaled the loss, such as the next scale |
//! | S2 | a gradient that is unscaled twice, or unscaled without a check of that very value; a parameter that moves by a scaled gradient |
//! | S3 | state that moves although a check failed: a parameter, a moment, a count, an average |
//!
//! That the scale stays finite and positive (S4) is a matter of the scaler's settings and of
//! `update_scale`, which refuses to grow to infinity; that the host reads nothing in between (S5)
//! follows from the step being one program. The rules speak of gradients that are unscaled by a
//! `reciprocal_scale` of this program: one whose factor is given from outside is taken on trust.

use crate::pass::error_at;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tracecast_ir::op::{Intrinsic, Lower, Magnitude, View};
use tracecast_ir::{DType, Graph, NodeId, Port, Role, TensorType, TraceError, ValueId};

/// Fails if a program scales, unscales or steps in a way that no loss scaler means.
pub(crate) fn check(graph: &Graph) -> Result<(), TraceError> {
    let scaling = Scaling::of(graph);
    if scaling.unscaled.is_empty() {
        return Ok(());
    }
    scaling.unscaled_by_what_scaled()?;
    scaling.unscaled_once()?;
    scaling.no_step_by_scaled_gradients()?;
    scaling.steps_are_predicated()
}

/// What a factor is the reciprocal of, perhaps times a number: one over the count of ranks whose
/// gradients are added.
fn inverted(graph: &Graph, factor: ValueId) -> Option<ValueId> {
    let mut at = factor.node;
    loop {
        let args = graph.args(at);
        if is(graph, at, &[Intrinsic::ScaleInverse]) {
            return args.first().copied();
        }
        let times_number = graph.node(at).op.facts().magnitude == Some(Magnitude::Product)
            && graph.node(at).attrs.float("scalar").is_some();
        match args[..] {
            [below] if times_number => at = below.node,
            _ => return None,
        }
    }
}

/// A gradient that is unscaled by a reciprocal of the program.
struct Unscaled {
    node: NodeId,
    gradient: ValueId,
    /// What the reciprocal is of.
    scale: ValueId,
}

/// The part of a program that scales.
struct Scaling<'g> {
    graph: &'g Graph,
    unscaled: Vec<Unscaled>,
    /// The place in `unscaled` of each node there.
    places: HashMap<NodeId, usize>,
}

impl<'g> Scaling<'g> {
    fn of(graph: &'g Graph) -> Self {
        let mut unscaled = Vec::new();
        let mut places = HashMap::new();
        for id in graph.nodes().filter(|id| is(graph, *id, &UNSCALES)) {
            let args = graph.args(id);
            if let Some(scale) = inverted(graph, args[1]) {
                places.insert(id, unscaled.len());
                unscaled.push(Unscaled { node: id, gradient: args[0], scale });
            }
        }
        Scaling { graph, unscaled, places }
    }

    /// S1. A gradient that depends on no scale at all comes from elsewhere, and is taken on trust.
    fn unscaled_by_what_scaled(&self) -> Result<(), TraceError> {
        let graph = self.graph;
        let is_scale = |p: &Port| p.role == Role::State && p.ty == TensorType::scalar(DType::F32);
        let states = graph.ports().iter().filter(|port| is_scale(port)).map(|port| port.node);
        let by_any = self.descendants(&states.collect());
        let mut by_scale = BTreeMap::new();
        for of in &self.unscaled {
            let own = by_scale
                .entry(of.scale)
                .or_insert_with(|| self.descendants(&BTreeSet::from([of.scale.node])));
            let from = of.gradient.node.index();
            if own[from] || !by_any[from] {
                continue;
            }
            let name = match graph.port_of(of.scale.node) {
                Some(port) => format!("`{}`", port.name),
                None => format!("the result of `{}`", graph.node(of.scale.node).op.name()),
            };
            return self.refuse(
                of.node,
                format!(
                    "the gradient does not depend on {name}, whose reciprocal unscales it: another value scales the loss"
                ),
            );
        }
        Ok(())
    }

    /// Which nodes depend on one of these, or are one.
    fn descendants(&self, of: &BTreeSet<NodeId>) -> Vec<bool> {
        let mut depends = vec![false; self.graph.len()];
        for id in self.graph.nodes() {
            depends[id.index()] =
                of.contains(&id) || self.graph.args(id).iter().any(|arg| depends[arg.node.index()]);
        }
        depends
    }

    /// S2, of each gradient: sums, views, casts and products with a number keep an unscaled
    /// gradient unscaled.
    fn unscaled_once(&self) -> Result<(), TraceError> {
        let graph = self.graph;
        let mut done = vec![false; graph.len()];
        for id in graph.nodes() {
            let args = graph.args(id);
            if self.places.contains_key(&id) {
                if done[args[0].node.index()] {
                    let why = "the gradient is unscaled already: unscale it once, after all its parts are added";
                    return self.refuse(id, why);
                }
                done[id.index()] = true;
            } else {
                done[id.index()] =
                    stays_unscaled(graph, id) && args.iter().any(|arg| done[arg.node.index()]);
            }
        }
        Ok(())
    }

    /// S2, of the steps: a value depends on the scale until it is unscaled. Multiplying by the
    /// reciprocal or dividing by the scale by hand counts as that.
    fn no_step_by_scaled_gradients(&self) -> Result<(), TraceError> {
        let graph = self.graph;
        let scales: BTreeSet<ValueId> = self.unscaled.iter().map(|of| of.scale).collect();
        let mut scaled = vec![false; graph.len()];
        for id in graph.nodes() {
            let args = graph.args(id);
            let any = args.iter().any(|arg| scaled[arg.node.index()] || scales.contains(arg));
            scaled[id.index()] = any
                && !is(graph, id, &UNSCALES)
                && !is(graph, id, &OF_SCALES)
                && graph.node(id).results.iter().any(|ty| ty.dtype.is_float())
                && !self.unscales_by_hand(id, &scales);
        }
        for (port, next) in graph.updates() {
            let port = &graph.ports()[*port];
            if port.role == Role::Param && scaled[next.node.index()] {
                let message = format!(
                    "`{}` would move by a gradient of the scaled loss: unscale it first, or let the scaler step its optimizer",
                    port.name
                );
                return self.refuse(next.node, message);
            }
        }
        Ok(())
    }

    fn unscales_by_hand(&self, id: NodeId, scales: &BTreeSet<ValueId>) -> bool {
        let graph = self.graph;
        let args = graph.args(id);
        let [_, factor] = args[..] else { return false };
        let mut source = factor;
        while is(graph, source.node, &[Intrinsic::Cast]) || is_view(graph, source.node) {
            source = graph.args(source.node)[0];
        }
        let facts = graph.node(id).op.facts();
        (facts.magnitude == Some(Magnitude::Product)
            && is(graph, source.node, &[Intrinsic::ScaleInverse]))
            || (facts.by_inverse.is_some() && scales.contains(&source))
    }

    /// S3, and that each gradient which moves something is checked.
    fn steps_are_predicated(&self) -> Result<(), TraceError> {
        let graph = self.graph;
        let moved = self.gradients_behind();
        let checked = self.checks_behind();
        for (port, next) in graph.updates() {
            let port = &graph.ports()[*port];
            let Some(gradients) = &moved[next.node.index()] else { continue };
            let flags =
                self.predicate(port, *next).and_then(|at| checked[at.node.index()].as_ref());
            let Some(missing) = gradients.first_not_in(flags) else { continue };
            let gradient = &self.unscaled[missing];
            if !self.is_checked(gradient.gradient) {
                let why = "the gradient is unscaled but never checked: check the same value with `nonfinite`";
                return self.refuse(gradient.node, why);
            }
            if flags.is_none() {
                return self.moves(port, *next);
            }
            let message = format!(
                "`{}` moves by a gradient whose check does not prevent the step: join the flags of all gradients that the step reads",
                port.name
            );
            return self.refuse(next.node, message);
        }
        // A count or a moment that a step of parameters reads has to wait with it.
        let read = self.read_by_steps(&moved);
        for (port, next) in graph.updates() {
            let port = &graph.ports()[*port];
            let condition = self.predicate(port, *next);
            let guarded = condition.is_some_and(|at| checked[at.node.index()].is_some());
            let waits = !port.name.ends_with(RUNS);
            if waits && !guarded && (read[port.node.index()] || read[next.node.index()]) {
                return self.moves(port, *next);
            }
        }
        Ok(())
    }

    /// For each node the unscaled gradients that it depends on.
    fn gradients_behind(&self) -> Vec<Option<Set>> {
        self.sets(&|id| self.places.get(&id).map(|at| Set::of(*at)), &STOPS, 0)
    }

    /// For each node the gradients whose checks it depends on.
    fn checks_behind(&self) -> Vec<Option<Set>> {
        let mut checks: HashMap<ValueId, Set> = HashMap::new();
        for (at, of) in self.unscaled.iter().enumerate() {
            checks.entry(of.gradient).or_default().insert(at);
        }
        let check = |id| {
            let of = is(self.graph, id, &CHECKS).then(|| self.graph.args(id)[0])?;
            checks.get(&of).cloned()
        };
        self.sets(&check, &UNSCALES, 1)
    }

    /// Sets that begin at some nodes and go on to whatever depends on them, but not through these
    /// ops. Of an `unscale_check`, they go on from one `result` only.
    fn sets(
        &self,
        start: &dyn Fn(NodeId) -> Option<Set>,
        stops: &[Intrinsic],
        result: u16,
    ) -> Vec<Option<Set>> {
        let carries = |arg: &ValueId| {
            arg.result == result || !is(self.graph, arg.node, &[Intrinsic::UnscaleCheck])
        };
        let mut sets: Vec<Option<Set>> = Vec::with_capacity(self.graph.len());
        for id in self.graph.nodes() {
            let mut set = start(id);
            if set.is_none() && !is(self.graph, id, stops) {
                for arg in self.graph.args(id).into_iter().filter(carries) {
                    if let Some(of) = &sets[arg.node.index()] {
                        set.get_or_insert_with(Set::default).extend(of);
                    }
                }
            }
            sets.push(set);
        }
        sets
    }

    fn is_checked(&self, gradient: ValueId) -> bool {
        let mut checks = self.graph.nodes().filter(|id| is(self.graph, *id, &CHECKS));
        checks.any(|id| self.graph.args(id)[0] == gradient)
    }

    /// What the new values of parameters are made of, up to the unscaled gradients and to random
    /// numbers.
    fn read_by_steps(&self, moved: &[Option<Set>]) -> Vec<bool> {
        let mut read = vec![false; self.graph.len()];
        let params = self.graph.updates().iter().filter(|(port, next)| {
            self.graph.ports()[*port].role == Role::Param && moved[next.node.index()].is_some()
        });
        let mut open: Vec<NodeId> = params.map(|(_, next)| next.node).collect();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut read[id.index()], true) && !is(self.graph, id, &STOPS) {
                open.extend(self.graph.args(id).into_iter().map(|arg| arg.node));
            }
        }
        read
    }

    /// The condition under which a state keeps its value.
    fn predicate(&self, port: &Port, next: ValueId) -> Option<ValueId> {
        let args = self.graph.args(next.node);
        let keeps = is(self.graph, next.node, &[Intrinsic::Choice])
            && args[1..].iter().any(|arm| arm.node == port.node);
        keeps.then(|| args[0])
    }

    fn moves(&self, port: &Port, next: ValueId) -> Result<(), TraceError> {
        let message = format!(
            "`{}` moves although a gradient is not finite: choose its old value then, as the scaler's step() does",
            port.name
        );
        self.refuse(next.node, message)
    }

    fn refuse(&self, node: NodeId, message: impl Into<String>) -> Result<(), TraceError> {
        Err(error_at(self.graph.node(node), message))
    }
}

const UNSCALES: [Intrinsic; 2] = [Intrinsic::Unscale, Intrinsic::UnscaleCheck];
const CHECKS: [Intrinsic; 2] = [Intrinsic::NonFinite, Intrinsic::UnscaleCheck];
/// What depends on the scale and is no gradient.
const OF_SCALES: [Intrinsic; 3] =
    [Intrinsic::NonFinite, Intrinsic::ScaleInverse, Intrinsic::ScaleUpdate];
/// What the name of a count ends with that counts skipped steps too, because it was asked to.
const RUNS: &str = ".run";
/// What is behind these is not the business of a step.
const STOPS: [Intrinsic; 6] = [
    Intrinsic::Unscale,
    Intrinsic::UnscaleCheck,
    Intrinsic::NonFinite,
    Intrinsic::ScaleUpdate,
    Intrinsic::ScaleInverse,
    Intrinsic::Random,
];

fn is(graph: &Graph, node: NodeId, kinds: &[Intrinsic]) -> bool {
    graph.node(node).op.intrinsic().is_some_and(|kind| kinds.contains(&kind))
}

/// True for sums, casts, views of the whole, changes of sign, and products with a number.
fn stays_unscaled(graph: &Graph, node: NodeId) -> bool {
    let facts = graph.node(node).op.facts();
    let by_number = graph.args(node).len() == 1 && facts.passes_signs;
    let is_kept = is(graph, node, &[Intrinsic::Cast, Intrinsic::Negation]);
    let is_permuted =
        matches!(graph.node(node).op.def().lowering(), Some(Lower::View(View::Permute)));
    by_number
        || is_kept
        || is_permuted
        || facts.magnitude == Some(Magnitude::Sum)
        || is_view(graph, node)
}

/// True for another shape of the same elements.
fn is_view(graph: &Graph, node: NodeId) -> bool {
    let lowering = graph.node(node).op.def().lowering();
    matches!(lowering, Some(Lower::View(View::Expand | View::Reshape)))
}

/// Some of the unscaled gradients, a bit each.
#[derive(Clone, Default)]
struct Set(Vec<u64>);

impl Set {
    fn of(at: usize) -> Self {
        let mut set = Set::default();
        set.insert(at);
        set
    }

    fn insert(&mut self, at: usize) {
        let word = at / 64;
        self.0.resize(self.0.len().max(word + 1), 0);
        self.0[word] |= 1 << (at % 64);
    }

    fn extend(&mut self, other: &Set) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// The first member that is not in the other set.
    fn first_not_in(&self, other: Option<&Set>) -> Option<usize> {
        self.0.iter().enumerate().find_map(|(at, word)| {
            let rest = word & !other.and_then(|other| other.0.get(at)).copied().unwrap_or(0);
            (rest != 0).then(|| at * 64 + rest.trailing_zeros() as usize)
        })
    }
}
