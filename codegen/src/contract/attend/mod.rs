//! Attention on one thread, as `tracecast_ir::kernel::attention` defines it: queries in tiles, keys in blocks, and between the products of an
//! engine rows of scores that become weights. What lies in memory is a tile and the keys and values of a head, never all weights.
//!
//! Products take whole blocks: a weight of zero adds zero times a number. Only where that number may be none, which is found out as operands are
//! brought here, keys are taken one by one.

mod backward;
mod forward;
mod operands;

pub(crate) use operands::{Dropped, Place};

use super::blocking::Cpu;
use super::micro::{self, Engine, Strip};
use super::pack::{Lines, pack, panels, room, strips};
use crate::machine::InstructionSet;
use crate::routines::Tiles;
use operands::Rows;
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::attention::{Extents, KEYS, LANES, Pass};

/// Queries of a tile.
const QUERIES: usize = 64;

/// From a row of scores to the next: not a power of two, whose rows would share cache sets.
const SCORES: usize = KEYS + LANES;

/// The widest panel of any engine.
const WIDEST: usize = 32;

/// Attention as one launch has it.
#[derive(Clone, Copy)]
pub(crate) struct Problem<'a> {
    /// The CPU.
    pub(crate) cpu: &'a Cpu,
    /// The sizes.
    pub(crate) extents: Extents<usize>,
    /// Which results there are.
    pub(crate) pass: Pass,
    /// Queries, keys and values.
    pub(crate) operands: [Place; 3],
    /// What is added to scores, or truth values.
    pub(crate) mask: Option<Place>,
    /// Dropout.
    pub(crate) drop: Option<Dropped>,
    /// Backward: the gradient of the result, the logarithms of sums, what is taken from gradients of weights.
    pub(crate) given: Option<[Place; 3]>,
    /// The results.
    pub(crate) results: [Place; 3],
    /// Each query sees the keys up to its own position.
    pub(crate) causal: bool,
    /// What scores are multiplied by.
    pub(crate) scale: f32,
}

/// What one thread takes at once: of one head of keys the queries of all heads that share it, from a multiple of [`QUERIES`] on.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Of the batch.
    pub(crate) batch: usize,
    /// The head of keys.
    pub(crate) shared: usize,
    /// Backward takes all of them.
    pub(crate) queries: Range<usize>,
}

/// Into how many units queries of a head are best cut, at most.
pub(crate) fn most_cuts(extents: &Extents<usize>, pass: Pass) -> usize {
    match pass {
        Pass::Forward => extents.queries.div_ceil(QUERIES).max(1),
        Pass::Backward => 1,
    }
}

/// Part `i` of so many of the queries of a head.
pub(crate) fn cut(extents: &Extents<usize>, cuts: usize, i: usize) -> Range<usize> {
    let tiles = extents.queries.div_ceil(QUERIES);
    let border = |i: usize| (tiles * i / cuts * QUERIES).min(extents.queries);
    border(i)..border(i + 1)
}

/// The numbers that a unit needs.
pub(crate) fn numbers(extents: &Extents<usize>, pass: Pass) -> usize {
    match pass {
        Pass::Forward => forward::numbers(extents),
        Pass::Backward => backward::numbers(extents),
    }
}

/// Computes a unit.
///
/// # Safety
///
/// The CPU must be this one. Operands must be readable and results writable for the sizes, and nobody else may write the results of the unit or read them.
pub(crate) unsafe fn attend(problem: &Problem<'_>, unit: &Unit, memory: &mut [f32]) {
    match problem.cpu.instructions {
        // SAFETY: the caller's contract.
        InstructionSet::Portable => unsafe {
            run::<micro::portable::PortableF32>(problem, unit, memory)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract.
        InstructionSet::Avx2 => unsafe { run::<micro::avx2::Avx2F32>(problem, unit, memory) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's contract.
        InstructionSet::Avx512 => unsafe { run::<micro::avx512::Avx512F32>(problem, unit, memory) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller's contract.
        InstructionSet::Neon => unsafe { run::<micro::neon::NeonF32>(problem, unit, memory) },
    }
}

/// # Safety
///
/// As [`attend`], and the CPU must be the engine's.
unsafe fn run<E: Engine<Num = f32>>(problem: &Problem<'_>, unit: &Unit, memory: &mut [f32]) {
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

    /// How many keys the queries before `end` see.
    fn seen(&self, end: usize) -> usize {
        if self.causal { self.extents.keys.min(end) } else { self.extents.keys }
    }

    /// Heads of queries that share one of keys.
    fn group(&self) -> usize {
        self.extents.heads.checked_div(self.extents.shared).unwrap_or(1)
    }
}

/// Memory that is given out piece by piece.
struct Memory<'a>(&'a mut [f32]);

impl<'a> Memory<'a> {
    fn take(&mut self, count: usize) -> &'a mut [f32] {
        let all = std::mem::take(&mut self.0);
        let (taken, rest) = all.split_at_mut(count.next_multiple_of(LANES));
        self.0 = rest;
        taken
    }
}

/// The numbers that [`Memory::take`] gives for each of some pieces.
fn taken(pieces: &[usize]) -> usize {
    pieces.iter().map(|count| count.next_multiple_of(LANES)).sum()
}

/// The numbers of panels of so many columns and steps.
fn panel_room(columns: usize, steps: usize) -> usize {
    columns.next_multiple_of(WIDEST) * steps + LANES
}

/// Columns of a right operand in panels.
#[derive(Clone, Copy)]
struct Panels<'a> {
    numbers: &'a [f32],
    /// Steps of a panel.
    steps: usize,
}

