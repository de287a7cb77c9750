//! The core ops that take lines of a tensor as a whole: results so far, and the order of elements.
//! Users call what `scans` and `sorting` make of them.

use super::elementwise::Elementwise;
use super::infer;
use super::view::Views;
use crate::kernel::Reduction;
use crate::kernel::line::{Scan, Work};
use crate::op::{
    ANY, Along, Dispatch, Domain, FLOATS, Grad, GradCx, Grads, InferCx, Inferred, Lower, NUMBERS,
    Rounding, core, rule,
};
use crate::{Attrs, DType, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait LineOps;

/// The result so far at every position along axis `dim`, from the last position on with `reverse`.
/// `kind` is `sum`, `prod`, `logsumexp` (of floats), or `argmax` or `argmin`, which give positions
/// as i64: the last of equal ones, and the last NaN once there is one.
///
/// Sums and products of f32 are accumulated in f64, of 16-bit floats in f32, and every result is
/// rounded once.
SCAN = scan(x; dim: Int, kind: OptStr, reverse: Bool) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let x = along(cx)?;
        let scan = kind(cx.attrs)?;
        infer::need_number(x)?;
        if scan == Scan::Recurrence || scan == Scan::LogSumExp && !x.dtype.is_float() {
            return Err(format!("{} does not take {x}", scan.name()));
        }
        Ok(Inferred::one(if scan.is_position() { x.with_dtype(DType::I64) } else { x.clone() }))
    },
    body:     core(rule(&|cx| scan_gradient(cx)), Lower::Lines(Along::Scan)),
    rounding: Rounding::result("each result"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5] {dim = 1}", "T[4, 3, 2] {dim = 1, reverse = true}", "T[3, 40] in 1 2 {dim = 1, kind = \"prod\"}", "T[33, 9] {dim = 0, kind = \"argmax\"}", "T[2, 9] {dim = 1, kind = \"argmin\", reverse = true}"] },
}

/// The recurrence `y[k] = factor[k] * y[k - 1] + x[k]` along axis `dim`, which begins with `x[0]`;
/// with `reverse` from the last position, `y[k] = factor[k] * y[k + 1] + x[k]`. It is accumulated
/// as a sum is.
RECURRENCE = recurrence(factor, x; dim: Int, reverse: Bool) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let x = along(cx)?;
        let other = cx.operand(1);
        infer::need_float(x)?;
        if x.dtype != other.dtype || !cx.must.alike(&x.shape, &other.shape) {
            return Err(format!("operands are {x} and {other}, expected one type"));
        }
        Ok(Inferred::one(x.clone()))
    },
    body:     core(rule(&|cx| {
        let (factor, dim, reverse) = (cx.args[0], dim(cx.attrs), cx.attrs.bool("reverse"));
        let dx = shifted(factor, dim, !reverse, 0.0).recurrence(cx.dy(), dim, !reverse);
        let before = shifted(cx.out(), dim, reverse, 0.0);
        smallvec![Some(dx.mul(before)), Some(dx)]
    }), Lower::Lines(Along::Recurrence)),
    rounding: Rounding::result("each result; each step of a gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] in -1 1, T[3, 5] {dim = 1}", "T[4, 3, 2] in -1 1, T[4, 3, 2] {dim = 0, reverse = true}"] },
}

