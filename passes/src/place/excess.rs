//! Which values kernels can hold in f32 where the program rounds them to 16 bits, and for whom that
//! is worth it.
//!
//! A value has an *excess version* if what makes it would otherwise round, or hands on what has
//! one. It stays within one kernel: who reads the value in another takes it as it is, rounded, and
//! so do contractions, reductions, comparisons and roundings of integers wherever they are. So no
//! value that lies in memory becomes wider, and everybody who compares or checks a value sees the
//! same.

use super::demand::Through;
use crate::fuse::Forecast;
use tracecast_ir::op::{Body, Intrinsic, Lower};
use tracecast_ir::{DType, Graph, NodeId, Reason};

/// What a node does to precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Computes in f32 and rounds what comes out, if it is held in 16 bits.
    Arithmetic,
    /// Hands elements on, with a sign changed at most.
    Selection,
    /// A cast to f32.
    Widen,
    /// A cast to 16 bits that may be left away.
    Narrow,
    /// A rounding that the program writes itself.
    Rounding,
    /// The same elements elsewhere.
    View,
    /// A contraction that rounds its sums.
    Contract,
    /// Anything else: it takes its operands as they are.
    Fixed,
}

impl Kind {
    fn of(graph: &Graph, id: NodeId) -> Kind {
        let node = graph.node(id);
        let ([result], args) = (&node.results[..], graph.args(id)) else { return Kind::Fixed };
        let is_mixed = args.iter().any(|a| graph.ty(*a).dtype == DType::F64);
        if !holds(result.dtype) || is_mixed || args.is_empty() {
            return Kind::Fixed;
        }
        let low = result.dtype.is_low();
        match (&node.op.def().body, node.op.intrinsic()) {
            (_, Some(Intrinsic::Cast)) => match (graph.ty(args[0]).dtype, low) {
                (DType::F32, true) if is_written(graph, id) => Kind::Rounding,
                (DType::F32, true) => Kind::Narrow,
                (from, false) if from.is_low() => Kind::Widen,
                _ => Kind::Fixed,
            },
            (_, Some(Intrinsic::RoundTo)) => Kind::Rounding,
            (Body::Core { kernel: Lower::View(_), .. }, _) => Kind::View,
            (Body::Core { kernel: Lower::Contract, .. }, _) if low => Kind::Contract,
            (Body::Core { kernel: Lower::Map(_), .. }, of) if of != Some(Intrinsic::Unscaled) => {
                match Through::of(node) {
                    Some(_) => Kind::Selection,
                    None => Kind::Arithmetic,
                }
            }
            _ => Kind::Fixed,
        }
    }
}

/// True for the floats that f32 holds.
pub(super) fn holds(dtype: DType) -> bool {
    dtype.is_float() && dtype.fits_in(DType::F32)
}

fn is_written(graph: &Graph, id: NodeId) -> bool {
    let points = &graph.node(id).origin.points;
    points.is_empty()
        || points.iter().any(|p| graph.points()[*p as usize].reason == Reason::Written)
}

/// In which kernels a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// In every kernel that needs it, from memory.
    Any,
    /// In this one.
    Kernel(usize),
    /// In every kernel that needs it, from what several kernels have made.
    Several,
}

impl Home {
    fn and(self, other: Home) -> Home {
        match (self, other) {
            (Home::Any, h) | (h, Home::Any) => h,
            (a, b) if a == b => a,
            _ => Home::Several,
        }
    }
}

/// The excess versions of a program's values.
pub(super) struct Excess {
    kinds: Vec<Kind>,
    homes: Vec<Home>,
    inline: Vec<bool>,
    /// True for values that can have one.
    possible: Vec<bool>,
    /// True for values that have one, since somebody takes it.
    wanted: Vec<bool>,
}

impl Excess {
    /// Without those of the values that are `kept` as they are.
    pub(super) fn of(graph: &Graph, forecast: &Forecast, kept: &[bool]) -> Self {
        let mut excess = Excess {
            kinds: vec![Kind::Fixed; graph.len()],
            homes: vec![Home::Any; graph.len()],
            inline: forecast.inline.clone(),
            possible: vec![false; graph.len()],
            wanted: vec![false; graph.len()],
        };
        let live = graph.live();
        for id in graph.nodes().filter(|id| live[id.index()]) {
            let i = id.index();
            let args = graph.args(id);
            excess.homes[i] = match forecast.kernel[i] {
                Some(kernel) => Home::Kernel(kernel),
                None => {
                    args.iter().fold(Home::Any, |home, a| home.and(excess.homes[a.node.index()]))
                }
            };
            excess.kinds[i] = Kind::of(graph, id);
            let low = graph.node(id).results.first().is_some_and(|ty| ty.dtype.is_low());
            let hands_on = || excess.inline[i] && args.iter().any(|a| excess.reaches(a.node, id));
            let possible = match excess.kinds[i] {
                Kind::Arithmetic | Kind::Selection => low || hands_on(),
                Kind::Narrow | Kind::Contract => true,
                Kind::Widen | Kind::View => hands_on(),
                Kind::Rounding => !low && hands_on(),
                Kind::Fixed => false,
            };
            excess.possible[i] = possible && !kept[i] && excess.homes[i] != Home::Several;
        }
        for id in graph.nodes().rev().filter(|id| live[id.index()]) {
            for arg in graph.args(id) {
                if excess.takes(graph, id, arg.node) {
                    excess.wanted[arg.node.index()] = true;
                }
            }
        }
        excess
    }

    /// What a node does to precision.
    pub(super) fn kind(&self, id: NodeId) -> Kind {
        self.kinds[id.index()]
    }

    /// True if every kernel that needs the node computes it again.
    pub(super) fn is_inline(&self, id: NodeId) -> bool {
        self.inline[id.index()]
    }

    /// True if somebody takes the node's excess version.
    pub(super) fn is_wanted(&self, id: NodeId) -> bool {
        self.wanted[id.index()]
    }

    /// True if the node, as it is wanted, is made of the excess version of this operand.
    pub(super) fn takes(&self, graph: &Graph, user: NodeId, operand: NodeId) -> bool {
        let wide = graph.node(user).results.first().is_some_and(|ty| ty.dtype == DType::F32);
        let wanted = self.is_wanted(user);
        let own = !self.is_inline(user);
        let takes = match self.kind(user) {
            Kind::Arithmetic | Kind::Widen | Kind::Narrow | Kind::Rounding => own || wanted,
            // What is rounded already needs no second rounding.
            Kind::Selection => wanted || own && wide,
            Kind::View => !own && wanted,
            Kind::Contract | Kind::Fixed => false,
        };
        takes && self.reaches(operand, user)
    }

    /// True if a kernel that computes `user` can have the excess version of its operand.
    fn reaches(&self, operand: NodeId, user: NodeId) -> bool {
        let (from, to) = (self.homes[operand.index()], self.homes[user.index()]);
        self.possible[operand.index()] && to != Home::Several && (from == Home::Any || from == to)
    }
}
