//! Vector loops for x86-64 as machine code of our own: vectors of 256 bits with AVX2, FMA and F16C,
//! or of 512 bits with AVX-512.
//!
//! Cranelift stops at vectors of 128 bits. Where the CPU has wider ones, each vector phase of a row
//! (`plan::phases`) becomes a small function with a loop around straight-line code. It is linked
//! next to the function of the plan, which calls it. Everything else is Cranelift's, and so are
//! vector phases on other CPUs. Results have the bits of the interpreter: the operations and their
//! order are the same.
//!
//! ```text
//! fn(scratch, low, high)       the positions from `low` to `high`
//! ```
//!
//! The caller puts addresses, and values that are the same along the row, into *cells* of the
//! scratch. Then, in this order:
//!
//! | module | what it does |
//! |---|---|
//! | `select` | instruction selection: virtual registers for the body of a loop (`inst`). `loads`, `compute`, `functions` (exp, tanh, …) and `sinks` do its parts |
//! | `order` | dead code elimination, and another order of instructions where too many values are live |
//! | `loops` | the function around the bodies: prologue, loops over groups of positions, the tail, accumulators |
//! | `regalloc` | registers and spills (`frame` lays out the scratch), while the instructions are encoded (`asm`, `evex`) |
//! | `text` | the listing of a loop |

mod asm;
mod compute;
mod evex;
mod frame;
mod functions;
mod inst;
mod loads;
mod loops;
mod order;
mod regalloc;
mod select;
mod sinks;
#[cfg(test)]
pub(crate) mod tests;
mod text;

pub(crate) use frame::CELL;

pub(crate) use text::Listing;

use crate::machine::Width;
use crate::plan::phases::{Phase, Phases, VectorLoops};
use crate::plan::{Plan, Stage};
use asm::Reg;
use inst::{Inst, Op};
use loops::Code;
use order::{needed, one_by_one, pressure};
use regalloc::Pinned;
use select::{BodyKind, Select, Tables};
use std::collections::HashMap;
use tracecast_ir::kernel::Val;

impl Width {
    /// The bytes of a vector.
    fn bytes(self) -> i32 {
        match self {
            Width::Bits256 => 32,
            Width::Bits512 => 64,
        }
    }

    /// The loops made of such vectors.
    fn loops(self) -> VectorLoops {
        match self {
            Width::Bits256 => VectorLoops::Avx2,
            Width::Bits512 => VectorLoops::Avx512,
        }
    }

    /// How many vector registers there are.
    fn registers(self) -> usize {
        match self {
            Width::Bits256 => 16,
            Width::Bits512 => 32,
        }
    }

    /// How many registers reductions may have.
    fn accumulators(self) -> usize {
        match self {
            Width::Bits256 => 8,
            Width::Bits512 => 12,
        }
    }

    /// The register of an accumulator.
    fn accumulator(self, number: u8) -> Reg {
        self.registers() as Reg - 1 - number
    }
}

/// Where a row has its buffers and accumulators in the scratch.
pub(crate) struct RowScratch {
    /// The offset of each row buffer.
    pub(crate) buffers: Vec<i32>,
    /// The offset of the lanes of each reduction, by sink.
    pub(crate) lanes: HashMap<usize, i32>,
}

/// A phase to compile.
pub(crate) struct Task<'a> {
    /// The vectors to use.
    pub(crate) width: Width,
    /// The plan that it belongs to.
    pub(crate) plan: &'a Plan,
    /// Its stage.
    pub(crate) stage: &'a Stage,
    /// How the stage is cut.
    pub(crate) cut: &'a Phases,
    /// The phase.
    pub(crate) phase: &'a Phase,
    /// The rows that the loop computes together: one, or a pair.
    pub(crate) rows: Vec<RowScratch>,
    /// The offset in the scratch of values that one phase leaves for another.
    pub(crate) temporaries: i32,
    /// The rows to prefetch.
    pub(crate) prefetched: Vec<Prefetched>,
    /// The loop initialises its accumulators itself, since a call is the whole of a reduction. Were
    /// they stored by the caller, in vectors of 128 bits, reading them in vectors of 512 bits would
    /// defeat store forwarding and wait for all earlier stores.
    pub(crate) initialises: bool,
    /// The offset from which the scratch is free; a multiple of 64.
    pub(crate) area: i32,
    /// Results go past the caches where they are aligned (non-temporal stores): they are too large
    /// to be found in a cache later on, and come at the pace of the loads. In rows of several
    /// stages they come in bursts, which would wait for memory.
    pub(crate) streams: bool,
}

impl Task<'_> {
    /// The registers of a reduction. The lanes that the next sixteen positions go to come first;
    /// those of the other sixteen lanes, if the row fills them, change places with them after every
    /// sixteen positions.
    fn vectors(&self) -> usize {
        self.plan.lanes() / self.lanes() as usize
    }

    /// The bytes of a lane.
    fn lane(&self) -> i32 {
        self.cut.lanes.bytes()
    }

    /// The lanes of a vector.
    fn lanes(&self) -> i32 {
        self.width.bytes() / self.lane()
    }

    /// True if positions go to two groups of sixteen lanes by turns.
    fn alternates(&self) -> bool {
        self.plan.lanes() > 16
    }
}

/// A row to prefetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetched {
    /// Of an element.
    pub(crate) bytes: u8,
    /// It will be written, not only read.
    pub(crate) written: bool,
}

