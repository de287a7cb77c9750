//! One element from elements at the same position: arithmetic, comparison, choice, functions.
//!
//! In 16 bits each op computes in f32 and rounds its result, as PyTorch's kernels do. A number
//! given as the attribute `scalar` stands for the second operand and is not rounded to the tensor's
//! dtype.

use super::infer;
use super::nn::Activations;
use crate::kernel::{Cmp, Function, Scalar, ScalarOp, Val};
use crate::op::{
    ANY, Compares, Dispatch, Domain, FLOATS, Facts, Grad, InferCx, Intrinsic, Magnitude, MapCx,
    NUMBERS, Rounding, Signs, WithItself, cheap, chosen, core, extremum, map, rule,
};
use crate::{Attrs, DType, Number};
use smallvec::smallvec;

crate::ops! { trait Elementwise;

/// The sum of the operands; of truth values whether either holds.
ADD = add(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::promoted),
    body:     core(
        rule(&|cx| cx.args.iter().map(|_| Some(cx.dy())).collect()),
        cheap(&|cx, x| two(cx, x, of_truths(cx, ScalarOp::Or, ScalarOp::Add))),
    ),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_number().commutes().neutral(-0.0).settling(0.0).subtracts(&SUB).magnitude(Magnitude::Sum),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[3, 1], T[5]", "T[7], none {scalar = 3.0}"] },
}

/// The first operand minus the second.
SUB = sub(x, other: optional | OptNumber) -> (y) {
    infer:    &difference,
    body:     core(
        rule(&|cx| {
            let mut grads = smallvec![Some(cx.dy())];
            if cx.args.len() == 2 {
                grads.push(Some(cx.dy().neg()));
            }
            grads
        }),
        cheap(&|cx, x| two(cx, x, ScalarOp::Sub)),
    ),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_number().swapped(&RSUB).neutral(0.0).subtracts(&ADD).with_itself(WithItself::NumberExceptFloats(0.0)).magnitude(Magnitude::Sum),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 3.0}"] },
}

/// The number minus the operand.
RSUB = rsub(x; scalar: Float) -> (y) {
    infer:    &difference,
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().neg())]),
        cheap(&|cx, x| {
            let ty = cx.scalar();
            let c = cx.number_of(ty, number(cx.attrs));
            cx.body.binary(ScalarOp::Sub, c, x[0])
        }),
    ),
    rounding: Rounding::RESULT,
    facts:    Facts::new().takes_number().negating(-0.0).magnitude(Magnitude::Sum),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[7] {scalar = 3.0}"] },
}

/// The product of the operands; of truth values whether both hold.
MUL = mul(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::promoted),
    body:     core(
        rule(&|cx| match cx.args {
            [x, y] => smallvec![Some(cx.dy().mul(*y)), Some(cx.dy().mul(*x))],
            _ => smallvec![Some(cx.dy().mul(number(cx.attrs)))],
        }),
        cheap(&|cx, x| two(cx, x, of_truths(cx, ScalarOp::And, ScalarOp::Mul))),
    ),
    rounding: Rounding::result("the result; each gradient"),
    facts:    Facts::new().takes_number().commutes().neutral(1.0).negating(-1.0).absorbing(0.0).passes_signs().magnitude(Magnitude::Product),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[3, 1], T[5]", "T[7], none {scalar = 3.0}"] },
}

/// The first operand divided by the second. Integers and truth values are divided in f32.
DIV = div(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::float_arithmetic),
    body:     core(
        rule(&|cx| match cx.args {
            [_, y] => {
                let dx = cx.dy().div(*y);
                smallvec![Some(dx), Some(dx.mul(cx.out()).neg())]
            }
            _ => smallvec![Some(cx.dy().div(number(cx.attrs)))],
        }),
        map(&|cx, x| two(cx, x, ScalarOp::Div)),
    ),
    rounding: Rounding::result("the result; each step of a gradient"),
    facts:    Facts::new().takes_number().neutral(1.0).negating(-1.0).passes_signs().by_inverse(&MUL),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5], T[3, 5] > 0", "T[7], none {scalar = 3.0}"] },
}

/// The quotient rounded towards zero; a zero divisor is a data error for integers.
DIV_TRUNC = div_trunc(x, other: optional | OptNumber) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| binary(cx, infer::integers),
    body:     core(Grad::Zero, map(&|cx, x| {
        let y = second(cx, x);
        let ty = cx.scalar();
        let zero = cx.body.constant(ty, 0.0);
        let fine = cx.body.cmp(Cmp::Ne, y, zero);
        let fine = cx.check(fine, None, "integer division by zero");
        let one = cx.body.constant(ty, 1.0);
        let safe = cx.body.select(fine, y, one);
        cx.body.binary(ScalarOp::Div, x[0], safe)
    })),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().neutral(1.0).raises(),
    domain:   Domain { dtypes: &[DType::I32, DType::I64, DType::U8], samples: &["T[7], T[7] > 0", "T[7], none {scalar = 3.0}"] },
}

