//! Names of sizes in a trace: their declaration, what user code asks of them, and the guards that
//! answers leave.

use super::Tracer;
use crate::graph::{Graph, Groups, Role, Source};
use crate::op::{InferCx, Inferred, OpRef};
use crate::size::{Claim, Must, NamedSize, Relation, Size, SizeGuard};
use crate::{Attrs, TensorType, Var, unknown};
use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::panic::Location;

/// The value that a name is traced with where nothing else says one.
const USUAL: i64 = 32;

impl Tracer {
    /// Takes over the names and the size guards of another program, for one that is made of it.
    pub fn take_sizes(&self, graph: &Graph) {
        self.with_graph_mut(|new| new.sizes = graph.sizes().clone());
    }

    /// The size of that name, which is 0 or more. See [`size_in`](Tracer::size_in).
    #[track_caller]
    pub fn size(&self, name: &str) -> Size {
        self.size_in(name, 0..)
    }

    /// The size of that name, which lies within these bounds. A second request for a name gives the
    /// same size, if the bounds agree.
    ///
    /// The type of at least one input has the name alone as a size, and that input gives it a value
    /// with each run. Until an input does, the program is traced as if it were 32, or what of its
    /// bounds is nearest; [`size_at`](Tracer::size_at) says another value.
    ///
    /// ```
    /// use tracecast_ir::ops::reduce::Reductions;
    /// use tracecast_ir::{DType, TensorType, Tracer, sizes};
    ///
    /// let t = Tracer::new("means");
    /// let batch = t.size_in("batch", 1..=64);
    /// let x = t.input("x", TensorType::new(DType::F32, sizes![batch, 784]));
    /// t.output("mean", x.mean(1));
    /// let graph = t.finish().unwrap();
    /// assert!(graph.to_string().contains("size batch = 32 in 1..=64"));
    /// ```
    #[track_caller]
    pub fn size_in(&self, name: &str, bounds: impl RangeBounds<i64>) -> Size {
        let (least, most) = ends(&bounds);
        let known = self.with_graph(|graph| graph.sizes().get(name).cloned());
        let usual = USUAL.min(most.unwrap_or(USUAL)).max(least);
        let hint = known.filter(|k| (k.least, k.most) == (least, most)).map_or(usual, |k| k.hint);
        self.size_at(name, bounds, hint)
    }

    /// The size of that name within these bounds, in a program that is traced with a value of it:
    /// what costs least is decided by it.
    #[track_caller]
    pub fn size_at(&self, name: &str, bounds: impl RangeBounds<i64>, traced: i64) -> Size {
        let (least, most) = ends(&bounds);
        let size = Size::named(name);
        let name = size.name().expect("a name alone");
        let line = self.here().to_string();
        let new = NamedSize { name, least, most, hint: traced };
        let declared = self.with_graph_mut(|graph| graph.sizes.declare_at(new, line));
        match declared {
            Ok(()) => size,
            Err(message) => {
                self.fail("size", message);
                Size::UNKNOWN
            }
        }
    }

    /// Says what a name that is declared is worth in the run that is traced for.
    #[track_caller]
    pub fn trace_at(&self, name: &str, value: i64) {
        let changed = self.with_graph_mut(|graph| graph.sizes.trace_at(name, value));
        if let Err(message) = changed {
            self.fail("size", message);
        }
    }

    /// Whether a claim about sizes holds, where the code of a program goes on differently if it
    /// does not. Unless the answer is the same for all values, it is that for the traced values,
    /// and the program has a guard: for other values it is traced anew.
    ///
    /// `false` for the sizes of a failed op.
    #[track_caller]
    pub fn holds(&self, claim: Claim) -> bool {
        let Claim { left, relation, right } = claim;
        let gap = left - right;
        if gap.is_unknown() {
            unknown::asked();
        }
        if gap.is_unknown() || gap.is_out_of_range() {
            return false;
        }
        if self.proves(claim) {
            return true;
        }
        let opposite = match relation {
            Relation::AtLeast => right.at_least(left + 1),
            Relation::Equal if self.holds_as_traced(left.at_least(right)) => {
                left.at_least(right + 1)
            }
            Relation::Equal => right.at_least(left + 1),
            Relation::Divides => (right - left * (right / left)).at_least(1),
        };
        let holds = self.holds_as_traced(claim);
        if holds || !self.proves(opposite) {
            self.guard("holds", if holds { claim } else { opposite });
        }
        holds
    }

