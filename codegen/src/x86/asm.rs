//! Machine code of x86-64: VEX instructions on 256-bit registers, the few integer instructions
//! around them, jumps, and a pool of vectors.
//!
//! Nothing here knows what the code is for. Instructions on 512-bit registers are encoded in
//! `evex`.

use crate::machine::Width;
use crate::plan::phases::Lanes;

/// Which lanes an instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Under {
    /// All.
    Nothing,
    /// Those of a mask register. Others stay as they are; memory of theirs is not touched.
    Mask(Reg),
    /// Those of a mask register. Others become zero; memory of theirs is not touched.
    Zeroing(Reg),
}

/// The number of a vector or general register.
pub(super) type Reg = u8;

pub(super) const RAX: Reg = 0;
pub(super) const RCX: Reg = 1;
pub(super) const RDX: Reg = 2;
pub(super) const RBX: Reg = 3;
pub(super) const RBP: Reg = 5;
pub(super) const RSI: Reg = 6;
pub(super) const RDI: Reg = 7;
pub(super) const R11: Reg = 11;

/// `base + index * 2^scale + displacement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mem {
    /// A general register.
    pub(super) base: Reg,
    /// A general register other than the stack pointer, and the exponent of its factor.
    pub(super) index: Option<(Reg, u8)>,
    /// In bytes.
    pub(super) displacement: i32,
}

/// The operand that may be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rm {
    /// A vector register.
    Reg(Reg),
    /// An address.
    Mem(Mem),
    /// A vector of the pool, by number.
    Pool(u32),
}

/// The opcode map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// `0F`.
    M0F = 1,
    /// `0F 38`.
    M0F38 = 2,
    /// `0F 3A`.
    M0F3A = 3,
}

/// The mandatory prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// None.
    None = 0,
    /// `66`.
    P66 = 1,
    /// `F3`.
    PF3 = 2,
    /// `F2`.
    PF2 = 3,
}

/// How much of a vector an instruction works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// All of it.
    Whole,
    /// The low half.
    Half,
    /// The low quarter: of 512 bits only.
    Quarter,
}

/// What is the same for all uses of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcode {
    pub(super) map: Map,
    pub(super) prefix: Prefix,
    pub(super) byte: u8,
    /// The W bit.
    pub(super) w: bool,
    /// How much of a vector it works on.
    pub(super) part: Span,
    /// The bytes that it reads or writes in memory, if its vectors have 512 bits.
    pub(super) memory: u8,
}

impl Opcode {
    /// An instruction on whole vectors.
    pub(super) const fn new(map: Map, prefix: Prefix, byte: u8) -> Self {
        Opcode { map, prefix, byte, w: false, part: Span::Whole, memory: 64 }
    }

    /// The same instruction on a part of a vector.
    pub(super) const fn on(self, part: Span) -> Self {
        let memory = match part {
            Span::Whole => 64,
            Span::Half => 32,
            Span::Quarter => 16,
        };
        Opcode { part, memory, ..self }
    }

    /// The same instruction with a memory operand of `memory` bytes where vectors have 512 bits.
    pub(super) const fn bytes(self, memory: u8) -> Self {
        Opcode { memory, ..self }
    }
}

/// A place in the code that jumps lead to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// When a jump is taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// After a comparison: less, signed.
    Less,
    /// Less or equal, signed.
    LessEqual,
    /// Greater, signed.
    Greater,
    /// Greater or equal, signed.
    GreaterEqual,
    /// After a test: some of the bits are set.
    Some,
    /// Always.
    Always,
}

/// Code in the making.
pub(super) struct Asm {
    pub(super) width: Width,
    /// The lanes of instructions that come in both sizes.
    pub(super) lanes: Lanes,
    pub(super) code: Vec<u8>,
    pool: Vec<[u32; 16]>,
    /// Displacements of pool vectors: where they are, where their instruction ends, and the vector.
    pool_uses: Vec<(usize, usize, u32)>,
    labels: Vec<Option<usize>>,
    /// Distances of jumps and their labels.
    jumps: Vec<(usize, usize)>,
}

impl Asm {
    /// No code yet.
    pub(super) fn new(width: Width) -> Self {
        let (code, pool, pool_uses) = (Vec::new(), Vec::new(), Vec::new());
        Asm {
            width,
            lanes: Lanes::Bits32,
            code,
            pool,
            pool_uses,
            labels: Vec::new(),
            jumps: Vec::new(),
        }
    }

    /// True if lanes have 64 bits.
    pub(super) fn is_64(&self) -> bool {
        self.lanes == Lanes::Bits64
    }

    /// The number of a vector in the pool; of its lanes those count that a vector has.
    pub(super) fn pool(&mut self, vector: [u32; 16]) -> u32 {
        let at = self.pool.iter().position(|v| *v == vector).unwrap_or_else(|| {
            self.pool.push(vector);
            self.pool.len() - 1
        });
        at as u32
    }

