//! Products that sum over an axis: `contract`, and `matmul` and `linear` over it.
//!
//! Sums run in f32, in f64 for f64, in the order of [`kernel`](crate::kernel).

use super::elementwise::Elementwise;
use super::infer;
use super::reduce::Reductions;
use crate::op::{
    Dispatch, Domain, FLOATS, Facts, Grads, Inferred, Lower, Rounding, composite_own, core, rule,
};
use crate::{DType, Must, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait Products;

/// `y[.., i, j] = Σ x[.., i, p] * other[.., p, j]` over `p`. The leading axes broadcast; both
/// operands have at least two axes and one dtype.
///
/// `dtype` is that of the result: f32 keeps the sums of 16-bit floats as they are.
CONTRACT = contract(x, other; dtype: OptDType) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (x, other) = (cx.operand(0), cx.operand(1));
        let from = one_float(x, other)?;
        let dtype = cx.attrs.dtype("dtype").unwrap_or(from);
        if dtype != from && dtype != from.compute() {
            return Err(format!("the result of {from} is {from} or {}, found `dtype` {dtype}", from.compute()));
        }
        let ([outer @ .., i, p], [more @ .., q, j]) = (&x.shape[..], &other.shape[..]) else {
            return Err(format!("takes operands of at least two axes, found {x} and {other}"));
        };
        same_inner(cx.must, *p, *q)?;
        let batch = infer::broadcast(cx.must, &Shape::new(outer), &Shape::new(more))?;
        Ok(Inferred::one(TensorType { dtype, shape: batch.iter().chain([i, j]).copied().collect() }))
    },
    body:     core(
        rule(&|cx| {
            let (x, other, dy) = (cx.args[0], cx.args[1], cx.dy());
            let (from, wide) = (x.dtype(), dy.dtype());
            let dx = dy.contract(other.to(wide).t(), None).sum_to(&x.shape());
            // Without a batch on the right the rows of all batches are those of one matrix.
            let dother = match other.rank() {
                2 => x.to(wide).rows().t().contract(dy.rows(), None),
                _ => x.to(wide).t().contract(dy, None).sum_to(&other.shape()),
            };
            smallvec![Some(dx.to(from)), Some(dother.to(from))]
        }),
        Lower::Contract,
    ),
    rounding: Rounding::result("the result; each gradient, and again where it is summed over a broadcast axis"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[5, 7], T[7, 3]", "T[2, 5, 4], T[4, 9]", "T[3, 1, 4, 5], T[2, 5, 3]", "bf16[5, 9], bf16[9, 4] {dtype = f32}", "T[17, 40], T[40, 33]"] },
}

