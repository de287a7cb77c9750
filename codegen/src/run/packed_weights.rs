//! [`PackedWeights`]: the packed right operand of a bound contraction, from one run to the next.

use super::memory::{Address, Operand, address_of};
use crate::contract::Panels;
use std::sync::{Mutex, PoisonError};
use tracecast_runtime::{Arg, HostMemory, Memory, Result};

/// How a contraction keeps its right operand.
pub(crate) struct Packing {
    /// How a batch of it lies.
    pub(crate) panels: Panels,
    /// The batches that differ.
    pub(crate) batches: usize,
    /// The operands of the kernel that it is made of.
    pub(crate) inputs: Vec<usize>,
}

impl Packing {
    /// The bytes of a batch, in whole cache lines.
    fn batch_bytes(&self) -> usize {
        self.panels.bytes().checked_next_multiple_of(64).unwrap_or(usize::MAX)
    }

    /// The bytes of all.
    pub(crate) fn bytes(&self) -> usize {
        self.batch_bytes().saturating_mul(self.batches)
    }
}

/// A version is packed in so many runs that find it. Writing a copy takes as long as up to eight runs that make do without (a row times
/// a matrix in f32), so that a version which changes before it pays has cost little.
pub(crate) const RUNS: u32 = 4;

/// A right operand of a bound contraction that is kept packed.
pub(crate) struct PackedWeights {
    packing: Packing,
    /// The memory of the operands that it is made of.
    made_of: Vec<Memory>,
    room: HostMemory,
    state: Mutex<State>,
}

/// Versions are those of what it is made of: every change makes the greatest of them greater.
#[derive(Default)]
struct State {
    /// That of the last run; 0 before it.
    seen: u64,
    /// How many runs have found it.
    runs: u32,
    /// That of which the room has the packed copy; 0 if it has none.
    packed: u64,
    /// The least of its numbers, as packing finds it.
    least: u16,
}

/// Where packed batches lie.
#[derive(Clone, Copy)]
pub(crate) struct PackedOperand {
    base: Address,
    batch_bytes: usize,
    batches: usize,
    panels: Panels,
    least: u16,
}

impl PackedOperand {
    /// The batches that differ.
    pub(crate) fn batches(&self) -> usize {
        self.batches
    }

    /// Where a batch lies.
    pub(super) fn place(&self, batch: usize) -> Address {
        let batch = if self.batches == 1 { 0 } else { batch };
        self.base.offset((batch * self.batch_bytes) as isize)
    }

    /// How a batch lies.
    pub(crate) fn panels(&self) -> &Panels {
        &self.panels
    }

    /// A batch as an operand.
    pub(super) fn operand(&self, batch: usize) -> Operand<'static> {
        Operand::Packed { base: self.place(batch), panels: self.panels, least: self.least }
    }
}

impl PackedWeights {
    /// Room for it; `args` are the kernel's operands.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn new(packing: Packing, args: &[Arg]) -> Result<Self> {
        let made_of = packing.inputs.iter().map(|i| args[*i].memory.clone()).collect();
        let room = HostMemory::new(packing.bytes())?;
        Ok(PackedWeights { packing, made_of, room, state: Mutex::default() })
    }

    /// Runs `run`, with the packed operand from the run on that is worth a copy of this version: that one calls `pack`, which writes all
    /// batches and returns the least of their numbers.
    pub(crate) fn with(
        &self,
        pack: impl FnOnce(&PackedOperand) -> u16,
        run: impl FnOnce(Option<&PackedOperand>),
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.made_of.iter().map(Memory::version).max().unwrap_or(0);
        let Packing { panels, batches, .. } = self.packing;
        let mut packed = PackedOperand {
            base: address_of(&self.room),
            batch_bytes: self.packing.batch_bytes(),
            batches,
            panels,
            least: state.least,
        };
        if state.seen != version {
            (state.seen, state.runs) = (version, 0);
        }
        state.runs = state.runs.saturating_add(1);
        if state.packed != version && state.runs >= RUNS {
            state.packed = 0;
            packed.least = pack(&packed);
            (state.packed, state.least) = (version, packed.least);
        }
        run((state.packed == version).then_some(&packed));
    }
}
