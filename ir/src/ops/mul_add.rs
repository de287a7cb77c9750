//! Products and sums in one step, as optimizers are made of: `mul_add`, and PyTorch's `lerp`,
//! `addcmul` and `addcdiv`.
//!
//! Where PyTorch's vectorised CPU kernels fuse a product into a sum, these do: then results have
//! the same bits.

use super::elementwise::Elementwise;
use super::infer;
use crate::kernel::ScalarOp;
use crate::op::{
    Dispatch, Domain, FLOATS, GradCx, Grads, InferCx, Rounding, composite, core, map, rule,
};
use crate::{Attrs, Number, Var};
use smallvec::smallvec;

crate::ops! { trait MulAdds;

/// `x * factor + addend`, rounded once; a number may stand for the factor. In 16 bits the sum is
/// taken in f32 and rounded again.
MUL_ADD = mul_add(x, addend, factor: optional | OptNumber) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        either(cx.types.len() == 3, cx)?;
        infer::float_arithmetic(cx)
    },
    body:     core(
        rule(&|cx| {
            let factor = cx.args.get(2).copied();
            let dx = times(cx.dy(), factor, cx.attrs);
            let mut grads = smallvec![Some(dx), Some(cx.dy())];
            if factor.is_some() {
                grads.push(Some(cx.dy().mul(cx.args[0])));
            }
            grads
        }),
        map(&|cx, x| {
            let ty = cx.body.ty(x[0]);
            let factor = x.get(2).copied().unwrap_or_else(|| {
                cx.number_of(ty, cx.attrs.number("scalar").expect("checked by infer"))
            });
            cx.body.push(ScalarOp::MulAdd, &[x[0], factor, x[1]], ty)
        }),
    ),
    rounding: Rounding::result("the result; each gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5], T[3, 5]", "T[3, 1], T[5], T[]", "T[7], T[7], none {scalar = 0.3}"] },
}

