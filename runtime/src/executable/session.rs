//! [`Session`]: what a thread keeps from run to run on [`Weights`], so that threads wait for nobody.

use super::arenas::{Arena, Arenas};
use super::workspace::Workspace;
use super::{Executable, Given, Kept};
use crate::error::{Error, Result};
use crate::outputs::Outputs;
use crate::store::{Tie, Weights};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::{Arc, Weak};

/// A thread's workspace for programs that only read [`Weights`]: kernels tied to memory, and that memory. A thread has one, for all programs that it
/// runs and for all versions; what belongs to weights or programs that nobody has any more is given up at its next run.
///
/// ```
/// use tracecast_runtime::Session;
/// let session = Session::new();
/// assert_eq!(session.programs(), 0);
/// ```
#[derive(Default)]
pub struct Session {
    /// The one used last is the last.
    desks: Vec<Desk>,
    arenas: Vec<(Weak<Arenas>, Arena)>,
}

/// What is kept for one program.
struct Desk {
    /// The program; gone when that is.
    program: Weak<()>,
    /// What the workspace is tied to.
    weights: Tie,
    workspace: Workspace,
    given: Given,
    kept: Kept,
}

/// So many programs are kept.
const DESKS: usize = 64;

impl Session {
    /// One without anything.
    pub fn new() -> Self {
        Session::default()
    }

    /// For how many programs it keeps something.
    pub fn programs(&self) -> usize {
        self.desks.len()
    }

    /// Gives up what belongs to programs that are gone, and what is tied to weights that are.
    fn forget(&mut self) {
        self.desks.retain(|desk| desk.program.strong_count() > 0);
        for desk in self.desks.iter_mut().filter(|desk| desk.weights.is_loose()) {
            desk.workspace.bindings.clear();
        }
        self.arenas.retain(|(arenas, _)| arenas.strong_count() > 0);
    }

    /// What is kept for a program.
    fn desk(&mut self, program: &Executable) -> Result<Desk> {
        if let Some(at) = self.desks.iter().rposition(|desk| is_of(desk, &program.token)) {
            return Ok(self.desks.remove(at));
        }
        Ok(Desk {
            program: Arc::downgrade(&program.token),
            weights: Tie::none(),
            workspace: program.new_workspace()?,
            given: Given::new(),
            kept: Kept::default(),
        })
    }

    fn give_back(&mut self, desk: Desk) {
        if self.desks.len() == DESKS {
            self.desks.remove(0);
        }
        self.desks.push(desk);
    }

    /// An arena of so many bytes for the programs that share these.
    fn arena(&mut self, program: &Executable) -> Result<Arena> {
        let bytes = program.program.layout.arena;
        let shared = Arc::as_ptr(&program.arenas);
        let own = self.arenas.iter().position(|(arenas, _)| std::ptr::eq(arenas.as_ptr(), shared));
        let own = own.map(|at| self.arenas.swap_remove(at).1);
        match own {
            Some(arena) if arena.holds(bytes) => Ok(arena),
            _ => program.arenas.take(&*program.device, bytes, &|_| false),
        }
    }
}

fn is_of(desk: &Desk, program: &Arc<()>) -> bool {
    std::ptr::eq(desk.program.as_ptr(), Arc::as_ptr(program))
}

impl Executable {
    /// Runs one step on weights, which many threads may do at once: none waits for another, and none has a copy of the weights.
    ///
    /// # Errors
    /// If the program replaces state, which weights are not, or has exchanges with other ranks; otherwise as [`run`](Executable::run).
    pub fn run_on(
        &self,
        weights: &Weights,
        session: &mut Session,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Outputs> {
        if let Some(at) = self.program.layout.lasting.iter().position(|lasting| !lasting) {
            let port = &self.program.parts.ports[self.program.layout.states[at]];
            let why = "is replaced by the program, and weights are only read: run it on a store";
            return Err(Error::state(&port.name, why));
        }
        self.runs_alone()?;
        // Taken out first: what it was tied to may have packed copies that these weights share.
        let mut desk = session.desk(self).map_err(|error| self.short_of_memory(error))?;
        session.forget();
        let arena = session.arena(self).map_err(|error| self.short_of_memory(error));
        let done = arena.and_then(|arena| {
            desk.workspace.arena = Some(arena);
            self.run_at(&mut desk, weights, inputs)
        });
        if let Some(arena) = desk.workspace.arena.take() {
            session.arenas.push((Arc::downgrade(&self.arenas), arena));
        }
        session.give_back(desk);
        done
    }

    fn run_at(
        &self,
        desk: &mut Desk,
        weights: &Weights,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Outputs> {
        let Desk { weights: tied, workspace, given, kept, .. } = desk;
        self.inputs.find(&self.program.parts.ports, inputs, given)?;
        if !tied.is_to(weights) || !workspace.is_tied() {
            let state = |port: &usize| {
                let port = &self.program.parts.ports[*port];
                weights.memory(&port.name, &port.ty, &self.device)
            };
            let states =
                self.program.layout.states.iter().map(state).collect::<Result<Vec<_>>>()?;
            *tied = Tie::none();
            self.tie(workspace, &states).map_err(|error| self.short_of_memory(error))?;
            // Nothing of another version stays.
            workspace.bindings.truncate(1);
            *tied = weights.tie();
        }
        let tensor = |port: usize| given[port].map(|at| inputs[at].1);
        self.step(workspace, kept, &tensor, &mut |kernel, _| kernel.run())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} programs)", self.desks.len())
    }
}
