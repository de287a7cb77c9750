//! Elements at places computed at run time: `gather`, `scatter_add`, `embedding`, and the check of
//! a range.
//!
//! Indices count from 0 and are i32 or i64. One out of range is a data error of the run; negative
//! ones do not count from the end. A tensor without axes is taken for one of a single element.
//! Other scatters stand in `scatter`.

use super::elementwise::Elementwise;
use super::infer;
use super::source::IOTA;
use super::view::Views;
use crate::kernel::{Cmp, Combiner, Scalar, ScalarOp, Val};
use crate::op::{
    ANY, Dispatch, Domain, FLOATS, Facts, Grad, InferCx, Inferred, Lower, MapCx, Rounding, cheap,
    composite_own, core, rule,
};
use crate::{Args, Attrs, DType, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait Indexing;

/// For each element of `index` the element of `x` at the same place, except along axis `dim`, where
/// `index` says.
///
/// `y[i][j] = x[index[i][j]][j]` for `dim = 0`. `index` has as many axes as `x` and is no longer
/// along the others.
GATHER = gather(x, index; dim: Int) -> (y) {
    infer:    &|cx| {
        indexed(cx, cx.operand(0), cx.operand(1))?;
        Ok(Inferred::one(cx.operand(1).with_dtype(cx.operand(0).dtype)))
    },
    body:     core(
        rule(&|cx| {
            let (x, index) = (cx.args[0], cx.args[1]);
            let dim = cx.attrs.int("dim").expect("required");
            smallvec![Some(cx.tracer.zeros_like(x).scatter_add(index, cx.dy(), dim)), None]
        }),
        Lower::Gather,
    ),
    rounding: Rounding::nowhere("nowhere; the gradient once, after f32 sums"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7, 3] in 0 5 {dim = 0}", "T[4, 6], i32[3, 9] in 0 6 {dim = 1}", "T[9], i64[4] in 0 9 {dim = 0}", "T[9], i64[] in 0 9 {dim = 0}", "T[], i64[2] in 0 1 {dim = 0}"] },
}

/// `x` with each element of `src` added at its own place, except along axis `dim`, where `index`
/// says.
///
/// `y[index[i][j]][j] += src[i][j]` for `dim = 0`. `index` and `src` have one shape. Sums run in
/// the order of `src`, in f32 for 16-bit floats. The sum of truth values is whether any of them
/// holds.
SCATTER_ADD = scatter_add(x, index, src; dim: Int) -> (y) {
    infer:    &scattered,
    body:     core(
        rule(&|cx| {
            let picked = cx.dy().gather(cx.args[1], cx.attrs.int("dim").expect("required"));
            smallvec![Some(cx.dy()), None, Some(picked)]
        }),
        Lower::Scatter(Combiner::Add),
    ),
    rounding: Rounding::result("the result, once; the gradients nowhere"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7, 3] in 0 5, T[7, 3] {dim = 0}", "T[4, 6], i32[3, 9] in 0 6, T[3, 9] {dim = 1}", "T[3], i64[11] in 0 3, T[11] {dim = 0}", "T[], i64[1] in 0 1, T[1] {dim = 0}"] },
}

/// The index itself; a data error unless each element is at least `low` and below `high`, or is
/// `allow`.
CHECK_RANGE = check_range(index; low: Size, high: Size, allow: OptInt) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        infer::need_index(cx.operand(0))?;
        for name in ["low", "high"] {
            if cx.attrs.size(name).is_none_or(|bound| bound.is_out_of_range()) {
                return Err(format!("`{name}` is no size, expected at most {}", Size::MAX));
            }
        }
        infer::same(cx)
    },
    body:     core(Grad::Zero, cheap(&|cx, x| in_range(cx, x[0]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().raises(),
    domain:   Domain { dtypes: &[DType::I64, DType::I32], samples: &["T[3, 5] in 0 7 {low = 0, high = 7}", "T[9] in -1 4 {low = 0, high = 4, allow = -1}"] },
}

/// The rows of `weight` that `indices` name: the result has the axes of `indices`, then one row.
///
/// The row `padding_idx` gets no gradient, and with `scale_grad_by_freq` that of each other row is
/// divided by how often it was taken.
EMBEDDING = embedding_rows as "embedding"(weight, indices; padding_idx: OptInt, scale_grad_by_freq: Bool) -> (y) {
    infer:    &|cx| {
        let (weight, indices) = (cx.operand(0), cx.operand(1));
        infer::need_index(indices)?;
        let [rows, width] = weight.shape[..] else {
            return Err(format!("`weight` is {weight}, expected two axes: rows and their elements"));
        };
        if indices.numel() != 0 && !cx.must.hold(rows.at_least(1)) {
            return Err(format!("`weight` is {weight}: it has no row to take"));
        }
        padded(cx, rows)?;
        let shape = indices.shape.iter().copied().chain([width]).collect();
        Ok(Inferred::one(TensorType { dtype: weight.dtype, shape }))
    },
    body:     composite_own(
        Some(rule(&|cx| {
            let rows = cx.args[0].size(0);
            let (padding, scale) = (cx.attrs.int("padding_idx"), cx.attrs.bool("scale_grad_by_freq"));
            smallvec![Some(cx.dy().embedding_backward(cx.args[1], rows, padding, scale)), None]
        })),
        &|cx| {
            let (weight, indices, result) = (cx.args[0], cx.args[1], &cx.results[0].shape);
            let axis = indices.rank().max(1) - 1;
            if axis == 0 {
                let index = along_rows(indices, weight.size(1));
                return smallvec![weight.gather(index, 0).reshape_to(result)];
            }
            // In the shape of the result, so that what reads the rows may share their kernel: the
            // sums of bags do.
            let (outer, table) = (indices.shape(), weight.shape());
            let table: Shape = outer[..axis].iter().chain(&table[..]).copied().collect();
            let index = indices.unsqueeze(-1).expand_to(result);
            smallvec![weight.expand_to(&table).gather(index, axis as i64)]
        },
    ),
    rounding: Rounding::nowhere("nowhere; the gradient once, after f32 sums"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: ANY, samples: &["T[10, 7], i64[4] in 0 10", "T[6, 33], i32[2, 3] in 0 6", "T[5, 1], i64[] in 0 5"] },
}

/// The gradient of [`EMBEDDING`] for its `weight`, which has `rows` rows: each row of `dy` added to
/// the row it was taken from.
EMBEDDING_BACKWARD = embedding_backward(dy, indices; rows: Size, padding_idx: OptInt, scale_grad_by_freq: Bool) -> (dweight) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (dy, indices) = (cx.operand(0), cx.operand(1));
        infer::need_float(dy)?;
        infer::need_index(indices)?;
        let rows = infer::sizes(cx.must, &[cx.attrs.size("rows").expect("required")])?[0];
        padded(cx, rows)?;
        match dy.shape.split_last() {
            Some((&width, outer)) if cx.must.alike(outer, &indices.shape) && (indices.numel() == 0 || cx.must.hold(rows.at_least(1))) => {
                Ok(Inferred::one(TensorType::new(dy.dtype, [rows, width])))
            }
            _ => Err(format!("`dy` is {dy}, `indices` {indices}, `rows` {rows}: expected one row of `dy` for each index")),
        }
    },
    body:     composite_own(None, &|cx| {
        let (dy, indices) = (cx.args[0], cx.args[1]);
        let [rows, width] = cx.results[0].shape[..] else { unreachable!("infer gave two axes") };
        let count = indices.ty().numel();
        let mut source = dy.reshape_to(&Shape::new(&[count, width]));
        let index = indices.reshape_to(&Shape::new(&[count]));
        if cx.attrs.bool("scale_grad_by_freq") {
            let wide = source.dtype().compute();
            let [none, ones] = [(rows, 0.0), (count, 1.0)]
                .map(|(n, value)| cx.tracer.full(TensorType::new(wide, [n]), value));
            let taken = none.scatter_add(index, ones, 0).gather(index, 0);
            source = source.to(wide).div(taken.unsqueeze(1));
        }
        if let Some(padding) = cx.attrs.int("padding_idx") {
            let is_padding = index.eq(padding as f64).unsqueeze(1);
            source = is_padding.choose(cx.tracer.zeros_like(source), source);
        }
        let zeros = cx.tracer.full(TensorType::new(source.dtype(), [rows, width]), 0.0);
        smallvec![zeros.scatter_add(along_rows(indices, width), source, 0).to(dy.dtype())]
    }),
    rounding: Rounding::result("the result, once, after f32 sums"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[4, 7], i64[4] in 0 10 {rows = 10}", "T[2, 3, 5], i32[2, 3] in 0 6 {rows = 6}", "T[6, 3], i64[6] in 0 4 {rows = 4, padding_idx = 1, scale_grad_by_freq = true}"] },
}
}

