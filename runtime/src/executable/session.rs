//! [`Session`]: what a thread keeps from run to run on [`Weights`], so that threads wait for
//! nobody.

use super::arenas::{Arena, Arenas};
use super::binding::Workspace;
use super::{Executable, Given, Kept};
use crate::error::{Error, Result};
use crate::outputs::Outputs;
use crate::store::{Tie, Tied, Weights};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// A thread's workspace for programs that only read [`Weights`]: kernels tied to memory, and that
/// memory. A thread has one, for all programs that it runs and for all versions. What belongs to
/// weights that nobody has any more is given up at once, also by a session that nobody uses; what
/// belongs to such programs, at its next run.
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
    workspace: Arc<Held>,
    given: Given,
    kept: Kept,
}

/// A workspace, from which weights take what is theirs when they go.
struct Held(Mutex<Workspace>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, Workspace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tied for Held {
    fn let_go(&self) {
        match self.0.try_lock() {
            Ok(mut workspace) => workspace.bindings.clear(),
            Err(TryLockError::Poisoned(workspace)) => workspace.into_inner().bindings.clear(),
            // A run on other weights, which puts bindings of its own in the place of these.
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// The most programs that are kept.
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

    /// Gives up what belongs to programs that are gone.
    fn forget(&mut self) {
        self.desks.retain(|desk| desk.program.strong_count() > 0);
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
            workspace: Arc::new(Held(Mutex::new(program.new_workspace()?))),
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

    /// An arena of the program's size, for the programs that share these.
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
    /// Runs one step on weights, which many threads may do at once: none waits for another, and
    /// none has a copy of the weights.
    ///
    /// # Errors
    /// If the program replaces state, which weights are not, or has exchanges with other ranks;
    /// otherwise as [`run`](Executable::run).
    pub fn run_on(
        &self,
        weights: &Weights,
        session: &mut Session,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Outputs> {
        if let Some(at) = self.program.layout.only_read.iter().position(|only_read| !only_read) {
            let port = &self.program.parts.ports[self.program.layout.states[at]];
            let why = "is replaced by the program, and weights are only read: run it on a store";
            return Err(Error::state(&port.name, why));
        }
        self.runs_alone()?;
        let _guard = self.device.enter()?;
        let mut desk = session.desk(self).map_err(|error| self.short_of_memory(error))?;
        session.forget();
        let arena = session.arena(self).map_err(|error| self.short_of_memory(error));
        let done = arena.and_then(|arena| {
            let (done, arena) = self.run_at(&mut desk, arena, weights, inputs);
            session.arenas.extend(arena.map(|arena| (Arc::downgrade(&self.arenas), arena)));
            done
        });
        session.give_back(desk);
        done
    }

    /// A run in an arena, which is given back.
    fn run_at(
        &self,
        desk: &mut Desk,
        arena: Arena,
        weights: &Weights,
        inputs: &[(&str, &Tensor)],
    ) -> (Result<Outputs>, Option<Arena>) {
        let Desk { weights: tied, workspace: held, given, kept, .. } = desk;
        let mut workspace = held.lock();
        workspace.arena = Some(arena);
        let ready = self.inputs.find(&self.program.parts.ports, inputs, given).and_then(|()| {
            if tied.is_to(weights) && workspace.is_tied() {
                return Ok(());
            }
            *tied = Tie::none();
            let done = self.tie_to(weights, &mut workspace);
            // Nothing of another version stays.
            workspace.bindings.truncate(usize::from(done.is_ok()));
            done?;
            let own: Weak<Held> = Arc::downgrade(held);
            *tied = weights.tie(own);
            Ok(())
        });
        let tensor = |port: usize| given[port].map(|at| inputs[at].1);
        let ready = ready.and_then(|()| {
            self.reserve(&mut workspace).map_err(|error| self.short_of_memory(error))
        });
        let done = ready.and_then(|()| self.step(&workspace, kept, &tensor, None));
        (done, workspace.arena.take())
    }

    /// Makes the first binding of a workspace one to these weights.
    fn tie_to(&self, weights: &Weights, workspace: &mut Workspace) -> Result<()> {
        let state = |port: &usize| {
            let port = &self.program.parts.ports[*port];
            weights.memory(&port.name, &port.ty, &self.device)
        };
        let states = self.program.layout.states.iter().map(state).collect::<Result<Vec<_>>>()?;
        self.tie(workspace, &states).map_err(|error| self.short_of_memory(error))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} programs)", self.desks.len())
    }
}
