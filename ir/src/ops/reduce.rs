//! Reductions: `sum`, `mean`, `prod`, `amax`, `amin`, `argmax`, `argmin`, and the two core ops they
//! are made of. What is made of several reductions, such as a variance, is in `statistics`.
//!
//! The order of accumulation is that of [`kernel`](crate::kernel): along rows in lanes and chunks,
//! down columns in chunks.

use super::cast::Cast;
use super::elementwise::Elementwise;
use super::infer;
use super::lines::{LineOps, shifted};
use super::view::Views;
use crate::kernel::Reduction;
use crate::op::{
    ANY, Dispatch, Domain, ExpandCx, FLOATS, Facts, Grad, GradCx, InferCx, Inferred, Intrinsic,
    Lower, NUMBERS, Rounding, composite, core, rule,
};
use crate::{Attrs, DType, Number, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait Reductions;

/// The sum over the axes `dim` (all of them if empty), in f32 for 16-bit floats, rounded once.
/// Integers and bool are summed in i64.
///
/// With `dtype`, operand and result are of that dtype.
SUM = sum(x; [dim: Ints, keepdim: Bool, dtype: OptDType]) -> (y) {
    dispatch: Dispatch::Listed { overload: "dim_IntList" },
    infer:    &|cx| {
        let x = cx.operand(0);
        let dtype = cx.attrs.dtype("dtype").unwrap_or(if x.dtype.is_float() { x.dtype } else { DType::I64 });
        reduced(cx, dtype)
    },
    body:     composite(
        Some(rule(&|cx| smallvec![Some(spread(cx.dy(), cx.args[0].shape(), cx.attrs.ints("dim")).to(cx.args[0].dtype()))])),
        &|cx| {
            let wide = cx.results[0].dtype.compute();
            let y = reduce(cx.args[0].to(wide), cx.attrs.ints("dim"), Reduction::Sum);
            smallvec![y.reshape_to(&cx.results[0].shape)]
        },
    ),
    rounding: Rounding::result("the result; the gradient nowhere"),
    facts:    Facts::new().intrinsic(Intrinsic::Total).takes_all(),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = [1]}", "T[3, 5] {dim = [0], keepdim = true}", "T[2, 3, 4] {dim = []}", "T[2, 3, 4] {dim = [0, 2]}", "T[2, 3, 4] {dim = [1]}", "T[40, 33] {dim = [1]}"] },
}

/// The mean over the axes `dim` (all of them if empty), in f32 for 16-bit floats, rounded once.
MEAN = mean(x; [dim: Ints, keepdim: Bool, dtype: OptDType]) -> (y) {
    dispatch: Dispatch::Listed { overload: "dim" },
    infer:    &|cx| {
        let dtype = cx.attrs.dtype("dtype").unwrap_or(cx.operand(0).dtype);
        if !dtype.is_float() {
            return Err(format!("takes floating point, found {}: give a `dtype`", cx.operand(0)));
        }
        reduced(cx, dtype)
    },
    body:     composite(
        Some(rule(&|cx| {
            let x = cx.args[0].ty();
            let count = averaged(&x.shape, &cx.out().shape(), cx.attrs.ints("dim"));
            smallvec![Some(spread(cx.dy().div(count), x.shape, cx.attrs.ints("dim")).to(x.dtype))]
        })),
        &|cx| {
            let (wide, x) = (cx.results[0].dtype.compute(), cx.args[0]);
            let count = averaged(&x.shape(), &cx.results[0].shape, cx.attrs.ints("dim"));
            let total = reduce(x.to(wide), cx.attrs.ints("dim"), Reduction::Sum);
            smallvec![total.div(count).reshape_to(&cx.results[0].shape)]
        },
    ),
    rounding: Rounding::result("the result; the gradient once"),
    facts:    Facts::new().intrinsic(Intrinsic::Mean).takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = []}", "T[2, 3, 4] {dim = [0], keepdim = true}"] },
}