/// The type of a scatter: that of its base. Base, index and source are the operands.
pub(super) fn scattered(cx: &InferCx<'_>) -> infer::Answer {
    let (x, index, src) = (cx.operand(0), cx.operand(1), cx.operand(2));
    if x.dtype != src.dtype {
        return Err(format!("`src` is {src}, expected the dtype of `x`, {}", x.dtype));
    }
    if !cx.must.alike(&index.shape, &src.shape) {
        return Err(format!("`src` is {src}, expected the shape of `index`, {}", index.shape));
    }
    indexed(cx, x, index)?;
    infer::same(cx)
}

/// Checks that `index` can pick from `x` along the attribute `dim`. Of no indices only the dtype is
/// asked: any integers will do.
fn indexed(cx: &InferCx<'_>, x: &TensorType, index: &TensorType) -> Result<(), String> {
    let axis = x.shape.axis(cx.attrs.int("dim").expect("required"))?;
    if index.numel() == 0 && index.dtype.is_int() {
        return Ok(());
    }
    infer::need_index(index)?;
    if x.shape.rank().max(1) != index.shape.rank().max(1) {
        return Err(format!("`index` is {index}, expected as many axes as {x}"));
    }
    for (i, (&there, &here)) in x.shape.iter().zip(index.shape.iter()).enumerate() {
        if i != axis && !cx.must.hold(there.at_least(here)) {
            return Err(format!(
                "`index` is {index}, expected at most {there} along axis {i} of {x}"
            ));
        }
    }
    let along = |shape: &Shape| shape.get(axis).copied().unwrap_or(Size::from(1));
    // As many indices along an axis as it has elements are none if it has none.
    let is_safe = along(&index.shape) == along(&x.shape);
    if !is_safe && !cx.must.hold(along(&x.shape).at_least(1)) {
        return Err(format!("{x} has nothing along axis {axis} to index"));
    }
    Ok(())
}

