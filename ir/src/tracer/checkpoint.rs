//! Checkpoint regions: what backward recomputes instead of keeping it.

use super::{Former, Restore, Tracer};

impl Tracer {
    /// Runs `body`, whose values backward recomputes instead of keeping them from forward:
    /// activation checkpointing, as
    /// [`torch.utils.checkpoint`](https://docs.pytorch.org/docs/stable/checkpoint.html).
    ///
    /// What `body` takes from outside is kept, and what it records is recorded again for the
    /// gradients that go through it: with the autocast decisions and the random numbers of forward,
    /// so no bit of any result changes. State that `body` updates advances once. What ranks
    /// exchange inside is exchanged once and kept. Regions may lie in regions. A region that no
    /// gradient goes through is ordinary code.
    ///
    /// ```
    /// use tracecast_ir::ops::prelude::*;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    ///
    /// let t = Tracer::new("block");
    /// let x = t.input("x", TensorType::new(DType::F32, [8, 64]));
    /// let (up, down) = (TensorType::new(DType::F32, [64, 256]), TensorType::new(DType::F32, [256, 64]));
    /// let (up, down) = (t.param("up", up), t.param("down", down));
    /// // Backward computes the 8 × 256 numbers once more and needs `x` alone.
    /// let y = t.checkpoint(|| x + x.matmul(up).gelu(None).matmul(down));
    /// t.output("dx", t.grad(y.sum(()), &[up])[0]);
    /// assert!(t.finish().unwrap().to_string().contains("checkpoint {"));
    /// ```
    pub fn checkpoint<R>(&self, body: impl FnOnce() -> R) -> R {
        let _restore = self.enter_checkpoint();
        body()
    }

    fn enter_checkpoint(&self) -> Restore<'_> {
        let mut state = self.state.borrow_mut();
        let outer = state.checkpoint;
        state.graph.checkpoints.push(outer);
        state.checkpoint = state.graph.checkpoints.len() as u32 - 1;
        Restore(self, Some(Former::Checkpoint(outer)))
    }

    /// The checkpoint regions that ops are recorded in now, the innermost first.
    pub fn checkpoints(&self) -> Vec<u32> {
        let state = self.state.borrow();
        state.graph.checkpoints_around(state.checkpoint).collect()
    }
}
