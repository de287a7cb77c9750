//! Changes of precision: `cast`, `round_to`, `detach`.

use super::infer;
use crate::DType;
use crate::op::{
    ANY, Dispatch, Domain, FLOATS, Facts, Grad, Inferred, Intrinsic, Lower, Magnitude, Rounding,
    View, cheap, core, rule,
};
use smallvec::smallvec;

crate::ops! { trait Cast;

/// The same numbers in dtype `to`: floats round to nearest even; floats become integers by
/// truncation (NaN becomes 0, values out of range the nearest end of the range, for every integer
/// dtype); integers become narrower ones by wrapping; anything becomes bool by `!= 0`:
/// [`Tensor.to`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html).
///
/// The gradient is cast back.
CAST = cast(x; to: DType) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let to = cx.attrs.dtype("to").expect("required");
        if !to.is_computable() {
            return Err(format!("no kernels exist for dtype {to}"));
        }
        Ok(Inferred::one(cx.operand(0).with_dtype(to)))
    },
    body:     core(
        rule(&|cx| {
            let from = cx.args[0].dtype();
            smallvec![from.is_float().then(|| cx.dy().cast(from))]
        }),
        cheap(&|cx, x| {
            let ty = cx.scalar();
            if cx.operands[0] == DType::F64 && cx.result.dtype.is_low() {
                let rounded = cx.body.unary(crate::kernel::ScalarOp::Round(cx.result.dtype), x[0]);
                return cx.body.convert(rounded, ty);
            }
            let y = cx.body.convert(x[0], ty);
            if cx.operands[0].is_float() { cx.body.saturated(y, cx.result.dtype) } else { y }
        }),
    ),
    rounding: Rounding::result("the result; the gradient when it is cast back"),
    facts:    Facts::new().intrinsic(Intrinsic::Cast).magnitude(Magnitude::Operand),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5] {to = f32}", "T[7] {to = bf16}", "T[7] {to = f16}", "T[5] {to = f64}", "T[5] {to = i64}", "T[5] {to = i32}", "T[5] {to = u8}", "T[4] {to = bool}"] },
}

/// Rounds to the nearest value of the narrower dtype `to` and keeps the wide dtype: what casting
/// there and back leaves.
///
/// The gradient is rounded the same way.
ROUND_TO = round_to(x; to: DType) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let (x, to) = (cx.operand(0), cx.attrs.dtype("to").expect("required"));
        infer::need_float(x)?;
        if !to.is_low() && to != DType::F32 || !to.fits_in(x.dtype) {
            return Err(format!("{x} cannot be rounded to {to}: expected a narrower float"));
        }
        infer::same(cx)
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().round_to(cx.attrs.dtype("to").expect("required")))]),
        cheap(&|cx, x| cx.body.unary(crate::kernel::ScalarOp::Round(cx.attrs.dtype("to").expect("required")), x[0])),
    ),
    rounding: Rounding::result("the result and the gradient, to `to`"),
    facts:    Facts::new().intrinsic(Intrinsic::RoundTo),
    domain:   Domain { dtypes: &[DType::F32, DType::F64], samples: &["T[3, 5] {to = bf16}", "T[7] {to = f16}"] },
}

/// The same value, through which no gradient flows:
/// [`Tensor.detach`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html).
DETACH = detach(x) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::same,
    body:     core(Grad::Zero, Lower::View(View::Identity)),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}
