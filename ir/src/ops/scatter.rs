//! Sources combined with the elements of a base at computed places: `scatter` puts them there,
//! `scatter_reduce` reduces what meets at a place.
//!
//! Sources come in their row-major order, whatever the threads do. `scatter_add` stands in `index`
//! beside `gather`, whose gradient it is; products and extremes have core ops here, which
//! `scatter_reduce` is made of.

use super::cast::Cast;
use super::division::Divisions;
use super::elementwise::Elementwise;
use super::index::{Indexing, scattered};
use super::view::Views;
use crate::kernel::Combiner;
use crate::op::{
    ANY, Dispatch, Domain, GradCx, Grads, Inferred, Lower, Rounding, composite, core, rule,
};
use crate::{Attrs, DType, Var};
use smallvec::smallvec;
use std::str::FromStr;

crate::ops! { trait Scatters;

/// `x` with each element of `src` in its own place, except along axis `dim`, where `index` says.
///
/// `y[index[i][j]][j] = src[i][j]` for `dim = 0`. `index` and `src` have one shape. Of several
/// sources for one place the last one in the order of `src` stays, and it alone has a gradient.
SCATTER = scatter(x, index, src; dim: Int) -> (y) {
    infer:    &scattered,
    body:     core(rule(&|cx| put_gradient(cx)), Lower::Scatter(Combiner::Set)),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7, 3] in 0 5, T[7, 3] {dim = 0}", "T[4, 6], i32[3, 9] in 0 6, T[3, 9] {dim = 1}", "T[3], i64[2] in 0 3, T[2] {dim = 0}", "T[], i64[] in 0 1, T[] {dim = 0}"] },
}

/// `x` with `src` in the place of as many positions along axis `dim`, from `start` on, which may
/// depend on names. Where the result is the next value of the state `x`, nothing else of that is
/// touched.
PUT_SLICE = put_slice(x, src; dim: Int, start: Size) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (x, src) = (cx.operand(0), cx.operand(1));
        let axis = x.shape.axis(cx.attrs.int("dim").unwrap_or(0))?;
        let start = cx.attrs.size("start").expect("required");
        let fits = |i: usize| i == axis || cx.must.equal(x.shape[i], src.shape[i]);
        if x.dtype != src.dtype || x.shape.rank() != src.shape.rank() || x.shape.rank() == 0 || !(0..x.shape.rank()).all(fits) {
            return Err(format!("{src} does not fit into {x} along axis {axis}"));
        }
        if !cx.must.hold(start.at_least(0)) || !cx.must.hold(x.shape[axis].at_least(start + src.shape[axis])) {
            return Err(format!("{x} is full: there are not {} positions from {start} on along axis {axis}", src.shape[axis]));
        }
        Ok(Inferred::one(x.clone()))
    },
    body:     core(rule(&|cx| {
        let (src, dim) = (cx.args[1].ty(), dim(cx));
        let start = cx.attrs.size("start").expect("required");
        let length = src.shape[src.shape.axis(dim).expect("checked when recorded")];
        let dx = cx.dy().put_slice(cx.tracer.full(src, 0.0), dim, start);
        smallvec![Some(dx), Some(cx.dy().slice(dim, start, start + length, 1))]
    }), Lower::PutSlice),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], T[2, 3] {dim = 0, start = 1}", "T[2, 6, 3], T[2, 6, 3] {dim = 1, start = 0}", "T[2, 6], T[2, 1] {dim = 1, start = 5}"] },
}

/// As `scatter_add`, with products in the place of sums.
SCATTER_MUL = scatter_mul(x, index, src; dim: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &scattered,
    body:     core(rule(&|cx| product_gradient(cx)), Lower::Scatter(Combiner::Mul)),
    rounding: Rounding::result("the result, once; each step of the gradient"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3] in 1 2, i64[7, 3] in 0 5, T[7, 3] in 1 2 {dim = 0}", "T[4, 6] in 1 2, i32[3, 9] in 0 6, T[3, 9] in 1 2 {dim = 1}"] },
}

