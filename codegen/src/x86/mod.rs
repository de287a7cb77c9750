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
mod bodies;
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
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod text;

pub(crate) use frame::CELL;

pub(crate) use task::{Cell, Prefetched, RowScratch, Task};
pub(crate) use text::Listing;

use asm::Reg;
use bodies::Bodies;
use inst::{Inst, Op};
use loops::Code;
use regalloc::Pinned;
use select::Tables;
use std::collections::HashMap;

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