/// The product over the axis `dim` (of all elements if absent), in f32 for 16-bit floats, rounded
/// once. Integers and bool are multiplied in i64.
///
/// With `dtype`, operand and result are of that dtype. The gradient is the product of the other
/// elements, of which any may be zero.
PROD = prod(x; [dim: OptInt, keepdim: Bool, dtype: OptDType]) -> (y) {
    infer:    &|cx| {
        let own = if cx.operand(0).dtype.is_float() { cx.operand(0).dtype } else { DType::I64 };
        along(cx, cx.attrs.dtype("dtype").unwrap_or(own))
    },
    body:     composite(None, &|cx| {
        let (x, ty) = (cx.args[0], &cx.results[0]);
        let x = if ty.dtype == DType::Bool { x.to(DType::Bool).to(DType::I64) } else { x.to(ty.dtype.compute()) };
        let y = match cx.attrs.int("dim") {
            Some(dim) if x.rank() > 0 => reduce(x, &[dim], Reduction::Prod),
            _ => reduce(x, &[], Reduction::Prod),
        };
        let y = y.reshape_to(&ty.shape);
        smallvec![if ty.dtype == DType::Bool { y.to(DType::Bool) } else { y }]
    }),
    rounding: Rounding::result("the result; the gradient once"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = 1}", "T[4, 3] {dim = 0, keepdim = true}", "T[2, 3]", "T[2, 3, 4] {dim = 1}", "T[2, 3] {dim = 1, dtype = f32}"] },
}

/// The largest element over the axes `dim` (all of them if empty); NaN if there is one. Equal
/// largest elements share the gradient.
AMAX = amax(x; [dim: Ints, keepdim: Bool]) -> (y) {
    infer:    &|cx| extreme_type(cx, "largest"),
    body:     composite(
        Some(rule(&|cx| {
            smallvec![Some(shared(cx.args[0], cx.out(), cx.dy(), cx.attrs.ints("dim")))]
        })),
        &|cx| smallvec![extreme(cx, Reduction::Max)],
    ),
    rounding: Rounding::nowhere("nowhere; the gradient at the division"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}", "T[2, 3, 4] {dim = []}"] },
}

/// The smallest element over the axes `dim` (all of them if empty); NaN if there is one. Equal
/// smallest elements share the gradient.
AMIN = amin(x; [dim: Ints, keepdim: Bool]) -> (y) {
    infer:    &|cx| extreme_type(cx, "smallest"),
    body:     composite(
        Some(rule(&|cx| {
            smallvec![Some(shared(cx.args[0], cx.out(), cx.dy(), cx.attrs.ints("dim")))]
        })),
        &|cx| smallvec![extreme(cx, Reduction::Min)],
    ),
    rounding: Rounding::nowhere("nowhere; the gradient at the division"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = [1]}", "T[2, 3, 4] {dim = [0], keepdim = true}", "T[2, 3, 4] {dim = []}"] },
}

/// The position of the first largest element along axis `dim` (of all elements in row-major order
/// if absent), as i64. NaN counts as the largest.
ARGMAX = argmax(x; [dim: OptInt, keepdim: Bool]) -> (y) {
    infer:    &|cx| position_type(cx, "largest"),
    body:     composite(Some(Grad::Zero), &|cx| smallvec![position(cx, Reduction::ArgMax)]),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[3, 5] {dim = 0, keepdim = true}", "T[2, 9]"] },
}

/// The position of the first smallest element along axis `dim` (of all elements in row-major order
/// if absent), as i64. NaN counts as the smallest.
ARGMIN = argmin(x; [dim: OptInt, keepdim: Bool]) -> (y) {
    infer:    &|cx| position_type(cx, "smallest"),
    body:     composite(Some(Grad::Zero), &|cx| smallvec![position(cx, Reduction::ArgMin)]),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[3, 5] {dim = 0, keepdim = true}", "T[2, 9]"] },
}

