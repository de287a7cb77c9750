//! Loops in 256-bit or 512-bit vectors: machine code of our own for x86-64 with AVX2, FMA and F16C, or AVX-512.
//!
//! Cranelift stops at 128 bits. So where the CPU has more, the vector phases of a row (`plan::phases`) become small functions of straight-line
//! code with a loop around it, linked next to the function of the plan and called by it. Everything else stays with Cranelift, and so do
//! all phases on other CPUs.
//!
//! ```text
//! fn(scratch, low, high)       the positions from `low` to `high`, two vectors at a time, the last ones under a mask
//! ```
//!
//! Addresses and numbers that are the same along the row are put into cells of the scratch by the caller. `select` makes instructions of a
//! phase (`loads`, `compute` of its arithmetic, `functions` of the scalar functions, `sinks`), `order` orders them, `regalloc` gives them registers, `asm` and `evex` encode them, and here they
//! become a function. Results have the bits of the interpreter: the operations, and their order, are the same.

mod asm;
mod compute;
mod evex;
mod frame;
mod functions;
mod inst;
mod loads;
mod order;
mod regalloc;
mod select;
mod sinks;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use frame::CELL;

use crate::machine::Width;
use crate::plan::phases::{Lanes, Phase, Phases, VectorLoops};
use crate::plan::{Plan, Stage};
use asm::{Asm, Map, Mem, Opcode, Prefix, R11, RAX, RCX, RDI, RDX, RSI, Reg, Rm, When};
use evex::TAIL;
use frame::{Frame, PointerFrom};
use inst::{Inst, Op};
use order::{needed, one_by_one, pressure};
use regalloc::{Pins, doubles, emit, still};
use select::{Accumulator, Part, Select, Staged, Tables};
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

/// What a row has of its own.
pub(crate) struct Turn {
    /// Where row buffers are in the scratch.
    pub(crate) buffers: Vec<i32>,
    /// Where the lanes of reductions are in the scratch, by sink.
    pub(crate) lanes: HashMap<usize, i32>,
}

/// A phase to compile.
pub(crate) struct Task<'a> {
    /// The vectors to use.
    pub(crate) width: Width,
    /// The loops around it.
    pub(crate) plan: &'a Plan,
    /// Its stage.
    pub(crate) stage: &'a Stage,
    /// How the stage is cut.
    pub(crate) cut: &'a Phases,
    /// The phase.
    pub(crate) phase: &'a Phase,
    /// The rows that the loop goes along together.
    pub(crate) turns: Vec<Turn>,
    /// Where waiting values are in the scratch.
    pub(crate) waits: i32,
    /// The rows of results that are asked for: the bytes of an element of each.
    pub(crate) asked: Vec<u8>,
    /// A call is all of a reduction, from its beginning. Lanes in vectors of 512 bits that the caller has just put into the scratch by
    /// smaller ones could not be read before every earlier store has reached the cache, results of the row before included.
    pub(crate) begins: bool,
    /// Where the scratch is free; a multiple of 64.
    pub(crate) area: i32,
    /// Results are too large to be found in a cache later on, and made at the pace of the loads. In rows of several stages they come in
    /// bursts, during which stores past the caches wait for memory: softmax and layer norm took 15 to 30 per cent longer.
    pub(crate) streams: bool,
}

impl Task<'_> {
    /// The registers of a reduction: the vectors of the lanes that the next sixteen positions go to come before those of the other lanes, if
    /// there are any. With every sixteen positions they change places.
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

    /// True if not all positions go to the same sixteen lanes.
    fn alternates(&self) -> bool {
        self.plan.lanes() > 16
    }
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
    /// The address of a row that is asked for, by number.
    Asked(usize),
    /// The number of position 0 of an index, as 32 bits.
    Start(Val),
    /// Whether the guard of a load holds: all of 32 bits or none.
    Guard(Val),
    /// Whether the row is the first of its chunk of a column: all of 32 bits or none.
    First(usize),
    /// Sixteen bytes of a stored value that is the same along the row.
    Bits(usize),
    /// Nothing: which positions of a half exist in the last group.
    Mask(u8),
}

