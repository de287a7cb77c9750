//! What is several ops and has a name of its own in PyTorch's policies: `tensordot`, `bilinear`,
//! `cross`, `trace`, `native_layer_norm` and `stack`.
//!
//! Where a table or a rule speaks of such an op its operands are cast as it says, and no policy is
//! asked about the parts; elsewhere the parts are recorded in its place, and policies are asked
//! about those.

use super::elementwise::Elementwise;
use super::infer;
use super::linalg::{one_number, product};
use super::nn::{Norms, norm};
use super::products::MatrixProducts;
use super::reduce::Reductions;
use super::view::{Views, cat};
use crate::op::{
    ANY, AttrDef, AttrKind, Dispatch, Domain, ExpandCx, FLOATS, Facts, Func, Inferred, NUMBERS,
    OpDef, OpName, Operand, OperandKind, Rounding, Schema, composite_own,
};
use crate::{DType, IntoDims, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

const LISTED_OR_EXPANDS: Dispatch = Dispatch::ListedOrExpands { overload: "" };

crate::ops! { trait Listed;

/// The products of `x` and `other` summed over the axes `dims_self` of one and `dims_other` of the
/// other, which are taken in pairs; an axis of size 1 goes with one of any size:
/// [`torch.tensordot`](https://docs.pytorch.org/docs/stable/generated/torch.tensordot.html).
TENSORDOT = tensordot(x, other; dims_self: Ints, dims_other: Ints) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| {
        let (x, other) = (cx.operand(0), cx.operand(1));
        let pairs = Pairs::of(x, other, cx.attrs.ints("dims_self"), cx.attrs.ints("dims_other"))?;
        for (a, b) in pairs.mine.iter().zip(&pairs.theirs) {
            let (a, b) = (x.shape[*a], other.shape[*b]);
            if a != 1 && b != 1 && !cx.must.equal(a, b) {
                return Err(format!("the axes differ, {a} and {b}, of {x} and {other}"));
            }
        }
        let dtype = one_number(x, other)?;
        let shape = pairs.outer(&x.shape, &other.shape).into_iter().flatten().collect();
        Ok(Inferred::one(TensorType { dtype, shape }))
    },
    body:     composite_own(None, &|cx| smallvec![pairwise(cx)]),
    rounding: Rounding::result("the result, once; each gradient"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[5, 4] {dims_self = [1], dims_other = [0]}", "T[2, 3, 4], T[4, 3] {dims_self = [1, -1], dims_other = [1, 0]}", "T[5], T[5] {dims_self = [0], dims_other = [0]}"] },
}

/// `Σ x[.., i] * weight[k, i, j] * other[.., j] + bias[k]`:
/// [`torch.nn.functional.bilinear`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.bilinear.html).
BILINEAR = bilinear(x, other, weight, bias: optional) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| {
        let (x, other, weight) = (cx.operand(0), cx.operand(1), cx.operand(2));
        let [out, first, second] = weight.shape[..] else {
            return Err(format!("takes a weight of three axes, found {weight}"));
        };
        one_number(x, weight)?;
        let dtype = infer::promote(cx.types.iter())?;
        let outer = |t: &TensorType| t.shape.len().checked_sub(1).map(|n| (t.shape[..n].to_vec(), t.shape[n]));
        let (Some((rows, mine)), Some((others, theirs))) = (outer(x), outer(other)) else {
            return Err(format!("takes rows, found {x} and {other}"));
        };
        if !cx.must.alike(&rows, &others) || !cx.must.equal(mine, first) || !cx.must.equal(theirs, second) {
            return Err(format!("{x} and {other} do not fit a weight {weight}"));
        }
        let shape: Shape = rows.into_iter().chain([out]).collect();
        if let Some(bias) = cx.get(3) && infer::broadcast(cx.must, &shape, &bias.shape)? != shape {
            return Err(format!("a bias {bias} does not fit a weight {weight}"));
        }
        Ok(Inferred::one(TensorType { dtype, shape }))
    },
    body:     composite_own(None, &|cx| smallvec![between(cx)]),
    rounding: Rounding::parts("the product with `x`, that with `other`, and the sum with `bias`"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 4], T[2, 5, 4], T[2]", "T[2, 2, 3], T[2, 2, 3], T[2, 3, 3]"] },
}

/// The vector products along an axis of size 3:
/// [`torch.cross`](https://docs.pytorch.org/docs/stable/generated/torch.cross.html).
CROSS = cross(x, other; dim: Int) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| {
        let (x, other) = (cx.operand(0), cx.operand(1));
        if x.shape.rank() != other.shape.rank() || x.shape.rank() == 0 {
            return Err(format!("takes as many axes, found {x} and {other}"));
        }
        one_number(x, other)?;
        let axis = x.shape.axis(cx.attrs.int("dim").expect("required"))?;
        let three = Size::from(3);
        if !cx.must.alike(&[x.shape[axis], other.shape[axis]], &[three, three]) {
            return Err(format!("axis {axis} is not of size 3, of {x} and {other}"));
        }
        infer::arithmetic(cx)
    },
    body:     composite_own(None, &|cx| {
        let axis = cx.attrs.int("dim").expect("required");
        let [x, other] = [0, 1].map(|i| cx.args[i]);
        let first = turned(x, axis, 1).mul(turned(other, axis, 2));
        smallvec![first.sub(turned(x, axis, 2).mul(turned(other, axis, 1)))]
    }),
    rounding: Rounding::parts("each product, and their difference"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[2, 3], T[2, 3] {dim = 1}", "T[3, 2], T[3, 1] {dim = 0}"] },
}

/// The sum of the diagonal of a matrix:
/// [`torch.trace`](https://docs.pytorch.org/docs/stable/generated/torch.trace.html).
TRACE = trace(x) -> (y) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| {
        let x = cx.operand(0);
        if x.shape.rank() != 2 {
            return Err(format!("takes a matrix, found {x}"));
        }
        infer::pinned(x, 0).and(infer::pinned(x, 1))?;
        Ok(Inferred::one(TensorType::scalar(if x.dtype.is_float() { x.dtype } else { DType::I64 })))
    },
    body:     composite_own(None, &|cx| smallvec![cx.args[0].diagonal(0, 0, 1).sum(())]),
    rounding: Rounding::result("the result; the gradient nowhere"),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 4]", "T[3, 3]"] },
}

