//! Random numbers as a pure function of a seed: `random`, and `uniform`, `bernoulli` and `dropout`
//! over it.
//!
//! The seed `rng` is two i64, a key and a step: usually state of the program, whose step grows with
//! each run. The attribute `stream` tells the ops of one program apart. An element's number depends
//! on these and on its row-major position alone, so it is the same on every device, in every
//! fusion, and when it is rematerialised for a gradient.
//!
//! For a part of a larger tensor, which draws what its elements would draw there, `rng` goes on
//! with the number of the part's first element in the larger tensor, and how far apart elements lie
//! there along each axis.

use super::cast::Cast;
use super::elementwise::Elementwise;
use super::infer;
use super::view::Views;
use crate::kernel::{Scalar, ScalarOp, Val};
use crate::op::{
    ANY, Dispatch, Domain, FLOATS, Facts, Grad, InferCx, Inferred, Intrinsic, MapCx, Rounding,
    composite, core, map, rule,
};
use crate::{DType, Shape, TensorType, Var};
use smallvec::smallvec;

crate::ops! { trait Random;

/// For each element an f32 from 0 up to but not including 1, a multiple of 2^-24: the word of
/// [`philox`](crate::kernel::philox) for `key`, `step`, `stream` and the element.
RANDOM = random(key, step; stream: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        check_stream(cx)?;
        if let Some(t) = cx.types.iter().find(|t| t.dtype != DType::I64) {
            return Err(format!("takes i64 keys and steps, found {t}"));
        }
        let mut inferred = infer::elementwise(cx, &[0, 1])?;
        inferred.results[0].dtype = DType::F32;
        Ok(inferred)
    },
    body:     core(Grad::Zero, map(&|cx, x| {
        let element = cx.element();
        word(cx, x[0], x[1], element)
    })),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::Random),
    domain:   Domain { dtypes: &[DType::I64], samples: &["T[3, 5], T[3, 5] {stream = 1}", "T[], T[] {stream = 0}"] },
}

/// As `random`, for elements whose numbers are given: those of a part of a larger tensor.
RANDOM_AT = random_at(key, step, element; stream: Int) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        check_stream(cx)?;
        if let Some(t) = cx.types.iter().find(|t| t.dtype != DType::I64) {
            return Err(format!("takes i64 keys, steps and numbers of elements, found {t}"));
        }
        let mut inferred = infer::elementwise(cx, &[0, 1, 2])?;
        inferred.results[0].dtype = DType::F32;
        Ok(inferred)
    },
    body:     core(Grad::Zero, map(&|cx, x| word(cx, x[0], x[1], x[2]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::Random),
    domain:   Domain { dtypes: &[DType::I64], samples: &["T[3, 5], T[3, 5], T[3, 5] in 0 100 {stream = 1}", "T[], T[], T[] in 0 9 {stream = 0}"] },
}

/// New numbers in the type of `x`, spread evenly from `from` up to `to`.
UNIFORM = uniform(x, rng; from: Float, to: Float, stream: Int) -> (y) {
    infer:    &|cx| {
        seeded(cx)?;
        let (from, to) = (cx.attrs.float("from").expect("required"), cx.attrs.float("to").expect("required"));
        if from > to || !(to - from).is_finite() {
            return Err(format!("`from` is {from}, `to` {to}: expected finite numbers in order"));
        }
        infer::float_only(cx)
    },
    body:     composite(Some(Grad::Zero), &|cx| {
        let (from, to) = (cx.attrs.float("from").expect("required"), cx.attrs.float("to").expect("required"));
        let wide = cx.results[0].dtype.compute();
        let unit = draw(cx.args[1], &cx.results[0].shape, cx.attrs.int("stream").expect("required")).to(wide);
        smallvec![unit.mul(to - from).add(from)]
    }),
    rounding: Rounding::RESULT,
    facts:    Facts::new().intrinsic(Intrinsic::Random),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], i64[2] {from = -1.0, to = 2.0, stream = 3}", "T[40], i64[2] {from = 0.0, to = 1.0, stream = 0}"] },
}

/// In the type of `x`, 1 with probability `p` and else 0.
BERNOULLI = bernoulli(x, rng; p: Float, stream: Int) -> (y) {
    dispatch: Dispatch::Listed { overload: "p" },
    infer:    &|cx| {
        seeded(cx)?;
        probability(cx)?;
        infer::same(cx)
    },
    body:     composite(Some(Grad::Zero), &|cx| {
        let unit = draw(cx.args[1], &cx.results[0].shape, cx.attrs.int("stream").expect("required"));
        smallvec![unit.lt(cx.attrs.float("p").expect("required")).to(cx.results[0].dtype)]
    }),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::Random),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5], i64[2] {p = 0.25, stream = 3}"] },
}