/// The larger operand; NaN if either is NaN. Of two equal operands each gets half of the gradient.
MAXIMUM = maximum(x, other) -> (y) {
    infer:    &infer::promoted,
    body:     core(rule(&|cx| extreme(cx, true)), extremum(&|cx, x| two(cx, x, of_truths(cx, ScalarOp::Or, ScalarOp::Max)))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().with_itself(WithItself::Operand),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]"] },
}

/// The smaller operand; NaN if either is NaN. Of two equal operands each gets half of the gradient.
MINIMUM = minimum(x, other) -> (y) {
    infer:    &infer::promoted,
    body:     core(rule(&|cx| extreme(cx, false)), extremum(&|cx, x| two(cx, x, of_truths(cx, ScalarOp::And, ScalarOp::Min)))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().with_itself(WithItself::Operand),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]"] },
}

/// The operand with the other sign.
NEG = neg(x) -> (y) {
    infer:    &infer::number,
    body:     core(rule(&|cx| smallvec![Some(cx.dy().neg())]), chosen(0, &|cx, x| cx.body.unary(ScalarOp::Neg, x[0]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::Negation).involution().magnitude(Magnitude::Operand),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5]"] },
}

/// The operand without its sign. The gradient at zero is zero.
ABS = abs(x) -> (y) {
    infer:    &infer::number,
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().mul(cx.args[0].sign()))]),
        chosen(0, &|cx, x| if cx.result.dtype == DType::U8 { x[0] } else { cx.body.unary(ScalarOp::Abs, x[0]) }),
    ),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().ignores_sign().keeps_nonnegative().signs(Signs::Cleared).magnitude(Magnitude::Operand),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5]"] },
}

/// `e` to the power of the operand.
EXP = exp(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| smallvec![Some(cx.dy().mul(cx.out()))]), map(&|cx, x| call(cx, Function::Exp, x[0]))),
    rounding: Rounding::result("the result; the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The natural logarithm.
LOG = log(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| smallvec![Some(cx.dy().div(cx.args[0]))]), map(&|cx, x| call(cx, Function::Log, x[0]))),
    rounding: Rounding::result("the result; the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0", "T[40] > 0"] },
}

/// The square root.
SQRT = sqrt(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().div(cx.out().mul(2.0)))]),
        map(&|cx, x| cx.body.unary(ScalarOp::Sqrt, x[0])),
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0"] },
}

/// One over the square root.
RSQRT = rsqrt(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let y = cx.out();
            smallvec![Some(cx.dy().mul(-0.5).mul(y.mul(y).mul(y)))]
        }),
        map(&|cx, x| {
            let one = cx.constant(1.0);
            let root = cx.body.unary(ScalarOp::Sqrt, x[0]);
            cx.body.binary(ScalarOp::Div, one, root)
        }),
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5] > 0"] },
}

/// The hyperbolic tangent.
TANH = tanh(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| smallvec![Some(cx.dy().tanh_backward(cx.out()))]), map(&|cx, x| call(cx, Function::Tanh, x[0]))),
    rounding: Rounding::result("the result; the gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The error function.
ERF = erf(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| {
            let x = cx.args[0];
            let slope = x.mul(x).neg().exp().mul(std::f64::consts::FRAC_2_SQRT_PI);
            smallvec![Some(slope.mul(cx.dy()))]
        }),
        map(&|cx, x| call(cx, Function::Erf, x[0])),
    ),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The sine.
SIN = sin(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| smallvec![Some(cx.args[0].cos().mul(cx.dy()))]), map(&|cx, x| call(cx, Function::Sin, x[0]))),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The cosine.
COS = cos(x) -> (y) {
    infer:    &infer::float,
    body:     core(rule(&|cx| smallvec![Some(cx.args[0].sin().neg().mul(cx.dy()))]), map(&|cx, x| call(cx, Function::Cos, x[0]))),
    rounding: Rounding::result("the result; each step of the gradient"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The largest integral number not above.
FLOOR = floor(x) -> (y) {
    infer:    &infer::number,
    body:     core(Grad::Zero, map(&|cx, x| if cx.scalar().is_float() { cx.body.unary(ScalarOp::Floor, x[0]) } else { x[0] })),
    rounding: Rounding::nowhere("nowhere: integral numbers have fewer bits"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// `1 / (1 + exp(-x))`.
SIGMOID = sigmoid(x) -> (y) {
    infer:    &infer::float,
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().sigmoid_backward(cx.out()))]),
        map(&|cx, x| {
            let one = cx.constant(1.0);
            let minus = cx.body.unary(ScalarOp::Neg, x[0]);
            let e = call(cx, Function::Exp, minus);
            let below = cx.body.binary(ScalarOp::Add, one, e);
            cx.body.binary(ScalarOp::Div, one, below)
        }),
    ),
    rounding: Rounding::result("the result; the gradient once"),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]", "T[40]"] },
}