/// Fails unless the row of the attribute `padding_idx` is there.
pub(super) fn padded(cx: &InferCx<'_>, rows: Size) -> Result<(), String> {
    match cx.attrs.int("padding_idx") {
        Some(row) if row < 0 || !cx.must.hold(rows.at_least(row.saturating_add(1))) => {
            Err(format!("`padding_idx` is {row}, expected one of {rows} rows"))
        }
        _ => Ok(()),
    }
}

/// Indices of rows, repeated along the `width` elements of each: one axis for the indices, one for
/// the row.
fn along_rows(indices: Var<'_>, width: Size) -> Var<'_> {
    let count = indices.ty().numel();
    indices.reshape(crate::sizes![count, 1]).expand_to(&Shape::new(&[count, width]))
}

/// The index, and a check; the smallest allowed value where the check fails.
fn in_range(cx: &mut MapCx<'_>, x: Val) -> Val {
    let get = |name| cx.attrs.size(name).expect("inferred");
    let (low, high) = (get("low"), get("high"));
    let (from, to) = (cx.size(low), cx.size(high));
    let allow = cx.attrs.int("allow");
    let other = allow.map(|i| cx.body.push(ScalarOp::Const(i as u64), &[], Scalar::I64));
    let wide = cx.body.convert(x, Scalar::I64);
    let above = cx.body.cmp(Cmp::Le, from, wide);
    let below = cx.body.cmp(Cmp::Lt, wide, to);
    let mut fine = cx.body.binary(ScalarOp::And, above, below);
    if let Some(other) = other {
        let allowed = cx.body.cmp(Cmp::Eq, wide, other);
        fine = cx.body.binary(ScalarOp::Or, fine, allowed);
    }
    let fine = cx.check_within(fine, Some(wide), "index out of range", Some([low, high]));
    let ty = cx.scalar();
    let safe = cx.body.convert(from, ty);
    cx.body.select(fine, x, safe)
}

impl<'t> Var<'t> {
    /// The rows of this table that `indices` name: the result has the axes of `indices`, then one
    /// row.
    #[track_caller]
    pub fn embedding(self, indices: Var<'t>) -> Var<'t> {
        self.embedding_rows(indices, None, false)
    }

    /// Whether position `i` of a new axis `axis` of size `size` equals this index.
    #[track_caller]
    pub(crate) fn one_hot(self, axis: usize, size: Size) -> Var<'t> {
        let mut shape: SmallVec<[Size; 4]> = self.shape().iter().copied().collect();
        shape.insert(axis, size);
        let attrs = Attrs::new()
            .with("dtype", self.dtype())
            .with("shape", &shape[..])
            .with("dim", axis as i64);
        let positions = self.tracer().apply(&IOTA, Args::new(), attrs)[0];
        super::elementwise::Elementwise::eq(positions, self.unsqueeze(axis as i64))
    }
}