/// The last axis combined by `kind`: `sum`, `prod`, `max`, `min`, `argmax` or `argmin` (i64).
/// Floats are f32 or f64.
REDUCE_ROW = reduce_row(x; kind: OptStr) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (x, reduction) = (cx.operand(0), reduction(cx.attrs)?);
        let Some((_, outer)) = x.shape.split_last() else { return Err(format!("{x} has no last axis")) };
        if x.dtype == DType::Bool || reduction.accumulates() && x.dtype.is_low() {
            return Err(format!("{reduction} takes f32, f64 or integers, found {x}"));
        }
        Ok(Inferred::one(TensorType::new(reduction.result_dtype(x.dtype), outer)))
    },
    body:     core(
        rule(&|cx| {
            smallvec![reduction_gradient(cx, &[-1])]
        }),
        Lower::ReduceRow,
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: &[DType::F32, DType::F64, DType::I32, DType::I64], samples: &["T[3, 5]", "T[3, 37] {kind = \"max\"}", "T[4, 9] {kind = \"min\"}", "T[2, 50] {kind = \"argmax\"}", "T[2, 50] {kind = \"argmin\"}", "T[3, 37] in 1 2 {kind = \"prod\"}", "T[2, 9000]"] },
}

/// The axes `dim`, the last axis not among them, combined by `kind`: `sum`, `prod`, `max` or `min`.
/// Floats are f32 or f64.
REDUCE_COLUMN = reduce_column(x; dim: Ints, kind: OptStr) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (x, reduction) = (cx.operand(0), reduction(cx.attrs)?);
        if reduction.is_position() {
            return Err(format!("{reduction} is along the last axis only"));
        }
        let axes = x.shape.axes(cx.attrs.ints("dim"))?;
        if axes.is_empty() || axes.contains(&(x.shape.rank() - 1)) {
            return Err(format!("takes axes of {x} other than the last, found {:?}", cx.attrs.ints("dim")));
        }
        if x.dtype == DType::Bool || reduction.accumulates() && x.dtype.is_low() {
            return Err(format!("{reduction} takes f32, f64 or integers, found {x}"));
        }
        let kept = (0..x.shape.rank()).filter(|a| !axes.contains(a)).map(|a| x.shape[a]);
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape: kept.collect() }))
    },
    body:     core(
        rule(&|cx| {
            smallvec![reduction_gradient(cx, cx.attrs.ints("dim"))]
        }),
        Lower::ReduceColumn,
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: &[DType::F32, DType::F64, DType::I32, DType::I64], samples: &["T[3, 5] {dim = [0]}", "T[300, 7] {dim = [0]}", "T[4, 9, 3] {dim = [1], kind = \"max\"}", "T[4, 9, 3] {dim = [0, 1], kind = \"min\"}", "T[3, 2, 5] {dim = [0, 1], kind = \"prod\"}"] },
}
}

/// How a core reduction combines: its attribute `kind`, a sum if there is none.
///
/// # Errors
/// If there is no reduction of that name.
pub fn reduction(attrs: &Attrs) -> Result<Reduction, String> {
    attrs.str("kind").map_or(Ok(Reduction::Sum), str::parse)
}

/// The type of a reduction over the attribute `dim` with the attribute `keepdim`.
pub(super) fn reduced(cx: &InferCx<'_>, dtype: DType) -> infer::Answer {
    let x = cx.operand(0);
    let axes = x.shape.axes(cx.attrs.ints("dim"))?;
    let keep = cx.attrs.bool("keepdim");
    let sizes = (0..x.shape.rank()).filter(|a| keep || !axes.contains(a));
    let one = Size::from(1);
    let shape: Shape = sizes.map(|a| if axes.contains(&a) { one } else { x.shape[a] }).collect();
    Ok(Inferred::one(TensorType { dtype, shape }))
}