/// The operand where it is above zero or NaN, else zero.
RELU = relu(x) -> (y) {
    infer:    &infer::number,
    body:     core(
        rule(&|cx| {
            let zero = cx.tracer.zeros_like(cx.out());
            smallvec![Some(cx.out().le(0.0).choose(zero, cx.dy()))]
        }),
        chosen(0, &|cx, x| {
            let zero = cx.constant(0.0);
            cx.body.binary(ScalarOp::Max, zero, x[0])
        }),
    ),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().keeps_nonnegative().signs(Signs::NeverNegative).magnitude(Magnitude::Operand),
    domain:   Domain { dtypes: FLOATS, samples: &["T[3, 5]"] },
}

/// Whether the operands are equal.
EQ = eq(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::comparison),
    body:     core(Grad::Zero, cheap(&|cx, x| compare(cx, x, Cmp::Eq, false))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().commutes().opposite(&NE).with_itself(WithItself::NumberExceptFloats(1.0)).compares(Compares::Equality),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// Whether the operands differ.
NE = ne(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::comparison),
    body:     core(Grad::Zero, cheap(&|cx, x| compare(cx, x, Cmp::Ne, false))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().commutes().opposite(&EQ).with_itself(WithItself::NumberExceptFloats(0.0)).compares(Compares::Equality),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// Whether the first operand is less.
LT = lt(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::comparison),
    body:     core(Grad::Zero, cheap(&|cx, x| compare(cx, x, Cmp::Lt, false))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().swapped(&GT).opposite_without_nan(&GE).with_itself(WithItself::Number(0.0)).compares(Compares::Order),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// Whether the first operand is less or equal.
LE = le(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::comparison),
    body:     core(Grad::Zero, cheap(&|cx, x| compare(cx, x, Cmp::Le, false))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().swapped(&GE).opposite_without_nan(&GT).with_itself(WithItself::NumberExceptFloats(1.0)).compares(Compares::Order),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// Whether the first operand is greater.
GT = gt(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::comparison),
    body:     core(Grad::Zero, cheap(&|cx, x| compare(cx, x, Cmp::Lt, true))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().swapped(&LT).opposite_without_nan(&LE).with_itself(WithItself::Number(0.0)).compares(Compares::Order),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// Whether the first operand is greater or equal.
GE = ge(x, other: optional | OptNumber) -> (y) {
    infer:    &|cx| binary(cx, infer::comparison),
    body:     core(Grad::Zero, cheap(&|cx, x| compare(cx, x, Cmp::Le, true))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().takes_number().swapped(&LE).opposite_without_nan(&LT).with_itself(WithItself::NumberExceptFloats(1.0)).compares(Compares::Order),
    domain:   Domain { dtypes: NUMBERS, samples: &["T[3, 5], T[3, 5]", "T[7], none {scalar = 1.0}"] },
}

/// Whether both operands hold; every number but 0 does.
LOGICAL_AND = logical_and(x, other) -> (y) {
    infer:    &infer::logical,
    body:     core(Grad::Zero, cheap(&|cx, x| cx.body.binary(ScalarOp::And, x[0], x[1]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().commutes().neutral(1.0).absorbing(0.0).with_itself(WithItself::Operand),
    domain:   Domain { dtypes: &[DType::Bool], samples: &["bool[3, 5], bool[3, 5]"] },
}

/// Whether either operand holds; every number but 0 does.
LOGICAL_OR = logical_or(x, other) -> (y) {
    infer:    &infer::logical,
    body:     core(Grad::Zero, cheap(&|cx, x| cx.body.binary(ScalarOp::Or, x[0], x[1]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().commutes().neutral(0.0).absorbing(1.0).with_itself(WithItself::Operand),
    domain:   Domain { dtypes: &[DType::Bool], samples: &["bool[3, 5], bool[3, 5]"] },
}

/// Whether the operand does not hold; every number but 0 does.
LOGICAL_NOT = logical_not(x) -> (y) {
    infer:    &infer::logical,
    body:     core(Grad::Zero, cheap(&|cx, x| cx.body.unary(ScalarOp::Not, x[0]))),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::Not).involution(),
    domain:   Domain { dtypes: &[DType::Bool], samples: &["bool[3, 5]"] },
}

/// The second operand where the first holds, else the third.
WHERE = choose as "where"(condition, x, other) -> (y) {
    infer:    &infer::choice,
    body:     core(
        rule(&|cx| {
            let (c, zero) = (cx.args[0], cx.tracer.zeros_like(cx.out()));
            smallvec![None, Some(c.choose(cx.dy(), zero)), Some(c.choose(zero, cx.dy()))]
        }),
        chosen(1, &|cx, x| cx.body.select(x[0], x[1], x[2])),
    ),
    rounding: Rounding::NOWHERE,
    facts:    Facts::new().intrinsic(Intrinsic::Choice),
    domain:   Domain { dtypes: ANY, samples: &["bool[3, 5], T[3, 5], T[3, 5]", "bool[3, 1], T[5], T[]"] },
}
}

/// As [`infer::arithmetic`]; as in PyTorch there is no difference with truth values, whatever they
/// would promote to.
fn difference(cx: &InferCx<'_>) -> infer::Answer {
    match cx.types.iter().find(|t| t.dtype == DType::Bool) {
        Some(t) => {
            Err(format!("takes numbers, found {t}: cast it, or say `logical_not` or `logical_xor`"))
        }
        None => binary(cx, infer::arithmetic),
    }
}

/// Infers with either a second operand or the attribute `scalar`, not both. A number may promote
/// the tensor beside it.
pub(super) fn binary(
    cx: &InferCx<'_>,
    rule: impl Fn(&InferCx<'_>) -> infer::Answer,
) -> infer::Answer {
    match (cx.types.len(), cx.attrs.number("scalar")) {
        (2, None) => rule(cx),
        (1, Some(v)) => {
            let x = &cx.types[0];
            let dtype = infer::beside(x.dtype, v);
            infer::need_held_for_all(dtype, "`scalar`", v)?;
            if dtype == x.dtype {
                return rule(cx);
            }
            let promoted = [x.with_dtype(dtype)];
            let mut inferred = rule(&InferCx { types: &promoted, ..*cx })?;
            let cast = inferred.casts.first().copied().flatten().unwrap_or(dtype);
            inferred.casts = smallvec![Some(cast)];
            Ok(inferred)
        }
        _ => Err("takes either a second operand or the attribute `scalar`".to_owned()),
    }
}

fn number(attrs: &Attrs) -> Number {
    attrs.number("scalar").expect("checked by infer")
}

/// The second operand, or the number in its place, in the first operand's scalar type.
pub(super) fn second(cx: &mut MapCx<'_>, x: &[Val]) -> Val {
    let ty = cx.body.ty(x[0]);
    x.get(1).copied().unwrap_or_else(|| {
        let v = number(cx.attrs);
        cx.number_of(ty, v)
    })
}

/// An instruction of the two operands, or of one and the number.
pub(super) fn two(cx: &mut MapCx<'_>, x: &[Val], op: ScalarOp) -> Val {
    let y = second(cx, x);
    cx.body.binary(op, x[0], y)
}

/// PyTorch compares in the tensor's dtype: a number is rounded to it first.
fn compare(cx: &mut MapCx<'_>, x: &[Val], cmp: Cmp, swapped: bool) -> Val {
    let mut y = second(cx, x);
    if x.len() == 1 && cx.operands[0].is_low() {
        y = cx.body.as_dtype(y, cx.operands[0]);
    }
    let (a, b) = if swapped { (y, x[0]) } else { (x[0], y) };
    if cx.body.ty(a) != Scalar::Bool {
        return cx.body.cmp(cmp, a, b);
    }
    let (a, b) = (cx.body.convert(a, Scalar::I32), cx.body.convert(b, Scalar::I32));
    cx.body.cmp(cmp, a, b)
}

fn call(cx: &mut MapCx<'_>, f: Function, x: Val) -> Val {
    cx.body.unary(ScalarOp::Call(f), x)
}

/// The instruction for numbers, or for truth values where the operands are some.
fn of_truths(cx: &MapCx<'_>, truths: ScalarOp, numbers: ScalarOp) -> ScalarOp {
    if cx.result.dtype == DType::Bool { truths } else { numbers }
}

/// The gradient of `maximum` and `minimum`: halves where the operands are equal, else none to the
/// one that was not taken. Beside a NaN neither is less, and both get all of it, as in PyTorch.
fn extreme<'t>(cx: &crate::op::GradCx<'_, 't>, of_larger: bool) -> crate::op::Grads<'t> {
    let (x, y) = (cx.args[0], cx.args[1]);
    let zero = cx.tracer.zeros_like(cx.out());
    let half = x.eq(y).choose(cx.dy().mul(0.5), cx.dy());
    let (less, more) = (x.lt(y).choose(zero, half), x.gt(y).choose(zero, half));
    if of_larger { smallvec![Some(less), Some(more)] } else { smallvec![Some(more), Some(less)] }
}