/// The matrix product, as `torch.matmul`: vectors become a row on the left and a column on the
/// right and lose that axis again; leading axes broadcast.
MATMUL = matmul(x, other) -> (y) {
    infer:    &|cx| {
        let (x, other) = (cx.operand(0), cx.operand(1));
        let dtype = one_number(x, other)?;
        let (Some((&p, left)), [.., _]) = (x.shape.split_last(), &other.shape[..]) else {
            return Err(format!("takes operands of at least one axis, found {x} and {other}"));
        };
        let (right, q): (&[Size], Size) = match &other.shape[..] {
            [q] => (&[], *q),
            [.., q, _] => (&other.shape[..], *q),
            [] => unreachable!("has an axis"),
        };
        same_inner(cx.must, p, q)?;
        let (rows, batch) = left.split_last().map_or((None, &[][..]), |(i, b)| (Some(*i), b));
        let (columns, more) = right.split_last().map_or((None, &[][..]), |(j, b)| (Some(*j), &b[..b.len() - 1]));
        let batch = infer::broadcast(cx.must, &Shape::new(batch), &Shape::new(more))?;
        Ok(Inferred::one(TensorType { dtype, shape: batch.iter().copied().chain(rows).chain(columns).collect() }))
    },
    body:     composite_own(None, &|cx| {
        let (mut x, mut other) = (cx.args[0], cx.args[1]);
        if x.rank() == 1 {
            x = x.unsqueeze(0);
        }
        if other.rank() == 1 {
            other = other.unsqueeze(1);
        }
        let (inner, columns) = (other.size(other.rank() - 2), other.size(other.rank() - 1));
        if other.shape()[..other.rank() - 2].iter().all(|n| *n == 1) && x.rank() >= other.rank() {
            other = other.reshape_to(&Shape::new(&[inner, columns]));
        }
        smallvec![product(x, other).reshape_to(&cx.results[0].shape)]
    }),
    rounding: Rounding::result("the result; each gradient, and again where it is summed over a broadcast axis"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[5, 7], T[7, 3]", "T[7], T[7]", "T[3, 7], T[7]", "T[7], T[2, 7, 3]", "T[2, 5, 4], T[4, 9]", "T[2, 1, 5, 4], T[3, 4, 6]"] },
}

/// `x · weightᵀ + bias` along the last axis of `x`; `weight` is (out, in), `bias` (out) or what
/// stretches to the result.
LINEAR = linear(x, weight, bias: optional) -> (y) {
    infer:    &|cx| {
        let (x, weight) = (cx.operand(0), cx.operand(1));
        let dtype = one_number(x, weight)?;
        let Some((&inner, outer)) = x.shape.split_last() else {
            return Err(format!("takes `x` with at least one axis, found {x}"));
        };
        let Some((&own, out)) = weight.shape.split_last().filter(|(_, out)| out.len() < 2) else {
            return Err(format!("`weight` is {weight}, expected two axes, out and in, or one row"));
        };
        same_inner(cx.must, inner, own)?;
        let y = TensorType { dtype, shape: outer.iter().chain(out).copied().collect() };
        let stretches = |bias: &TensorType| {
            let wide = infer::broadcast(cx.must, &bias.shape, &y.shape);
            wide.is_ok_and(|wide| cx.must.alike(&wide, &y.shape))
        };
        let fits = |bias: &TensorType| {
            bias.dtype == dtype && (cx.must.alike(&bias.shape, out) || stretches(bias))
        };
        if let Some(bias) = cx.get(2).filter(|bias| !fits(bias)) {
            let row = TensorType::new(dtype, out);
            return Err(format!("`bias` is {bias}, expected {row}, or what stretches to {y}"));
        }
        Ok(Inferred::one(y))
    },
    body:     composite_own(
        Some(rule(&|cx| {
            let (x, weight, dy) = (cx.args[0].in_rows(), cx.args[1].rows(), cx.dy());
            // One row of weights has no axis of its own in the result.
            let outer = x.shape();
            let outer = outer[..x.rank() - 1].iter().copied();
            let dy = dy.reshape_to(&outer.chain([weight.size(0)]).collect());
            let dx = dy.contract(weight, None).reshape_to(&cx.args[0].shape());
            let dweight = dy.rows().t().contract(x.rows(), None).reshape_to(&cx.args[1].shape());
            let rows: SmallVec<[i64; 4]> = (0..dy.rank() as i64 - 1).collect();
            let dbias = cx.get(2).map(|b| match is_row(b, cx.args[1]) {
                true => dy.sum(&rows[..]).reshape_to(&b.shape()),
                false => cx.dy().sum_to(&b.shape()),
            });
            let mut grads: Grads<'_> = smallvec![Some(dx), Some(dweight)];
            grads.extend(dbias.map(Some));
            grads
        })),
        &|cx| {
            let (x, weight) = (cx.args[0].in_rows(), cx.args[1].rows().t());
            let (from, shape) = (x.dtype(), &cx.results[0].shape);
            let y = match cx.get(2) {
                bias if !from.is_float() => {
                    let y = product(x, weight);
                    bias.map_or(y, |bias| added(y, bias, cx.args[1], shape))
                }
                None => x.contract(weight, None),
                Some(bias) => {
                    let wide = from.compute();
                    let y = x.contract(weight, (wide != from).then_some(wide));
                    added(y, bias.to(wide), cx.args[1], shape).to(from)
                }
            };
            smallvec![y.reshape_to(shape)]
        },
    ),
    rounding: Rounding::result("the result, once, after the bias; each gradient"),
    facts:    Facts::new().takes_all(),
    domain:   Domain { dtypes: FLOATS, samples: &["T[5, 7], T[3, 7], T[3]", "T[5, 7], T[3, 7]", "T[7], T[3, 7], T[3]", "T[2, 3, 4], T[9, 4], T[9]", "T[5, 7], T[7]", "T[2, 3, 4], T[9, 4], T[3, 1]"] },
}
}

/// The one dtype of two operands, which are numbers.
pub(super) fn one_number(x: &TensorType, other: &TensorType) -> Result<DType, String> {
    infer::need_number(x)?;
    if x.dtype == other.dtype {
        Ok(x.dtype)
    } else {
        Err(format!("operands are {x} and {other}, expected one dtype"))
    }
}

/// The one floating point dtype of two operands.
fn one_float(x: &TensorType, other: &TensorType) -> Result<DType, String> {
    infer::need_float(x)?;
    infer::need_float(other)?;
    if x.dtype == other.dtype {
        Ok(x.dtype)
    } else {
        Err(format!("operands are {x} and {other}, expected one dtype"))
    }
}

/// The product of matrices; of integers, for which there is no contraction, as a sum of products.
pub(crate) fn product<'t>(x: Var<'t>, other: Var<'t>) -> Var<'t> {
    if x.dtype().is_float() {
        return x.contract(other, None);
    }
    let parts = x.unsqueeze(-1).mul(other.unsqueeze(-3));
    parts.sum(-2).to(x.dtype())
}

/// True for a bias that is a number for each column of the product.
fn is_row(bias: Var<'_>, weight: Var<'_>) -> bool {
    bias.rank() + 1 == weight.rank() && (bias.rank() == 0 || bias.size(0) == weight.size(0))
}

/// Rows of products and a bias, which joins them as they are multiplied or stretches to `shape`.
fn added<'t>(rows: Var<'t>, bias: Var<'t>, weight: Var<'t>, shape: &Shape) -> Var<'t> {
    if is_row(bias, weight) { rows.add(bias) } else { rows.reshape_to(shape).add(bias) }
}

fn same_inner(must: &Must<'_>, p: Size, q: Size) -> Result<(), String> {
    if must.equal(p, q) { Ok(()) } else { Err(format!("inner sizes differ, {p} and {q}")) }
}

impl<'t> Var<'t> {
    /// A vector as one row.
    #[track_caller]
    fn in_rows(self) -> Var<'t> {
        if self.rank() == 1 { self.unsqueeze(0) } else { self }
    }

    /// Every axis but the last as one.
    #[track_caller]
    pub(crate) fn rows(self) -> Var<'t> {
        let shape = self.shape();
        match shape.split_last() {
            Some((&n, outer)) => self.reshape_to(&Shape::new(&[outer.iter().product(), n])),
            None => self.reshape_to(&Shape::new(&[1, 1])),
        }
    }
}