    /// Several vectors one after another in the pool.
    pub(super) fn pool_run(&mut self, vectors: &[[u32; 16]]) -> u32 {
        self.pool.extend_from_slice(vectors);
        (self.pool.len() - vectors.len()) as u32
    }

    /// A vector instruction: `reg`, then `vvvv` (0 if it has none), then the operand that may be in
    /// memory, then a byte.
    pub(super) fn vector(&mut self, op: Opcode, reg: Reg, vvvv: Reg, rm: Rm, imm: Option<u8>) {
        match self.width {
            Width::Bits256 => self.vex(op, reg, vvvv, rm, imm),
            Width::Bits512 => self.evex(op, Under::Nothing, [reg, vvvv], rm, imm),
        }
    }

    /// A VEX instruction: `reg`, then `vvvv` (0 if it has none), then the operand that may be in
    /// memory, then a byte.
    pub(super) fn vex(&mut self, op: Opcode, reg: Reg, vvvv: Reg, rm: Rm, imm: Option<u8>) {
        let (x, b) = match rm {
            Rm::Reg(r) => (false, r >= 8),
            Rm::Mem(m) => (m.index.is_some_and(|(i, _)| i >= 8), m.base >= 8),
            Rm::Pool(_) => (false, false),
        };
        let tail = (!vvvv & 15) << 3 | u8::from(op.part == Span::Whole) << 2 | op.prefix as u8;
        let not_r = u8::from(reg < 8) << 7;
        if op.map == Map::M0F && !op.w && !x && !b {
            self.code.extend([0xc5, not_r | tail]);
        } else {
            let second = not_r | u8::from(!x) << 6 | u8::from(!b) << 5 | op.map as u8;
            self.code.extend([0xc4, second, u8::from(op.w) << 7 | tail]);
        }
        self.code.push(op.byte);
        let imm_bytes = usize::from(imm.is_some());
        self.operand(reg, rm, imm_bytes, 1);
        self.code.extend(imm);
    }

