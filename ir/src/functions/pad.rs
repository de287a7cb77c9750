//! Tensors surrounded by numbers, or by elements of their own, under the arguments of
//! `torch.nn.functional.pad`.

use super::named;
use crate::Var;
use crate::ops::padding::{PadMode, Paddings};

impl<'t> Var<'t> {
    /// Surrounded along its last axes: `sizes` are the positions before and behind the last axis,
    /// then those of the one before it, and so on:
    /// [`torch.nn.functional.pad`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pad.html).
    /// Negative ones cut.
    ///
    /// Mirrored or repeated elements around one to three axes, behind channels and perhaps a batch,
    /// are PyTorch's `reflection_pad2d`, `replication_pad2d` and their like: autocast decides about
    /// those by name.
    ///
    /// ```
    /// use tracecast_ir::functions::PadMode;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("pad");
    /// let x = t.input("x", TensorType::new(DType::F32, [2, 3, 5]));
    /// assert_eq!(x.pad_last(&[1, 2], PadMode::Reflect).ty().to_string(), "f32[2, 3, 8]");
    /// ```
    #[track_caller]
    pub fn pad_last(self, sizes: &[i64], mode: PadMode) -> Var<'t> {
        named(self, "pad_last", || {
            let pairs = sizes.len() / 2;
            let is_known =
                sizes.len().is_multiple_of(2) && [pairs + 1, pairs + 2].contains(&self.rank());
            Ok(match (mode, pairs) {
                (PadMode::Reflect, 1) if is_known => self.reflection_pad1d(sizes),
                (PadMode::Reflect, 2) if is_known => self.reflection_pad2d(sizes),
                (PadMode::Reflect, 3) if is_known => self.reflection_pad3d(sizes),
                (PadMode::Replicate, 1) if is_known => self.replication_pad1d(sizes),
                (PadMode::Replicate, 2) if is_known => self.replication_pad2d(sizes),
                (PadMode::Replicate, 3) if is_known => self.replication_pad3d(sizes),
                _ => self.surrounded(sizes, mode)?,
            })
        })
    }
}