/// The function of a phase.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// Its machine code, position-independent, followed by constants.
    pub(crate) bytes: Vec<u8>,
    /// The bytes that are instructions.
    pub(crate) instructions: usize,
    /// What the caller puts where before the call, and of which row: from the area on, [`CELL`] bytes each.
    pub(crate) cells: Vec<(u8, Cell)>,
    /// The reductions, by their lanes in the scratch, that a call begins: nothing needs to be there before it.
    pub(crate) begun: Vec<i32>,
    /// The bytes of the scratch it uses, from the area on.
    pub(crate) area_bytes: i32,
    /// The body, one line for each instruction.
    pub(crate) text: String,
}

const BROADCAST: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x18).bytes(4);
const BROADCAST_DOUBLE: Opcode =
    Opcode { w: true, ..Opcode::new(Map::M0F38, Prefix::P66, 0x19).bytes(8) };
const BROADCAST_128: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x1a).bytes(16);
const MOVE: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x10);
const STORE: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x11);

/// Compiles a phase.
///
/// # Errors
/// If something in it has no vector instructions; what that is.
pub(crate) fn compile(task: &Task<'_>) -> Result<Compiled, String> {
    let mut tables = Tables::default();
    let mut body = |wanted: bool, part: Part| match wanted {
        true => Select::body(task, &mut tables, part).map(|b| Some(needed(b))),
        false => Ok(None),
    };
    let (width, row) = (task.width, task.plan.row());
    let pairs = row >= i64::from(2 * task.lanes());
    let main = body(pairs, Part::Pair)?;
    let streamed = body(pairs && task.streams, Part::Streamed)?;
    let single = body(task.lanes() == 16 && row >= 16, Part::Single)?;
    let last = body(!task.plan.aligned, Part::Last)?;
    let streamed = streamed.filter(|_| !tables.streamed.is_empty());
    let taken = task.vectors() * tables.accumulators.len();
    let room = width.registers() - taken;
    let order = |body: Vec<Inst>| {
        let side_by_side = pressure(&body);
        if side_by_side < room {
            return (body, side_by_side);
        }
        let other = one_by_one(&body);
        let peak = pressure(&other);
        if peak < side_by_side { (other, peak) } else { (body, side_by_side) }
    };
    let main = main.map(order);
    let single = single.map(order);
    let [streamed, last] = [streamed, last].map(|body| body.map(order).map(|(body, _)| body));
    let pins = match main.as_ref().or(single.as_ref()) {
        Some((body, peak)) => {
            pins(body, room.saturating_sub(peak + 1), |n| width.accumulator((taken + n) as u8))
        }
        None => Pins::new(),
    };
    let frame = Frame {
        area: task.area,
        vector: width.bytes(),
        cells: tables.cells.len(),
        ready: tables.ready.len(),
        stages: tables.staged.len(),
        pointers: tables.pointers.clone(),
    };
    let [main, single] = [main, single].map(|body| body.map(|(body, _)| body));
    let mut text = String::new();
    for (name, body) in [("pairs", &main), ("single", &single), ("the last", &last)] {
        list(&mut text, name, body.as_deref().unwrap_or_default());
    }
    let (mut asm, vectors, lanes) = (Asm::new(width), task.vectors(), task.lanes());
    asm.doubles = task.cut.lanes == Lanes::Bits64;
    let begun = match task.begins {
        true => tables.accumulators.iter().map(|a| a.lanes).collect(),
        false => Vec::new(),
    };
    let begins = task.begins;
    let function = Function { asm, frame, tables, pins, vectors, lanes, begins, spilled: 0 };
    let bodies = Bodies { main, streamed, single, last };
    let (bytes, instructions, area_bytes, cells) = function.build(&bodies);
    Ok(Compiled { bytes, instructions, cells, begun, area_bytes, text })
}