/// The type of a reduction along the attribute `dim`, or of all elements, with the attribute
/// `keepdim`.
pub(super) fn along(cx: &InferCx<'_>, dtype: DType) -> infer::Answer {
    let x = cx.operand(0);
    let keep = cx.attrs.bool("keepdim");
    let axis = cx.attrs.int("dim").map(|dim| x.shape.axis(dim)).transpose()?;
    let one = Size::from(1);
    let kept = x.shape.iter().enumerate().filter_map(|(a, size)| {
        let is_reduced = axis.is_none_or(|axis| axis == a);
        if is_reduced { keep.then_some(one) } else { Some(*size) }
    });
    Ok(Inferred::one(TensorType { dtype, shape: kept.collect() }))
}

/// The type of an extreme element over the attribute `dim`: there is one.
fn extreme_type(cx: &InferCx<'_>, which: &str) -> infer::Answer {
    let x = cx.operand(0);
    let axes = x.shape.axes(cx.attrs.ints("dim"))?;
    if !axes.iter().all(|&a| cx.must.hold(x.shape[a].at_least(1))) {
        return Err(format!("{x} has no {which} element along an axis of size 0"));
    }
    reduced(cx, x.dtype)
}

/// An extreme element over the attribute `dim`. Truth values are compared as integers.
fn extreme<'t>(cx: &ExpandCx<'_, 't>, reduction: Reduction) -> Var<'t> {
    let (x, ty) = (cx.args[0], &cx.results[0]);
    let x = if ty.dtype == DType::Bool { x.to(DType::I32) } else { x };
    let y = reduce(x, cx.attrs.ints("dim"), reduction).reshape_to(&ty.shape);
    if ty.dtype == DType::Bool { y.to(DType::Bool) } else { y }
}

/// The type of a position along the attribute `dim`, or among all elements.
fn position_type(cx: &InferCx<'_>, which: &str) -> infer::Answer {
    let x = cx.operand(0);
    infer::need_number(x)?;
    let lacks_elements = match cx.attrs.int("dim") {
        None => !cx.must.hold(x.numel().at_least(1)),
        Some(dim) => {
            let size = x.shape.get(x.shape.axis(dim)?).copied();
            size.is_some_and(|size| !cx.must.hold(size.at_least(1)))
        }
    };
    if lacks_elements {
        let place = if cx.attrs.int("dim").is_some() { " along an axis of size 0" } else { "" };
        return Err(format!("{x} has no {which} element{place}"));
    }
    along(cx, DType::I64)
}

/// The position of an extreme element along the attribute `dim`, or among all elements.
fn position<'t>(cx: &ExpandCx<'_, 't>, reduction: Reduction) -> Var<'t> {
    let x = cx.args[0];
    let rank = x.rank();
    let y = match cx.attrs.int("dim").filter(|_| rank > 0) {
        None => x.reshape([-1]),
        Some(dim) => {
            let axis = x.shape().axis(dim).unwrap_or(0);
            let mut order: SmallVec<[i64; 4]> = (0..rank as i64).collect();
            let moved = order.remove(axis);
            order.push(moved);
            if axis + 1 == rank { x } else { x.permute(&order) }
        }
    };
    y.reduce_row(Some(reduction.name())).reshape_to(&cx.results[0].shape)
}

/// How many elements of `x` one element of a mean is of.
pub(super) fn averaged(x: &Shape, y: &Shape, dim: &[i64]) -> Number {
    match (x.numel().number(), y.numel().number()) {
        (Some(x), Some(y)) => Number::F64(x as f64 / y.max(1) as f64),
        // Where the mean has no element this may be another number, which nobody sees.
        _ => x.axes(dim).unwrap_or_default().iter().map(|&a| x[a]).product::<Size>().into(),
    }
}

