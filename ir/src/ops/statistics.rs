//! What is made of several reductions and rounded once: `logsumexp`, `var`, `std`, with the mean
//! beside them, `nansum`, `quantile`.

use super::elementwise::Elementwise;
use super::index::Indexing;
use super::infer;
use super::mul_add::MulAdds;
use super::reduce::{Reductions, along, averaged, reduce, reduced, spread};
use super::sorting::both;
use super::view::Views;
use crate::kernel::Reduction;
use crate::op::{
    ANY, Dispatch, Domain, ExpandCx, FLOATS, Facts, GradCx, Grads, InferCx, Inferred, Rounding,
    composite, composite_own, rule,
};
use crate::{Attrs, DType, IntoDims, Number, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

const CORRECTED: Dispatch = Dispatch::Listed { overload: "correction" };
const ONCE: Rounding = Rounding::result("each result; the gradient once");

crate::ops! { trait Statistics;

/// The logarithm of the sum of the powers of `e` over the axes `dim` (all of them if empty), taken
/// from their largest, so that none is too large. Integers are computed in f32.
LOGSUMEXP = logsumexp(x; [dim: Ints, keepdim: Bool]) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        let dtype = if x.dtype.is_float() { x.dtype } else { DType::F32 };
        let casts = smallvec![(x.dtype != dtype).then_some(dtype)];
        Ok(Inferred { casts, ..reduced(cx, dtype)? })
    },
    body:     composite(
        Some(rule(&|cx| {
            let (x, dim) = (wide(cx.args[0]), cx.attrs.ints("dim"));
            let over = |y| spread(wide(y), x.shape(), dim);
            let share = x.sub(over(cx.out())).exp();
            smallvec![Some(over(cx.dy()).mul(share).to(cx.args[0].dtype()))]
        })),
        &|cx| {
            let (x, dim) = (cx.args[0], cx.attrs.ints("dim"));
            let most = reduce(x, dim, Reduction::Max);
            // An infinity is not subtracted: it would make NaN of itself.
            let is_infinite = most.abs().eq(f64::INFINITY);
            let most = is_infinite.choose(cx.tracer.zeros_like(most), most);
            let sum = reduce(x.sub(spread(most, x.shape(), dim)).exp(), dim, Reduction::Sum);
            smallvec![sum.log().add(most).reshape_to(&cx.results[0].shape)]
        },
    ),
    rounding: ONCE,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}", "T[2, 3, 4] {dim = [0, 2]}", "T[2, 3] {dim = []}"] },
}

/// The variance over the axes `dim` (all of them if empty): the sum of the squared distances from
/// the mean, divided by the count less `correction`, which is 1 if absent.
VAR = var(x; [dim: Ints, keepdim: Bool], correction: OptFloat) -> (y) {
    dispatch: CORRECTED,
    infer:    &spread_type,
    body:     composite(Some(rule(&|cx| smallvec![Some(variance_gradient(cx, cx.dy()))])), &|cx| {
        smallvec![variance(cx).0]
    }),
    rounding: ONCE,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}", "T[2, 3] {dim = [], correction = 0.0}", "T[4, 5] {dim = [0], correction = 1.5}"] },
}

/// The standard deviation: the square root of [`VAR`]. Where it is zero, so is the gradient.
STD = std(x; [dim: Ints, keepdim: Bool], correction: OptFloat) -> (y) {
    dispatch: CORRECTED,
    infer:    &spread_type,
    body:     composite(Some(rule(&|cx| smallvec![Some(deviation_gradient(cx, cx.dy()))])), &|cx| {
        smallvec![variance(cx).0.sqrt()]
    }),
    rounding: ONCE,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}", "T[2, 3] {dim = [], correction = 0.0}"] },
}

