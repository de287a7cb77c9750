//! [`KvCache`]: keys and values of the positions that a model has seen, as state.

use crate::entry::Start;
use crate::nn::Context;
use crate::setters::setters;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::index::Indexing;
use tracecast_ir::ops::scatter::Scatters;
use tracecast_ir::ops::view::Views;
use tracecast_ir::{DType, Shape, Size, TensorType, Var};

/// Keys and values of a layer of attention, `[batch, heads, capacity, width]` each: state, of which
/// a run writes the rows of new positions in place and reads those that are filled. How many these
/// are is a size that a run is given.
///
/// A run that would go beyond the capacity is refused, and a run that fails leaves the cache as it
/// was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvCache {
    sizes: [usize; 4],
    dtype: DType,
}

impl KvCache {
    /// By the numbers of sequences, heads, positions, and elements of a key and of a value, in f32.
    pub fn new(batch: usize, heads: usize, capacity: usize, width: usize) -> Self {
        KvCache { sizes: [batch, heads, capacity, width], dtype: DType::F32 }
    }

    setters! {
        /// In another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }

    /// Puts keys and values `[batch, heads, new, width]` behind the `filled` positions that there
    /// are, and gives all of them: those of `filled + new` positions. The state is called
    /// `cached_keys` and `cached_values` in the module of the context; a run whose store does not
    /// have it puts zeros there.
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

    /// The same for sequences that have come to different lengths: keys and values
    /// `[batch, heads, new, width]` go behind the `lengths`, `i64[batch]`, of each. Gives those of
    /// `largest + new` positions, and the mask `[batch, 1, new, largest + new]` by which attention
    /// sees what a sequence has: each of its new positions those up to itself. Only the rows of new
    /// positions are written, and what lies behind the largest length is not read. Of sequences
    /// with fewer new positions than others the rest are filled with anything: the next run says
    /// their lengths, and writes there.
    ///
    /// A run with a length below zero or above `largest` fails and leaves the cache as it was. The
    /// lengths behind the new positions are the state `cached_lengths`.
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
        let (t, [batch, heads, _, width]) = (cx.trace().tracer(), self.sizes);
        if let Some(unknown) = [keys, values, lengths].into_iter().find(|x| x.is_poison()) {
            self.state(cx, "cached_keys", unknown);
            self.state(cx, "cached_values", unknown);
            let ty = TensorType::new(DType::I64, [batch]);
            cx.started_buffer("cached_lengths", ty, Start::Constant(0.0));
            return ([unknown, unknown], unknown);
        }
        let new = if keys.rank() == 4 { keys.size(2) } else { Size::from(1) };
        let whole = Shape::from([batch.into(), heads.into(), new, width.into()]);
        let refused = |expected: String, found: Var<'t>| {
            let why = format!("expected {expected}, found {}", found.ty());
            let poison = cx.here(|| t.fail("extend_each", why));
            ([poison, poison], poison)
        };
        if let Some(other) = [keys, values].into_iter().find(|x| x.shape() != whole) {
            let what = "the new positions of each sequence";
            return refused(format!("[{batch}, {heads}, {new}, {width}], {what}"), other);
        }
        if lengths.ty() != TensorType::new(DType::I64, [batch]) {
            return refused(format!("i64[{batch}], the length of each sequence"), lengths);
        }
        let window = Window { new, end: largest + new, sizes: self.sizes };
        let rows = cx.here(|| window.rows(lengths));
        let extended = |name: &str, x: Var<'t>| {
            let Some(state) = self.state(cx, name, x) else { return x };
            cx.here(|| {
                let next = state.scatter(rows, x.to(self.dtype), 2);
                if !next.is_poison() {
                    cx.trace().update(state, next);
                }
                next.slice(2, 0, window.end, 1).to(x.dtype())
            })
        };
        let all = [extended("cached_keys", keys), extended("cached_values", values)];
        // What is not written into the caches alone is made of checked lengths: these are there
        // before anything is written.
        let known = cx.here(|| lengths.check_range(0, largest + 1, None));
        let state = cx.started_buffer("cached_lengths", lengths.ty(), Start::Constant(0.0));
        cx.here(|| {
            if !state.is_poison() && !known.is_poison() {
                cx.trace().update(state, known.add(new));
            }
            (all, window.seen(known))
        })
    }

    /// The state, unless there is no program or what goes there has other axes.
    fn state<'t>(&self, cx: &Context<'t>, name: &str, new: Var<'t>) -> Option<Var<'t>> {
        let ty = TensorType::new(self.dtype, self.sizes);
        let state = cx.started_buffer(name, ty, Start::Constant(0.0));
        (!state.is_poison() && !new.is_poison() && new.rank() == 4).then_some(state)
    }
}

/// The positions that a run of sequences of different lengths reads and writes.
#[derive(Clone, Copy)]
struct Window {
    /// How many of each sequence are new.
    new: Size,
    end: Size,
    sizes: [usize; 4],
}

impl Window {
    /// The positions of what is new, `[batch, 1, new, 1]`.
    fn behind<'t>(self, lengths: Var<'t>) -> Var<'t> {
        let (one, of_each) = (Size::from(1), lengths.reshape([self.sizes[0], 1, 1, 1]));
        if self.new == 1 {
            return of_each;
        }
        of_each.add(lengths.tracer().iota(DType::I64, Shape::from([one, one, self.new, one]), 2))
    }

    /// Where each number that is new goes. They are kept within the cache, so that nothing needs a
    /// check where they are written: a run with lengths that go beyond fails before.
    fn rows(self, lengths: Var<'_>) -> Var<'_> {
        let [batch, heads, capacity, width] = self.sizes;
        let number = |n: usize| lengths.tracer().full(TensorType::scalar(DType::I64), n as f64);
        let last = number(capacity.saturating_sub(1));
        let at = self.behind(lengths).maximum(number(0)).minimum(last);
        at.expand_to(&Shape::from([batch.into(), heads.into(), self.new, width.into()]))
    }

    /// True for each new position and those up to it.
    fn seen(self, lengths: Var<'_>) -> Var<'_> {
        let one = Size::from(1);
        let at = lengths.tracer().iota(DType::I64, Shape::from([one, one, one, self.end]), 3);
        at.le(self.behind(lengths))
    }
}