/// Reduces the axes in f32, f64 or integers: trailing axes as one row, the others down columns. The
/// result has no reduced axes.
pub(crate) fn reduce<'t>(x: Var<'t>, dim: &[i64], reduction: Reduction) -> Var<'t> {
    let kind = Some(reduction.name());
    let shape = x.shape();
    let axes = shape.axes(dim).unwrap_or_default();
    let kept_after = (0..shape.rank()).rev().find(|a| !axes.contains(a));
    let first_of_row = kept_after.map_or(0, |a| a + 1);
    let mut y = x;
    if first_of_row < shape.rank() {
        let mut sizes: SmallVec<[Size; 4]> = SmallVec::from_slice(&shape[..first_of_row]);
        sizes.push(shape[first_of_row..].iter().product());
        y = y.reshape_to(&Shape::new(&sizes)).reduce_row(kind);
    }
    let rest: SmallVec<[i64; 4]> =
        axes.iter().filter(|&&a| a < first_of_row).map(|&a| a as i64).collect();
    if rest.is_empty() { y } else { y.reduce_column(&rest, kind) }
}

/// The gradient of a core reduction: `dy` everywhere for a sum, times the other elements for a
/// product, shared among equal extremes, none for positions.
fn reduction_gradient<'t>(cx: &GradCx<'_, 't>, dim: &[i64]) -> Option<Var<'t>> {
    let (x, shape) = (cx.args[0], cx.args[0].shape());
    match reduction(cx.attrs).ok()? {
        Reduction::Sum => Some(spread(cx.dy(), shape, dim)),
        Reduction::Max | Reduction::Min => Some(shared(x, cx.out(), cx.dy(), dim)),
        Reduction::Prod => Some(spread(cx.dy(), shape, dim).mul(product_of_others(x, dim))),
        Reduction::ArgMax | Reduction::ArgMin => None,
    }
}

/// For each element the product of the others over the axes `dim`, of the products from both ends:
/// nothing is divided.
fn product_of_others<'t>(x: Var<'t>, dim: &[i64]) -> Var<'t> {
    let shape = x.shape();
    let axes = shape.axes(dim).unwrap_or_default();
    if let [axis] = axes[..] {
        let dim = axis as i64;
        let from = |reverse: bool| {
            let products = x.scan(dim, Some(Reduction::Prod.name()), reverse);
            shifted(products, dim, reverse, 1.0)
        };
        return from(false).mul(from(true));
    }
    // The reduced axes as one, behind the others.
    let kept = (0..shape.rank()).filter(|a| !axes.contains(a));
    let order: SmallVec<[usize; 4]> = kept.chain(axes.iter().copied()).collect();
    let back: SmallVec<[i64; 4]> = (0..order.len())
        .map(|a| order.iter().position(|o| *o == a).map_or(0, |place| place as i64))
        .collect();
    let moved = x.permute(order.iter().map(|a| *a as i64).collect::<SmallVec<[i64; 4]>>());
    let outer = order.len() - axes.len();
    let mut sizes: SmallVec<[Size; 4]> = SmallVec::from_slice(&moved.shape()[..outer]);
    sizes.push(moved.shape()[outer..].iter().product());
    let others = product_of_others(moved.reshape_to(&Shape::new(&sizes)), &[-1]);
    others.reshape_to(&moved.shape()).permute(&back)
}

/// The gradient of an extreme `y` of `x`: equal extremes share `dy`.
fn shared<'t>(x: Var<'t>, y: Var<'t>, dy: Var<'t>, dim: &[i64]) -> Var<'t> {
    let taken = x.eq(spread(y, x.shape(), dim)).cast(x.dtype());
    let count = taken.sum(dim).reshape_to(&dy.shape());
    taken.mul(spread(dy.div(count), x.shape(), dim))
}

/// A reduced value at every position it came from.
pub(crate) fn spread<'t>(y: Var<'t>, shape: Shape, dim: &[i64]) -> Var<'t> {
    let axes = shape.axes(dim).unwrap_or_default();
    let kept: Shape =
        (0..shape.rank()).map(|i| if axes.contains(&i) { 1.into() } else { shape[i] }).collect();
    y.reshape_to(&kept).expand_to(&shape)
}

impl<'t> Var<'t> {
    /// In another dtype; itself if it has that dtype.
    #[track_caller]
    pub fn to(self, dtype: DType) -> Var<'t> {
        if self.is_poison() || self.dtype() == dtype { self } else { self.cast(dtype) }
    }
}
