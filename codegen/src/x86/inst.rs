//! The instructions of a loop's body, in static single assignment: what each does, and how it is
//! encoded for lanes of 32 and of 64 bits.

use super::asm::{Map, Opcode, Prefix};
use smallvec::SmallVec;

/// The number of an instruction, which is the number of its result.
pub(crate) type VReg = u32;

/// What the address of a memory operand is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Base {
    /// A pointer of the loop, plus the position times the size of an element.
    Pointer { pointer: u16, size: u8 },
    /// That offset in the scratch, plus the position times the size of a lane.
    RowBuffer(i32),
    /// That offset in the scratch.
    Fixed(i32),
    /// That offset in the scratch: those lanes of a reduction that the sixteen positions go to.
    Lanes(i32),
    /// The copy of an operand's elements while fewer than sixteen are left, by number.
    TailCopy(u16),
}

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MemRef {
    pub(super) base: Base,
    /// Bytes further.
    pub(super) offset: i32,
}

/// Instructions of two operands, the second of which may be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The first where it is smaller, else the second.
    Min,
    /// The first where it is larger, else the second.
    Max,
    And,
    /// The second without the bits of the first.
    AndNot,
    Or,
    Xor,
    /// A mask of a comparison of floats, with the processor's number for it.
    Compare(u8),
    IntAdd,
    IntSub,
    IntMul,
    IntMax,
    IntMin,
    IntEqual,
    IntGreater,
    /// 32-bit integers as unsigned 16-bit ones, saturated, in each half.
    NarrowU16,
    /// 32-bit integers as signed 16-bit ones, saturated, in each half.
    NarrowI16,
    /// 16-bit integers as unsigned bytes, saturated, in each half.
    NarrowU8,
    /// 16-bit integers as signed bytes, saturated, in each half.
    NarrowI8,
    /// The first times two to the power of the second, which is an integer. Only of 512 bits.
    Scale,
}

impl Binary {
    /// True if the operands may change places.
    pub(super) fn commutes(self) -> bool {
        use Binary::{Add, And, IntAdd, IntEqual, IntMax, IntMin, IntMul, Mul, Or, Xor};
        matches!(self, Add | Mul | And | Or | Xor | IntAdd | IntMul | IntMax | IntMin | IntEqual)
    }

    /// True if the result is a mask.
    pub(super) fn is_mask(self) -> bool {
        matches!(self, Binary::Compare(_) | Binary::IntEqual | Binary::IntGreater)
    }

    /// Its encoding.
    pub(super) fn opcode(self) -> (Opcode, Option<u8>) {
        use Map::{M0F, M0F38};
        use Prefix::{None as P, P66};
        let (map, prefix, byte) = match self {
            Binary::Add => (M0F, P, 0x58),
            Binary::Mul => (M0F, P, 0x59),
            Binary::Sub => (M0F, P, 0x5c),
            Binary::Min => (M0F, P, 0x5d),
            Binary::Div => (M0F, P, 0x5e),
            Binary::Max => (M0F, P, 0x5f),
            Binary::And => (M0F, P, 0x54),
            Binary::AndNot => (M0F, P, 0x55),
            Binary::Or => (M0F, P, 0x56),
            Binary::Xor => (M0F, P, 0x57),
            Binary::Compare(_) => (M0F, P, 0xc2),
            Binary::IntAdd => (M0F, P66, 0xfe),
            Binary::IntSub => (M0F, P66, 0xfa),
            Binary::IntMul => (M0F38, P66, 0x40),
            Binary::IntMax => (M0F38, P66, 0x3d),
            Binary::IntMin => (M0F38, P66, 0x39),
            Binary::IntEqual => (M0F, P66, 0x76),
            Binary::IntGreater => (M0F, P66, 0x66),
            Binary::NarrowU16 => (M0F38, P66, 0x2b),
            Binary::NarrowI16 => (M0F, P66, 0x6b),
            Binary::NarrowU8 => (M0F, P66, 0x67),
            Binary::NarrowI8 => (M0F, P66, 0x63),
            Binary::Scale => (M0F38, P66, 0x2c),
        };
        let imm = if let Binary::Compare(code) = self { Some(code) } else { None };
        (Opcode::new(map, prefix, byte), imm)
    }
}

