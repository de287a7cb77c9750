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

/// How the lanes of an operand are read, where it is a constant.
#[derive(Clone, Copy)]
pub(super) enum Read {
    Float,
    Int,
    Bits,
}

/// A row of the table of instructions: encodings and names for lanes of 32 and of 64 bits.
pub(super) struct Row {
    opcode: [Opcode; 2],
    imm: Option<u8>,
    pub(super) names: [&'static str; 2],
    pub(super) read: Read,
}

impl Row {
    /// One whose encoding for lanes of 64 bits is that with the W bit and the prefix 66.
    const fn new(map: Map, prefix: Prefix, byte: u8, names: [&'static str; 2]) -> Row {
        let narrow = Opcode::new(map, prefix, byte);
        let opcode = [narrow, Opcode { w: true, prefix: Prefix::P66, ..narrow }];
        Row { opcode, imm: None, names, read: Read::Bits }
    }

    /// One of floats.
    const fn float(byte: u8, names: [&'static str; 2]) -> Row {
        Row::new(Map::M0F, Prefix::None, byte, names).reads(Read::Float)
    }

    /// One of integers.
    const fn int(map: Map, byte: u8, names: [&'static str; 2]) -> Row {
        Row::new(map, Prefix::P66, byte, names).reads(Read::Int)
    }

    /// With another encoding for lanes of 64 bits.
    const fn wide(mut self, map: Map, byte: u8) -> Row {
        self.opcode[1].map = map;
        self.opcode[1].byte = byte;
        self
    }

    /// With another prefix for lanes of 64 bits.
    const fn prefixed(mut self, prefix: Prefix) -> Row {
        self.opcode[1].prefix = prefix;
        self
    }

    /// With the W bit for lanes of 32 bits, too.
    const fn w(mut self) -> Row {
        self.opcode[0].w = true;
        self
    }

    /// With a memory operand of that size where vectors have 512 bits.
    const fn bytes(mut self, memory: u8) -> Row {
        self.opcode[0].memory = memory;
        self.opcode[1].memory = memory;
        self
    }

    /// With a byte behind the instruction.
    const fn with(mut self, imm: u8) -> Row {
        self.imm = Some(imm);
        self
    }

    const fn reads(mut self, read: Read) -> Row {
        self.read = read;
        self
    }
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
        (self.row().opcode[0], self.row().imm)
    }

    /// Its encoding on lanes of 64 bits.
    pub(super) fn opcode_64(self) -> (Opcode, Option<u8>) {
        (self.row().opcode[1], self.row().imm)
    }

    /// Its row of the table.
    pub(super) fn row(self) -> Row {
        use Map::{M0F, M0F38};
        match self {
            Binary::Add => Row::float(0x58, ["vaddps", "vaddpd"]),
            Binary::Mul => Row::float(0x59, ["vmulps", "vmulpd"]),
            Binary::Sub => Row::float(0x5c, ["vsubps", "vsubpd"]),
            Binary::Min => Row::float(0x5d, ["vminps", "vminpd"]),
            Binary::Div => Row::float(0x5e, ["vdivps", "vdivpd"]),
            Binary::Max => Row::float(0x5f, ["vmaxps", "vmaxpd"]),
            Binary::And => Row::float(0x54, ["vandps", "vandpd"]).reads(Read::Bits),
            Binary::AndNot => Row::float(0x55, ["vandnps", "vandnpd"]).reads(Read::Bits),
            Binary::Or => Row::float(0x56, ["vorps", "vorpd"]).reads(Read::Bits),
            Binary::Xor => Row::float(0x57, ["vxorps", "vxorpd"]).reads(Read::Bits),
            Binary::Compare(code) => Row::float(0xc2, comparison(code)).with(code),
            Binary::IntAdd => Row::int(M0F, 0xfe, ["vpaddd", "vpaddq"]).wide(M0F, 0xd4),
            Binary::IntSub => Row::int(M0F, 0xfa, ["vpsubd", "vpsubq"]).wide(M0F, 0xfb),
            Binary::IntMul => Row::int(M0F38, 0x40, ["vpmulld", "vpmullq"]),
            Binary::IntMax => Row::int(M0F38, 0x3d, ["vpmaxsd", "vpmaxsq"]),
            Binary::IntMin => Row::int(M0F38, 0x39, ["vpminsd", "vpminsq"]),
            Binary::IntEqual => Row::int(M0F, 0x76, ["vpcmpeqd", "vpcmpeqq"]).wide(M0F38, 0x29),
            Binary::IntGreater => Row::int(M0F, 0x66, ["vpcmpgtd", "vpcmpgtq"]).wide(M0F38, 0x37),
            Binary::NarrowU16 => Row::int(M0F38, 0x2b, ["vpackusdw"; 2]),
            Binary::NarrowI16 => Row::int(M0F, 0x6b, ["vpackssdw"; 2]),
            Binary::NarrowU8 => Row::int(M0F, 0x67, ["vpackuswb"; 2]),
            Binary::NarrowI8 => Row::int(M0F, 0x63, ["vpacksswb"; 2]),
            Binary::Scale => Row::int(M0F38, 0x2c, ["vscalefps", "vscalefpd"]).reads(Read::Float),
        }
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

/// The names of a comparison, of lanes of 32 and of 64 bits.
fn comparison(code: u8) -> [&'static str; 2] {
    match code {
        compare::EQUAL => ["vcmpeqps", "vcmpeqpd"],
        compare::LESS => ["vcmplt_oqps", "vcmplt_oqpd"],
        compare::LESS_EQUAL => ["vcmple_oqps", "vcmple_oqpd"],
        compare::UNORDERED => ["vcmpunordps", "vcmpunordpd"],
        compare::NOT_EQUAL => ["vcmpneqps", "vcmpneqpd"],
        compare::GREATER_EQUAL => ["vcmpge_oqps", "vcmpge_oqpd"],
        compare::ORDERED => ["vcmpordps", "vcmpordpd"],
        _ => ["vcmpps", "vcmppd"],
    }
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

impl Unary {
    /// Its encoding.
    pub(super) fn opcode(self) -> (Opcode, Option<u8>) {
        (self.row().opcode[0], self.row().imm)
    }

    /// Its encoding on lanes of 64 bits.
    pub(super) fn opcode_64(self) -> (Opcode, Option<u8>) {
        (self.row().opcode[1], self.row().imm)
    }

    /// Its row of the table.
    pub(super) fn row(self) -> Row {
        use Map::{M0F, M0F3A, M0F38};
        use Prefix::{None as P, P66, PF3};
        match self {
            Unary::Sqrt => Row::float(0x51, ["vsqrtps", "vsqrtpd"]),
            Unary::Floor => Row::new(M0F3A, P66, 0x08, ["vrndscaleps", "vrndscalepd"])
                .wide(M0F3A, 0x09)
                .with(0x09)
                .reads(Read::Float),
            Unary::ToFloat => {
                Row::new(M0F, P, 0x5b, ["vcvtdq2ps", "vcvtqq2pd"]).wide(M0F, 0xe6).prefixed(PF3)
            }
            Unary::ToInt => Row::new(M0F, PF3, 0x5b, ["vcvttps2dq", "vcvttpd2qq"])
                .wide(M0F, 0x7a)
                .reads(Read::Float),
            Unary::IntAbs => Row::new(M0F38, P66, 0x1e, ["vpabsd", "vpabsq"]).wide(M0F38, 0x1f),
            Unary::FromF16 => Row::new(M0F38, P66, 0x13, ["vcvtph2ps"; 2]).bytes(32),
            Unary::Truncate16 => Row::new(M0F38, PF3, 0x33, ["vpmovdw"; 2]),
            Unary::Truncate8 => Row::new(M0F38, PF3, 0x31, ["vpmovdb"; 2]),
            Unary::Permute64(order) => Row::new(M0F3A, P66, 0x00, ["vpermq"; 2]).w().with(order),
            Unary::Exponent => {
                Row::new(M0F38, P66, 0x42, ["vgetexpps", "vgetexppd"]).reads(Read::Float)
            }
            // Bits 2 and 3: a zero is positive, anything else below zero is NaN.
            Unary::Fraction => Row::new(M0F3A, P66, 0x26, ["vgetmantps", "vgetmantpd"])
                .with(0b1100)
                .reads(Read::Float),
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
    /// All bits, non-temporal, to an aligned address.
    NonTemporal,
    /// The low half, non-temporal, to an aligned address.
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
