//! Register allocation for a body, and its encoding: one pass from the first instruction to the
//! last.
//!
//! Values get registers in order; when none is free, the value whose next use is farthest gives its
//! own up. Constants, and loads of memory that nothing writes, are rematerialised: they are read as
//! memory operands, and cost nothing to give up. Others are spilled.

use super::asm::{Asm, Map, Mem, Opcode, Prefix, R11, RAX, RCX, RDI, Reg, Rm, Span, Under};
use super::evex::{MASK, TAIL};
use super::frame::Frame;
use super::inst::{Base, Binary, Inst, Load, MemRef, Op, Shift, Store, Unary, VReg};
use crate::machine::Width;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Constants and broadcasts that keep a register for the whole loop.
pub(super) type Pinned = HashMap<Op, Reg>;

/// Allocates and encodes a body. `taken` registers are those of accumulators; `tail` says that the
/// body is for the positions that are left. Returns how many vectors were spilled.
pub(super) fn emit(
    asm: &mut Asm,
    frame: &Frame,
    insts: &[Inst],
    pins: &Pinned,
    (taken, tail): (u32, bool),
) -> usize {
    let mut uses: Vec<Vec<u32>> = vec![Vec::new(); insts.len()];
    for (at, inst) in insts.iter().enumerate().rev() {
        for a in &inst.args {
            uses[*a as usize].push(at as u32);
        }
    }
    let pinned = pins.values().fold(taken, |set, r| set | 1 << r);
    let width = asm.width;
    let mut allocator = Allocator {
        tail: tail && width == Width::Bits512,
        width,
        asm,
        frame,
        insts,
        uses,
        register: vec![None; insts.len()],
        held: vec![None; width.registers()],
        open: !pinned,
        slot: vec![None; insts.len()],
        spilled: 0,
    };
    for (at, inst) in insts.iter().enumerate() {
        if let Some(r) = pins.get(&inst.op) {
            allocator.register[at] = Some(*r);
        } else {
            allocator.inst(at, inst);
        }
    }
    allocator.spilled
}

struct Allocator<'a> {
    /// Operands are accessed under the mask of the last positions.
    tail: bool,
    width: Width,
    asm: &'a mut Asm,
    frame: &'a Frame,
    insts: &'a [Inst],
    /// The instructions that still use each value, the next one last.
    uses: Vec<Vec<u32>>,
    register: Vec<Option<Reg>>,
    /// The value in each register.
    held: Vec<Option<VReg>>,
    /// The registers that values may have.
    open: u32,
    /// Where spilled values are.
    slot: Vec<Option<usize>>,
    spilled: usize,
}

const MOVE: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x10);
const STORE: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x11);
pub(super) const STREAM: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x2b);
const STORE_MASKED: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x2e);
const STORE_WORDS: Opcode =
    Opcode { w: true, ..Opcode::new(Map::M0F, Prefix::PF2, 0x7f).on(Span::Half) };
const STORE_BYTES: Opcode = Opcode::new(Map::M0F, Prefix::PF2, 0x7f).on(Span::Quarter);
pub(super) const STORE_LOW_BYTES: Opcode = Opcode::new(Map::M0F38, Prefix::PF3, 0x32).bytes(8);
const TO_HALF: Opcode = Opcode::new(Map::M0F3A, Prefix::P66, 0x1d).bytes(32);
const BLEND: Opcode = Opcode::new(Map::M0F3A, Prefix::P66, 0x4a);
const SHIFT: Opcode = Opcode::new(Map::M0F, Prefix::P66, 0x72);
const FMA_132: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x98);
const FMA_213: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0xa8);
const FMA_231: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0xb8);
const MOVE_INTEGER: Opcode = Opcode::new(Map::M0F, Prefix::P66, 0x6e).on(Span::Half);
const SPREAD_GENERAL: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x7c);
const SPREAD_INTEGER: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x58);

/// The fused multiply-adds, for tests.
#[cfg(test)]
pub(super) const FUSED: [(Opcode, &str); 4] = [
    (FMA_132, "vfmadd132ps"),
    (FMA_213, "vfmadd213ps"),
    (FMA_231, "vfmadd231ps"),
    (STORE_MASKED, "vmaskmovps"),
];