/// As `scatter_add`, with the largest element in the place of sums; NaN if there is one. Equal ones
/// share the gradient.
SCATTER_MAX = scatter_max(x, index, src; dim: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &scattered,
    body:     core(rule(&|cx| extreme_gradient(cx)), Lower::Scatter(Combiner::Max)),
    rounding: Rounding::nowhere("nowhere; the gradient at the division"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7, 3] in 0 5, T[7, 3] {dim = 0}", "T[4, 6], i32[3, 9] in 0 6, T[3, 9] {dim = 1}"] },
}

/// As `scatter_add`, with the smallest element in the place of sums; NaN if there is one. Equal
/// ones share the gradient.
SCATTER_MIN = scatter_min(x, index, src; dim: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &scattered,
    body:     core(rule(&|cx| extreme_gradient(cx)), Lower::Scatter(Combiner::Min)),
    rounding: Rounding::nowhere("nowhere; the gradient at the division"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7, 3] in 0 5, T[7, 3] {dim = 0}", "T[4, 6], i32[3, 9] in 0 6, T[3, 9] {dim = 1}"] },
}

/// `x` with what `src` sends to a place reduced there: `reduce` is `sum`, `prod`, `mean`, `amax` or
/// `amin`. Places are those of `scatter`.
///
/// With `include_self` the element of `x` is reduced along with the sources, else it is gone where
/// a source comes. A mean of integers is rounded down.
SCATTER_REDUCE = scatter_reduce(x, index, src; dim: Int, reduce: OptStr, include_self: Bool) -> (y) {
    dispatch: Dispatch::Listed { overload: "two" },
    infer:    &|cx| {
        Reduce::of(cx.attrs)?.takes(cx.operand(0).dtype)?;
        scattered(cx)
    },
    body:     composite(None, &|cx| {
        let dim = cx.attrs.int("dim").expect("required");
        let how = Reduce::of(cx.attrs).unwrap_or(Reduce::Sum);
        smallvec![how.scattered([cx.args[0], cx.args[1], cx.args[2]], dim, cx.attrs.bool("include_self"))]
    }),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: ANY, samples: &["T[5, 3], i64[7, 3] in 0 5, T[7, 3] {dim = 0, reduce = \"sum\"}", "T[4, 6] in 1 2, i32[3, 9] in 0 6, T[3, 9] in 1 2 {dim = 1, reduce = \"prod\", include_self = true}", "T[5, 3], i64[7, 3] in 0 5, T[7, 3] {dim = 0, reduce = \"amax\"}", "T[5], i64[7] in 0 5, T[7] {dim = 0, reduce = \"amin\", include_self = true}"] },
}
}

/// How sources that meet at a place are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduce {
    Sum,
    Prod,
    Mean,
    Amax,
    Amin,
}

impl FromStr for Reduce {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Ok(match s {
            "sum" => Reduce::Sum,
            "prod" => Reduce::Prod,
            "mean" => Reduce::Mean,
            "amax" => Reduce::Amax,
            "amin" => Reduce::Amin,
            other => {
                return Err(format!(
                    "`reduce` is {other:?}, expected one of sum, prod, mean, amax, amin"
                ));
            }
        })
    }
}

impl Reduce {
    /// What the attribute `reduce` says.
    ///
    /// # Errors
    /// If it says nothing, or something else.
    pub(super) fn of(attrs: &Attrs) -> Result<Reduce, String> {
        attrs.str("reduce").ok_or("`reduce` is missing")?.parse()
    }

    /// # Errors
    /// If there is none of that dtype.
    pub(super) fn takes(self, dtype: DType) -> Result<(), String> {
        match (self, dtype) {
            (Reduce::Mean, DType::Bool) => Err("there is no mean of truth values".to_owned()),
            _ => Ok(()),
        }
    }

    /// What a reduction starts from.
    fn identity(self, dtype: DType) -> f64 {
        let largest = match dtype {
            DType::Bool => 1.0,
            DType::U8 => f64::from(u8::MAX),
            DType::I32 => f64::from(i32::MAX),
            // The nearest f64, which a constant takes for the largest i64.
            DType::I64 => i64::MAX as f64,
            _ => f64::INFINITY,
        };
        match self {
            Reduce::Sum | Reduce::Mean => 0.0,
            Reduce::Prod => 1.0,
            Reduce::Amin => largest,
            Reduce::Amax => match dtype {
                DType::Bool | DType::U8 => 0.0,
                DType::I32 => f64::from(i32::MIN),
                _ => -largest,
            },
        }
    }

