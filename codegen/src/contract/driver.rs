//! [`Driver`]: a thread's part of a product, from which its workspace, schedule and run derive.

use super::engines::with_engine;
use super::micro::Engine;
use super::operand::Scratch;
use super::schedule::Chosen;
use super::sink::Sink;
use super::workspace::Workspace;
use crate::machine::{Cpu, InstructionSet};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use tracecast_ir::DType;

/// The part of a product that a thread computes.
pub(crate) trait Driver {
    /// The most memory that it packs into.
    fn workspace(&self) -> Workspace;

    /// Its schedule.
    fn chosen(&self) -> Chosen;

    /// Computes it, and passes on the sums that it does not store.
    ///
    /// # Safety
    ///
    /// The work's CPU must be this one. Operands must be readable for the part, and the
    /// destination of its sums writable.
    unsafe fn run(&self, scratch: &mut Scratch, sink: &mut Sink<'_>);
}

/// The same for any engine.
pub(super) trait OnEngine: Sized {
    /// The CPU, the accumulator, and whether bf16 are multiplied in pairs.
    fn on(&self) -> (Cpu, DType, bool);

    /// The ranges of the part: it is empty if one of them is.
    fn ranges(&self) -> [&Range<usize>; 2];

    /// The most memory, in numbers.
    fn workspace_with<E: Engine>(&self) -> Workspace;

    fn chosen_with<E: Engine>(&self) -> Chosen;

    /// Computes the part, which is not empty.
    fn run_with<E: Engine>(run: Run<'_, Self, E>, scratch: &mut Scratch, sink: &mut Sink<'_>);
}

/// Work that runs on its CPU: the engine is that of the CPU, operands are readable for the part,
/// and the destination of its sums is writable.
pub(super) struct Run<'a, W, E> {
    work: &'a W,
    engine: PhantomData<E>,
}

impl<'a, W, E> Run<'a, W, E> {
    /// # Safety
    ///
    /// The CPU must be the engine's. Operands must be readable for the part, and the destination of
    /// its sums writable.
    pub(super) unsafe fn new(work: &'a W) -> Self {
        Run { work, engine: PhantomData }
    }
}

impl<W, E> Deref for Run<'_, W, E> {
    type Target = W;

    fn deref(&self) -> &W {
        self.work
    }
}

impl<T: OnEngine> Driver for T {
    fn workspace(&self) -> Workspace {
        if self.ranges().iter().any(|range| range.is_empty()) {
            return Workspace::default();
        }
        let (cpu, acc, pairs) = self.on();
        with_engine!(cpu, acc, pairs, E => {
            self.workspace_with::<E>().times(size_of::<<E as Engine>::Num>())
        })
    }

    fn chosen(&self) -> Chosen {
        let (cpu, acc, pairs) = self.on();
        with_engine!(cpu, acc, pairs, E => self.chosen_with::<E>())
    }

    unsafe fn run(&self, scratch: &mut Scratch, sink: &mut Sink<'_>) {
        if self.ranges().iter().any(|range| range.is_empty()) {
            return;
        }
        let (cpu, acc, pairs) = self.on();
        let workspace = || self.workspace();
        scratch.held_to(workspace, |scratch| {
            with_engine!(cpu, acc, pairs, E => {
                // SAFETY: the caller's contract.
                T::run_with(unsafe { Run::<T, E>::new(self) }, scratch, sink)
            });
        });
    }
}
