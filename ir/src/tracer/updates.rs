//! The next values of parameters and other state.

use super::{Tracer, foreign};
use crate::Var;
use crate::graph::Role;

impl Tracer {
    /// Gives a parameter or other state its next value.
    #[track_caller]
    pub fn update(&self, state: Var<'_>, next: Var<'_>) {
        if state.is_poison() || next.is_poison() {
            return;
        }
        match self.try_update(state, next) {
            Ok(()) => self.changed_in_place(state, next),
            Err(message) => {
                self.fail("update", message);
            }
        }
    }

    fn try_update(&self, state: Var<'_>, next: Var<'_>) -> Result<(), String> {
        if !self.owns(state) || !self.owns(next) {
            return Err(foreign());
        }
        let mut inner = self.state.borrow_mut();
        let graph = &mut inner.graph;
        let port = graph.port_index(state.id.node).filter(|p| graph.ports[*p].role != Role::Input);
        let port = port.ok_or("only a parameter or other state can be updated")?;
        let (name, have, want) = (&graph.ports[port].name, graph.ty(next.id), graph.ty(state.id));
        if have != want {
            return Err(format!("`{name}` is {want}, its next value {have}"));
        }
        let name = name.clone();
        if graph.add_update(port, next.id) {
            Ok(())
        } else {
            Err(format!("`{name}` is updated twice"))
        }
    }

    /// Gives a parameter or other state the value that comes after its last one in this program:
    /// the one it was updated to, or else the one it starts the run with. So a part that is
    /// recorded twice moves its state twice.
    ///
    /// ```
    /// use tracecast_ir::ops::prelude::*;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    ///
    /// let t = Tracer::new("counts");
    /// let count = t.state("count", TensorType::scalar(DType::I64));
    /// t.advance(count, |count| count.add(1.0));
    /// t.advance(count, |count| count.add(1.0));
    /// assert_eq!(t.finish().unwrap().updates().len(), 1);
    /// ```
    #[track_caller]
    pub fn advance<'t>(&'t self, state: Var<'t>, next: impl FnOnce(Var<'t>) -> Var<'t>) {
        let last = self.last(state);
        let next = next(last);
        if last.id == state.id {
            return self.update(state, next);
        }
        if next.is_poison() {
            return;
        }
        if next.ty() != state.ty() {
            self.fail("update", format!("the next value of {} is {}", state.ty(), next.ty()));
            return;
        }
        let port = self.state.borrow().graph.port_index(state.id.node);
        if let Some(port) = port {
            self.state.borrow_mut().graph.replace_update(port, next.id);
        }
        self.changed_in_place(state, next);
    }

    /// The value that a parameter or other state has at this place of the program: what it was
    /// updated to, or else what it starts the run with.
    pub fn last<'t>(&'t self, state: Var<'t>) -> Var<'t> {
        if state.is_poison() || !self.owns(state) {
            return state;
        }
        let graph = &self.state.borrow().graph;
        let port = graph.port_index(state.id.node);
        let update = graph.updates().iter().find(|(at, _)| Some(*at) == port);
        update.map_or(state, |(_, id)| Var { tracer: self, id: *id })
    }
}