/// [`VAR`], and the mean beside it.
VAR_MEAN = var_mean_values as "var_mean"(x; [dim: Ints, keepdim: Bool], correction: OptFloat) -> (variance, mean) {
    dispatch: CORRECTED,
    infer:    &two_spread_types,
    body:     composite(Some(rule(&|cx| with_mean_gradient(cx, variance_gradient))), &|cx| {
        let (variance, mean) = variance(cx);
        smallvec![variance, mean]
    }),
    rounding: ONCE,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}"] },
}

/// [`STD`], and the mean beside it.
STD_MEAN = std_mean_values as "std_mean"(x; [dim: Ints, keepdim: Bool], correction: OptFloat) -> (deviation, mean) {
    dispatch: CORRECTED,
    infer:    &two_spread_types,
    body:     composite(Some(rule(&|cx| with_mean_gradient(cx, deviation_gradient))), &|cx| {
        let (variance, mean) = variance(cx);
        smallvec![variance.sqrt(), mean]
    }),
    rounding: ONCE,
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}"] },
}

/// The sum of the elements over the axes `dim` (all of them if empty) that are no NaN. Integers and
/// bool are summed in i64.
///
/// With `dtype`, operand and result are of that dtype.
NANSUM = nansum(x; [dim: Ints, keepdim: Bool, dtype: OptDType]) -> (y) {
    infer:    &|cx| {
        let own = if cx.operand(0).dtype.is_float() { cx.operand(0).dtype } else { DType::I64 };
        reduced(cx, cx.attrs.dtype("dtype").unwrap_or(own))
    },
    body:     composite(None, &|cx| {
        let x = cx.args[0];
        let numbers = if x.dtype().is_float() { x.eq(x).choose(x, cx.tracer.zeros_like(x)) } else { x };
        smallvec![numbers.sum(cx.attrs.ints("dim").kept(cx.attrs.bool("keepdim")).dtype(cx.results[0].dtype.compute()))]
    }),
    rounding: Rounding::result("the result; the gradient nowhere"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}", "T[2, 3] {dim = []}"] },
}

/// The elements along axis `dim` (of all elements if absent) below which the shares `q` of them
/// lie, a number or a vector whose axis comes first; NaN if there is one.
///
/// `interpolation` says what lies between two elements: `"linear"` (if absent), `"lower"`,
/// `"higher"`, `"midpoint"` or `"nearest"`. A share outside of 0 to 1 is a data error.
QUANTILE = quantile(x, q; [dim: OptInt, keepdim: Bool], interpolation: OptStr) -> (y) {
    infer:    &quantile_type,
    body:     composite_own(None, &|cx| smallvec![quantile(cx)]),
    rounding: Rounding::parts("nowhere: its operands are f32 or f64"),
    domain:   Domain { dtypes: &[DType::F32, DType::F64], samples: &["T[3, 5], T[2] in 0 1 {dim = 1}", "T[4, 3], T[] in 0 1 {dim = 0, keepdim = true}", "T[2, 3], T[2] in 0 1", "T[5], T[2] in 0 1 {dim = 0, interpolation = \"higher\"}", "T[5], T[2] in 0 1 {dim = 0, interpolation = \"nearest\"}", "T[6], T[2] in 0 1 {dim = 0, interpolation = \"midpoint\"}"] },
}
}

/// Ops with two results.
impl<'t> Var<'t> {
    /// The variance over the axes `dim` (all of them if empty), divided by the count less
    /// `correction`, and the mean.
    ///
    /// ```
    /// use tracecast_ir::{DType, Tracer};
    ///
    /// let tracer = Tracer::new("g");
    /// let x = tracer.constant(DType::F32, &[2, 2], &[1.0, 3.0, 5.0, 5.0]);
    /// let (variance, mean) = x.var_mean(1, None);
    /// assert_eq!((variance.rank(), mean.rank()), (1, 1));
    /// ```
    #[track_caller]
    pub fn var_mean(
        self,
        dims: impl IntoDims,
        correction: impl Into<Option<f64>>,
    ) -> (Var<'t>, Var<'t>) {
        both(self.var_mean_values(dims, correction))
    }

