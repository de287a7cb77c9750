//! PyTorch's products of matrices and vectors by name, and sums with them: `mm`, `bmm`, `addmm` and
//! their like.
//!
//! What is added meets the product before it is rounded. Integers are multiplied as well; they
//! wrap.

use super::elementwise::Elementwise;
use super::infer;
use super::linalg::{Products, one_number, product};
use super::reduce::Reductions;
use crate::op::{Domain, ExpandCx, FLOATS, InferCx, Inferred, Rounding, composite, composite_own};
use crate::{DType, IntoDims, Results, Shape, Size, TensorType, Var};
use smallvec::smallvec;

const ROUNDED: Rounding = Rounding::result("the result, once; each gradient");

crate::ops! { trait MatrixProducts;

/// The product of two matrices:
/// [`torch.mm`](https://docs.pytorch.org/docs/stable/generated/torch.mm.html).
MM = mm(x, mat2) -> (y) {
    infer:    &|cx| multiplied(cx, 0, [2, 2]),
    body:     composite_own(None, &|cx| smallvec![product(cx.args[0], cx.args[1])]),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[5, 4]"] },
}

/// The products of the matrices of two batches:
/// [`torch.bmm`](https://docs.pytorch.org/docs/stable/generated/torch.bmm.html).
BMM = bmm(x, mat2) -> (y) {
    infer:    &|cx| multiplied(cx, 0, [3, 3]),
    body:     composite_own(None, &|cx| smallvec![product(cx.args[0], cx.args[1])]),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[2, 3, 5], T[2, 5, 4]"] },
}

/// The product of a matrix and a vector:
/// [`torch.mv`](https://docs.pytorch.org/docs/stable/generated/torch.mv.html).
MV = mv(x, vec) -> (y) {
    infer:    &|cx| multiplied(cx, 0, [2, 1]),
    body:     composite_own(None, &|cx| smallvec![cx.args[0].matmul(cx.args[1])]),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[5]"] },
}

/// The product of two vectors:
/// [`torch.dot`](https://docs.pytorch.org/docs/stable/generated/torch.dot.html).
DOT = dot(x, tensor) -> (y) {
    infer:    &|cx| multiplied(cx, 0, [1, 1]),
    body:     composite_own(None, &|cx| smallvec![cx.args[0].matmul(cx.args[1])]),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[5], T[5]"] },
}

/// As [`DOT`], under the name that PyTorch's policies know: of real numbers the two are one.
VDOT = vdot(x, other) -> (y) {
    infer:    &|cx| multiplied(cx, 0, [1, 1]),
    body:     composite_own(None, &|cx| smallvec![cx.args[0].matmul(cx.args[1])]),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[5], T[5]"] },
}

/// `beta * x + alpha * mat1 · mat2`; both numbers are 1 if absent, and with `beta = 0` no element
/// of `x` is looked at:
/// [`torch.addmm`](https://docs.pytorch.org/docs/stable/generated/torch.addmm.html).
ADDMM = addmm(x, mat1, mat2; beta: OptFloat, alpha: OptFloat) -> (y) {
    infer:    &|cx| multiplied(cx, 1, [2, 2]),
    body:     composite_own(None, &|cx| added(cx, wide(cx.args[1], cx.args[2]))),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 4], T[3, 5], T[5, 4]", "T[4], T[3, 5], T[5, 4] {beta = 0.5, alpha = 2.0}"] },
}

/// As [`ADDMM`], of a matrix and a vector:
/// [`torch.addmv`](https://docs.pytorch.org/docs/stable/generated/torch.addmv.html).
ADDMV = addmv(x, mat, vec; beta: OptFloat, alpha: OptFloat) -> (y) {
    infer:    &|cx| multiplied(cx, 1, [2, 1]),
    body:     composite_own(None, &|cx| {
        let column = wide(cx.args[1], cx.args[2].unsqueeze(1));
        added(cx, column.reshape_to(&Shape::new(&[column.size(0)])))
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3], T[3, 5], T[5] {alpha = 2.0}"] },
}

/// As [`ADDMM`], the products of two batches added up:
/// [`torch.addbmm`](https://docs.pytorch.org/docs/stable/generated/torch.addbmm.html).
ADDBMM = addbmm(x, batch1, batch2; beta: OptFloat, alpha: OptFloat) -> (y) {
    infer:    &|cx| {
        let mut inferred = multiplied(cx, 1, [3, 3])?;
        let y = &mut inferred.results[0];
        y.shape = Shape::new(&y.shape[1..]);
        stretches(cx, &y.shape)?;
        Ok(inferred)
    },
    body:     composite_own(None, &|cx| {
        let all = wide(cx.args[1], cx.args[2]);
        added(cx, all.sum([0].dtype(all.dtype())))
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 4], T[2, 3, 5], T[2, 5, 4] {alpha = 2.0}"] },
}

/// As [`ADDMM`], of the matrices of two batches:
/// [`torch.baddbmm`](https://docs.pytorch.org/docs/stable/generated/torch.baddbmm.html).
BADDBMM = baddbmm(x, batch1, batch2; beta: OptFloat, alpha: OptFloat) -> (y) {
    infer:    &|cx| multiplied(cx, 1, [3, 3]),
    body:     composite_own(None, &|cx| added(cx, wide(cx.args[1], cx.args[2]))),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 4], T[2, 3, 5], T[2, 5, 4] {beta = 0.5}"] },
}

/// As [`ADDMM`], the products of each element of one vector with each of another:
/// [`torch.addr`](https://docs.pytorch.org/docs/stable/generated/torch.addr.html).
ADDR = addr(x, vec1, vec2; beta: OptFloat, alpha: OptFloat) -> (y) {
    infer:    &|cx| {
        let (a, b) = (cx.operand(1), cx.operand(2));
        let dtype = infer::promote(cx.types.iter())?;
        let ([rows], [columns]) = (&a.shape[..], &b.shape[..]) else {
            return Err(format!("takes two vectors, found {a} and {b}"));
        };
        let shape = Shape::new(&[*rows, *columns]);
        stretches(cx, &shape)?;
        whole_factors(cx, dtype)?;
        let casts = cx.types.iter().map(|t| (t.dtype != dtype).then_some(dtype)).collect();
        Ok(Inferred { casts, ..Inferred::one(TensorType { dtype, shape }) })
    },
    body:     composite(None, &|cx| added(cx, cx.args[1].unsqueeze(1).mul(cx.args[2].unsqueeze(0)))),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 4], T[3], T[4] {beta = 0.5, alpha = 2.0}"] },
}