/// The stores of 512 bits and of parts of them, for tests, and the register 27 as they take it.
#[cfg(test)]
pub(super) const STORES: [(Opcode, &str, iced_x86::Register); 4] = [
    (STORE, "vmovups", iced_x86::Register::ZMM27),
    (STORE_WORDS, "vmovdqu16", iced_x86::Register::YMM27),
    (STORE_BYTES, "vmovdqu8", iced_x86::Register::XMM27),
    (TO_HALF, "vcvtps2ph", iced_x86::Register::ZMM27),
];

impl Allocator<'_> {
    fn inst(&mut self, at: usize, inst: &Inst) {
        let args = &inst.args[..];
        match inst.op {
            Op::Splat(_) | Op::Splat64(_) | Op::Ramp { .. } | Op::Broadcast(_) | Op::Folded(_) => {}
            Op::Acc(number) => self.register[at] = Some(self.width.accumulator(number)),
            Op::Load(load, place) => {
                let mask = if load == Load::Masked { self.reg(args[0], &[]) } else { 0 };
                let from = Rm::Mem(self.mem(place));
                let to = self.result(at, inst);
                let opcode = match load {
                    Load::Full => self.of_lanes(load.opcode()),
                    _ => load.opcode(),
                };
                match self.is_partial(place) {
                    true => {
                        let under = Under::Zeroing(self.tail_of(inst));
                        self.asm.evex(opcode, under, [to, 0], from, None);
                    }
                    false => self.asm.vector(opcode, to, mask, from, None),
                }
            }
            Op::Position { cell, step } => {
                let start = self.frame.cell(cell);
                self.asm.multiply32(RCX, RAX, step);
                self.asm.add32(RCX, Mem { base: RDI, index: None, displacement: start });
                let to = self.result(at, inst);
                match self.width {
                    Width::Bits256 => {
                        self.asm.vex(MOVE_INTEGER, to, 0, Rm::Reg(RCX), None);
                        self.asm.vex(SPREAD_INTEGER, to, 0, Rm::Reg(to), None);
                    }
                    Width::Bits512 => {
                        let from = Rm::Reg(RCX);
                        self.asm.evex(SPREAD_GENERAL, Under::Nothing, [to, 0], from, None);
                    }
                }
            }
            Op::Binary(two) => self.binary(at, inst, two),
            Op::Unary(Unary::Truncate16 | Unary::Truncate8) => {
                let from = self.reg(args[0], &[]);
                let to = self.result(at, inst);
                let Op::Unary(one) = inst.op else { return };
                self.asm.vector(one.opcode().0, from, 0, Rm::Reg(to), None);
            }
            Op::Unary(one) => {
                let from = self.operand(args[0], &[]);
                let to = self.result(at, inst);
                let (opcode, imm) = match self.asm.is_64() {
                    true => one.opcode_64(),
                    false => one.opcode(),
                };
                self.asm.vector(opcode, to, 0, from, imm);
            }
            Op::Shift(shift, by) => self.shift(at, inst, shift, by),
            Op::Fma => self.fma(at, inst),
            Op::Blend if self.width == Width::Bits512 => {
                let mask = self.reg(args[2], args);
                self.asm.take_mask(mask);
                self.choose(at, inst, MASK);
            }
            Op::CompareBlend(two) => {
                let (opcode, imm) = self.encoding(two);
                let first = self.reg(args[2], args);
                let second = self.operand(args[3], args);
                self.asm.vector(opcode, MASK, first, second, imm);
                self.choose(at, inst, MASK);
            }
            Op::Tail => self.choose(at, inst, self.tail_of(inst)),
            Op::Blend => {
                let clear = self.reg(args[0], args);
                let mask = self.reg(args[2], args);
                let set = self.operand(args[1], args);
                let to = self.result(at, inst);
                self.asm.vector(BLEND, to, clear, set, Some(mask << 4));
            }
            Op::ToF16 => {
                let from = self.reg(args[0], &[]);
                let to = self.result(at, inst);
                self.asm.vector(TO_HALF, from, 0, Rm::Reg(to), Some(0));
            }
            Op::Store(store, place) => self.store(at, inst, store, place),
            Op::Prefetch(place, written) => {
                let line = self.mem(place);
                self.asm.prefetch(line, written);
            }
        }
    }

    fn binary(&mut self, at: usize, inst: &Inst, two: Binary) {
        let (mut a, mut b) = (inst.args[0], inst.args[1]);
        if two.commutes() && !self.is_held(a) && self.is_held(b) {
            (a, b) = (b, a);
        }
        let first = self.reg(a, &[b]);
        let second = self.operand(b, &[a]);
        let to = self.result(at, inst);
        let (opcode, imm) = self.encoding(two);
        if two.is_mask() && self.width == Width::Bits512 {
            self.asm.vector(opcode, MASK, first, second, imm);
            self.asm.spread_mask(to);
        } else {
            self.asm.vector(opcode, to, first, second, imm);
        }
    }

    /// The second operand in the lanes of a mask register, else the first.
    fn choose(&mut self, at: usize, inst: &Inst, mask: Reg) {
        let args = &inst.args[..2];
        let clear = self.reg(args[0], args);
        let set = self.operand(args[1], args);
        let to = self.result(at, inst);
        self.asm.blend_mask(mask, to, clear, set);
    }

    /// The encoding of an instruction of two operands.
    fn encoding(&self, two: Binary) -> (Opcode, Option<u8>) {
        if self.asm.is_64() { two.opcode_64() } else { two.opcode() }
    }

    /// An instruction on floats, on those that lanes hold.
    fn of_lanes(&self, op: Opcode) -> Opcode {
        if self.asm.is_64() { Opcode { prefix: Prefix::P66, w: true, ..op } } else { op }
    }

    /// The mask of the last positions for the half that an instruction works on.
    fn tail_of(&self, inst: &Inst) -> Reg {
        TAIL + Reg::from(self.asm.is_64() && inst.half == 1)
    }

    /// The exponent of the bytes of a lane.
    fn scale(&self) -> u8 {
        if self.asm.is_64() { 3 } else { 2 }
    }

    /// True if only some lanes of it are there.
    fn is_partial(&self, place: MemRef) -> bool {
        self.tail && matches!(place.base, Base::Pointer { .. })
    }

    fn shift(&mut self, at: usize, inst: &Inst, shift: Shift, by: u8) {
        let from = self.reg(inst.args[0], &[]);
        let to = self.result(at, inst);
        self.asm.vector(SHIFT, shift.digit(), to, Rm::Reg(from), Some(by));
    }

    fn store(&mut self, at: usize, inst: &Inst, store: Store, place: MemRef) {
        let from = self.reg(inst.args[0], &inst.args);
        let mask = if store == Store::Masked { self.reg(inst.args[1], &inst.args) } else { 0 };
        let to = Rm::Mem(self.mem(place));
        let long = self.width == Width::Bits512;
        let (opcode, imm) = match store {
            Store::Full => (self.of_lanes(STORE), None),
            Store::NonTemporal => (STREAM, None),
            Store::NonTemporalLow => (STREAM.on(Span::Half), None),
            Store::Masked => (STORE_MASKED, None),
            Store::Low if long => (STORE_WORDS, None),
            Store::Low => (STORE.on(Span::Half), None),
            Store::Quarter => (STORE_BYTES, None),
            Store::Eighth => (STORE_LOW_BYTES, None),
            Store::F16 => (TO_HALF, Some(0)),
        };
        match self.is_partial(place) {
            true => self.asm.evex(opcode, Under::Mask(self.tail_of(inst)), [from, 0], to, imm),
            false => self.asm.vector(opcode, from, mask, to, imm),
        }
        self.consume(at, inst);
    }

    /// Chooses the form that overwrites an operand which is not used again.
    fn fma(&mut self, at: usize, inst: &Inst) {
        let [mut a, mut b, c] = [inst.args[0], inst.args[1], inst.args[2]];
        let args = &inst.args[..];
        if self.dies(c, args) {
            if !self.is_held(a) {
                (a, b) = (b, a);
            }
            let first = self.reg(a, args);
            let second = self.operand(b, args);
            let to = self.over(at, inst, c);
            self.asm.vector(self.of_lanes(FMA_231), to, first, second, None);
            return;
        }
        if !self.dies(a, args) {
            (a, b) = (b, a);
        }
        if self.dies(a, args) {
            if !self.is_held(b) && self.is_held(c) {
                let (second, first) = (self.operand(b, args), self.reg(c, args));
                let to = self.over(at, inst, a);
                self.asm.vector(self.of_lanes(FMA_132), to, first, second, None);
            } else {
                let first = self.reg(b, args);
                let second = self.operand(c, args);
                let to = self.over(at, inst, a);
                self.asm.vector(self.of_lanes(FMA_213), to, first, second, None);
            }
            return;
        }
        // All are needed again: work on a copy, best of one that comes from memory anyway.
        if !self.is_held(a) && self.is_held(b) {
            (a, b) = (b, a);
        }
        let copied = if self.is_held(c) && !self.is_held(b) { b } else { c };
        let mut keep: SmallVec<[VReg; 4]> = SmallVec::from_slice(args);
        let to = self.free(&keep);
        self.held[to as usize] = Some(at as VReg);
        keep.push(at as VReg);
        let from = self.place_of(copied);
        self.asm.vector(MOVE, to, 0, from, None);
        let first = self.reg(a, &keep);
        let (opcode, other) = if copied == c { (FMA_231, b) } else { (FMA_213, c) };
        let second = self.operand(other, &keep);
        self.asm.vector(self.of_lanes(opcode), to, first, second, None);
        self.consume(at, inst);
        self.held[to as usize] = None;
        self.take(at, to);
    }

    /// The register of an operand that dies here, for the result.
    fn over(&mut self, at: usize, inst: &Inst, operand: VReg) -> Reg {
        let to = self.register[operand as usize].expect("a value that dies is in a register");
        self.consume(at, inst);
        self.take(at, to);
        to
    }

    /// True if the value is in a register of its own and nothing else reads it, now or later.
    fn dies(&self, v: VReg, args: &[VReg]) -> bool {
        let own = self.register[v as usize].is_some_and(|r| self.held[r as usize] == Some(v));
        own && self.uses[v as usize].len() == 1 && args.iter().filter(|a| **a == v).count() == 1
    }

    fn is_held(&self, v: VReg) -> bool {
        self.register[v as usize].is_some()
    }

    /// Forgets the uses of this instruction and gives it a register for its result.
    fn result(&mut self, at: usize, inst: &Inst) -> Reg {
        self.consume(at, inst);
        if let Some(fixed) = inst.fixed {
            self.register[at] = Some(fixed);
            return fixed;
        }
        let to = self.free(&[]);
        self.take(at, to);
        to
    }

    fn take(&mut self, at: usize, register: Reg) {
        if self.uses[at].is_empty() {
            return;
        }
        self.held[register as usize] = Some(at as VReg);
        self.register[at] = Some(register);
    }

    fn consume(&mut self, at: usize, inst: &Inst) {
        for a in &inst.args {
            let a = *a as usize;
            while self.uses[a].last() == Some(&(at as u32)) {
                self.uses[a].pop();
            }
            if let (true, Some(r)) = (self.uses[a].is_empty(), self.register[a])
                && self.held[r as usize] == Some(a as VReg)
            {
                self.held[r as usize] = None;
            }
        }
    }

    /// A register with nothing in it, if need be after giving up that of a value not in `keep`.
    fn free(&mut self, keep: &[VReg]) -> Reg {
        if let Some(r) = self.unused() {
            return r;
        }
        let farthest = (0..self.width.registers() as Reg)
            .filter(|r| self.open & 1 << r != 0)
            .filter_map(|r| self.held[r as usize].map(|v| (r, v)))
            .filter(|(_, v)| !keep.contains(v))
            .max_by_key(|(_, v)| self.uses[*v as usize].last().copied().unwrap_or(u32::MAX));
        let (r, v) = farthest.expect("an instruction has fewer operands than there are registers");
        let value = v as usize;
        if !self.insts[value].op.is_rematerialised() && self.slot[value].is_none() {
            self.slot[value] = Some(self.spilled);
            let to = Rm::Mem(self.frame.spill(self.spilled));
            self.asm.vector(STORE, r, 0, to, None);
            self.spilled += 1;
        }
        self.register[value] = None;
        self.held[r as usize] = None;
        r
    }

    fn unused(&self) -> Option<Reg> {
        (0..self.width.registers() as Reg)
            .find(|r| self.open & 1 << r != 0 && self.held[*r as usize].is_none())
    }

    /// The value in a register.
    fn reg(&mut self, v: VReg, keep: &[VReg]) -> Reg {
        if let Some(r) = self.register[v as usize] {
            return r;
        }
        let from = self.place_of(v);
        let to = self.free(keep);
        self.asm.vector(MOVE, to, 0, from, None);
        self.held[to as usize] = Some(v);
        self.register[v as usize] = Some(to);
        to
    }

    /// The value as an operand that may be in memory. What is read more than once goes to a
    /// register if there is one.
    fn operand(&mut self, v: VReg, keep: &[VReg]) -> Rm {
        let again = self.uses[v as usize].len() > 1 && !self.insts[v as usize].op.is_invariant();
        if self.is_held(v) || again && self.unused().is_some() {
            return Rm::Reg(self.reg(v, keep));
        }
        self.place_of(v)
    }

    /// Where the value is.
    fn place_of(&mut self, v: VReg) -> Rm {
        let value = v as usize;
        if let Some(r) = self.register[value] {
            return Rm::Reg(r);
        }
        if let Some(slot) = self.slot[value] {
            return Rm::Mem(self.frame.spill(slot));
        }
        match self.insts[value].op {
            Op::Folded(place) => Rm::Mem(self.mem(place)),
            op => invariant_operand(self.asm, self.frame, op),
        }
    }

    /// The address of a memory operand; pointers without a register are fetched first.
    fn mem(&mut self, place: MemRef) -> Mem {
        let MemRef { base, offset } = place;
        let fixed = |displacement| Mem { base: RDI, index: None, displacement };
        match base {
            Base::Pointer { pointer, size } => {
                let base = self.frame.pointer(pointer).unwrap_or_else(|| {
                    self.asm.load(R11, fixed(self.frame.pointer_cell(pointer)));
                    R11
                });
                let index = Some((RAX, size.trailing_zeros() as u8));
                Mem { base, index, displacement: offset }
            }
            Base::RowBuffer(at) => {
                Mem { base: RDI, index: Some((RAX, self.scale())), displacement: at + offset }
            }
            Base::Fixed(at) => fixed(at + offset),
            Base::Lanes(at) => {
                self.asm.mov(R11, RAX);
                self.asm.and_number(R11, 16);
                Mem { base: RDI, index: Some((R11, self.scale())), displacement: at + offset }
            }
            Base::TailCopy(number) => fixed(self.frame.tail_copy(number) + offset),
        }
    }
}

/// A vector of lanes of 64 bits.
pub(super) fn splat_64(bits: u64) -> [u32; 16] {
    std::array::from_fn(|word| (bits >> (32 * (word % 2))) as u32)
}

/// The memory operand of a value that is the same in every iteration.
pub(super) fn invariant_operand(asm: &mut Asm, frame: &Frame, op: Op) -> Rm {
    match op {
        Op::Splat(bits) => Rm::Pool(asm.pool([bits; 16])),
        Op::Splat64(bits) => Rm::Pool(asm.pool(splat_64(bits))),
        Op::Ramp { start, step } => {
            let lane = |l: i32| start.wrapping_add(step.wrapping_mul(l)) as u32;
            let lanes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
            Rm::Pool(asm.pool(lanes.map(lane)))
        }
        Op::Broadcast(number) => {
            Rm::Mem(Mem { base: RDI, index: None, displacement: frame.broadcast(number) })
        }
        other => unreachable!("{other:?} is not invariant"),
    }
}
