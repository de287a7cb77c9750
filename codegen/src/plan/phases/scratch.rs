//! Where values wait in the scratch between the phases of a stage.

use super::cut::Cut;
use crate::plan::Sink;
use tracecast_ir::kernel::Scalar;

/// The bytes of a value in scratch. Truth values wait as masks of 32 bits.
pub(crate) fn scratch_bytes(ty: Scalar) -> i32 {
    match ty {
        Scalar::F64 | Scalar::I64 => 8,
        Scalar::F32 | Scalar::I32 | Scalar::Bool => 4,
    }
}

impl Cut<'_> {
    /// True if the stage loads or stores 16-bit floats, whose tiles are longer.
    pub(super) fn has_half_tiles(&self) -> bool {
        let store = |s: &Sink| matches!(s, Sink::Store { dtype, .. } if dtype.is_low());
        self.plan.loads.iter().any(|l| l.dtype.is_low()) || self.stage.sinks.iter().any(store)
    }

    /// Gives every waiting value a piece of scratch, again free once the value has been used last.
    pub(super) fn allot(
        &self,
        crosses: &[bool],
        last_use: &[usize],
        tile: i32,
    ) -> (Vec<Option<i32>>, i32) {
        let mut temporaries = vec![None; crosses.len()];
        let mut pieces: Vec<(i32, i32, usize)> = Vec::new();
        let mut bytes = 0;
        let mut order: Vec<usize> = (0..crosses.len()).filter(|i| crosses[*i]).collect();
        order.sort_by_key(|i| self.home[*i]);
        for at in order {
            let size = scratch_bytes(self.stage.body.insts[at].ty) * tile;
            let free = pieces.iter_mut().find(|(_, s, until)| *s == size && *until < self.home[at]);
            let offset = match free {
                Some(piece) => {
                    piece.2 = last_use[at];
                    piece.0
                }
                None => {
                    pieces.push((bytes, size, last_use[at]));
                    bytes += size;
                    bytes - size
                }
            };
            temporaries[at] = Some(offset);
        }
        (temporaries, bytes)
    }
}
