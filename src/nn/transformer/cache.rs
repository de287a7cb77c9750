//! [`KvCache`]: keys and values of the positions that a model has seen, as state.

use crate::entry::Start;
use crate::nn::Context;
use tracecast_ir::ops::scatter::Scatters;
use tracecast_ir::ops::view::Views;
use tracecast_ir::{DType, Size, TensorType, Var};

/// Keys and values of a layer of attention, `[batch, heads, capacity, width]` each: state, of which a run writes the rows of new positions in place and reads those that
/// are filled. How many these are is a size that a run is given.
///
/// A run that would go beyond the capacity is refused, and a run that fails leaves the cache as it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvCache {
    sizes: [usize; 4],
    dtype: DType,
}

impl KvCache {
    /// For so many sequences, heads, positions, and numbers of a key and of a value, in f32.
    pub fn new(batch: usize, heads: usize, capacity: usize, width: usize) -> Self {
        KvCache { sizes: [batch, heads, capacity, width], dtype: DType::F32 }
    }

    /// In another dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Puts keys and values `[batch, heads, new, width]` behind the `filled` positions that there are, and gives all of them: those of `filled + new` positions. The state is called
    /// `cached_keys` and `cached_values` in the module of the context; a run whose store does not have it puts zeros there.
    ///
    /// # Errors
    /// Of the trace: other sizes, and more positions than there is room for.
    pub fn extend<'t>(
        &self,
        cx: &Context<'t>,
        [keys, values]: [Var<'t>; 2],
        filled: Size,
    ) -> [Var<'t>; 2] {
        let extended = |name: &str, new: Var<'t>| {
            let ty = TensorType::new(self.dtype, self.sizes);
            let state = cx.started_buffer(name, ty, Start::Constant(0.0));
            if state.is_poison() || new.is_poison() || new.rank() != 4 {
                return new;
            }
            cx.here(|| {
                let next = state.put_slice(new.to(self.dtype), 2, filled);
                if !next.is_poison() {
                    cx.trace().update(state, next);
                }
                next.slice(2, 0, filled + new.size(2), 1).to(new.dtype())
            })
        };
        [extended("cached_keys", keys), extended("cached_values", values)]
    }
}
