//! What numbers are, and numbers cut, kept or replaced: nothing here rounds more than once.

use super::operand_or_number::OperandOrNumber;
use super::{named, named_all};
use crate::args::OperandOf;
use crate::ops::cast::Cast;
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::{DType, Number, Shape, TensorType, Var, given};

impl<'t> Var<'t> {
    /// A number as a tensor without axes, in the dtype that the two promote to, and this tensor in
    /// that dtype: as PyTorch takes a number beside a tensor.
    #[track_caller]
    pub fn beside(self, number: impl Into<Number>) -> (Var<'t>, Var<'t>) {
        let number = number.into();
        let both = named_all(self, "beside", || {
            let dtype = infer::beside(self.dtype(), number);
            Ok(vec![self.to(dtype), self.tracer().full(TensorType::scalar(dtype), number)])
        });
        (both[0], both[both.len() - 1])
    }

    /// 1, -1 or 0, with the sign of each element; 0 for NaN:
    /// [`torch.sign`](https://docs.pytorch.org/docs/stable/generated/torch.sign.html).
    #[track_caller]
    pub fn sign(self) -> Var<'t> {
        named(self, "sign", || {
            if self.dtype() == DType::Bool {
                return Ok(self);
            }
            let (t, ty) = (self.tracer(), self.ty());
            let above = |rest| self.gt(0.0).choose(t.full(ty.clone(), 1.0), rest);
            if ty.dtype == DType::U8 {
                return Ok(above(t.zeros_like(self)));
            }
            let below = self.lt(0.0).choose(t.full(ty.clone(), -1.0), t.zeros_like(self));
            Ok(above(below))
        })
    }

    /// Angles in degrees as radians:
    /// [`torch.deg2rad`](https://docs.pytorch.org/docs/stable/generated/torch.deg2rad.html).
    #[track_caller]
    pub fn deg2rad(self) -> Var<'t> {
        named(self, "deg2rad", || Ok(self.to_float().mul(std::f64::consts::PI / 180.0)))
    }

    /// Angles in radians as degrees:
    /// [`torch.rad2deg`](https://docs.pytorch.org/docs/stable/generated/torch.rad2deg.html).
    #[track_caller]
    pub fn rad2deg(self) -> Var<'t> {
        named(self, "rad2deg", || Ok(self.to_float().mul(180.0 / std::f64::consts::PI)))
    }

    /// As it is if it is of floats, else in f32.
    fn to_float(self) -> Var<'t> {
        if self.dtype().is_float() { self } else { self.cast(DType::F32) }
    }

    /// Truth values of that shape, all of them `holds`.
    fn always(self, holds: bool) -> Var<'t> {
        self.tracer().full(self.ty().with_dtype(DType::Bool), f64::from(u8::from(holds)))
    }

    /// Whether each element is NaN:
    /// [`torch.isnan`](https://docs.pytorch.org/docs/stable/generated/torch.isnan.html).
    #[track_caller]
    pub fn isnan(self) -> Var<'t> {
        named(self, "isnan", || {
            Ok(if self.dtype().is_float() { self.ne(self) } else { self.always(false) })
        })
    }

    /// Whether each element is an infinity:
    /// [`torch.isinf`](https://docs.pytorch.org/docs/stable/generated/torch.isinf.html).
    #[track_caller]
    pub fn isinf(self) -> Var<'t> {
        named(self, "isinf", || {
            let is_float = self.dtype().is_float();
            Ok(if is_float { self.abs().eq(f64::INFINITY) } else { self.always(false) })
        })
    }

    /// Whether each element is the infinity of that sign: `torch.isposinf`, `torch.isneginf`.
    #[track_caller]
    pub fn is_infinity(self, is_negative: bool) -> Var<'t> {
        named(self, "is_infinity", || {
            let infinity = if is_negative { f64::NEG_INFINITY } else { f64::INFINITY };
            let is_float = self.dtype().is_float();
            Ok(if is_float { self.eq(infinity) } else { self.always(false) })
        })
    }

    /// Whether each element is neither NaN nor an infinity:
    /// [`torch.isfinite`](https://docs.pytorch.org/docs/stable/generated/torch.isfinite.html).
    #[track_caller]
    pub fn isfinite(self) -> Var<'t> {
        named(self, "isfinite", || {
            let is_float = self.dtype().is_float();
            Ok(if is_float { self.abs().lt(f64::INFINITY) } else { self.always(true) })
        })
    }

    /// Whether each element is below zero or `-0.0`:
    /// [`torch.signbit`](https://docs.pytorch.org/docs/stable/generated/torch.signbit.html). A NaN
    /// has no sign here.
    #[track_caller]
    pub fn signbit(self) -> Var<'t> {
        named(self, "signbit", || {
            if matches!(self.dtype(), DType::Bool | DType::U8) {
                return Ok(self.always(false));
            }
            let below = self.lt(0.0);
            if !self.dtype().is_float() {
                return Ok(below);
            }
            let inverse = self.tracer().ones_like(self).div(self);
            Ok(below.logical_or(inverse.eq(f64::NEG_INFINITY)))
        })
    }

    /// NaN and the infinities replaced by numbers: `nan` is 0 if absent, the others are the ends of
    /// the dtype:
    /// [`torch.nan_to_num`](https://docs.pytorch.org/docs/stable/generated/torch.nan_to_num.html).
    #[track_caller]
    pub fn nan_to_num(self, nan: Option<f64>, posinf: Option<f64>, neginf: Option<f64>) -> Var<'t> {
        named(self, "nan_to_num", || {
            let largest = match self.dtype() {
                DType::F64 => f64::MAX,
                DType::F32 => f64::from(f32::MAX),
                DType::F16 => 65504.0,
                DType::BF16 => 3.3895313892515355e38,
                _ => return Ok(self),
            };
            let number = |v: f64| self.tracer().full(self.ty(), v);
            let y = self.isnan().choose(number(nan.unwrap_or(0.0)), self);
            let y = self.is_infinity(false).choose(number(posinf.unwrap_or(largest)), y);
            Ok(self.is_infinity(true).choose(number(neginf.unwrap_or(-largest)), y))
        })
    }

    /// The smallest integral number not below:
    /// [`torch.ceil`](https://docs.pytorch.org/docs/stable/generated/torch.ceil.html).
    #[track_caller]
    pub fn ceil(self) -> Var<'t> {
        named(self, "ceil", || {
            Ok(if self.dtype().is_float() { self.neg().floor().neg() } else { self.floor() })
        })
    }

    /// Without what lies behind the point:
    /// [`torch.trunc`](https://docs.pytorch.org/docs/stable/generated/torch.trunc.html).
    #[track_caller]
    pub fn trunc(self) -> Var<'t> {
        named(self, "trunc", || {
            let is_float = self.dtype().is_float();
            let cut = || self.lt(0.0).choose(self.ceil(), self.floor());
            Ok(if is_float { cut() } else { self.floor() })
        })
    }

    /// What lies behind the point, with the sign of the number:
    /// [`torch.frac`](https://docs.pytorch.org/docs/stable/generated/torch.frac.html).
    #[track_caller]
    pub fn frac(self) -> Var<'t> {
        named(self, "frac", || Ok(self.sub(self.trunc())))
    }

    /// The nearest integral number, the even one of two:
    /// [`torch.round`](https://docs.pytorch.org/docs/stable/generated/torch.round.html).
    #[track_caller]
    pub fn round(self) -> Var<'t> {
        named(self, "round", || {
            if !self.dtype().is_float() {
                return Ok(self.floor());
            }
            let low = self.floor();
            let rest = self.sub(low).detach();
            let half = low.mul(0.5);
            let is_odd = half.floor().ne(half);
            let tie = rest.eq(0.5);
            let up = rest.gt(0.5).logical_or(tie.logical_and(is_odd));
            let y = up.choose(low.add(1.0), low);
            // Of what becomes zero the sign stays.
            let zero = self.detach().mul(0.0);
            Ok(y.eq(0.0).choose(zero, y))
        })
    }

    /// The nearest number with that many places behind the point, before it if there are fewer than
    /// none: `torch.round` with its `decimals`.
    #[track_caller]
    pub fn round_places(self, decimals: i64) -> Var<'t> {
        named(self, "round_places", || {
            if decimals == 0 || !self.dtype().is_float() {
                return Ok(self.round());
            }
            let power = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
            let x = self.detach().to(self.dtype().compute());
            let y = if decimals > 0 {
                x.mul(power).round().div(power)
            } else {
                x.div(power).round().mul(power)
            };
            Ok(y.to(self.dtype()))
        })
    }

    /// At least `least` and at most `most`, which have the whole gradient where they are taken, and
    /// half of it where the element is as large:
    /// [`torch.clamp`](https://docs.pytorch.org/docs/stable/generated/torch.clamp.html).
    #[track_caller]
    pub fn clamp(self, least: Option<Var<'t>>, most: Option<Var<'t>>) -> Var<'t> {
        named(self, "clamp", || {
            Ok(match (least, most) {
                (None, None) => return Err("takes at least one bound".to_owned()),
                (Some(least), None) => self.maximum(least),
                (None, Some(most)) => self.minimum(most),
                (Some(least), Some(most)) => self.within_bounds(least, most)?,
            })
        })
    }

    /// Of three numbers the middle one, or `most` where it is less than `least`. Beside NaN the
    /// element has the gradient.
    fn within_bounds(self, least: Var<'t>, most: Var<'t>) -> Result<Var<'t>, String> {
        // Compared in the dtype of all three: a negative number is none in that of bytes.
        let dtype = infer::promote([self.ty(), least.ty(), most.ty()].iter())?;
        let [x, least, most] = [self, least, most].map(|v| v.to(dtype));
        let is_most = x.gt(most).logical_or(least.gt(most));
        let y = is_most.choose(most, x.lt(least).choose(least, x));
        if !dtype.is_float() {
            return Ok(y);
        }
        // What equals one of two different bounds shares the gradient with it.
        let differ = least.lt(most);
        let shared = |bound: Var<'t>| x.eq(bound).logical_and(differ);
        let y = shared(least).choose(x.maximum(least), y);
        let y = shared(most).choose(x.minimum(most), y);
        // Of opposite infinities the sum is NaN as well, so each is asked.
        let is_nan = x.isnan().logical_or(least.isnan()).logical_or(most.isnan());
        Ok(is_nan.choose(x.add(x.tracer().full(x.ty(), f64::NAN)), y))
    }

    /// As [`clamp`](Var::clamp), with numbers as bounds. An element that is one of them, or NaN,
    /// has no gradient, as in PyTorch.
    #[track_caller]
    pub fn clamp_to(self, least: Option<f64>, most: Option<f64>) -> Var<'t> {
        named(self, "clamp_to", || {
            let number = |v: f64| self.beside(v).1;
            if least.is_none() && most.is_none() {
                return Err("takes at least one bound".to_owned());
            }
            let within = |x: Var<'t>, bound: Option<f64>, of_least: bool| {
                bound.map(number).map_or(x, |m| {
                    let beyond = if of_least { x.lt(m) } else { x.gt(m) };
                    beyond.logical_or(m.isnan()).choose(m, x)
                })
            };
            let y = within(within(self, least, true), most, false);
            if !self.dtype().is_float() {
                return Ok(y);
            }
            let bounds = least.into_iter().chain(most).map(|bound| self.eq(bound));
            let is_fixed = bounds.fold(self.isnan(), |a, b| a.logical_or(b));
            Ok(is_fixed.choose(y.detach(), y))
        })
    }

    /// The elements where `mask` does not hold, else the number, or the only element of a tensor
    /// without axes; a fraction is cut off for integers:
    /// [`Tensor.masked_fill`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.masked_fill.html).
    #[track_caller]
    pub fn masked_fill(self, mask: Var<'t>, value: impl OperandOf<'t, given::OrNumber>) -> Var<'t> {
        named(self, "masked_fill", || {
            let value = match OperandOrNumber::of(value, self.dtype())? {
                OperandOrNumber::Number(number, _) => self.filled(&Shape::scalar(), number),
                OperandOrNumber::Value(value) if value.rank() > 0 => {
                    return Err(format!("`value` is {}, expected no axes", value.ty()));
                }
                OperandOrNumber::Value(value) => value.to(self.dtype()),
            };
            Ok(mask.choose(value, self))
        })
    }
}
