//! Packs the left operand of convolutions over images.

use super::im2col::place;
use super::implicit_gemm::Correlation;
use super::micro::Engine;
use super::operand::{Operand, Scratch, Source};
use super::pack::{Elements, Wider, pack_line};
use std::ops::Range;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

impl Correlation<'_> {
    /// Packs rows of the operand at offset `from`, `most` per strip. Returns as [`Engine::pack`].
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The operand must be readable for these rows and `k`, and `to`
    /// have room for them.
    pub(super) unsafe fn pack<E: Engine>(
        &self,
        from: isize,
        rows: Range<usize>,
        most: usize,
        to: *mut E::Num,
        scratch: &mut Scratch,
    ) -> u16 {
        let source = self.a.moved(from);
        if let (1, Source::Matrix { of, col: 1, .. }) = (self.rows, source) {
            // SAFETY: the caller's contract.
            return unsafe { pack_line::<E>(of, self.k, to) };
        }
        if self.rows == 1 {
            let Some(Elements { base, dtype, round }) = source.elements() else {
                return u16::MAX;
            };
            for p in 0..self.k {
                let offset = match source {
                    Source::Matrix { col, .. } => p as isize * col,
                    Source::Windows { seen, .. } => place(&seen.columns, p).offset,
                    Source::Fill { .. } | Source::Packed { .. } => return u16::MAX,
                };
                let at = base.wrapping_offset(offset * dtype.bytes() as isize);
                // SAFETY: an element of the operand.
                let x = unsafe { E::Num::read(dtype, at) };
                let x = round.map_or(x, |to| x.nearest(to));
                // SAFETY: its place.
                unsafe { to.wrapping_add(p).write(x) };
            }
            return u16::MAX;
        }
        let (operand, mut least) = (Operand { source, columns: false }, u16::MAX);
        for from in (0..self.k).step_by(CONTRACT_BLOCK) {
            let steps = from..self.k.min(from + CONTRACT_BLOCK);
            let (rows, to) = (rows.clone(), to.wrapping_add(from / E::DEPTH * rows.len()));
            let spare = (&mut scratch.filled, &mut scratch.runs);
            // SAFETY: the caller's contract; the room is that of all blocks.
            let found = unsafe { operand.pack_strips::<E>(rows, steps, most, spare, to) };
            least = least.min(found);
        }
        least
    }
}