/// Each element of `x` kept with probability `1 - p` and then multiplied by `1 / (1 - p)`, else
/// multiplied by zero; and which ones were kept.
///
/// With `p = 1` every element is multiplied by zero. The gradient is masked and scaled in the same
/// way.
DROPOUT = dropout(x, rng; p: Float, stream: Int) -> (y, mask) {
    infer:    &|cx| {
        seeded(cx)?;
        probability(cx)?;
        infer::need_float(cx.operand(0))?;
        Ok(Inferred::many([cx.operand(0).clone(), cx.operand(0).with_dtype(DType::Bool)]))
    },
    body:     composite(
        Some(rule(&|cx| {
            let p = cx.attrs.float("p").expect("required");
            smallvec![cx.dys[0].map(|dy| keep(dy, cx.outs[1], p)), None]
        })),
        &|cx| {
            let p = cx.attrs.float("p").expect("required");
            let unit = draw(cx.args[1], &cx.results[0].shape, cx.attrs.int("stream").expect("required"));
            let mask = unit.ge(p);
            smallvec![keep(cx.args[0], mask, p), mask]
        },
    ),
    rounding: Rounding::result("the result; the gradient"),
    facts:    Facts::new().intrinsic(Intrinsic::Random),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], i64[2] {p = 0.5, stream = 2}", "T[70], i64[2] {p = 0.1, stream = 5}", "T[3, 5], i64[5] {p = 0.5, stream = 2}"] },
}
}

/// The random number of an element.
fn word(cx: &mut MapCx<'_>, key: Val, step: Val, element: Val) -> Val {
    let stream = cx.attrs.int("stream").expect("required") as u32;
    let word = cx.body.push(ScalarOp::Random { stream }, &[key, step, element], Scalar::I32);
    // The high 24 bits as a non-negative integer, still shifted left by 8: exact in f32.
    let wide = cx.body.convert(word, Scalar::I64);
    let mask = cx.body.push(ScalarOp::Const(0xffff_ff00), &[], Scalar::I64);
    let high = cx.body.binary(ScalarOp::And, wide, mask);
    let number = cx.body.convert(high, Scalar::F32);
    let unit = cx.body.constant(Scalar::F32, 1.0 / 4_294_967_296.0);
    cx.body.binary(ScalarOp::Mul, number, unit)
}

/// A random f32 for each element of a shape.
fn draw<'t>(rng: Var<'t>, shape: &Shape, stream: i64) -> Var<'t> {
    let part = |i: i64| rng.slice(0, i, i + 1, 1).reshape_to(&Shape::scalar()).expand_to(shape);
    if rng.ty() == TensorType::new(DType::I64, [2]) {
        return part(0).random(part(1), stream);
    }
    let mut element = part(2);
    for axis in 0..shape.rank() {
        let at = rng.tracer().iota(DType::I64, shape, axis);
        element = element.add(at.mul(part(3 + axis as i64)));
    }
    part(0).random_at(part(1), element, stream)
}

/// `x` times the mask, which is exact, times the scale.
fn keep<'t>(x: Var<'t>, mask: Var<'t>, p: f64) -> Var<'t> {
    let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
    x.mul(mask.cast(x.dtype())).mul(scale)
}

fn seeded(cx: &InferCx<'_>) -> Result<(), String> {
    check_stream(cx)?;
    let (rng, expected) = (cx.operand(1), TensorType::new(DType::I64, [2]));
    let of_part = TensorType::new(DType::I64, [3 + cx.operand(0).shape.rank()]);
    if *rng == expected || *rng == of_part {
        Ok(())
    } else {
        Err(format!(
            "`rng` is {rng}, expected {expected}: a key and a step; or {of_part}, for a part of a larger tensor"
        ))
    }
}

fn check_stream(cx: &InferCx<'_>) -> Result<(), String> {
    let stream = cx.attrs.int("stream").expect("required");
    u32::try_from(stream)
        .map(|_| ())
        .map_err(|_| format!("`stream` is {stream}, expected 0 to {}", u32::MAX))
}

fn probability(cx: &InferCx<'_>) -> Result<(), String> {
    let p = cx.attrs.float("p").expect("required");
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(format!("`p` is {p}, expected a probability from 0 to 1"))
    }
}