/// What a function does for the positions that are left: the loops, one after the other.
struct Bodies {
    main: Option<Vec<Inst>>,
    /// Instead of the main one, where operands lie well.
    streamed: Option<Vec<Inst>>,
    single: Option<Vec<Inst>>,
    last: Option<Vec<Inst>>,
}

/// Registers for constants that are used most.
fn pins(body: &[Inst], room: usize, register: impl Fn(usize) -> Reg) -> Pins {
    let mut weight: HashMap<Op, usize> = HashMap::new();
    let mut order: Vec<Op> = Vec::new();
    for inst in body {
        for (i, a) in inst.args.iter().enumerate() {
            let op = body[*a as usize].op;
            if op.is_still() {
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

fn list(text: &mut String, name: &str, body: &[Inst]) {
    use std::fmt::Write;
    if body.is_empty() {
        return;
    }
    // Writing to a string does not fail.
    let _ = writeln!(text, "{name}:");
    for (at, inst) in body.iter().enumerate() {
        let _ = writeln!(text, "    %{at} = {:?} {:?}", inst.op, inst.args.as_slice());
    }
}

/// A function in the making.
struct Function {
    asm: Asm,
    frame: Frame,
    tables: Tables,
    pins: Pins,
    /// The registers of a reduction.
    vectors: usize,
    /// The lanes of a vector.
    lanes: i32,
    /// Reductions begin with the call.
    begins: bool,
    spilled: usize,
}

fn scratch(displacement: i32) -> Rm {
    Rm::Mem(Mem { base: RDI, index: None, displacement })
}

impl Function {
    fn build(mut self, bodies: &Bodies) -> (Vec<u8>, usize, i32, Vec<(u8, Cell)>) {
        let saved = self.frame.saved();
        saved.iter().for_each(|r| self.asm.push(*r));
        self.start();
        let done = self.asm.label();
        let pair = 2 * self.lanes;
        self.groups(pair, bodies.main.as_deref(), bodies.streamed.as_deref());
        self.groups(16, bodies.single.as_deref(), None);
        if let Some(body) = &bodies.last {
            self.asm.compare(RAX, RDX);
            self.asm.jump(When::GreaterEqual, done);
            self.last(body);
        }
        self.asm.bind(done);
        self.finish_lanes();
        self.asm.leave(&saved);
        let bytes = self.frame.bytes(self.spilled);
        let (code, instructions) = self.asm.finish();
        (code, instructions, bytes, self.tables.cells)
    }

    /// The loop over groups of so many positions, if there is a body for them.
    fn groups(&mut self, positions: i32, body: Option<&[Inst]>, streamed: Option<&[Inst]>) {
        let Some(body) = body else { return };
        let rest = self.asm.label();
        self.asm.lea(RSI, Mem { base: RDX, index: None, displacement: -positions });
        self.asm.compare(RAX, RSI);
        self.asm.jump(When::Greater, rest);
        if let Some(body) = streamed {
            let unaligned = self.asm.label();
            for (pointer, size) in self.tables.streamed.clone() {
                self.address(pointer, size);
                self.asm.test(R11, self.asm.width.bytes() - 1);
                self.asm.jump(When::Some, unaligned);
            }
            self.turns(positions, body);
            self.asm.fence();
            self.asm.jump(When::Always, rest);
            self.asm.bind(unaligned);
        }
        self.turns(positions, body);
        self.asm.bind(rest);
    }

    /// The turns of a loop, of which there is at least one.
    fn turns(&mut self, positions: i32, body: &[Inst]) {
        let top = self.asm.label();
        self.asm.bind(top);
        self.body(body, false);
        if positions == 16 {
            self.change_places();
        }
        self.asm.add_number(RAX, positions);
        self.asm.compare(RAX, RSI);
        self.asm.jump(When::LessEqual, top);
    }

    /// Where an operand's element at the position is, into R11.
    fn address(&mut self, pointer: u16, size: u8) {
        let base = self.frame.pointer(pointer).unwrap_or_else(|| {
            let displacement = self.frame.pointer_cell(pointer);
            self.asm.load(R11, Mem { base: RDI, index: None, displacement });
            R11
        });
        let index = Some((RAX, size.trailing_zeros() as u8));
        self.asm.lea(R11, Mem { base, index, displacement: 0 });
    }

    /// The vectors that sixteen lanes of a reduction are.
    fn sixteen(&self) -> usize {
        16 / self.lanes as usize
    }

    /// The registers of reductions, and where their lanes are in the scratch at the start.
    fn accumulators(&self) -> Vec<(Reg, i32)> {
        let (width, vectors) = (self.asm.width, self.vectors);
        let each = |(i, accumulator): (usize, &Accumulator)| {
            let at = accumulator.lanes;
            (0..vectors).map(move |v| {
                let register = width.accumulator((vectors * i + v) as u8);
                (register, at + width.bytes() * v as i32)
            })
        };
        self.tables.accumulators.iter().enumerate().flat_map(each).collect()
    }

    /// After sixteen positions: the lanes that the next sixteen go to, and the others.
    fn change_places(&mut self) {
        let near = self.sixteen();
        if self.vectors == near {
            return;
        }
        // Nothing but accumulators and constants lives from turn to turn, and those have the registers with the highest numbers.
        let spare = 0;
        for lanes in self.accumulators().chunks(self.vectors) {
            for ((a, _), (b, _)) in lanes.iter().zip(&lanes[near..]) {
                for (to, from) in [(spare, *a), (*a, *b), (*b, spare)] {
                    self.asm.vector(MOVE, to, 0, Rm::Reg(from), None);
                }
            }
        }
    }

    /// The lanes back into the scratch, at the end: those first that the next sixteen positions would go to.
    fn finish_lanes(&mut self) {
        let near = self.sixteen();
        let alternate = self.vectors > near;
        if alternate && !self.tables.accumulators.is_empty() {
            self.asm.mov(R11, RAX);
            self.asm.and_number(R11, 16);
            self.asm.mov(RCX, R11);
            self.asm.negate(RCX);
        }
        for (number, (register, at)) in self.accumulators().into_iter().enumerate() {
            let moved = if number % self.vectors < near { R11 } else { RCX };
            let index = alternate.then_some((moved, if self.asm.doubles { 3 } else { 2 }));
            let to = Rm::Mem(Mem { base: RDI, index, displacement: at });
            self.asm.vector(STORE, register, 0, to, None);
        }
    }

    fn body(&mut self, body: &[Inst], tail: bool) {
        let taken = self.accumulators().iter().fold(0u32, |set, (register, _)| set | 1 << register);
        let spilled = emit(&mut self.asm, &self.frame, body, &self.pins, (taken, tail));
        self.spilled = self.spilled.max(spilled);
    }

    /// Everything before the loop.
    fn start(&mut self) {
        self.asm.mov(RAX, RSI);
        for (i, from) in self.frame.pointers.clone().into_iter().enumerate() {
            let Some(to) = self.frame.pointer(i as u16) else { break };
            match from {
                PointerFrom::Cell(cell) => {
                    let displacement = self.frame.cell(cell);
                    self.asm.load(to, Mem { base: RDI, index: None, displacement });
                }
                PointerFrom::Waits => {
                    self.asm.mov(to, RSI);
                    self.asm.negate(to);
                    self.asm.lea(to, Mem { base: RDI, index: Some((to, 2)), displacement: 0 });
                }
            }
        }
        for (number, (cell, wide)) in self.tables.ready.clone().into_iter().enumerate() {
            if matches!(self.tables.cells[usize::from(cell)].1, Cell::Mask(_)) {
                continue;
            }
            let op = match wide {
                true => BROADCAST_128,
                false if self.asm.doubles => BROADCAST_DOUBLE,
                false => BROADCAST,
            };
            let pin = self.pins.get(&Op::Ready(number as u16)).copied();
            self.asm.vector(op, pin.unwrap_or(0), 0, scratch(self.frame.cell(cell)), None);
            if pin.is_none() {
                self.asm.vector(STORE, 0, 0, scratch(self.frame.ready(number as u16)), None);
            }
        }
        let mut constants: Vec<(Op, Reg)> = self.pins.iter().map(|(op, r)| (*op, *r)).collect();
        constants.sort_by_key(|c| c.1);
        for (op, to) in constants {
            if !matches!(op, Op::Ready(_)) {
                let from = still(&mut self.asm, &self.frame, op);
                self.asm.vector(MOVE, to, 0, from, None);
            }
        }
        for (number, (register, at)) in self.accumulators().into_iter().enumerate() {
            let identity = self.tables.accumulators[number / self.vectors].identity;
            let from = match self.begins {
                true if self.asm.doubles => Rm::Pool(self.asm.pool(doubles(identity))),
                true => Rm::Pool(self.asm.pool([identity as u32; 16])),
                false => scratch(at),
            };
            self.asm.vector(MOVE, register, 0, from, None);
        }
    }

    /// The last positions, of which there are between one and fifteen.
    fn last(&mut self, body: &[Inst]) {
        // From now on the end is how many are left.
        self.asm.sub(RDX, RAX);
        if self.asm.width == Width::Bits512 {
            // Sixteen masks of 16 bits.
            let masks =
                [0, 2, 4, 6, 8, 10, 12, 14].map(|n| ((1 << n) - 1) | (((2 << n) - 1) << 16));
            let mut table = [0; 16];
            table[..8].copy_from_slice(&masks);
            let table = self.asm.pool(table);
            self.asm.lea_pool(R11, table);
            let at = Mem { base: R11, index: Some((RDX, 1)), displacement: 0 };
            self.asm.load_mask(TAIL, at);
            if self.asm.doubles {
                // Of eight lanes the low byte counts.
                self.asm.load_mask(TAIL + 1, Mem { displacement: 1, ..at });
            }
        }
        if let Some(masks) = self.tables.masks {
            let (all, none) = ([u32::MAX; 16], [0; 16]);
            let table = self.asm.pool_run(&[all, all, none, none]);
            self.asm.mov(RCX, RDX);
            self.asm.negate(RCX);
            self.asm.lea_pool(R11, table);
            for (half, slot) in masks.into_iter().enumerate() {
                let at =
                    Mem { base: R11, index: Some((RCX, 2)), displacement: 64 + 32 * half as i32 };
                self.asm.vector(MOVE, 0, 0, Rm::Mem(at), None);
                self.asm.vector(STORE, 0, 0, scratch(self.frame.ready(slot)), None);
            }
        }
        let staged = self.tables.staged.clone();
        staged.iter().filter(|s| !s.out).for_each(|s| self.copy(s));
        self.body(body, true);
        staged.iter().filter(|s| s.out).for_each(|s| self.copy(s));
    }

    /// Copies the last elements of an operand one by one.
    fn copy(&mut self, staged: &Staged) {
        let Staged { pointer, size, stage, out } = *staged;
        let scale = size.trailing_zeros() as u8;
        self.address(pointer, size);
        let operand = Mem { base: R11, index: Some((RSI, scale)), displacement: 0 };
        let copy =
            Mem { base: RDI, index: Some((RSI, scale)), displacement: self.frame.stage(stage) };
        let (from, to) = if out { (copy, operand) } else { (operand, copy) };
        self.asm.sub(RSI, RSI);
        let again = self.asm.label();
        self.asm.bind(again);
        self.asm.load_bytes(size, RCX, from);
        self.asm.store_bytes(size, to, RCX);
        self.asm.add_number(RSI, 1);
        self.asm.compare(RSI, RDX);
        self.asm.jump(When::Less, again);
    }
}
