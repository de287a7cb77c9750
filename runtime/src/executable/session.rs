//! [`Session`]: what a thread keeps from run to run on [`Weights`], so that threads wait for nobody.

use super::arenas::{Arena, Arenas};
use super::workspace::Workspace;
use super::{Executable, Given, Kept};
use crate::error::{Error, Result};
use crate::outputs::Outputs;
use crate::store::Weights;
use crate::tensor::Tensor;
use std::fmt;
use std::sync::{Arc, Weak};

/// A thread's workspace for programs that only read [`Weights`]: kernels tied to memory, and that memory. A thread has one, for all programs that it
/// runs and for all versions, one after another; what belongs to an earlier version is given up at the first run on a later one.
///
/// ```
/// use tracecast_runtime::Session;
/// let session = Session::new();
/// assert_eq!(session.programs(), 0);
/// ```
#[derive(Default)]
pub struct Session {
    /// The version of the last run.
    version: u64,
    /// The one used last is the last.
    desks: Vec<Desk>,
    arenas: Vec<(Arc<Arenas>, Arena)>,
}

/// What is kept for one program.
struct Desk {
    /// The program; gone when that is.
    program: Weak<()>,
    /// The version that the workspace is tied to; 0 before it is.
    version: u64,
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

    /// Goes on to a version: what is tied to another one is given up, but for the program that is to run, which may find again what it shares.
    fn turn_to(&mut self, version: u64, program: &Arc<()>) {
        if self.version == version {
            return;
        }
        self.version = version;
        self.desks.retain(|desk| desk.program.strong_count() > 0);
        for desk in &mut self.desks {
            if !is_of(desk, program) {
                desk.version = 0;
                desk.workspace.bindings.clear();
            }
        }
        self.arenas.retain(|(arenas, _)| Arc::strong_count(arenas) > 1);
    }

    /// What is kept for a program.
    fn desk(&mut self, program: &Executable) -> Result<Desk> {
        if let Some(at) = self.desks.iter().rposition(|desk| is_of(desk, &program.token)) {
            return Ok(self.desks.remove(at));
        }
        Ok(Desk {
            program: Arc::downgrade(&program.token),
            version: 0,
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
        let same = |(arenas, _): &(Arc<Arenas>, Arena)| Arc::ptr_eq(arenas, &program.arenas);
        let own = self.arenas.iter().position(same).map(|at| self.arenas.swap_remove(at).1);
        match own {
            Some(arena) if arena.holds(bytes) => Ok(arena),
            // One that is too small is freed before there is a larger one.
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
    /// If the program replaces state, which weights are not; otherwise as [`run`](Executable::run).
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
        session.turn_to(weights.version(), &self.token);
        let mut desk = session.desk(self).map_err(|error| self.short_of_memory(error))?;
        let arena = session.arena(self).map_err(|error| self.short_of_memory(error));
        let done = arena.and_then(|arena| {
            desk.workspace.arena = Some(arena);
            self.run_at(&mut desk, weights, inputs)
        });
        if let Some(arena) = desk.workspace.arena.take() {
            session.arenas.push((self.arenas.clone(), arena));
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
        let Desk { version, workspace, given, kept, .. } = desk;
        self.inputs.find(&self.program.parts.ports, inputs, given)?;
        if *version != weights.version() || !workspace.is_tied() {
            let state = |port: &usize| {
                let port = &self.program.parts.ports[*port];
                weights.memory(&port.name, &port.ty, &self.device)
            };
            let states =
                self.program.layout.states.iter().map(state).collect::<Result<Vec<_>>>()?;
            *version = 0;
            self.tie(workspace, &states).map_err(|error| self.short_of_memory(error))?;
            // Nothing of another version stays.
            workspace.bindings.truncate(1);
            *version = weights.version();
        }
        let tensor = |port: usize| given[port].map(|at| inputs[at].1);
        self.step(workspace, kept, &tensor, &mut |kernel, _| kernel.run())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} programs, version {})", self.desks.len(), self.version)
    }
}