/// The products of vectors along an axis:
/// [`torch.linalg.vecdot`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.vecdot.html).
LINALG_VECDOT = linalg_vecdot(x, y; dim: OptInt) -> (z) {
    infer:    &|cx| {
        one_number(cx.operand(0), cx.operand(1))?;
        let mut inferred = infer::arithmetic(cx)?;
        let z = &mut inferred.results[0];
        let axis = z.shape.axis(cx.attrs.int("dim").unwrap_or(-1))?;
        let kept = (0..z.shape.rank()).filter(|i| *i != axis).map(|i| z.shape[i]);
        z.shape = kept.collect();
        Ok(inferred)
    },
    body:     composite(None, &|cx| {
        let all = cx.args[0].mul(cx.args[1]);
        smallvec![all.sum([cx.attrs.int("dim").unwrap_or(-1)].dtype(all.dtype()))]
    }),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5]", "T[3, 5], T[3, 5] {dim = 0}"] },
}
}

/// The type of the product of operands `first` and the next, which have that many axes each. What
/// stands before them is added.
fn multiplied(cx: &InferCx<'_>, first: usize, axes: [usize; 2]) -> infer::Answer {
    let (x, y) = (cx.operand(first), cx.operand(first + 1));
    let dtype = one_number(x, y)?;
    if [x.shape.rank(), y.shape.rank()] != axes {
        return Err(format!("takes {} and {} axes, found {x} and {y}", axes[0], axes[1]));
    }
    let inner = |t: &TensorType, from_end: usize| t.shape[t.shape.rank() - from_end];
    let (p, q) = (inner(x, 1), inner(y, axes[1].min(2)));
    if !cx.must.equal(p, q) {
        return Err(format!("inner sizes differ, {p} and {q}, of {x} and {y}"));
    }
    let batch: &[Size] = if axes[0] == 3 { &x.shape[..1] } else { &[] };
    if axes[0] == 3 && !cx.must.equal(x.shape[0], y.shape[0]) {
        return Err(format!("the batches {x} and {y} differ"));
    }
    let rows = (axes[0] > 1).then(|| inner(x, 2));
    let columns = (axes[1] > 1).then(|| inner(y, 1));
    let shape: Shape = batch.iter().copied().chain(rows).chain(columns).collect();
    if first == 1 {
        if cx.operand(0).dtype != dtype {
            return Err(format!("{} is added to a product of {dtype}", cx.operand(0)));
        }
        if axes != [3, 3] || cx.operand(0).shape.rank() != 2 {
            stretches(cx, &shape)?;
        }
        whole_factors(cx, dtype)?;
    }
    Ok(Inferred::one(TensorType { dtype, shape }))
}

/// Fails unless what is added stretches to that shape.
fn stretches(cx: &InferCx<'_>, shape: &Shape) -> Result<(), String> {
    let x = cx.operand(0);
    let wide = infer::broadcast(cx.must, &x.shape, shape)?;
    let fits = wide == *shape || cx.must.alike(&wide, shape);
    fits.then_some(()).ok_or_else(|| format!("{x} does not stretch to {shape}"))
}

/// Fails if integers are to be multiplied by a fraction.
fn whole_factors(cx: &InferCx<'_>, dtype: DType) -> Result<(), String> {
    ["beta", "alpha"].into_iter().try_for_each(|name| {
        let Some(v) = cx.attrs.float(name) else { return Ok(()) };
        infer::need_held(dtype, &format!("`{name}`"), v)
    })
}

/// A product that is not rounded to 16 bits.
fn wide<'t>(x: Var<'t>, y: Var<'t>) -> Var<'t> {
    if x.dtype().is_low() { x.contract(y, Some(DType::F32)) } else { product(x, y) }
}

/// `beta * x + alpha * product`, rounded to the dtype of the result.
fn added<'t>(cx: &ExpandCx<'_, 't>, product: Var<'t>) -> Results<'t> {
    let factor = |name| cx.attrs.float(name).unwrap_or(1.0);
    let scaled = |x: Var<'t>, by: f64| if by == 1.0 { x } else { x.mul(by) };
    let y = scaled(product, factor("alpha"));
    let y = match factor("beta") {
        0.0 => y,
        beta => scaled(cx.args[0].to(y.dtype()), beta).add(y),
    };
    let to =
        if y.dtype() == cx.results[0].dtype.compute() { y.dtype() } else { cx.results[0].dtype };
    let to = if cx.args[0].dtype().is_low() { cx.results[0].dtype } else { to };
    smallvec![y.to(to)]
}
