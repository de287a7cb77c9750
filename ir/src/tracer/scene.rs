//! Where ops are recorded: the line, the module path, the op that they are a part of, the device of
//! constants, the checkpoint region.

use super::{State, Tracer};
use crate::TensorType;
use crate::graph::{Graph, NodeId, Source};
use crate::op::OpName;
use crate::policy::Region;
use crate::policy::Site;
use std::panic::Location;
use std::sync::Arc;

impl Tracer {
    /// Runs `body` with ops recorded at the caller's line, or at the line already set.
    #[track_caller]
    pub fn at_caller<R>(&self, body: impl FnOnce() -> R) -> R {
        let _restore = self.come_to_caller();
        body()
    }

    /// Runs `body` with every op recorded as coming from `source`.
    pub fn at<R>(&self, source: Source, body: impl FnOnce() -> R) -> R {
        let _restore = self.come_to(source);
        body()
    }

    /// Runs `body` with every op recorded as a part of the op of that name, or of the one it is
    /// itself a part of.
    pub fn part_of<R>(&self, op: OpName, body: impl FnOnce() -> R) -> R {
        let _restore = self.enter_op(op);
        body()
    }

    /// Runs `body`, which is a function of that name with such a first operand, if it has one: an
    /// error names the function, and the op that it records as what cannot be. Inside of another
    /// function, or of an op, errors name that.
    ///
    /// ```
    /// use tracecast_ir::ops::prelude::*;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    ///
    /// let t = Tracer::new("centred");
    /// let x = t.input("x", TensorType::new(DType::F32, [3, 4]));
    /// let centred = t.called("centred", Some(x.ty()), || x - x.mean(7));
    /// assert!(centred.is_poison());
    /// assert_eq!(t.error().unwrap().op, "centred");
    /// ```
    pub fn called<R>(
        &self,
        name: &'static str,
        of: Option<TensorType>,
        body: impl FnOnce() -> R,
    ) -> R {
        let _restore = self.enter_function(name, of);
        body()
    }

    /// Runs `body` inside a module of that name: node names start with the path of modules.
    pub fn scope<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        let outer = self.state.borrow().scope.clone();
        let path = if outer.is_empty() { name.to_owned() } else { format!("{outer}.{name}") };
        self.scope_path(&path, body)
    }

    /// Runs `body` with this whole module path.
    pub fn scope_path<R>(&self, path: &str, body: impl FnOnce() -> R) -> R {
        let _restore = self.enter_scope(Arc::from(path));
        body()
    }

    /// Runs `body`, which records what stands in the place of a node of another graph: with its
    /// line, its module path, its device, and the op that it is a part of.
    pub(crate) fn in_place_of<R>(&self, graph: &Graph, id: NodeId, body: impl FnOnce() -> R) -> R {
        let _restore = self.come_to_place_of(graph, id);
        body()
    }
}

/// What these do before their bodies, in functions of their own: theirs are compiled once for every
/// body.
impl Tracer {
    #[track_caller]
    #[inline(never)]
    pub(crate) fn come_to_caller(&self) -> Restore<'_> {
        let here = self.state.borrow().origin.clone();
        self.come_to(here.unwrap_or(Source::Rust(Location::caller())))
    }

    #[inline(never)]
    fn come_to(&self, source: Source) -> Restore<'_> {
        let before = self.state.borrow_mut().origin.replace(source);
        Restore(self, Some(Former::Origin(before)))
    }

    #[inline(never)]
    fn enter_op(&self, op: OpName) -> Restore<'_> {
        let mut state = self.state.borrow_mut();
        let before = state.part_of;
        state.part_of = before.or(Some(op));
        Restore(self, Some(Former::PartOf(before)))
    }

    #[inline(never)]
    pub(crate) fn enter_function(&self, name: &'static str, of: Option<TensorType>) -> Restore<'_> {
        let mut state = self.state.borrow_mut();
        if state.called.is_some() || state.part_of.is_some() {
            return Restore(self, None);
        }
        state.called = Some(Called { name, of });
        Restore(self, Some(Former::NotCalled))
    }

    #[inline(never)]
    fn enter_scope(&self, path: Arc<str>) -> Restore<'_> {
        let outer = std::mem::replace(&mut self.state.borrow_mut().scope, path);
        Restore(self, Some(Former::Scope(outer)))
    }

    #[inline(never)]
    fn come_to_place_of(&self, graph: &Graph, id: NodeId) -> Restore<'_> {
        let node = graph.node(id);
        let mut state = self.state.borrow_mut();
        let (part_of, home, checkpoint) = (state.part_of, state.home, state.checkpoint);
        let origin = state.origin.replace(node.source.clone());
        let scope = std::mem::replace(&mut state.scope, node.scope.clone());
        state.part_of = part_of.or(node.part_of);
        state.home = node.device.or(home);
        state.checkpoint = node.checkpoint;
        Restore(self, Some(Former::Place(Place { origin, scope, part_of, home, checkpoint })))
    }
}

/// A function that the user called, and the type of its first operand.
pub(super) struct Called {
    name: &'static str,
    of: Option<TensorType>,
}

impl State {
    /// What an error about `op` names, and what it says besides: the user knows the function or the
    /// op that was called, and not its parts.
    pub(super) fn blamed(&self, op: String) -> (String, Option<String>) {
        let (name, of) = match (&self.called, self.part_of) {
            (Some(called), _) => (called.name.to_owned(), called.of.as_ref()),
            (None, Some(whole)) => (whole.to_string(), None),
            (None, None) => return (op, None),
        };
        if name == op {
            return (op, None);
        }
        let of = of.map_or_else(String::new, |ty| format!(" of {ty}"));
        let part = format!("\n  where `{name}`{of} records `{op}`");
        (name, Some(part))
    }
}

/// The place of a node.
pub(crate) struct Place {
    origin: Option<Source>,
    scope: Arc<str>,
    part_of: Option<OpName>,
    home: Option<Site>,
    checkpoint: u32,
}

/// What a body was recorded under before.
pub(crate) enum Former {
    Scope(Arc<str>),
    Origin(Option<Source>),
    PartOf(Option<OpName>),
    NotCalled,
    /// The number of the region, and the one of PyTorch's state.
    Region(u32, Option<Region>),
    Home(Option<Site>),
    Checkpoint(u32),
    Place(Place),
}

/// Puts it back, also when the body panics.
pub(crate) struct Restore<'t>(pub(super) &'t Tracer, pub(super) Option<Former>);

impl Drop for Restore<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        match self.1.take() {
            Some(Former::Scope(scope)) => state.scope = scope,
            Some(Former::Origin(origin)) => state.origin = origin,
            Some(Former::PartOf(part_of)) => state.part_of = part_of,
            Some(Former::NotCalled) => state.called = None,
            Some(Former::Home(home)) => state.home = home,
            Some(Former::Checkpoint(checkpoint)) => state.checkpoint = checkpoint,
            Some(Former::Place(Place { origin, scope, part_of, home, checkpoint })) => {
                (state.origin, state.scope, state.part_of, state.home, state.checkpoint) =
                    (origin, scope, part_of, home, checkpoint);
            }
            Some(Former::Region(region, before)) => {
                state.region = region;
                if let (Some(thread), Some(before)) = (&mut state.thread, before) {
                    thread.swap(before);
                }
            }
            None => {}
        }
    }
}
