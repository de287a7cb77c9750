//! `embedding_bag`: rows of a table, reduced bag by bag.

use super::elementwise::Elementwise;
use super::index::{Indexing, padded};
use super::indexed::along;
use super::infer;
use super::lines::LineOps;
use super::reduce::Reductions;
use super::scatter::Scatters;
use super::view::Views;
use crate::kernel::Reduction;
use crate::op::{Dispatch, Domain, ExpandCx, FLOATS, InferCx, Inferred, Rounding, composite_own};
use crate::{Attrs, DType, IntoDims, Shape, Size, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait Bags;

/// The rows of `weight` that `indices` name, reduced bag by bag: `mode` is `sum`, `mean` (the
/// default) or `max`. An empty bag gives zeros.
///
/// `indices` of two axes are a bag in each row. Of one axis they need `offsets`, the first of which
/// is 0: where each bag begins, and with `include_last_offset` also where the last one ends. Rows
/// of a sum are multiplied with `per_sample_weights`, which have the shape of the indices. The row
/// `padding_idx` counts for nothing, and with `scale_grad_by_freq` the gradient of each row is
/// divided by how often it was taken.
EMBEDDING_BAG = embedding_bag(weight, indices, offsets: optional, per_sample_weights: optional; mode: OptStr, include_last_offset: Bool, padding_idx: OptInt, scale_grad_by_freq: Bool) -> (y) {
    dispatch: Dispatch::Listed { overload: "padding_idx" },
    infer:    &bags,
    body:     composite_own(None, &|cx| {
        let wide = cx.results[0].dtype.compute();
        let (weight, indices) = (cx.args[0], cx.args[1]);
        let (padding, scale) = (cx.attrs.int("padding_idx"), cx.attrs.bool("scale_grad_by_freq"));
        let mut rows = weight.embedding_rows(indices, padding, scale).to(wide);
        if let Some(weights) = cx.get(3) {
            rows = rows.mul(weights.to(wide).unsqueeze(-1));
        }
        let counts = padding.map(|padding| indices.ne(padding as f64));
        let taken = Taken { rows, counts, mode: Mode::of(cx.attrs).unwrap_or(Mode::Mean) };
        let y = match cx.get(2) {
            None => taken.rows_of_bags(),
            Some(offsets) => taken.bags_from(offsets, cx),
        };
        smallvec![y.to(cx.results[0].dtype)]
    }),
    rounding: Rounding::result("the result; the gradient once, after f32 sums"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[9, 3], i64[2, 4] in 0 9 {mode = \"sum\"}", "T[4, 83], i64[3, 5] in 0 4 {mode = \"sum\"}", "T[9, 3], i32[2, 4] in 0 9 {padding_idx = 4}", "T[9, 3], i64[2, 4] in 0 9 {mode = \"max\"}", "T[9, 3], i64[2, 4] in 0 9, none, T[2, 4] {mode = \"sum\", padding_idx = 1}", "T[9, 3], i64[7] in 0 9, i64[1] in 0 1 {mode = \"max\"}", "T[9, 3], i64[7] in 0 9, i64[2] in 0 1, T[7] {mode = \"sum\", include_last_offset = true}"] },
}
}

/// How the rows of a bag are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Sum,
    Mean,
    Max,
}

impl Mode {
    fn of(attrs: &Attrs) -> Result<Mode, String> {
        match attrs.str("mode") {
            Some("sum") => Ok(Mode::Sum),
            None | Some("mean") => Ok(Mode::Mean),
            Some("max") => Ok(Mode::Max),
            Some(other) => Err(format!("`mode` is {other:?}, expected sum, mean or max")),
        }
    }
}

fn bags(cx: &InferCx<'_>) -> infer::Answer {
    let (weight, indices) = (cx.operand(0), cx.operand(1));
    infer::need_float(weight)?;
    infer::need_index(indices)?;
    let [rows, width] = weight.shape[..] else {
        return Err(format!("`weight` is {weight}, expected two axes: rows and their elements"));
    };
    if indices.numel() != 0 && !cx.must.hold(rows.at_least(1)) {
        return Err(format!("`weight` is {weight}: it has no row to take"));
    }
    padded(cx, rows)?;
    let mode = Mode::of(cx.attrs)?;
    if let Some(weights) = cx.get(3) {
        if mode != Mode::Sum {
            return Err("`per_sample_weights` are for the mode sum".to_owned());
        }
        if weights.dtype != weight.dtype || !cx.must.alike(&weights.shape, &indices.shape) {
            let expected = indices.with_dtype(weight.dtype);
            return Err(format!(
                "`per_sample_weights` are {weights}, expected {expected}: one for each index"
            ));
        }
    }
    let last = Size::from(i64::from(cx.attrs.bool("include_last_offset")));
    let count = match (&indices.shape[..], cx.get(2)) {
        ([bags, length], None) => {
            if *length != 0 && !cx.must.hold(length.at_least(1)) {
                return Err(format!("the bags of {indices} may be empty"));
            }
            *bags
        }
        ([_], Some(offsets)) => {
            infer::need_index(offsets)?;
            let [count] = offsets.shape[..] else {
                return Err(format!("`offsets` are {offsets}, expected one axis"));
            };
            if !cx.must.hold(count.at_least(1)) {
                return Err(format!("`offsets` are {offsets}, expected at least one"));
            }
            count - last
        }
        _ => {
            return Err(format!(
                "`indices` are {indices}, expected two axes, or one axis and `offsets`"
            ));
        }
    };
    Ok(Inferred::one(TensorType { dtype: weight.dtype, shape: Shape::new(&[count, width]) }))
}