/// Comparisons of floats: false for NaN, but `NOT_EQUAL` and `UNORDERED` true.
pub(super) mod compare {
    /// `a == b`.
    pub(in super::super) const EQUAL: u8 = 0x00;
    /// `a < b`.
    pub(in super::super) const LESS: u8 = 0x11;
    /// `a <= b`.
    pub(in super::super) const LESS_EQUAL: u8 = 0x12;
    /// Either is NaN.
    pub(in super::super) const UNORDERED: u8 = 0x03;
    /// `a != b`, or either is NaN.
    pub(in super::super) const NOT_EQUAL: u8 = 0x04;
    /// `a >= b`.
    pub(in super::super) const GREATER_EQUAL: u8 = 0x1d;
    /// Neither is NaN.
    pub(in super::super) const ORDERED: u8 = 0x07;
}

/// Instructions of one operand, which may be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Unary {
    Sqrt,
    Floor,
    /// 32-bit integers to floats.
    ToFloat,
    /// Floats to 32-bit integers, truncated; the smallest where there is none.
    ToInt,
    IntAbs,
    /// f16 to floats.
    FromF16,
    /// The low half of each lane, in the low half of the result. Only of 512 bits.
    Truncate16,
    /// The low byte of each lane, in the low quarter of the result. Only of 512 bits.
    Truncate8,
    /// The four quarters in the order of as many pairs of bits; of 64 bits each.
    Permute64(u8),
    /// The exponent of a float as a float: -inf of zeros. Only of 512 bits.
    Exponent,
    /// The fraction of a float, from 1 to below 2; NaN below zero. Only of 512 bits.
    Fraction,
}

/// Instructions of one operand on lanes of 64 bits.
impl Unary {
    /// Its encoding there.
    pub(super) fn opcode_64(self) -> (Opcode, Option<u8>) {
        use Map::{M0F, M0F3A, M0F38};
        use Prefix::{P66, PF3};
        let (op, imm) = match self {
            Unary::Floor => (Opcode::new(M0F3A, P66, 0x09), Some(0x09)),
            Unary::ToFloat => (Opcode::new(M0F, PF3, 0xe6), None),
            Unary::ToInt => (Opcode::new(M0F, P66, 0x7a), None),
            Unary::IntAbs => (Opcode::new(M0F38, P66, 0x1f), None),
            other => {
                let (op, imm) = other.opcode();
                (Opcode { prefix: P66, ..op }, imm)
            }
        };
        (Opcode { w: true, ..op }, imm)
    }
}

impl Binary {
    /// Its encoding on lanes of 64 bits.
    pub(super) fn opcode_64(self) -> (Opcode, Option<u8>) {
        use Map::{M0F, M0F38};
        use Prefix::P66;
        let (op, imm) = match self {
            Binary::IntAdd => (Opcode::new(M0F, P66, 0xd4), None),
            Binary::IntSub => (Opcode::new(M0F, P66, 0xfb), None),
            Binary::IntEqual => (Opcode::new(M0F38, P66, 0x29), None),
            Binary::IntGreater => (Opcode::new(M0F38, P66, 0x37), None),
            other => other.opcode(),
        };
        (Opcode { w: true, prefix: P66, ..op }, imm)
    }
}

impl Unary {
    /// Its encoding.
    pub(super) fn opcode(self) -> (Opcode, Option<u8>) {
        use Map::{M0F, M0F3A, M0F38};
        use Prefix::{None as P, P66, PF3};
        match self {
            Unary::Sqrt => (Opcode::new(M0F, P, 0x51), None),
            Unary::Floor => (Opcode::new(M0F3A, P66, 0x08), Some(0x09)),
            Unary::ToFloat => (Opcode::new(M0F, P, 0x5b), None),
            Unary::ToInt => (Opcode::new(M0F, PF3, 0x5b), None),
            Unary::IntAbs => (Opcode::new(M0F38, P66, 0x1e), None),
            Unary::FromF16 => (Opcode::new(M0F38, P66, 0x13).bytes(32), None),
            Unary::Truncate16 => (Opcode::new(M0F38, PF3, 0x33), None),
            Unary::Truncate8 => (Opcode::new(M0F38, PF3, 0x31), None),
            Unary::Permute64(order) => {
                (Opcode { w: true, ..Opcode::new(M0F3A, P66, 0x00) }, Some(order))
            }
            Unary::Exponent => (Opcode::new(M0F38, P66, 0x42), None),
            // Bits 2 and 3: a zero is positive, anything else below zero is NaN.
            Unary::Fraction => (Opcode::new(M0F3A, P66, 0x26), Some(0b1100)),
        }
    }
}