    /// The reduction of a base and what an index sends of sources along an axis.
    pub(super) fn scattered<'t>(
        self,
        [x, index, src]: [Var<'t>; 3],
        dim: i64,
        include_self: bool,
    ) -> Var<'t> {
        let full = |like: Var<'t>, number| x.tracer().full(like.ty(), number);
        let base = if include_self {
            x
        } else {
            x.scatter(index, full(src, self.identity(x.dtype())), dim)
        };
        match self {
            Reduce::Sum => base.scatter_add(index, src, dim),
            Reduce::Prod => base.scatter_mul(index, src, dim),
            Reduce::Amax => base.scatter_max(index, src, dim),
            Reduce::Amin => base.scatter_min(index, src, dim),
            Reduce::Mean => {
                let total = base.scatter_add(index, src, dim);
                let before = full(x, f64::from(u8::from(include_self)));
                let count = before.scatter_add(index, full(src, 1.0), dim);
                let count = count.maximum(full(x, 1.0));
                if x.dtype().is_float() { total.div(count) } else { total.floor_divide(count) }
            }
        }
    }
}

/// What was there before keeps its gradient where nothing came, and a source has one if it is the
/// last that came to its place.
fn put_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (index, src, dim, dy) = (cx.args[1], cx.args[2], dim(cx), cx.dy());
    let (zero, ty) = (cx.tracer.zeros_like(src), index.ty());
    let dx = dy.scatter(index, zero, dim);
    let Some(axis) = ty.shape.axis(dim).ok().filter(|axis| *axis < ty.shape.rank()) else {
        return smallvec![Some(dx), None, Some(dy.gather(index, dim))];
    };
    // Sources of one place are apart along the axis alone.
    let number = cx.tracer.iota(DType::I64, &ty.shape, axis);
    let none = cx.tracer.full(cx.args[0].ty().with_dtype(DType::I64), 0.0);
    let last = none.scatter(index, number, dim).gather(index, dim);
    let dsrc = last.eq(number).choose(dy.gather(index, dim), zero);
    smallvec![Some(dx), None, Some(dsrc)]
}

/// The product of all others, which is a quotient unless the element itself is zero.
fn product_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, index, src, dim) = (cx.args[0], cx.args[1], cx.args[2], dim(cx));
    let (y, dy) = (cx.out(), cx.dy());
    let without = |v: Var<'t>, is: Var<'t>| is.choose(cx.tracer.full(v.ty(), 1.0), v);
    let is_zero = |v: Var<'t>| v.eq(0.0);
    let others = without(x, is_zero(x));
    let dx = dy.mul(others.scatter_mul(index, src, dim)).div(others);
    // The only zero among the sources of a place has the product of the others; of several zeros
    // each leaves another one.
    let zeros = is_zero(src).cast(x.dtype());
    let zeros = cx.tracer.zeros_like(x).scatter_add(index, zeros, dim).gather(index, dim);
    let is_only = is_zero(src).logical_and(zeros.eq(1.0));
    let rest = x.scatter_mul(index, without(src, is_only), dim);
    let quotient = dy.mul(y).gather(index, dim).div(without(src, is_zero(src)));
    let dsrc = is_only.choose(dy.mul(rest).gather(index, dim), quotient);
    smallvec![Some(dx), None, Some(dsrc)]
}

/// Equal extremes of a place, the element that was there among them, share its gradient.
fn extreme_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, index, src, dim) = (cx.args[0], cx.args[1], cx.args[2], dim(cx));
    let y = cx.out();
    let taken = x.eq(y).cast(x.dtype());
    let sent = src.eq(y.gather(index, dim)).cast(x.dtype());
    let share = cx.dy().div(taken.scatter_add(index, sent, dim));
    smallvec![Some(taken.mul(share)), None, Some(sent.mul(share.gather(index, dim)))]
}

fn dim(cx: &GradCx<'_, '_>) -> i64 {
    cx.attrs.int("dim").expect("required")
}
