//! Functions of a number and a tensor behind it, and the operators that are some of them: methods
//! have a tensor in front.

use super::named;
use super::operand_or_number::OperandOrNumber;
use crate::args::OperandOf;
use crate::ops::bits::Bits;
use crate::ops::division::Divisions;
use crate::ops::power::Powers;
use crate::{DType, Var, given};
use std::ops::{Rem, Shl, Shr};

/// A function of a number and a tensor behind it, or of two tensors.
#[track_caller]
fn reversed<'t>(
    name: &'static str,
    number: impl OperandOf<'t, given::OrNumber>,
    x: Var<'t>,
    record: fn(Var<'t>, Var<'t>) -> Var<'t>,
) -> Var<'t> {
    named(x, name, || {
        let (x, number) = OperandOrNumber::of(number, x.dtype())?.beside(x);
        Ok(record(number, x))
    })
}

/// A number, or a tensor, to the power of a tensor:
/// [`torch.pow`](https://docs.pytorch.org/docs/stable/generated/torch.pow.html).
#[track_caller]
pub fn pow<'t>(x: impl OperandOf<'t, given::OrNumber>, exponent: Var<'t>) -> Var<'t> {
    reversed("pow", x, exponent, Powers::pow)
}

/// As [`pow`](fn@pow), in f64:
/// [`torch.float_power`](https://docs.pytorch.org/docs/stable/generated/torch.float_power.html).
#[track_caller]
pub fn float_power<'t>(x: impl OperandOf<'t, given::OrNumber>, exponent: Var<'t>) -> Var<'t> {
    named(exponent, "float_power", || {
        let wide = exponent.to(DType::F64);
        let (by, x) = OperandOrNumber::of(x, DType::F64)?.beside(wide);
        Ok(x.to(DType::F64).pow(by))
    })
}

/// A number, or a tensor, times the logarithm of a tensor:
/// [`torch.xlogy`](https://docs.pytorch.org/docs/stable/generated/torch.xlogy.html).
#[track_caller]
pub fn xlogy<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    reversed("xlogy", x, other, Powers::xlogy)
}

/// A number, or a tensor, times the logarithm of one more than a tensor:
/// [`torch.special.xlog1py`](https://docs.pytorch.org/docs/stable/special.html#torch.special.xlog1py).
#[track_caller]
pub fn xlog1py<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    reversed("xlog1py", x, other, Powers::xlog1py)
}

/// A number, or a tensor, divided by a tensor and rounded down:
/// [`torch.floor_divide`](https://docs.pytorch.org/docs/stable/generated/torch.floor_divide.html).
#[track_caller]
pub fn floor_divide<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    reversed("floor_divide", x, other, Divisions::floor_divide)
}

/// What is left of a number, or of a tensor, by a tensor: `5 % x`,
/// [`torch.remainder`](https://docs.pytorch.org/docs/stable/generated/torch.remainder.html).
#[track_caller]
pub fn remainder<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    reversed("remainder", x, other, Divisions::remainder)
}

/// The bits of a number, or of a tensor, moved up by as many places as a tensor says: `1 << x`,
/// [`torch.bitwise_left_shift`](https://docs.pytorch.org/docs/stable/generated/torch.bitwise_left_shift.html).
#[track_caller]
pub fn bitwise_left_shift<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    reversed("bitwise_left_shift", x, other, Bits::bitwise_left_shift)
}

/// The bits of a number, or of a tensor, moved down by as many places as a tensor says: `64 >> x`,
/// [`torch.bitwise_right_shift`](https://docs.pytorch.org/docs/stable/generated/torch.bitwise_right_shift.html).
#[track_caller]
pub fn bitwise_right_shift<'t>(x: impl OperandOf<'t, given::OrNumber>, other: Var<'t>) -> Var<'t> {
    reversed("bitwise_right_shift", x, other, Bits::bitwise_right_shift)
}

macro_rules! operators {
    ($($number:ty: $trait:ident $method:ident $function:ident),+ $(,)?) => { $(
        impl<'t> $trait<Var<'t>> for $number {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, x: Var<'t>) -> Var<'t> {
                $function(self, x)
            }
        }

        impl<'t> $trait<&Var<'t>> for $number {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, x: &Var<'t>) -> Var<'t> {
                $function(self, *x)
            }
        }
    )+ };
}

operators! {
    f64: Rem rem remainder,
    i64: Rem rem remainder,
    i64: Shl shl bitwise_left_shift,
    i64: Shr shr bitwise_right_shift,
}