/// Loads that are an instruction of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Load {
    /// Lanes of 32 bits.
    Full,
    /// The same under a mask, the operand; zero elsewhere. Only of 256 bits.
    Masked,
    /// Unsigned 16-bit integers.
    U16,
    /// Bytes.
    U8,
    /// Bytes in lanes of 64 bits. Only of 512 bits.
    U8To64,
    /// f16.
    F16,
}

impl Load {
    /// Its encoding.
    pub(super) fn opcode(self) -> Opcode {
        use Map::{M0F, M0F38};
        use Prefix::{None as P, P66};
        match self {
            Load::Full => Opcode::new(M0F, P, 0x10),
            Load::Masked => Opcode::new(M0F38, P66, 0x2c),
            Load::U16 => Opcode::new(M0F38, P66, 0x33).bytes(32),
            Load::U8 => Opcode::new(M0F38, P66, 0x31).bytes(16),
            Load::U8To64 => Opcode::new(M0F38, P66, 0x32).bytes(8),
            Load::F16 => Opcode::new(M0F38, P66, 0x13).bytes(32),
        }
    }
}

/// Stores of the first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Store {
    /// All bits.
    Full,
    /// All bits, past the caches, to an aligned address.
    NonTemporal,
    /// The low half, past the caches, to an aligned address.
    NonTemporalLow,
    /// The lanes of a mask, the second operand. Only of 256 bits.
    Masked,
    /// The low half. Of 512 bits: sixteen words.
    Low,
    /// The low quarter, sixteen bytes. Only of 512 bits.
    Quarter,
    /// The low byte of each lane of 64 bits. Only of 512 bits.
    Eighth,
    /// As f16.
    F16,
}

/// How two vectors shift by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shift {
    Left,
    /// Filling with zeros.
    Right,
    /// Filling with the sign.
    Signed,
}

impl Shift {
    /// The part of the opcode that is in a register's place.
    pub(super) fn digit(self) -> u8 {
        match self {
            Shift::Left => 6,
            Shift::Right => 2,
            Shift::Signed => 4,
        }
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// Those bits in every lane. No code: it is in the pool.
    Splat(u32),
    /// Those bits in every lane of 64. No code: it is in the pool.
    Splat64(u64),
    /// The lanes `start + step * lane`. No code: it is in the pool.
    Ramp {
        start: i32,
        step: i32,
    },
    /// A vector that the prologue has put into the scratch, by number. No code.
    Broadcast(u16),
    /// The accumulator of a reduction: stays in its register.
    Acc(u8),
    /// A load that becomes a memory operand of what uses it. No code.
    Folded(MemRef),
    /// A load that happens here.
    Load(Load, MemRef),
    /// A position's number in every lane: 32 bits of a cell, and the position times a step.
    Position {
        cell: u16,
        step: i32,
    },
    Binary(Binary),
    Unary(Unary),
    Shift(Shift, u8),
    /// The product of the first two and the third, rounded once.
    Fma,
    /// Operands (where clear, where set, mask): chooses by the sign bits of the mask.
    Blend,
    /// Operands (where clear, where set, a, b): chooses by a comparison of `a` with `b`. Only of
    /// 512 bits.
    CompareBlend(Binary),
    /// Operands (other lanes, lanes of the last positions). Only of 512 bits.
    Tail,
    /// f16 in the low half.
    ToF16,
    /// A store.
    Store(Store, MemRef),
    /// Prefetches a line of the cache; for writing if that is true.
    Prefetch(MemRef, bool),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) struct Inst {
    pub(super) op: Op,
    pub(super) args: SmallVec<[VReg; 4]>,
    /// The half of the group it works on, or 2 for both.
    pub(super) half: u8,
    /// The register that takes the result, if that is fixed.
    pub(super) fixed: Option<u8>,
}

impl Op {
    /// True if it is rematerialised: it has no code of its own, and is read from memory wherever it
    /// is used.
    pub(super) fn is_rematerialised(self) -> bool {
        self.is_invariant() || matches!(self, Op::Folded(_))
    }

    /// True if it is the same in every iteration.
    pub(super) fn is_invariant(self) -> bool {
        matches!(self, Op::Splat(_) | Op::Splat64(_) | Op::Ramp { .. } | Op::Broadcast(_))
    }

    /// True if it has no result.
    pub(super) fn is_store(self) -> bool {
        matches!(self, Op::Store(..) | Op::Prefetch(..))
    }
}
