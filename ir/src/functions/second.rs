//! Numbers in the places of operands, with PyTorch's promotion: of functions that take a tensor or a number behind the first tensor, and of those
//! that take a number in front of it.

use super::named;
use crate::args::OperandOf;
use crate::ops::bits::Bits;
use crate::ops::division::Divisions;
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::power::Powers;
use crate::{Attr, Attrs, DType, Number, TensorType, Var, given};
use smallvec::SmallVec;

/// What was given for an operand in whose place a number may stand.
pub(super) enum Given<'t> {
    Value(Var<'t>),
    /// A number, and whether it was given as an integer.
    Number(f64, bool),
}

impl<'t> Given<'t> {
    /// What an argument is, beside a tensor of that dtype.
    ///
    /// # Errors
    /// If it is a size that depends on names, or an integer that an f64 does not hold beside integers.
    pub(super) fn of(
        argument: impl OperandOf<'t, given::OrNumber>,
        dtype: DType,
    ) -> Result<Self, String> {
        let (mut vars, mut attrs): (SmallVec<[Var<'t>; 4]>, _) = (SmallVec::new(), Attrs::new());
        argument.append(&mut vars, &mut attrs);
        if let Some(x) = vars.pop() {
            return Ok(Given::Value(x));
        }
        let number = match attrs.get("scalar") {
            Some(Attr::Int(number)) => {
                infer::need_exact(dtype, *number)?;
                return Ok(Given::Number(*number as f64, true));
            }
            Some(Attr::Size(size)) => Some(Number::Size(*size)),
            _ => attrs.number("scalar"),
        };
        let value = number.and_then(Number::value);
        value.map(|value| Given::Number(value, false)).ok_or_else(|| {
            let found = number.map_or_else(String::new, |number| number.to_string());
            format!("takes a number here, found the size {found}: pin it")
        })
    }

    /// The operand as a tensor, and `x` in the dtype that it has beside it.
    pub(super) fn beside(self, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        match self {
            Given::Value(y) => (x, y),
            Given::Number(number, _) => x.beside(number),
        }
    }
}

/// A function of a number and a tensor behind it, or of two tensors.
#[track_caller]
fn in_front<'t>(
    name: &'static str,
    number: impl OperandOf<'t, given::OrNumber>,
    x: Var<'t>,
    record: fn(Var<'t>, Var<'t>) -> Var<'t>,
) -> Var<'t> {
    named(x, name, || {
        let (x, number) = Given::of(number, x.dtype())?.beside(x);
        Ok(record(number, x))
    })
}

/// A number, or a tensor, to the power of a tensor: [`torch.pow`](https://docs.pytorch.org/docs/stable/generated/torch.pow.html).
#[track_caller]
pub fn pow<'t>(x: impl OperandOf<'t, given::OrNumber>, exponent: Var<'t>) -> Var<'t> {
    in_front("pow", x, exponent, Powers::pow)
}

/// As [`pow`](fn@pow), in f64: [`torch.float_power`](https://docs.pytorch.org/docs/stable/generated/torch.float_power.html).
#[track_caller]
pub fn float_power<'t>(x: impl OperandOf<'t, given::OrNumber>, exponent: Var<'t>) -> Var<'t> {
    named(exponent, "float_power", || {
        let wide = exponent.to(DType::F64);
        let (by, x) = Given::of(x, DType::F64)?.beside(wide);
        Ok(x.to(DType::F64).pow(by))
    })
}

/// A number, or a tensor, times the logarithm of a tensor: [`torch.xlogy`](https://docs.pytorch.org/docs/stable/generated/torch.xlogy.html).
#[track_caller]
pub fn xlogy<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    in_front("xlogy", x, other, Powers::xlogy)
}

/// A number, or a tensor, times the logarithm of one more than a tensor: [`torch.special.xlog1py`](https://docs.pytorch.org/docs/stable/special.html#torch.special.xlog1py).
#[track_caller]
pub fn xlog1py<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    in_front("xlog1py", x, other, Powers::xlog1py)
}

/// A number, or a tensor, divided by a tensor and rounded down: [`torch.floor_divide`](https://docs.pytorch.org/docs/stable/generated/torch.floor_divide.html).
#[track_caller]
pub fn floor_divide<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    in_front("floor_divide", x, other, Divisions::floor_divide)
}

/// What is left of a number, or of a tensor, by a tensor: `5 % x`, [`torch.remainder`](https://docs.pytorch.org/docs/stable/generated/torch.remainder.html).
#[track_caller]
pub fn remainder<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    in_front("remainder", x, other, Divisions::remainder)
}

/// The bits of a number, or of a tensor, moved up by as many places as a tensor says: `1 << x`, [`torch.bitwise_left_shift`](https://docs.pytorch.org/docs/stable/generated/torch.bitwise_left_shift.html).
#[track_caller]
pub fn bitwise_left_shift<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    in_front("bitwise_left_shift", x, other, Bits::bitwise_left_shift)
}

/// The bits of a number, or of a tensor, moved down by as many places as a tensor says: `64 >> x`, [`torch.bitwise_right_shift`](https://docs.pytorch.org/docs/stable/generated/torch.bitwise_right_shift.html).
#[track_caller]
pub fn bitwise_right_shift<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    in_front("bitwise_right_shift", x, other, Bits::bitwise_right_shift)
}

impl<'t> Var<'t> {
    /// The elements of `x` where this truth value holds, else those of `other`; either may be a number: [`torch.where`](https://docs.pytorch.org/docs/stable/generated/torch.where.html).
    /// Two numbers make i64 if both are integers, else f32.
    ///
    /// ```
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("signs");
    /// let x = t.input("x", TensorType::new(DType::BF16, [3]));
    /// let holds = x.isfinite();
    /// assert_eq!(holds.choose(x, 0.0).dtype(), DType::BF16);
    /// assert_eq!(holds.choose(1, -1).dtype(), DType::I64);
    /// ```
    #[track_caller]
    pub fn choose(
        self,
        x: impl OperandOf<'t, given::OrNumber>,
        other: impl OperandOf<'t, given::OrNumber>,
    ) -> Var<'t> {
        named(self, "where", || {
            let (x, other) = match (Given::of(x, DType::I64)?, Given::of(other, DType::I64)?) {
                (Given::Value(x), Given::Value(other)) => (x, other),
                (Given::Value(x), number) => number.beside(x),
                (number, Given::Value(other)) => {
                    let (other, x) = number.beside(other);
                    (x, other)
                }
                (Given::Number(x, first), Given::Number(other, second)) => {
                    let dtype = if first && second { DType::I64 } else { DType::F32 };
                    let number = |v| self.tracer().full(TensorType::scalar(dtype), v);
                    (number(x), number(other))
                }
            };
            Ok(Elementwise::choose(self, x, other))
        })
    }
}