/// The share `weight` of the way from `start` to `end`:
/// [`torch.lerp`](https://docs.pytorch.org/docs/stable/generated/torch.lerp.html), by the one of
/// its two formulas that is exact at the nearer end.
LERP = lerp(start, end; weight: Float) -> (y) {
    infer:    &one_float,
    body:     composite(None, &|cx| {
        let (start, end) = (cx.args[0], cx.args[1]);
        let weight = cx.attrs.float("weight").expect("required");
        let way = end.sub(start);
        smallvec![if weight.abs() < 0.5 {
            way.mul_add(start, weight)
        } else {
            way.mul_add(end, weight - 1.0)
        }]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] {weight = 0.1}", "T[7], T[7] {weight = 0.75}"] },
}

/// `x + value * a * b`, the last product inside the sum of floats:
/// [`torch.addcmul`](https://docs.pytorch.org/docs/stable/generated/torch.addcmul.html).
ADDCMUL = addcmul(x, a, b; value: Float) -> (y) {
    infer:    &|cx| {
        let inferred = infer::arithmetic(cx)?;
        infer::need_held(inferred.results[0].dtype, "`value`", cx.attrs.float("value").expect("required"))?;
        Ok(inferred)
    },
    body:     composite(None, &|cx| {
        if !cx.results[0].dtype.is_float() {
            let product = cx.args[1].mul(cx.attrs.float("value").expect("required")).mul(cx.args[2]);
            return smallvec![cx.args[0].add(product)];
        }
        let scaled = cx.args[1].mul(cx.attrs.float("value").expect("required"));
        smallvec![scaled.mul_add(cx.args[0], cx.args[2])]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5], T[3, 5] {value = 0.1}", "T[5], T[3, 1], T[] {value = 1.0}"] },
}

/// As [`LERP`], with a share for each element, or one without axes of any dtype.
LERP_BY = lerp_by(start, end, weight) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (start, end, weight) = (cx.operand(0), cx.operand(1), cx.operand(2));
        if start.dtype == end.dtype && weight.shape.rank() == 0 {
            let inferred = infer::promoted(cx)?;
            infer::need_float(&inferred.results[0])?;
            return Ok(inferred);
        }
        one_float(cx)
    },
    body:     composite(Some(rule(&lerp_gradient)), &|cx| {
        let (start, end, weight) = (cx.args[0], cx.args[1], cx.args[2]);
        let way = end.sub(start);
        let near = way.mul_add(start, weight);
        let far = way.mul_add(end, weight.sub(1.0));
        smallvec![weight.abs().lt(0.5).choose(near, far)]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5], T[3, 5] in 0 1", "T[7], T[7], T[]"] },
}

/// `x + value * a / b` from left to right, with the value as an attribute or as a tensor without
/// axes, which 16-bit operands meet in f32:
/// [`torch.addcdiv`](https://docs.pytorch.org/docs/stable/generated/torch.addcdiv.html).
ADDCDIV = addcdiv(x, a, b, value: optional | OptNumber) -> (y) {
    infer:    &|cx| {
        either(cx.types.len() == 4, cx)?;
        let Some(value) = cx.types.get(3) else {
            let is_float = |i: usize| cx.types[i].dtype.is_float();
            if !is_float(1) && !is_float(2) {
                return Err(format!("divides {} by {}: cast one of them to a float", cx.types[1], cx.types[2]));
            }
            return infer::promoted(cx);
        };
        infer::need_float(value)?;
        if value.shape.rank() > 0 {
            return Err(format!("`value` has no axes, found {value}"));
        }
        let mut inferred = infer::stretched(cx, &[0, 1, 2])?;
        let dtype = inferred.results[0].dtype;
        infer::need_float(&inferred.results[0])?;
        let inside = dtype.compute();
        // It is broadcast where it is multiplied.
        inferred.shapes[3] = None;
        inferred.casts[3] = (value.dtype != inside).then_some(inside);
        Ok(inferred)
    },
    body:     composite(None, &|cx| {
        let [x, a, b] = [cx.args[0], cx.args[1], cx.args[2]];
        let scaled = times(a, cx.args.get(3).copied(), cx.attrs);
        smallvec![x.add(scaled.div(b))]
    }),
    rounding: Rounding::RESULT,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5], T[3, 5] > 0, none {scalar = -0.1}", "T[7], T[7], T[7] > 0, T[]"] },
}
}

/// Floats of one dtype.
fn one_float(cx: &InferCx<'_>) -> infer::Answer {
    let first = &cx.types[0];
    infer::need_float(first)?;
    if let Some(other) = cx.types.iter().find(|t| t.dtype != first.dtype) {
        return Err(format!("operands are {first} and {other}, expected one dtype"));
    }
    infer::promoted(cx)
}

/// Not the gradients of the two forms that are chosen from: that of the other one is zero times
/// infinity.
fn lerp_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let wide = |x: Var<'t>| x.to(x.dtype().compute());
    let (dy, weight) = (wide(cx.dy()), wide(cx.args[2]));
    let way = wide(cx.args[1]).sub(wide(cx.args[0]));
    let grads = [dy.mul(weight.rsub(1.0)), dy.mul(weight), dy.mul(way)];
    grads.iter().zip(cx.args).map(|(g, arg)| Some(g.to(arg.dtype()))).collect()
}

/// `x` times the value that was given, or the number in its place.
fn times<'t>(x: Var<'t>, factor: Option<Var<'t>>, attrs: &Attrs) -> Var<'t> {
    match factor {
        Some(factor) => x.mul(factor),
        None => x.mul(attrs.number("scalar").unwrap_or(Number::F64(1.0))),
    }
}

/// Fails unless there is either the optional operand or the attribute `scalar`.
fn either(operand: bool, cx: &InferCx<'_>) -> Result<(), String> {
    let number = cx.attrs.number("scalar").is_some();
    let wrong = || "takes either its last operand or the attribute `scalar`".to_owned();
    (operand != number).then_some(()).ok_or_else(wrong)
}