/// [`LAYER_NORM`](super::nn::norm::LAYER_NORM) with its mean and one over its deviation:
/// `torch.native_layer_norm` on the CPU. Both have the dtype of `weight`, without one that of
/// `bias`, without either that of `y`.
NATIVE_LAYER_NORM = native_layer_norm(x, weight: optional, bias: optional; normalized_shape: Sizes, eps: Float) -> (y, mean, rstd) {
    dispatch: LISTED_OR_EXPANDS,
    infer:    &|cx| {
        let mut inferred = (norm::LAYER_NORM.infer)(cx)?;
        let dtype = cx.get(1).or(cx.get(2)).map_or(inferred.results[0].dtype, |scale| scale.dtype);
        inferred.results[1..].iter_mut().for_each(|result| result.dtype = dtype);
        Ok(inferred)
    },
    body:     composite_own(None, &|cx| {
        let (shape, eps) = (cx.attrs.sizes("normalized_shape"), cx.attrs.float("eps").expect("required"));
        let results = cx.args[0].layer_norm(cx.get(1), cx.get(2), &shape[..], eps).results();
        results.iter().zip(cx.results).map(|(result, ty)| result.to(ty.dtype)).collect()
    }),
    rounding: Rounding::result("each result once; each gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 7], T[7], T[7] {normalized_shape = [7], eps = 1e-5}", "bf16[3, 7], f32[7], f32[7] {normalized_shape = [7], eps = 1e-5}"] },
}
}