impl<'a> Panels<'a> {
    /// Packs lines `across` apart, whose numbers are `along` apart.
    fn pack<E: Engine<Num = f32>>(
        from: &[f32],
        [columns, steps]: [usize; 2],
        [across, along]: [usize; 2],
        to: &'a mut [f32],
    ) -> Self {
        if columns > 0 && steps > 0 {
            let last = (columns - 1) * across + (steps - 1) * along;
            assert!(last < from.len() && room::<E>(columns, E::WIDTH, steps) <= to.len());
            let base = from.as_ptr().cast();
            let (across, along) = (across as isize, along as isize);
            let lines = Lines { base, dtype: DType::F32, round: None, across, along };
            // SAFETY: all lines lie in `from`, and there is room for them; `attend` is called for the CPU of the engine.
            unsafe { pack::<E>(lines, panels(columns, E::WIDTH), steps, to.as_mut_ptr()) };
        }
        Panels { numbers: to, steps }
    }
}

/// A left operand: rows and steps so far apart.
#[derive(Clone, Copy)]
struct Left<'a> {
    numbers: &'a [f32],
    row: usize,
    step: usize,
}

/// Sums of rows by columns over steps, a chain from zero each, or `on` from what is there. Columns begin with that one, which begins a panel, and steps with
/// that one of the right operand. Rows of `out` are `ld` apart and have whole lanes.
fn product<E: Engine<Num = f32>>(
    [rows, columns, steps]: [usize; 3],
    left: Left<'_>,
    right: Panels<'_>,
    [column, step]: [usize; 2],
    (out, ld): (&mut [f32], usize),
    on: bool,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * ld + columns.next_multiple_of(E::LANES) <= out.len());
    assert!(steps == 0 || (rows - 1) * left.row + (steps - 1) * left.step < left.numbers.len());
    let end = (column + columns).next_multiple_of(E::WIDTH) * right.steps;
    assert!(
        column.is_multiple_of(E::WIDTH)
            && end <= right.numbers.len()
            && step + steps <= right.steps
    );
    for panel in panels(columns, E::WIDTH) {
        let first = (column + panel.start) * right.steps + step * E::WIDTH;
        let b = right.numbers.as_ptr().wrapping_add(first);
        for strip in strips(rows, E::ROWS) {
            let to = out.as_mut_ptr().wrapping_add(strip.start * ld + panel.start);
            let strip_of = Strip {
                k: steps,
                a: left.numbers.as_ptr().wrapping_add(strip.start * left.row),
                row: left.row as isize,
                step: left.step as isize,
                b: b.cast(),
                b_step: (E::WIDTH * size_of::<f32>()) as isize,
                cell: DType::F32,
                from: if on { to.cast_const() } else { std::ptr::null() },
                from_ld: ld,
                out: to,
                ld,
                add: false,
                tiny: false,
            };
            // SAFETY: everything is inside of the slices, as it has been asserted; `attend` is called for the CPU of the engine.
            unsafe { E::strip(strip.count, panel.count.div_ceil(E::LANES), &strip_of) };
        }
    }
}

/// The same, on from what is there, key by key: what has the weight zero takes no part.
fn careful(
    [rows, steps]: [usize; 2],
    left: Left<'_>,
    right: &Rows<'_>,
    first: usize,
    (out, ld): (&mut [f32], usize),
) {
    for row in 0..rows {
        for step in 0..steps {
            let weight = left.numbers[row * left.row + step * left.step];
            if weight != 0.0 {
                let to = &mut out[row * ld..][..right.width];
                to.iter_mut()
                    .zip(right.row(first + step))
                    .for_each(|(to, x)| *to = weight.mul_add(*x, *to));
            }
        }
    }
}

/// Adds products of weights and rows, which may hold what is no finite number.
fn weighed<E: Engine<Num = f32>>(
    [rows, steps]: [usize; 2],
    left: Left<'_>,
    (of, packed): (&Rows<'_>, Panels<'_>),
    first: usize,
    (out, ld): (&mut [f32], usize),
) {
    match of.finite {
        true => product::<E>([rows, of.width, steps], left, packed, [0, first], (out, ld), true),
        false => careful([rows, steps], left, of, first, (out, ld)),
    }
}