    /// ModRM, SIB and displacement, before that many bytes that end the instruction. A displacement
    /// of one byte counts in `unit`.
    pub(super) fn operand(&mut self, reg: Reg, rm: Rm, after: usize, unit: i32) {
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(r) => self.code.push(0xc0 | reg | r & 7),
            Rm::Pool(vector) => {
                self.code.push(reg | 5);
                let at = self.code.len();
                self.pool_uses.push((at, at + 4 + after, vector));
                self.code.extend([0; 4]);
            }
            Rm::Mem(m) => {
                let short = match m.displacement % unit {
                    0 => i8::try_from(m.displacement / unit).ok(),
                    _ => None,
                };
                let mode = match short {
                    // Without displacement, base 5 would mean something else.
                    Some(0) if m.base & 7 != 5 => 0x00,
                    Some(_) => 0x40,
                    None => 0x80,
                };
                match m.index {
                    None if m.base & 7 != 4 => self.code.push(mode | reg | m.base & 7),
                    None => self.code.extend([mode | reg | 4, 0x24]),
                    Some((index, scale)) => {
                        let sib = scale << 6 | (index & 7) << 3 | m.base & 7;
                        self.code.extend([mode | reg | 4, sib]);
                    }
                }
                match (mode, short) {
                    (0x40, Some(d)) => self.code.push(d as u8),
                    (0x80, _) => self.code.extend(m.displacement.to_le_bytes()),
                    _ => {}
                }
            }
        }
    }

    /// An integer instruction with one operand that may be in memory.
    fn integer(&mut self, wide: bool, opcode: &[u8], reg: Reg, rm: Rm, imm: Option<i32>) {
        let (x, b) = match rm {
            Rm::Reg(r) => (0, r >> 3),
            Rm::Mem(m) => (m.index.map_or(0, |(i, _)| i >> 3), m.base >> 3),
            Rm::Pool(_) => (0, 0),
        };
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | x << 1 | b;
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.code.extend(opcode);
        self.operand(reg, rm, if imm.is_some() { 4 } else { 0 }, 1);
        if let Some(imm) = imm {
            self.code.extend(imm.to_le_bytes());
        }
    }

    /// `to = from`, 64 bits.
    pub(super) fn mov(&mut self, to: Reg, from: Reg) {
        self.integer(true, &[0x8b], to, Rm::Reg(from), None);
    }

    /// `to = 64 bits at from`.
    pub(super) fn load(&mut self, to: Reg, from: Mem) {
        self.integer(true, &[0x8b], to, Rm::Mem(from), None);
    }

    /// `to = the address`.
    pub(super) fn lea(&mut self, to: Reg, of: Mem) {
        self.integer(true, &[0x8d], to, Rm::Mem(of), None);
    }

    /// `to = the address of a pool vector`.
    pub(super) fn lea_pool(&mut self, to: Reg, vector: u32) {
        self.integer(true, &[0x8d], to, Rm::Pool(vector), None);
    }

    /// `to += by`.
    pub(super) fn add_number(&mut self, to: Reg, by: i32) {
        self.integer(true, &[0x81], 0, Rm::Reg(to), Some(by));
    }

    /// `to &= bits`.
    pub(super) fn and_number(&mut self, to: Reg, bits: i32) {
        self.integer(true, &[0x81], 4, Rm::Reg(to), Some(bits));
    }

    /// `to -= by`.
    pub(super) fn sub(&mut self, to: Reg, by: Reg) {
        self.integer(true, &[0x2b], to, Rm::Reg(by), None);
    }

    /// `to = -to`.
    pub(super) fn negate(&mut self, to: Reg) {
        self.integer(true, &[0xf7], 3, Rm::Reg(to), None);
    }

    /// `to = low half of from * by`, 32 bits.
    pub(super) fn multiply32(&mut self, to: Reg, from: Reg, by: i32) {
        self.integer(false, &[0x69], to, Rm::Reg(from), Some(by));
    }

    /// `to += 32 bits at from`, 32 bits.
    pub(super) fn add32(&mut self, to: Reg, from: Mem) {
        self.integer(false, &[0x03], to, Rm::Mem(from), None);
    }

    /// Compares two registers, for the jumps that follow.
    pub(super) fn compare(&mut self, a: Reg, b: Reg) {
        self.integer(true, &[0x3b], a, Rm::Reg(b), None);
    }

    /// Tests bits of a register, for the jumps that follow.
    pub(super) fn test(&mut self, a: Reg, bits: i32) {
        self.integer(true, &[0xf7], 0, Rm::Reg(a), Some(bits));
    }

    /// Prefetches a line of the cache, for writing or to be read. Any address will do.
    pub(super) fn prefetch(&mut self, line: Mem, written: bool) {
        let opcode = if written { 0x0d } else { 0x18 };
        self.integer(false, &[0x0f, opcode], 1, Rm::Mem(line), None);
    }

    /// Waits until streamed stores can be seen by others.
    pub(super) fn fence(&mut self) {
        self.code.extend([0x0f, 0xae, 0xf8]);
    }

    /// `to = 1, 2, 4 or 8 bytes at from`.
    pub(super) fn load_bytes(&mut self, bytes: u8, to: Reg, from: Mem) {
        let (wide, opcode): (bool, &[u8]) = match bytes {
            1 => (false, &[0x0f, 0xb6]),
            2 => (false, &[0x0f, 0xb7]),
            4 => (false, &[0x8b]),
            _ => (true, &[0x8b]),
        };
        self.integer(wide, opcode, to, Rm::Mem(from), None);
    }

    /// `1, 2, 4 or 8 bytes at to = from`, one of the first four registers.
    pub(super) fn store_bytes(&mut self, bytes: u8, to: Mem, from: Reg) {
        if bytes == 2 {
            self.code.push(0x66);
        }
        let opcode = if bytes == 1 { 0x88 } else { 0x89 };
        self.integer(bytes == 8, &[opcode], from, Rm::Mem(to), None);
    }

    /// Saves a register on the stack.
    pub(super) fn push(&mut self, r: Reg) {
        if r >= 8 {
            self.code.push(0x41);
        }
        self.code.push(0x50 | r & 7);
    }

    /// Restores a register from the stack.
    pub(super) fn pop(&mut self, r: Reg) {
        if r >= 8 {
            self.code.push(0x41);
        }
        self.code.push(0x58 | r & 7);
    }

    /// Leaves vector code and returns.
    pub(super) fn leave(&mut self, saved: &[Reg]) {
        self.code.extend([0xc5, 0xf8, 0x77]);
        saved.iter().rev().for_each(|r| self.pop(*r));
        self.code.push(0xc3);
    }

    /// A label that is not bound yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands for the next instruction.
    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Jumps to a label.
    pub(super) fn jump(&mut self, when: When, to: Label) {
        match when {
            When::Always => self.code.push(0xe9),
            When::Some => self.code.extend([0x0f, 0x85]),
            When::Less => self.code.extend([0x0f, 0x8c]),
            When::GreaterEqual => self.code.extend([0x0f, 0x8d]),
            When::LessEqual => self.code.extend([0x0f, 0x8e]),
            When::Greater => self.code.extend([0x0f, 0x8f]),
        }
        self.jumps.push((self.code.len(), to.0));
        self.code.extend([0; 4]);
    }

    /// The finished code, with the pool after it at a multiple of a vector's bytes; and the length
    /// of the code alone.
    pub(super) fn finish(mut self) -> (Vec<u8>, usize) {
        let length = self.code.len();
        for (at, label) in &self.jumps {
            let target = self.labels[*label].unwrap_or(length);
            let distance = target as i32 - (*at as i32 + 4);
            self.code[*at..*at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let bytes = self.width.bytes() as usize;
        self.code.resize(length.next_multiple_of(bytes), 0xcc);
        let start = self.code.len();
        for (at, end, vector) in &self.pool_uses {
            let distance = (start + bytes * *vector as usize) as i32 - *end as i32;
            self.code[*at..*at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        for vector in &self.pool {
            self.code.extend(vector[..bytes / 4].iter().flat_map(|w| w.to_le_bytes()));
        }
        (self.code, length)
    }
}
