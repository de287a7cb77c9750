//! How an executable makes and binds the [`Workspace`] of a run.

use super::binding::{Binding, Workspace};
use super::command::Command;
use super::exchange::{Begin, Finish, Tied};
use super::{Executable, Pool};
use crate::buckets::Work;
use crate::collective::Places;
use crate::device::{Arg, SharedQueue, alloc};
use crate::error::{Error, Result};
use crate::layout::{Operand, Place};
use crate::loan::HostLoan;
use crate::memory::{Memory, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Of this thread: no two have the same.
    static NUMBER: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// Bindings kept per workspace: where fresh memory replaces state, two sets of memories take turns.
const BINDINGS: usize = 2;

impl Executable {
    /// The memory of a place, and where in it.
    pub(super) fn locate<'a>(
        &'a self,
        place: Place,
        workspace: &'a Workspace,
        binding: &'a Binding,
    ) -> (&'a Memory, usize) {
        match place {
            Place::Arena(at) => (workspace.arena(), at),
            Place::Lent(i) => (&workspace.loans[i], 0),
            Place::State(i) => (&binding.states[i], 0),
            Place::Data(i) => (&self.data[i], 0),
            Place::Fresh(i) => (&binding.fresh[i], 0),
        }
    }

    /// A workspace nobody else uses, the first of its bindings tied to these states, and with this
    /// memory to replace them if it is not to have its own; one that is tied to them already if
    /// there is one.
    pub(super) fn workspace(
        &self,
        states: &[Memory],
        fresh: Option<Vec<Memory>>,
    ) -> Result<Workspace> {
        let tied = |pool: &Pool, arena: &Memory| {
            let is_for = |w: &Workspace| {
                let fresh = fresh.as_ref().unwrap_or(&w.fresh);
                w.bindings.iter().any(|b| b.is_for(arena, states, fresh))
            };
            pool.workspaces.iter().position(is_for)
        };
        let bytes = self.program.layout.arena;
        let preferred = |arena: &Memory| tied(&self.pool(), arena).is_some();
        let arena = self.arenas.take(&*self.device, bytes, &preferred)?;
        let free = {
            let mut pool = self.pool();
            match tied(&pool, &arena.memory) {
                Some(at) => Some(pool.workspaces.swap_remove(at)),
                None => pool.workspaces.pop(),
            }
        };
        let mut workspace = match free {
            Some(workspace) => workspace,
            None => self.new_workspace()?,
        };
        workspace.arena = Some(arena);
        if let Some(fresh) = fresh {
            workspace.fresh = fresh;
        }
        self.tie(&mut workspace, states)?;
        Ok(workspace)
    }

    /// Makes the first binding of a workspace, whose arena is there, one to these states.
    pub(super) fn tie(&self, workspace: &mut Workspace, states: &[Memory]) -> Result<()> {
        let (memory, fresh) = (workspace.arena(), &workspace.fresh);
        let known = workspace.bindings.iter().position(|b| b.is_for(memory, states, fresh));
        match known {
            Some(at) => workspace.bindings.swap(0, at),
            None => {
                let binding = self.bind(workspace, states)?;
                // One to another arena would keep that alive.
                workspace.bindings.retain(|other| other.arena.same(&binding.arena));
                // With steps in flight as many sets take turns, and one more.
                let most = self.device.queue().map_or(1, SharedQueue::most_in_flight) + 1;
                workspace.bindings.truncate(most.max(BINDINGS) - 1);
                workspace.bindings.insert(0, binding);
            }
        }
        Ok(())
    }

    /// Has the kernels of the first binding reserve what they need on this thread: no step fails
    /// half way for want of it.
    pub(super) fn reserve(&self, workspace: &mut Workspace) -> Result<()> {
        let here = NUMBER.with(|number| *number);
        match workspace.bindings.first_mut() {
            Some(binding) if binding.reserved_on != here => {
                let mut bound = binding.commands.iter().filter_map(Command::bound);
                bound.try_for_each(|bound| bound.reserve())?;
                binding.reserved_on = here;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn new_workspace(&self) -> Result<Workspace> {
        let layout = &self.program.layout;
        let port = |state: &usize| &self.program.parts.ports[layout.states[*state]];
        let own = layout.fresh.iter().filter(|_| self.device.queue().is_none());
        let fresh =
            own.map(|s| alloc(&*self.device, port(s).ty.bytes().get())).collect::<Result<_>>()?;
        let loans = (0..layout.loans).map(|_| Memory::new(HostLoan::default())).collect();
        Ok(Workspace { arena: None, fresh, loans, bindings: Vec::new() })
    }

    fn bind(&self, workspace: &Workspace, states: &[Memory]) -> Result<Binding> {
        let mut binding = Binding {
            arena: workspace.arena().clone(),
            states: states.to_vec(),
            fresh: workspace.fresh.clone(),
            commands: Vec::new(),
            is_shared: false,
            reserved_on: 0,
        };
        // The places of the operands of what has begun.
        let mut begun = vec![Vec::new(); self.program.parts.buckets.len()];
        for step in &self.program.layout.steps {
            let arg = |operand: &Operand| {
                let (memory, offset) = self.locate(operand.place, workspace, &binding);
                let Operand { bytes: len, access, lasting, .. } = *operand;
                Arg { memory: memory.clone(), offset, len, access, lasting }
            };
            let args: Vec<Arg> = step.operands.iter().map(arg).collect();
            let command = match step.work {
                Work::Kernel(kernel) => {
                    Command::Run(self.launches[kernel].bind(&args, &self.sizes[kernel])?.into())
                }
                Work::Copy => Command::copy(&self.device, args)?,
                Work::Begin(bucket) => {
                    begun[bucket] = spans(args);
                    let places = Places { operands: begun[bucket].clone(), results: Vec::new() };
                    Command::Begin(Begin(self.tied(bucket, places)?))
                }
                Work::Finish(bucket) => {
                    let operands = std::mem::take(&mut begun[bucket]);
                    let places = Places { operands, results: spans(args) };
                    Command::Finish(Finish(self.tied(bucket, places)?))
                }
            };
            binding.is_shared |= command.bound().is_some_and(|bound| bound.is_shared());
            binding.commands.push(command);
        }
        Ok(binding)
    }

    /// An exchange at these places.
    fn tied(&self, number: usize, places: Places) -> Result<Tied> {
        let none = || Error::Parallel(format!("@{} runs alone", self.program.name()));
        Ok(Tied {
            ranks: self.ranks.clone().ok_or_else(none)?,
            device: self.device.clone(),
            bucket: self.program.parts.buckets[number].clone(),
            number,
            places: Arc::new(places),
        })
    }
}

/// Where operands lie.
fn spans(args: Vec<Arg>) -> Vec<Span> {
    args.into_iter().map(|arg| Span { memory: arg.memory, at: arg.offset, len: arg.len }).collect()
}