/// What the caller puts into a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// The address of a load at position 0, valid along the row even if a guard fails.
    Load(Val),
    /// The address of a sink at position 0.
    Sink(usize),
    /// A value that is the same along the row, as 32 bits; truth as all of them.
    Uniform(Val),
    /// The address of a row to prefetch, by number.
    Prefetch(usize),
    /// The number of position 0 of an index, as 32 bits.
    Start(Val),
    /// Whether the guard of a load holds: all of 32 bits or none.
    Guard(Val),
    /// Whether the row is the first of its chunk of a column: all of 32 bits or none.
    First(usize),
    /// Sixteen bytes of a stored value that is the same along the row.
    Pattern(usize),
    /// Nothing: the loop keeps there which lanes of a half are left in the tail.
    Mask(u8),
}

/// The function of a phase.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// Its machine code, position-independent, followed by constants.
    pub(crate) bytes: Vec<u8>,
    /// The bytes that are instructions.
    pub(crate) instructions: usize,
    /// What the caller stores before the call, and of which row: [`CELL`] bytes each, from the area
    /// on.
    pub(crate) cells: Vec<(u8, Cell)>,
    /// The offsets of the accumulators that the loop initialises itself.
    pub(crate) initialised: Vec<i32>,
    /// The bytes of the scratch it uses, from the area on.
    pub(crate) area_bytes: i32,
    /// Its instructions, for people.
    pub(crate) listing: Listing,
}

/// Compiles a phase.
///
/// # Errors
/// If something in it has no vector instructions; what that is.
pub(crate) fn compile(task: &Task<'_>) -> Result<Compiled, String> {
    let mut tables = Tables::default();
    let mut bodies = Bodies::select(task, &mut tables)?;
    let (width, taken) = (task.width, task.vectors() * tables.accumulators.len());
    let room = width.registers() - taken;
    let peaks = bodies.order(room);
    let pins = match bodies.main.as_deref().or(bodies.single.as_deref()) {
        Some(body) => {
            let free = room.saturating_sub(peaks + 1);
            pins(body, free, |n| width.accumulator((taken + n) as u8))
        }
        None => Pinned::new(),
    };
    let initialised = match task.initialises {
        true => tables.accumulators.iter().map(|a| a.lanes).collect(),
        false => Vec::new(),
    };
    let Code { bytes, instructions, area_bytes } = loops::assemble(task, &tables, pins, &bodies);
    let listing = Listing::new(task, &tables, bodies);
    Ok(Compiled { bytes, instructions, cells: tables.cells, initialised, area_bytes, listing })
}

/// The bodies of a function's loops, which run one after the other, each for the positions that are
/// left.
#[derive(Debug)]
struct Bodies {
    main: Option<Vec<Inst>>,
    /// Instead of the main one, where results are aligned: stores past the caches.
    non_temporal: Option<Vec<Inst>>,
    single: Option<Vec<Inst>>,
    tail: Option<Vec<Inst>>,
}

impl Bodies {
    /// Those that the row asks for, without what nothing needs.
    fn select(task: &Task<'_>, tables: &mut Tables) -> Result<Bodies, String> {
        let mut body = |wanted: bool, kind: BodyKind| match wanted {
            true => Select::body(task, tables, kind).map(|body| Some(needed(body))),
            false => Ok(None),
        };
        let plan = task.plan;
        let pairs = plan.may_reach(i64::from(2 * task.lanes()));
        let main = body(pairs, BodyKind::Pair)?;
        let non_temporal = body(pairs && task.streams, BodyKind::NonTemporal)?;
        let single = body(task.lanes() == 16 && plan.may_reach(16), BodyKind::Single)?;
        let tail = body(!plan.aligned, BodyKind::Tail)?;
        let non_temporal = non_temporal.filter(|_| !tables.streamed.is_empty());
        Ok(Bodies { main, non_temporal, single, tail })
    }

    /// Orders their instructions so that they need fewer registers, if there are no more than
    /// `room`. Returns how many the main one needs, or the single one where that is all there is.
    fn order(&mut self, room: usize) -> usize {
        let order = |body: &mut Vec<Inst>| {
            let side_by_side = pressure(body);
            if side_by_side < room {
                return side_by_side;
            }
            let other = one_by_one(body);
            let peak = pressure(&other);
            if peak < side_by_side {
                *body = other;
            }
            peak.min(side_by_side)
        };
        let Bodies { main, non_temporal, single, tail } = self;
        let [main, single, ..] =
            [main, single, non_temporal, tail].map(|body| body.as_mut().map(order));
        main.or(single).unwrap_or(0)
    }
}

/// Pins the constants and broadcasts that are used most to registers for the whole loop.
fn pins(body: &[Inst], room: usize, register: impl Fn(usize) -> Reg) -> Pinned {
    let mut weight: HashMap<Op, usize> = HashMap::new();
    let mut order: Vec<Op> = Vec::new();
    for inst in body {
        for (i, a) in inst.args.iter().enumerate() {
            let op = body[*a as usize].op;
            if op.is_invariant() {
                // Only the last operand can be read from memory.
                let must_load = i + 1 < inst.args.len();
                if !weight.contains_key(&op) {
                    order.push(op);
                }
                *weight.entry(op).or_default() += if must_load { 3 } else { 1 };
            }
        }
    }
    order.sort_by_key(|op| std::cmp::Reverse(weight[op]));
    order.iter().take(room).enumerate().map(|(i, op)| (*op, register(i))).collect()
}