/// The positions of the first `k` elements (all if absent) along axis `dim` in order, as i64: the
/// smallest first, or the largest with `descending`. Equal elements stay as they come, and NaN
/// counts as the largest.
ORDER = order(x; dim: Int, descending: Bool, k: OptInt) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let x = along(cx)?;
        let mut sizes: SmallVec<[Size; 4]> = SmallVec::from_slice(&x.shape);
        if let Some(k) = cx.attrs.int("k") {
            let axis = x.shape.axis(dim(cx.attrs))?;
            let length = sizes.get(axis).copied().unwrap_or(Size::from(1));
            if k < 0 || !cx.must.hold(length.at_least(k)) {
                return Err(format!("`k` is {k}, but a line of {x} has {length} elements"));
            }
            match sizes.get_mut(axis) {
                Some(size) => *size = Size::from(k),
                None if k != 1 => return Err(format!("`k` is {k}, but {x} has one element")),
                None => {}
            }
        }
        Ok(Inferred::one(TensorType { dtype: DType::I64, shape: Shape::new(&sizes) }))
    },
    body:     core(Grad::Zero, Lower::Lines(Along::Order)),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {dim = 1}", "T[4, 70, 2] {dim = 1, descending = true}", "T[2, 90] {dim = 1, descending = true, k = 7}", "T[2, 300] {dim = 1}"] },
}
}

/// What a core op of that lowering does with a line.
///
/// # Errors
/// If its `kind` is none.
pub fn work(along: Along, attrs: &Attrs) -> Result<Work, String> {
    let reverse = attrs.bool("reverse");
    Ok(match along {
        Along::Scan => Work::Scan { scan: kind(attrs)?, reverse },
        Along::Recurrence => Work::Scan { scan: Scan::Recurrence, reverse },
        Along::Order => Work::Order { descending: attrs.bool("descending") },
    })
}

/// The scan that an attribute names: sums if there is none.
fn kind(attrs: &Attrs) -> Result<Scan, String> {
    attrs.str("kind").map_or(Ok(Scan::Sum), str::parse)
}

fn dim(attrs: &Attrs) -> i64 {
    attrs.int("dim").unwrap_or(0)
}

/// The first operand, which has the axis `dim`.
fn along<'a>(cx: &InferCx<'a>) -> Result<&'a TensorType, String> {
    let x = cx.operand(0);
    x.shape.axis(dim(cx.attrs))?;
    Ok(x)
}

/// `x` moved by one along axis `dim`, each element to the place behind it, or before it; `value`
/// comes in.
pub(super) fn shifted(x: Var<'_>, dim: i64, back: bool, value: f64) -> Var<'_> {
    let (shape, rank) = (x.shape(), x.rank());
    if rank == 0 {
        // One element, and one that comes in.
        return x.tracer().full(x.ty(), value);
    }
    let axis = shape.axis(dim).unwrap_or(0);
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    *(if back { &mut high[axis] } else { &mut low[axis] }) = 1;
    let padded = x.pad(&low, &high, value);
    let (start, end) =
        if back { (Size::from(1), shape[axis] + 1) } else { (0.into(), shape[axis]) };
    padded.slice(axis as i64, start, end, 1)
}

fn scan_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let (x, y, dim, reverse) = (cx.args[0], cx.out(), dim(cx.attrs), cx.attrs.bool("reverse"));
    let sum = |v: Var<'t>| v.scan(dim, Some(Reduction::Sum.name()), !reverse);
    smallvec![match kind(cx.attrs).unwrap_or(Scan::Sum) {
        Scan::Sum => Some(sum(cx.dy())),
        // The product before each element, times what the ones behind it make of the gradient.
        // Nothing is divided.
        Scan::Prod => {
            let before = shifted(y, dim, reverse, 1.0);
            let behind = shifted(x, dim, !reverse, 0.0).recurrence(cx.dy(), dim, !reverse);
            Some(before.mul(behind))
        }
        // The gradient of y[i] is shared as e^(x[k] - y[i]) says, and y grows with i: e^(x[k] -
        // y[k]) times a recurrence over e^(y[k] - y[k + 1]), neither of which can be too large.
        Scan::LogSumExp => {
            let next = shifted(y, dim, !reverse, f64::INFINITY);
            // What stays the same has the factor 1, an infinity too.
            let factor = y.eq(next).choose(cx.tracer.ones_like(y), y.sub(next).exp());
            let behind = factor.recurrence(cx.dy(), dim, !reverse);
            Some(x.sub(y).exp().mul(behind))
        }
        Scan::ArgMax | Scan::ArgMin | Scan::Recurrence => None,
    }]
}