/// Tensors of one shape one after the other along a new axis:
/// [`torch.stack`](https://docs.pytorch.org/docs/stable/generated/torch.stack.html).
pub static STACK: OpDef = OpDef {
    name: OpName::new("stack"),
    doc: "Tensors of one shape one after the other along a new axis: [`torch.stack`](https://docs.pytorch.org/docs/stable/generated/torch.stack.html).",
    schema: Schema {
        operands: &[Operand { name: "xs", kind: OperandKind::List }],
        attrs: &[AttrDef { name: "dim", kind: AttrKind::Int }],
        results: &["y"],
    },
    dispatch: LISTED_OR_EXPANDS,
    infer: Func::Static(&|cx| {
        let dtype = infer::promote(cx.types.iter())?;
        let first = &cx.types[0];
        if let Some(other) = cx.types.iter().find(|t| !cx.must.alike(&t.shape, &first.shape)) {
            return Err(format!("{first} and {other} are of two shapes"));
        }
        let mut sizes: SmallVec<[Size; 4]> = first.shape.iter().copied().collect();
        sizes.insert(new_axis(first.shape.rank(), cx.attrs.int("dim"))?, cx.types.len().into());
        let casts = cx.types.iter().map(|t| (t.dtype != dtype).then_some(dtype)).collect();
        Ok(Inferred { casts, ..Inferred::one(TensorType::new(dtype, &sizes[..])) })
    }),
    body: composite_own(None, &|cx| {
        let dim = cx.attrs.int("dim").expect("required");
        let each: Vec<Var<'_>> = cx.args.iter().map(|x| x.unsqueeze(dim)).collect();
        smallvec![cat(&each, dim)]
    }),
    rounding: Rounding::NOWHERE,
    facts: Facts::new(),
    domain: Domain {
        dtypes: ANY,
        samples: &["[T[2, 3], T[2, 3]] {dim = 1}", "[T[], T[], T[]] {dim = 0}"],
    },
};

/// The op with a list of operands, apart from the family's methods.
pub static STACK_OPS: &[&OpDef] = &[&STACK];

/// Where a new axis lies, which may be one beyond the last or count from the end.
fn new_axis(rank: usize, dim: Option<i64>) -> Result<usize, String> {
    let (axes, dim) = (rank as i64 + 1, dim.unwrap_or(0));
    if (-axes..axes).contains(&dim) {
        Ok(dim.rem_euclid(axes) as usize)
    } else {
        Err(format!("axis {dim} is out of range for {axes} axes"))
    }
}

/// The axes that a `tensordot` sums over in pairs, and those that it leaves.
struct Pairs {
    mine: Vec<usize>,
    theirs: Vec<usize>,
    rows: Vec<usize>,
    columns: Vec<usize>,
}

impl Pairs {
    fn of(
        x: &TensorType,
        other: &TensorType,
        mine: &[i64],
        theirs: &[i64],
    ) -> Result<Pairs, String> {
        if mine.len() != theirs.len() {
            return Err(format!("{mine:?} and {theirs:?} are not as many axes"));
        }
        let resolved = |t: &TensorType, dims: &[i64]| {
            if t.shape.rank() == 0 && !dims.is_empty() {
                return Err(format!("{t} has no axes for {dims:?}"));
            }
            let axes: Vec<usize> =
                dims.iter().map(|d| t.shape.axis(*d)).collect::<Result<_, _>>()?;
            let twice = (1..axes.len()).any(|i| axes[..i].contains(&axes[i]));
            if twice { Err(format!("{dims:?} names an axis twice, of {t}")) } else { Ok(axes) }
        };
        let (mine, theirs) = (resolved(x, mine)?, resolved(other, theirs)?);
        let rest = |t: &TensorType, taken: &[usize]| {
            (0..t.shape.rank()).filter(|i| !taken.contains(i)).collect()
        };
        Ok(Pairs { rows: rest(x, &mine), columns: rest(other, &theirs), mine, theirs })
    }

