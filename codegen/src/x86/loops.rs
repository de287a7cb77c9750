//! The function around the bodies of a loop: what happens before it, the loops over groups of
//! positions, the positions that are left, and the accumulators at the end.

use super::asm::{Asm, Map, Mem, Opcode, Prefix, R11, RAX, RCX, RDI, RDX, RSI, Reg, Rm, When};
use super::bodies::Bodies;
use super::evex::TAIL;
use super::frame::{Frame, PointerFrom};
use super::inst::{Inst, Op};
use super::regalloc::{Pinned, emit, invariant_operand, splat_64};
use super::select::{Accumulator, Tables, TailCopy};
use super::task::{Cell, Task};
use crate::machine::Width;

pub(super) const BROADCAST: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x18).bytes(4);
pub(super) const BROADCAST_64: Opcode =
    Opcode { w: true, ..Opcode::new(Map::M0F38, Prefix::P66, 0x19).bytes(8) };
pub(super) const BROADCAST_128: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x1a).bytes(16);
pub(super) const MOVE: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x10);
pub(super) const STORE: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x11);

/// The machine code of a function.
pub(super) struct Code {
    /// Instructions, followed by constants.
    pub(super) bytes: Vec<u8>,
    /// The bytes that are instructions.
    pub(super) instructions: usize,
    /// The bytes of the scratch it uses.
    pub(super) area_bytes: i32,
}

/// The function of a task with these bodies.
pub(super) fn assemble(task: &Task<'_>, tables: &Tables, pins: Pinned, bodies: &Bodies) -> Code {
    let mut asm = Asm::new(task.width);
    asm.lanes = task.cut.lanes;
    let frame = Frame {
        area: task.area,
        vector: task.width.bytes(),
        cells: tables.cells.len(),
        broadcasts: tables.broadcasts.len(),
        tail_copies: tables.tail_copies.len(),
        pointers: tables.pointers.clone(),
    };
    let function = Function {
        asm,
        frame,
        tables,
        pins,
        vectors: task.vectors(),
        lanes: task.lanes(),
        initialises: task.initialises,
        spilled: 0,
    };
    function.build(bodies)
}

/// A function in the making.
struct Function<'a> {
    asm: Asm,
    frame: Frame,
    tables: &'a Tables,
    pins: Pinned,
    /// The registers of a reduction.
    vectors: usize,
    /// The lanes of a vector.
    lanes: i32,
    /// The prologue initialises the accumulators.
    initialises: bool,
    spilled: usize,
}

fn scratch(displacement: i32) -> Rm {
    Rm::Mem(Mem { base: RDI, index: None, displacement })
}