    /// The standard deviation over the axes `dim` (all of them if empty), with the count less
    /// `correction`, and the mean.
    #[track_caller]
    pub fn std_mean(
        self,
        dims: impl IntoDims,
        correction: impl Into<Option<f64>>,
    ) -> (Var<'t>, Var<'t>) {
        both(self.std_mean_values(dims, correction))
    }
}

/// In the dtype that computes it.
fn wide(x: Var<'_>) -> Var<'_> {
    x.to(x.dtype().compute())
}

fn correction(attrs: &Attrs) -> f64 {
    attrs.float("correction").unwrap_or(1.0)
}

/// The type of a variance. What is taken from a count that depends on names is an integer.
fn spread_type(cx: &InferCx<'_>) -> infer::Answer {
    let x = cx.operand(0);
    infer::need_float(x)?;
    reduced(cx, x.dtype)
}

fn two_spread_types(cx: &InferCx<'_>) -> infer::Answer {
    let one = spread_type(cx)?.results[0].clone();
    Ok(Inferred::many([one.clone(), one]))
}

/// Divided by the count of the elements less the correction, which is not below zero.
fn divided<'t>(sum: Var<'t>, x: Var<'t>, result: &TensorType, attrs: &Attrs) -> Var<'t> {
    let correction = correction(attrs);
    let degrees = match averaged(&x.shape(), &result.shape, attrs.ints("dim")) {
        Number::Size(count) => {
            let count = sum.tracer().number(count, DType::F64);
            count.sub(correction).clamp_to(Some(0.0), None).to(sum.dtype())
        }
        count => {
            let degrees = (count.value().unwrap_or(0.0) - correction).max(0.0);
            return sum.div(Number::F64(degrees));
        }
    };
    sum.div(degrees)
}

/// The distances from the mean over the axes `dim`, and the mean with these axes.
fn distances<'t>(x: Var<'t>, dim: &[i64]) -> (Var<'t>, Var<'t>) {
    let mean = x.mean(dim.keep());
    (x.sub(mean), mean)
}

/// The variance and the mean, in the shapes of results.
fn variance<'t>(cx: &ExpandCx<'_, 't>) -> (Var<'t>, Var<'t>) {
    let (x, dim, ty) = (cx.args[0], cx.attrs.ints("dim"), &cx.results[0]);
    let (away, mean) = distances(x, dim);
    let sum = reduce(away.mul(away), dim, Reduction::Sum);
    let variance = divided(sum, x, ty, cx.attrs);
    (variance.reshape_to(&ty.shape), mean.reshape_to(&ty.shape))
}

/// The gradient of a variance, from its own.
fn variance_gradient<'t>(cx: &GradCx<'_, 't>, dy: Var<'t>) -> Var<'t> {
    let (x, dim) = (wide(cx.args[0]), cx.attrs.ints("dim"));
    let dy = divided(wide(dy), x, &cx.outs[0].ty(), cx.attrs);
    let slope = spread(dy.mul(2.0), x.shape(), dim);
    slope.mul(distances(x, dim).0).to(cx.args[0].dtype())
}

/// The gradient of a standard deviation, from its own: zero where the deviation is.
fn deviation_gradient<'t>(cx: &GradCx<'_, 't>, dy: Var<'t>) -> Var<'t> {
    let deviation = wide(cx.outs[0]);
    let slope = wide(dy).div(deviation.mul(2.0));
    let zero = cx.tracer.zeros_like(slope);
    variance_gradient(cx, deviation.eq(0.0).choose(zero, slope))
}