/// Rows that were taken, behind the axes of their indices.
struct Taken<'t> {
    rows: Var<'t>,
    /// Which of them count, if not all do.
    counts: Option<Var<'t>>,
    mode: Mode,
}

impl<'t> Taken<'t> {
    /// The rows, those that do not count replaced.
    fn counted(&self, other: f64) -> Var<'t> {
        let rows = self.rows;
        let other = |counts: Var<'t>| {
            counts.unsqueeze(-1).choose(rows, rows.tracer().full(rows.ty(), other))
        };
        self.counts.map_or(rows, other)
    }

    /// Each bag along the second axis.
    fn rows_of_bags(&self) -> Var<'t> {
        let (rows, t) = (self.rows, self.rows.tracer());
        let length = rows.size(1);
        if length == 0 {
            let ty = TensorType {
                dtype: rows.dtype(),
                shape: Shape::new(&[rows.size(0), rows.size(2)]),
            };
            return t.full(ty, 0.0);
        }
        let count = self.counts.map(|counts| counts.to(rows.dtype()).sum([1].keep()));
        match (self.mode, count) {
            (Mode::Sum, _) => self.counted(0.0).sum(1),
            (Mode::Mean, None) => rows.mean(1),
            (Mode::Max, None) => rows.amax(1),
            (mode, Some(count)) => self.reduced(mode, count, |filled| match mode {
                Mode::Max => filled.amax(1),
                _ => filled.sum(1),
            }),
        }
    }

    /// Means and maxima of bags that have `count` rows, perhaps none.
    fn reduced(
        &self,
        mode: Mode,
        count: Var<'t>,
        reduce: impl FnOnce(Var<'t>) -> Var<'t>,
    ) -> Var<'t> {
        let t = self.rows.tracer();
        if mode == Mode::Max {
            let most = reduce(self.counted(f64::NEG_INFINITY));
            return count.eq(0.0).choose(t.zeros_like(most), most);
        }
        reduce(self.counted(0.0)).div(count.maximum(t.full(count.ty(), 1.0)))
    }

    /// Each bag from one of the offsets to the next one.
    fn bags_from(&self, offsets: Var<'t>, cx: &ExpandCx<'_, 't>) -> Var<'t> {
        let (rows, t, dtype) = (self.rows, cx.tracer, self.rows.dtype());
        let (length, width, begun) = (rows.size(0), rows.size(1), offsets.size(0));
        let full =
            |dtype: DType, shape: &[Size], value: f64| t.full(TensorType::new(dtype, shape), value);
        // The bag of a row is the number of bags that have begun, less one: -1 in front of the
        // first, which no scatter takes.
        let marks = full(DType::I64, &[length + 1], 0.0);
        let marks = marks.scatter_add(offsets, full(DType::I64, &[begun], 1.0), 0);
        let bag = marks.slice(0, 0, length, 1).scan(0, Some(Reduction::Sum.name()), false);
        let bag = bag.sub(1.0);
        let index = along(bag, &rows.shape(), 0);
        let sums =
            |filled: Var<'t>| full(dtype, &[begun, width], 0.0).scatter_add(index, filled, 0);
        let y = if self.mode == Mode::Sum {
            sums(self.counted(0.0))
        } else {
            let ones = self.counts.map_or(full(dtype, &[length], 1.0), |counts| counts.to(dtype));
            let count = full(dtype, &[begun], 0.0).scatter_add(bag, ones, 0).unsqueeze(1);
            self.reduced(self.mode, count, |filled| match self.mode {
                Mode::Max => {
                    full(dtype, &[begun, width], f64::NEG_INFINITY).scatter_max(index, filled, 0)
                }
                _ => sums(filled),
            })
        };
        // What comes behind the last offset is a bag of its own, which nobody asked for.
        let asked = cx.results[0].shape[0];
        if asked == begun { y } else { y.slice(0, 0, asked, 1) }
    }
}
