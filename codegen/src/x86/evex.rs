//! Instructions on 512-bit registers, of which there are 32, and on their parts; some lanes may be
//! left out.

use super::asm::{Asm, Map, Mem, Opcode, Prefix, Reg, Rm, Span, Under};

/// The register of masks that are made and used at once.
pub(super) const MASK: Reg = 1;
/// The register of the mask of the last positions; with lanes of 64 bits the next one is that of
/// the second half.
pub(super) const TAIL: Reg = 2;

/// A truth value of each lane as a vector: all of its bits or none.
const SPREAD_MASK: Opcode = Opcode::new(Map::M0F38, Prefix::PF3, 0x38);
/// The mask of the sign bits of a vector.
const TAKE_MASK: Opcode = Opcode::new(Map::M0F38, Prefix::PF3, 0x39);
/// Chooses the last operand in the lanes of a mask, else the one before.
const BLEND_MASK: Opcode = Opcode::new(Map::M0F38, Prefix::P66, 0x65);
/// Loads a mask of 16 lanes, in VEX encoding.
const LOAD_MASK: Opcode = Opcode::new(Map::M0F, Prefix::None, 0x90).on(Span::Half);

impl Asm {
    /// An EVEX instruction: `reg`, then `vvvv` (0 if it has none), then the operand that may be in
    /// memory, then a byte.
    pub(super) fn evex(
        &mut self,
        op: Opcode,
        under: Under,
        [reg, vvvv]: [Reg; 2],
        rm: Rm,
        imm: Option<u8>,
    ) {
        let (x, b) = match rm {
            Rm::Reg(r) => (r & 16 != 0, r & 8 != 0),
            Rm::Mem(m) => (m.index.is_some_and(|(i, _)| i & 8 != 0), m.base & 8 != 0),
            Rm::Pool(_) => (false, false),
        };
        let clear = |bit: bool, at: u8| u8::from(!bit) << at;
        let first = clear(reg & 8 != 0, 7) | clear(x, 6) | clear(b, 5) | clear(reg & 16 != 0, 4);
        let second = u8::from(op.w) << 7 | (!vvvv & 15) << 3 | 4 | op.prefix as u8;
        let length = match op.part {
            Span::Whole => 2,
            Span::Half => 1,
            Span::Quarter => 0,
        };
        let (zeroing, mask) = match under {
            Under::Nothing => (0, 0),
            Under::Mask(k) => (0, k),
            Under::Zeroing(k) => (1, k),
        };
        let third = zeroing << 7 | length << 5 | clear(vvvv & 16 != 0, 3) | mask;
        self.code.extend([0x62, first | op.map as u8, second, third, op.byte]);
        self.operand(reg, rm, usize::from(imm.is_some()), i32::from(op.memory));
        self.code.extend(imm);
    }

    /// `to = the lanes of MASK as a vector`.
    pub(super) fn spread_mask(&mut self, to: Reg) {
        let spread = Opcode { w: self.is_64(), ..SPREAD_MASK };
        self.evex(spread, Under::Nothing, [to, 0], Rm::Reg(MASK), None);
    }

    /// `MASK = the sign bits of a vector`.
    pub(super) fn take_mask(&mut self, from: Reg) {
        let take = Opcode { w: self.is_64(), ..TAKE_MASK };
        self.evex(take, Under::Nothing, [MASK, 0], Rm::Reg(from), None);
    }

    /// `to = set in the lanes of the mask, else clear`.
    pub(super) fn blend_mask(&mut self, mask: Reg, to: Reg, clear: Reg, set: Rm) {
        let blend = Opcode { w: self.is_64(), ..BLEND_MASK };
        self.evex(blend, Under::Mask(mask), [to, clear], set, None);
    }

    /// `mask = 16 bits at the address`.
    pub(super) fn load_mask(&mut self, mask: Reg, from: Mem) {
        self.vex(LOAD_MASK, mask, 0, Rm::Mem(from), None);
    }
}
