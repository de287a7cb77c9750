//! Integers as bits, and truth values as one bit: `bitwise_and` and its like, and shifts.

use super::elementwise::{binary, second, two};
use super::infer;
use crate::DType;
use crate::kernel::{Cmp, Scalar, ScalarOp, Val};
use crate::op::{Domain, Facts, Grad, InferCx, MapCx, Rounding, WithItself, cheap, core, map};

const WHOLE: &[DType] = &[DType::I64, DType::I32, DType::U8, DType::Bool];
const INTEGERS: &[DType] = &[DType::I64, DType::I32, DType::U8];

crate::ops! { trait Bits;

/// The bits that both operands have.
BITWISE_AND = bitwise_and(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, whole),
    body:     core(Grad::Zero, cheap(&|cx, x| two(cx, x, ScalarOp::And))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().commutes().with_itself(WithItself::Operand),
    domain:   Domain { dtypes: WHOLE, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// The bits that either operand has.
BITWISE_OR = bitwise_or(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, whole),
    body:     core(Grad::Zero, cheap(&|cx, x| two(cx, x, ScalarOp::Or))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().commutes().with_itself(WithItself::Operand),
    domain:   Domain { dtypes: WHOLE, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// The bits that one operand has and the other has not.
BITWISE_XOR = bitwise_xor(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, whole),
    body:     core(Grad::Zero, cheap(&|cx, x| {
        let y = second(cx, x);
        let (either, both) = (cx.body.binary(ScalarOp::Or, x[0], y), cx.body.binary(ScalarOp::And, x[0], y));
        let not = cx.body.unary(ScalarOp::Not, both);
        cx.body.binary(ScalarOp::And, either, not)
    })),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().commutes(),
    domain:   Domain { dtypes: WHOLE, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// The bits that the operand has not.
BITWISE_NOT = bitwise_not(x) -> (y) {
    infer:    &whole,
    body:     core(Grad::Zero, cheap(&|cx, x| cx.body.unary(ScalarOp::Not, x[0]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().involution(),
    domain:   Domain { dtypes: WHOLE, samples: &["T[3, 5]"] },
}

/// The bits moved up by as many places as the second operand says, zeros entering; all of them
/// leave from the width of the dtype on, and by a negative number.
BITWISE_LEFT_SHIFT = bitwise_left_shift(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::integers),
    body:     core(Grad::Zero, map(&|cx, x| {
        let (power, is_within) = places(cx, x);
        let ty = cx.scalar();
        let (moved, zero) = (cx.body.binary(ScalarOp::Mul, x[0], power), cx.body.constant(ty, 0.0));
        cx.body.select(is_within, moved, zero)
    })),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: INTEGERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 2.0}"] },
}

/// The bits moved down by as many places as the second operand says, the sign entering; nothing
/// else is left from the width of the dtype on, and by a negative number.
BITWISE_RIGHT_SHIFT = bitwise_right_shift(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::integers),
    body:     core(Grad::Zero, map(&|cx, x| {
        let ty = cx.scalar();
        let (power, is_within) = places(cx, x);
        let (zero, one) = (cx.body.constant(ty, 0.0), cx.body.constant(ty, 1.0));
        let is_negative = cx.body.cmp(Cmp::Lt, x[0], zero);
        let minus = cx.body.unary(ScalarOp::Neg, one);
        let sign = cx.body.select(is_negative, minus, zero);
        // The largest place has a power that is negative: only the sign is left of it.
        let is_power = cx.body.cmp(Cmp::Lt, zero, power);
        let by = cx.body.select(is_power, power, one);
        let quotient = cx.body.binary(ScalarOp::Div, x[0], by);
        let back = cx.body.binary(ScalarOp::Mul, quotient, by);
        let is_above = cx.body.cmp(Cmp::Lt, x[0], back);
        let below = cx.body.binary(ScalarOp::Sub, quotient, one);
        let down = cx.body.select(is_above, below, quotient);
        let fits = cx.body.binary(ScalarOp::And, is_within, is_power);
        cx.body.select(fits, down, sign)
    })),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number(),
    domain:   Domain { dtypes: INTEGERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 2.0}"] },
}
}

/// Integers and truth values, promoted.
fn whole(cx: &InferCx<'_>) -> infer::Answer {
    let inferred = infer::promoted(cx)?;
    let y = &inferred.results[0];
    if y.dtype.is_float() {
        Err(format!("takes integers or bool, found {y}"))
    } else {
        Ok(inferred)
    }
}

/// Two to the power of the second operand, wrapped, and whether the power is a place of the dtype.
fn places(cx: &mut MapCx<'_>, x: &[Val]) -> (Val, Val) {
    let power = second(cx, x);
    let ty = cx.scalar();
    let bits = 8 * cx.result.dtype.bytes();
    let mut value = cx.body.constant(ty, 1.0);
    for k in 0..if ty == Scalar::I64 { 6 } else { 5 } {
        let bit = cx.body.constant(ty, f64::from(1 << k));
        let has = cx.body.binary(ScalarOp::And, power, bit);
        let has = cx.body.cmp(Cmp::Eq, has, bit);
        let factor = cx.body.constant(ty, 2f64.powi(1 << k));
        let larger = cx.body.binary(ScalarOp::Mul, value, factor);
        value = cx.body.select(has, larger, value);
    }
    let (zero, end) = (cx.body.constant(ty, 0.0), cx.body.constant(ty, bits as f64));
    let from = cx.body.cmp(Cmp::Le, zero, power);
    let below = cx.body.cmp(Cmp::Lt, power, end);
    (value, cx.body.binary(ScalarOp::And, from, below))
}
