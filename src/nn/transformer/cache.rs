//! [`KvCache`]: keys and values of the positions that a model has seen, as state.

use crate::entry::Start;
use crate::nn::Context;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::index::Indexing;
use tracecast_ir::ops::scatter::Scatters;
use tracecast_ir::ops::view::Views;
use tracecast_ir::{DType, Shape, Size, TensorType, Var};

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
            let Some(state) = self.state(cx, name, new) else { return new };
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

    /// The same for sequences that have come to different lengths: keys and values `[batch, heads, 1, width]` go behind the `lengths`, `i64[batch]`, of each. Gives those of
    /// `largest + 1` positions, and the mask `[batch, 1, 1, largest + 1]` by which attention sees what a sequence has: true up to its own new position. What lies behind
    /// the largest length costs nothing.
    ///
    /// The mask is made of lengths that are checked: a run that uses it, with a length below zero or above `largest`, fails and leaves the cache as it was. A program that
    /// leaves the mask aside checks the lengths itself, [`check_range`](Indexing::check_range): a position outside of the window is not written.
    ///
    /// # Errors
    /// Of the trace: other sizes, and more positions than there is room for.
    pub fn extend_each<'t>(
        &self,
        cx: &Context<'t>,
        [keys, values]: [Var<'t>; 2],
        lengths: Var<'t>,
        largest: Size,
    ) -> ([Var<'t>; 2], Var<'t>) {
        let (t, end) = (cx.trace().tracer(), largest + 1);
        let [at, of_each] = cx.here(|| {
            let at = t.iota(DType::I64, &Shape::from([Size::from(1), Size::from(1), end]), 2);
            [at.unsqueeze(3), lengths.reshape([self.sizes[0], 1, 1, 1])]
        });
        let extended = |name: &str, new: Var<'t>| {
            let Some(state) = self.state(cx, name, new) else { return new };
            let [batch, heads, _, width] = self.sizes;
            if new.shape() != Shape::from([batch, heads, 1, width]) {
                let expected = format!("expected [{batch}, {heads}, 1, {width}]");
                let why =
                    format!("{expected}, one new position of each sequence, found {}", new.ty());
                return cx.here(|| t.fail("extend_each", why));
            }
            cx.here(|| {
                // The old elements are read where the new ones are written, which is done in place.
                let old = state.slice(2, 0, end, 1);
                let next = at.eq(of_each).choose(new.to(self.dtype), old);
                let next = state.put_slice(next, 2, 0);
                if !next.is_poison() {
                    cx.trace().update(state, next);
                }
                next.slice(2, 0, end, 1).to(new.dtype())
            })
        };
        let all = [extended("cached_keys", keys), extended("cached_values", values)];
        // The mask alone is made of lengths that have been checked: it is there before anything is written.
        let seen = cx.here(|| {
            let known = of_each.check_range(0, end, None);
            at.le(known).permute([0, 1, 3, 2])
        });
        (all, seen)
    }

    /// The state, unless there is no program or what goes there has other axes.
    fn state<'t>(&self, cx: &Context<'t>, name: &str, new: Var<'t>) -> Option<Var<'t>> {
        let ty = TensorType::new(self.dtype, self.sizes);
        let state = cx.started_buffer(name, ty, Start::Constant(0.0));
        (!state.is_poison() && !new.is_poison() && new.rank() == 4).then_some(state)
    }
}