    /// The sizes that are left of both.
    fn outer(&self, x: &Shape, other: &Shape) -> [Vec<Size>; 2] {
        [sizes(x, &self.rows), sizes(other, &self.columns)]
    }
}

fn sizes(shape: &Shape, axes: &[usize]) -> Vec<Size> {
    axes.iter().map(|i| shape[*i]).collect()
}

fn count(sizes: &[Size]) -> Size {
    sizes.iter().product()
}

/// The parts of a `tensordot`.
fn pairwise<'t>(cx: &ExpandCx<'_, 't>) -> Var<'t> {
    let (mut x, mut y) = (cx.args[0], cx.args[1]);
    let dims = [cx.attrs.ints("dims_self"), cx.attrs.ints("dims_other")];
    let pairs = match Pairs::of(&x.ty(), &y.ty(), dims[0], dims[1]) {
        Ok(pairs) => pairs,
        Err(why) => return cx.tracer.fail("tensordot", why),
    };
    for (mine, theirs) in pairs.mine.iter().zip(&pairs.theirs) {
        let (a, b) = (x.size(*mine), y.size(*theirs));
        if a == 1 && b != 1 {
            y = y.sum([*theirs as i64].keep().dtype(y.dtype()));
        } else if b == 1 && a != 1 {
            x = x.sum([*mine as i64].keep().dtype(x.dtype()));
        }
    }
    let order = |first: &[usize], then: &[usize]| -> Vec<i64> {
        first.iter().chain(then).map(|i| *i as i64).collect()
    };
    let [outer, more] = pairs.outer(&x.shape(), &y.shape());
    let inner = count(&sizes(&x.shape(), &pairs.mine));
    let shape: Shape = outer.iter().chain(&more).copied().collect();
    // One number: PyTorch takes a product of elements and a sum, in place of a product of matrices.
    if count(&outer) == 1 && count(&more) == 1 {
        let y = y.permute(order(&pairs.theirs, &pairs.columns)).reshape([inner]);
        let y = x.permute(order(&pairs.mine, &pairs.rows)).reshape([inner]).mul(y);
        return y.sum(().dtype(y.dtype())).reshape_to(&shape);
    }
    let x = x.permute(order(&pairs.rows, &pairs.mine)).reshape([count(&outer), inner]);
    let y = y.permute(order(&pairs.theirs, &pairs.columns)).reshape([inner, count(&more)]);
    x.mm(y).reshape_to(&shape)
}

/// The elements of an axis of size 3 from position `by` on, and then those before it.
fn turned<'t>(x: Var<'t>, axis: i64, by: i64) -> Var<'t> {
    cat(&[x.slice(axis, by, 3, 1), x.slice(axis, 0, by, 1)], axis)
}

/// The parts of `bilinear`: `[.., out, in2]`, and then along `in2` with the second operand: two
/// products, as in PyTorch, which no policy is asked about.
fn between<'t>(cx: &ExpandCx<'_, 't>) -> Var<'t> {
    let (x, other, weight) = (cx.args[0], cx.args[1], cx.args[2]);
    let (out, own, second) = (weight.size(0), weight.size(1), weight.size(2));
    let table = weight.permute([1, 0, 2]).reshape([own, out * second]);
    let outer = x.shape()[..x.rank() - 1].to_vec();
    let rows = x.reshape([outer.iter().product::<Size>(), own]);
    let half = product(rows, table);
    let dtype = infer::promote([half.ty(), other.ty()].iter()).unwrap_or(half.dtype());
    let count = rows.size(0);
    let half = half.to(dtype).reshape([count, out, second]);
    let y = product(half, other.to(dtype).reshape([count, second, 1.into()]));
    let shape: Shape = outer.iter().chain([&out]).copied().collect();
    let y = y.reshape_to(&shape);
    cx.get(3).map_or(y, |bias| y.add(bias))
}