/// The gradient of a first result and of a mean.
fn with_mean_gradient<'t>(
    cx: &GradCx<'_, 't>,
    of_first: fn(&GradCx<'_, 't>, Var<'t>) -> Var<'t>,
) -> Grads<'t> {
    let (x, dim) = (cx.args[0], cx.attrs.ints("dim"));
    let first = cx.dys[0].map(|dy| of_first(cx, dy));
    let second = cx.dys[1].map(|dy| {
        let count = averaged(&x.shape(), &dy.shape(), dim);
        spread(wide(dy).div(count), x.shape(), dim).to(x.dtype())
    });
    smallvec![match (first, second) {
        (Some(first), Some(second)) => Some(first.add(second)),
        (first, second) => first.or(second),
    }]
}

fn quantile_type(cx: &InferCx<'_>) -> infer::Answer {
    let (x, q) = (cx.operand(0), cx.operand(1));
    if !matches!(x.dtype, DType::F32 | DType::F64) {
        return Err(format!("takes f32 or f64, found {x}"));
    }
    if q.dtype != x.dtype || q.shape.rank() > 1 {
        return Err(format!("`q` is {q}, expected {} with at most one axis", x.dtype));
    }
    let known = ["linear", "lower", "higher", "midpoint", "nearest"];
    if let Some(other) = cx.attrs.str("interpolation").filter(|text| !known.contains(text)) {
        return Err(format!("`interpolation` is {other:?}, expected one of {}", known.join(", ")));
    }
    let length = match cx.attrs.int("dim") {
        None => x.numel(),
        Some(dim) => x.shape.get(x.shape.axis(dim)?).copied().unwrap_or(Size::from(1)),
    };
    if !cx.must.hold(length.at_least(1)) {
        return Err(format!("{x} has no quantile of no elements"));
    }
    let one = along(cx, x.dtype)?;
    let shape = q.shape.iter().chain(one.results[0].shape.iter()).copied().collect();
    Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
}

/// A share of the way from one number to another, which may be infinite.
fn between<'t>(low: Var<'t>, high: Var<'t>, way: Var<'t>) -> Var<'t> {
    let weighed = low.mul(way.rsub(1.0)).add(high.mul(way));
    let weighed = way.eq(0.0).choose(low, weighed);
    let is_infinite = low.isinf().logical_or(high.isinf());
    is_infinite.choose(weighed, low.lerp_by(high, way))
}

fn quantile<'t>(cx: &ExpandCx<'_, 't>) -> Var<'t> {
    let (x, q) = (cx.args[0], cx.args[1]);
    let lines = match cx.attrs.int("dim").filter(|_| x.rank() > 0) {
        None => x.reshape([-1]),
        Some(dim) => x.movedim(&[dim], &[-1]),
    };
    let (sorted, _) = lines.sort(-1, false);
    let length = sorted.size(sorted.rank() - 1);
    // Along the last axis a rank for each share. A NaN is the last of its line, and then every
    // share is its place.
    let mut sizes: SmallVec<[Size; 4]> = SmallVec::from_slice(&sorted.shape());
    sizes[sorted.rank() - 1] = q.ty().numel();
    let shape = crate::Shape::new(&sizes);
    let last = Number::Size(length - 1);
    let rank = q.reshape([-1]).mul(last).expand_to(&shape);
    let most = sorted.slice(-1, length - 1, length, 1);
    let is_nan = most.ne(most).expand_to(&shape);
    let end = cx.tracer.ones_like(rank).mul(last);
    let rank = is_nan.choose(end, rank);
    let at = |place: Var<'t>| sorted.gather(place.to(DType::I64), -1);
    let y = match cx.attrs.str("interpolation").unwrap_or("linear") {
        "lower" => at(rank.floor()),
        "higher" => at(rank.ceil()),
        "nearest" => at(rank.round()),
        how => {
            let below = rank.floor();
            let half = || cx.tracer.full(rank.ty(), 0.5);
            let way = if how == "midpoint" { half() } else { rank.sub(below) };
            between(at(below), at(rank.ceil()), way)
        }
    };
    let y = if q.rank() == 1 { y.movedim(&[-1], &[0]) } else { y };
    y.reshape_to(&cx.results[0].shape)
}