    /// Whether a claim about sizes is known to hold for all values within the bounds for which the
    /// guards hold.
    pub fn proves(&self, claim: Claim) -> bool {
        claim.relation == Relation::Equal && claim.left == claim.right
            || self.with_graph(|graph| graph.sizes().proves(claim))
    }

    fn holds_as_traced(&self, claim: Claim) -> bool {
        self.with_graph(|graph| graph.sizes().holds_for_hints(claim))
    }

    /// The line that records at the moment.
    #[track_caller]
    fn here(&self) -> Source {
        self.state.borrow().origin.clone().unwrap_or(Source::Rust(Location::caller()))
    }

    #[track_caller]
    fn guard(&self, op: impl Display, claim: Claim) {
        let here = self.here();
        let state = &mut *self.state.borrow_mut();
        let (op, _) = state.blamed(op.to_string());
        state.graph.sizes.guard(SizeGuard { claim, op, source: here.to_string() });
    }

    /// The answer of an op's type rule, and the guards that it leaves in the trace of user code.
    #[track_caller]
    #[inline]
    pub(super) fn infer(
        &self,
        op: &OpRef,
        types: &[TensorType],
        groups: &Groups,
        attrs: &Attrs,
    ) -> Result<Inferred, String> {
        let state = self.state.borrow();
        let sizes = &state.graph.sizes;
        let must = if self.explicit { Must::proven(sizes) } else { Must::guarded(sizes) };
        let inferred = (op.def().infer)(&InferCx { types, groups, attrs, must: &must })?;
        let taken = must.taken();
        drop(state);
        for claim in taken {
            self.guard(op.name(), claim);
        }
        Ok(inferred)
    }

    /// Checks the names in a port's type: they are declared, and parameters and state have none.
    pub(super) fn check_names(&self, ty: &TensorType, role: Role) -> Result<(), String> {
        if !ty.shape.has_names() {
            return Ok(());
        }
        if role != Role::Input {
            return Err(format!("{ty} has a size that is no number: only inputs may"));
        }
        let names = ty.shape.iter().flat_map(|size| size.names());
        let undeclared = |name: &&str| self.with_graph(|graph| graph.sizes().get(name).is_none());
        match names.into_iter().find(undeclared) {
            Some(name) => Err(format!("{ty} has a size `{name}` that this trace does not declare")),
            None => Ok(()),
        }
    }

    /// What stands for something made of the sizes of a failed op.
    #[track_caller]
    pub(super) fn pass_on(&self) -> Var<'_> {
        self.fail("size", "is of an op that failed")
    }
}

impl AsRef<Tracer> for Tracer {
    fn as_ref(&self) -> &Tracer {
        self
    }
}

impl Size {
    /// The number that it is, in a program that then holds for this number alone: the guard
    /// `length == 60`. For loops of the host language over positions, and for whatever else needs a
    /// number when it is recorded.
    ///
    /// 1 for the size of a failed op.
    #[track_caller]
    pub fn pin(self, t: &impl AsRef<Tracer>) -> usize {
        let t = t.as_ref();
        if let Some(number) = self.number() {
            return usize::try_from(number).unwrap_or_default();
        }
        let hint = t.with_graph(|graph| graph.sizes().hint(self));
        match hint.and_then(|n| usize::try_from(n).map_err(|_| format!("{self} is {n}"))) {
            Ok(number) => {
                if !t.proves(self.equals(number)) {
                    t.guard("pin", self.equals(number));
                }
                number
            }
            Err(message) => {
                t.fail("pin", message);
                1
            }
        }
    }
}

/// The least and the largest value within bounds.
fn ends(bounds: &impl RangeBounds<i64>) -> (i64, Option<i64>) {
    let least = match bounds.start_bound() {
        Bound::Included(n) => *n,
        Bound::Excluded(n) => n.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let most = match bounds.end_bound() {
        Bound::Included(n) => Some(*n),
        Bound::Excluded(n) => Some(n.saturating_sub(1)),
        Bound::Unbounded => None,
    };
    (least, most)
}
