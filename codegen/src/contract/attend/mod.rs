//! Attention on one thread, as `tracecast_ir::kernel::attention` defines it: queries in tiles, keys
//! in blocks. Memory holds a tile and the keys and values of a head, never all weights.
//!
//! Products take whole blocks: a weight of zero adds zero times a number. Keys are taken one by one
//! only if an operand holds infinities or NaNs.

mod backward;
mod forward;
mod operands;
mod panels;
mod real;

pub(crate) use operands::{Dropped, Place};

use super::micro::Engine;
use super::schedule::{Chosen, Load, Schedule};
use super::with_engine;
use crate::machine::{Cpu, InstructionSet};
use crate::routines::Tiles;
use panels::{Left, Panels, panel_room, product, weighed};
use real::Real;
use smallvec::smallvec;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES, Pass};

/// Queries of a tile.
pub(crate) const QUERIES: usize = 64;

/// Stride of rows of scores: not a power of two, whose rows would share cache sets.
const SCORES: usize = KEYS + LANES;

/// Arguments of one launch of attention.
#[derive(Clone, Copy)]
pub(crate) struct Problem<'a> {
    pub(crate) cpu: &'a Cpu,
    /// The sizes.
    pub(crate) extents: Extents<usize>,
    /// Which results there are.
    pub(crate) pass: Pass,
    /// Queries, keys and values.
    pub(crate) operands: [Place; 3],
    /// A mask that is added to scores, or truth values.
    pub(crate) mask: Option<Place>,
    /// Dropout.
    pub(crate) drop: Option<Dropped>,
    /// Backward: the result's gradient, log-sum-exps, what is subtracted from gradients of weights.
    pub(crate) given: Option<[Place; 3]>,
    /// The results.
    pub(crate) results: [Place; 3],
    /// Each query attends to the keys up to its own position.
    pub(crate) causal: bool,
    /// What scores are multiplied by.
    pub(crate) scale: f64,
}

/// Work item of a thread: one head of keys, and all heads of queries that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Index in the batch.
    pub(crate) batch: usize,
    /// The head of keys.
    pub(crate) shared: usize,
    /// Queries from a multiple of [`QUERIES`] on; all of them for gradients of keys.
    pub(crate) queries: Range<usize>,
    /// Keys: all of them, unless gradients of keys alone are computed.
    pub(crate) keys: Range<usize>,
    /// Backward: which gradients are computed.
    pub(crate) gradients: Gradients,
}

/// Gradients that a unit computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gradients {
    /// All of them.
    All,
    /// Those of queries.
    OfQueries,
    /// Those of keys and values.
    OfKeys,
}

/// Workspace of a unit, counted in f64.
pub(crate) fn numbers(extents: &Extents<usize>, pass: Pass, dtype: DType) -> usize {
    let numbers = match pass {
        Pass::Forward => forward::numbers(extents),
        Pass::Backward => backward::numbers(extents),
    };
    if dtype == DType::F64 { numbers } else { numbers.div_ceil(2) }
}

/// Schedule and blocking of any attention.
pub(crate) fn chosen_for_attention() -> Chosen {
    let blocks = smallvec![("queries", QUERIES), ("keys", KEYS)];
    Chosen { blocks, ..Chosen::new(Schedule::Attention, [Load::Packed; 2]) }
}

/// Computes a unit.
///
/// # Safety
///
/// The CPU must be this one. Operands must be readable and results writable for the sizes. Nobody
/// else may read or write the results of the unit meanwhile.
pub(crate) unsafe fn attend(problem: &Problem<'_>, unit: &Unit, memory: &mut [f64]) {
    let dtype = match problem.operands[0].dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    with_engine!(problem.cpu, dtype, false, E => {
        // SAFETY: the caller's contract.
        unsafe { run::<E>(problem, unit, Real::all(memory)) }
    });
}

/// # Safety
///
/// As [`attend`], and the CPU must be the engine's.
unsafe fn run<E: Engine<Num: Real>>(problem: &Problem<'_>, unit: &Unit, memory: &mut [E::Num]) {
    match problem.pass {
        // SAFETY: the caller's contract.
        Pass::Forward => unsafe { forward::run::<E>(problem, unit, memory) },
        // SAFETY: the caller's contract.
        Pass::Backward => unsafe { backward::run::<E>(problem, unit, memory) },
    }
}

impl Problem<'_> {
    fn instructions(&self) -> InstructionSet {
        self.cpu.instructions
    }

    fn tiles(&self) -> &'static Tiles {
        Tiles::of(self.cpu.instructions)
    }

    /// Keys that the queries before `end` attend to.
    fn seen(&self, end: usize) -> usize {
        if self.causal { self.extents.keys.min(end) } else { self.extents.keys }
    }

    /// Heads of queries that share one of keys.
    fn group(&self) -> usize {
        self.extents.heads.checked_div(self.extents.shared).unwrap_or(1)
    }
}

/// A bump allocator over the workspace.
struct Memory<'a, N>(&'a mut [N]);

impl<'a, N> Memory<'a, N> {
    fn take(&mut self, count: usize) -> &'a mut [N] {
        let all = std::mem::take(&mut self.0);
        let (taken, rest) = all.split_at_mut(count.next_multiple_of(LANES));
        self.0 = rest;
        taken
    }
}

/// The numbers that [`Memory::take`] takes for pieces of these sizes.
fn taken(pieces: &[usize]) -> usize {
    pieces.iter().map(|count| count.next_multiple_of(LANES)).sum()
}