impl Function<'_> {
    fn build(mut self, bodies: &Bodies) -> Code {
        let saved = self.frame.saved();
        saved.iter().for_each(|r| self.asm.push(*r));
        self.prologue();
        let done = self.asm.label();
        let pair = 2 * self.lanes;
        self.groups(pair, bodies.main.as_deref(), bodies.non_temporal.as_deref());
        self.groups(16, bodies.single.as_deref(), None);
        if let Some(body) = &bodies.tail {
            self.asm.compare(RAX, RDX);
            self.asm.jump(When::GreaterEqual, done);
            self.tail(body);
        }
        self.asm.bind(done);
        self.store_accumulators();
        self.asm.leave(&saved);
        let area_bytes = self.frame.bytes(self.spilled);
        let (bytes, instructions) = self.asm.finish();
        Code { bytes, instructions, area_bytes }
    }

    /// The loop over groups of a number of positions, if there is a body for them.
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
            self.iterate(positions, body);
            self.asm.fence();
            self.asm.jump(When::Always, rest);
            self.asm.bind(unaligned);
        }
        self.iterate(positions, body);
        self.asm.bind(rest);
    }

    /// The iterations of a loop, of which there is at least one.
    fn iterate(&mut self, positions: i32, body: &[Inst]) {
        let top = self.asm.label();
        self.asm.bind(top);
        self.body(body, false);
        if positions == 16 {
            self.swap_lanes();
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
    fn swap_lanes(&mut self) {
        let near = self.sixteen();
        if self.vectors == near {
            return;
        }
        // Only accumulators and pinned constants live from one iteration to the next, and those
        // have the registers with the highest numbers.
        let spare = 0;
        for lanes in self.accumulators().chunks(self.vectors) {
            for ((a, _), (b, _)) in lanes.iter().zip(&lanes[near..]) {
                for (to, from) in [(spare, *a), (*a, *b), (*b, spare)] {
                    self.asm.vector(MOVE, to, 0, Rm::Reg(from), None);
                }
            }
        }
    }

    /// Stores the accumulators to the scratch. The registers hold those lanes first that the next
    /// sixteen positions would go to.
    fn store_accumulators(&mut self) {
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
            let index = alternate.then_some((moved, if self.asm.is_64() { 3 } else { 2 }));
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
    fn prologue(&mut self) {
        self.asm.mov(RAX, RSI);
        for (i, from) in self.frame.pointers.clone().into_iter().enumerate() {
            let Some(to) = self.frame.pointer(i as u16) else { break };
            match from {
                PointerFrom::Cell(cell) => {
                    let displacement = self.frame.cell(cell);
                    self.asm.load(to, Mem { base: RDI, index: None, displacement });
                }
                PointerFrom::Temporaries => {
                    self.asm.mov(to, RSI);
                    self.asm.negate(to);
                    self.asm.lea(to, Mem { base: RDI, index: Some((to, 2)), displacement: 0 });
                }
            }
        }
        for (number, (cell, all_16_bytes)) in self.tables.broadcasts.clone().into_iter().enumerate()
        {
            if matches!(self.tables.cells[usize::from(cell)].1, Cell::Mask(_)) {
                continue;
            }
            let op = match all_16_bytes {
                true => BROADCAST_128,
                false if self.asm.is_64() => BROADCAST_64,
                false => BROADCAST,
            };
            let pin = self.pins.get(&Op::Broadcast(number as u16)).copied();
            self.asm.vector(op, pin.unwrap_or(0), 0, scratch(self.frame.cell(cell)), None);
            if pin.is_none() {
                self.asm.vector(STORE, 0, 0, scratch(self.frame.broadcast(number as u16)), None);
            }
        }
        let mut constants: Vec<(Op, Reg)> = self.pins.iter().map(|(op, r)| (*op, *r)).collect();
        constants.sort_by_key(|c| c.1);
        for (op, to) in constants {
            if !matches!(op, Op::Broadcast(_)) {
                let from = invariant_operand(&mut self.asm, &self.frame, op);
                self.asm.vector(MOVE, to, 0, from, None);
            }
        }
        for (number, (register, at)) in self.accumulators().into_iter().enumerate() {
            let identity = self.tables.accumulators[number / self.vectors].identity;
            let from = match self.initialises {
                true if self.asm.is_64() => Rm::Pool(self.asm.pool(splat_64(identity))),
                true => Rm::Pool(self.asm.pool([identity as u32; 16])),
                false => scratch(at),
            };
            self.asm.vector(MOVE, register, 0, from, None);
        }
    }

    /// The last positions, of which there are between one and fifteen.
    fn tail(&mut self, body: &[Inst]) {
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
            if self.asm.is_64() {
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
                self.asm.vector(STORE, 0, 0, scratch(self.frame.broadcast(slot)), None);
            }
        }
        let tail_copies = self.tables.tail_copies.clone();
        tail_copies.iter().filter(|s| !s.out).for_each(|s| self.copy(s));
        self.body(body, true);
        tail_copies.iter().filter(|s| s.out).for_each(|s| self.copy(s));
    }

    /// Copies the last elements of an operand one by one.
    fn copy(&mut self, tail_copies: &TailCopy) {
        let TailCopy { pointer, size, stage, out } = *tail_copies;
        let scale = size.trailing_zeros() as u8;
        self.address(pointer, size);
        let operand = Mem { base: R11, index: Some((RSI, scale)), displacement: 0 };
        let copy =
            Mem { base: RDI, index: Some((RSI, scale)), displacement: self.frame.tail_copy(stage) };
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
