//! Functions of two tensors that choose, compare, or are sums and products of what there is.

use super::operand_or_number::OperandOrNumber;
use super::{Made, named};
use crate::args::OperandOf;
use crate::ops::bits::Bits;
use crate::ops::cast::Cast;
use crate::ops::division::Divisions;
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::ops::mul_add::MulAdds;
use crate::ops::power::Powers;
use crate::ops::reduce::Reductions;
use crate::{DType, TensorType, Var, given};

impl<'t> Var<'t> {
    /// The elements of `x` where this truth value holds, else those of `other`; either may be a
    /// number: [`torch.where`](https://docs.pytorch.org/docs/stable/generated/torch.where.html).
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
            let (x, other) = match (
                OperandOrNumber::of(x, DType::I64)?,
                OperandOrNumber::of(other, DType::I64)?,
            ) {
                (OperandOrNumber::Value(x), OperandOrNumber::Value(other)) => (x, other),
                (OperandOrNumber::Value(x), number) => number.beside(x),
                (number, OperandOrNumber::Value(other)) => {
                    let (other, x) = number.beside(other);
                    (x, other)
                }
                (OperandOrNumber::Number(x, first), OperandOrNumber::Number(other, second)) => {
                    let dtype = if first && second { DType::I64 } else { DType::F32 };
                    let number = |v| self.tracer().full(TensorType::scalar(dtype), v);
                    (number(x), number(other))
                }
            };
            Ok(Elementwise::choose(self, x, other))
        })
    }

    /// `self + alpha * other`, rounded once:
    /// [`torch.add`](https://docs.pytorch.org/docs/stable/generated/torch.add.html) with its
    /// `alpha`.
    #[track_caller]
    pub fn add_scaled(self, other: impl OperandOf<'t, given::OrNumber>, alpha: f64) -> Var<'t> {
        named(self, "add_scaled", || {
            let (x, other) = OperandOrNumber::of(other, self.dtype())?.beside(self);
            let is_float = x.dtype().is_float() || other.dtype().is_float();
            if !is_float && alpha.fract() != 0.0 {
                return Err(format!("{alpha} times integers"));
            }
            if x.dtype() == DType::Bool && other.dtype() == DType::Bool {
                return Ok(if alpha == 0.0 { x } else { x.add(other) });
            }
            if !is_float && alpha < 0.0 {
                return Ok(x.sub(other.mul(-alpha)));
            }
            if !is_float {
                return Ok(x.add(other.mul(alpha)));
            }
            let one = x.tracer().full(TensorType::scalar(other.dtype()), 1.0);
            Ok(x.addcmul(other, one, alpha))
        })
    }

    /// The square: `self * self`.
    #[track_caller]
    pub fn square(self) -> Var<'t> {
        named(self, "square", || Ok(self.pow(2.0)))
    }

    /// The quotient rounded towards zero:
    /// [`torch.div`](https://docs.pytorch.org/docs/stable/generated/torch.div.html) with
    /// `rounding_mode='trunc'`.
    #[track_caller]
    pub fn divided_towards_zero(self, other: impl OperandOf<'t, given::OrNumber>) -> Var<'t> {
        named(self, "divided_towards_zero", || {
            let (x, other) = OperandOrNumber::of(other, self.dtype())?.beside(self);
            let is_int = |x: Var<'t>| !x.dtype().is_float();
            if is_int(x) && is_int(other) {
                let either =
                    |x: Var<'t>| if x.dtype() == DType::Bool { x.to(DType::U8) } else { x };
                return Ok(either(x).div_trunc(either(other)));
            }
            Ok(x.div(other).trunc())
        })
    }

    /// Whether one of the two holds, and not the other; every number but 0 does.
    #[track_caller]
    pub fn logical_xor(self, other: Var<'t>) -> Var<'t> {
        named(self, "logical_xor", || Ok(self.to(DType::Bool).ne(other.to(DType::Bool))))
    }

    /// The larger of two numbers, of which one may be NaN:
    /// [`torch.fmax`](https://docs.pytorch.org/docs/stable/generated/torch.fmax.html).
    #[track_caller]
    pub fn fmax(self, other: Var<'t>) -> Var<'t> {
        named(self, "fmax", || {
            let y = self.isnan().choose(other, self.maximum(other));
            Ok(other.isnan().choose(self, y))
        })
    }

    /// The smaller of two numbers, of which one may be NaN:
    /// [`torch.fmin`](https://docs.pytorch.org/docs/stable/generated/torch.fmin.html).
    #[track_caller]
    pub fn fmin(self, other: Var<'t>) -> Var<'t> {
        named(self, "fmin", || {
            let y = self.isnan().choose(other, self.minimum(other));
            Ok(other.isnan().choose(self, y))
        })
    }

    /// 0 below zero, 1 above it, and at zero the element of `values`:
    /// [`torch.heaviside`](https://docs.pytorch.org/docs/stable/generated/torch.heaviside.html).
    #[track_caller]
    pub fn heaviside(self, values: Var<'t>) -> Var<'t> {
        named(self, "heaviside", || {
            one_dtype(self, values)?;
            let step = self.gt(0.0).to(self.dtype());
            Ok(self.eq(0.0).choose(values, step).detach())
        })
    }

    /// The size of the one with the sign of the other:
    /// [`torch.copysign`](https://docs.pytorch.org/docs/stable/generated/torch.copysign.html).
    #[track_caller]
    pub fn copysign(self, sign: impl OperandOf<'t, given::OrNumber>) -> Var<'t> {
        named(self, "copysign", || {
            let (x, sign) = OperandOrNumber::of(sign, self.dtype())?.beside(self);
            let types = [x.ty(), sign.ty()];
            let dtype = Some(infer::promote(types.iter())?).filter(|dtype| dtype.is_float());
            let x = x.to(dtype.unwrap_or(DType::F32));
            // PyTorch's gradient is the result over the operand, which is NaN where that is
            // infinite.
            let is_finite = x.isfinite();
            let far = is_finite.choose(self.tracer().ones_like(x), x);
            let size = is_finite.choose(x.abs(), far.mul(far).sqrt());
            Ok(sign.signbit().choose(size.neg(), size))
        })
    }

    /// Whether elements are equal, or nearer than `atol + rtol * |other|`:
    /// [`torch.isclose`](https://docs.pytorch.org/docs/stable/generated/torch.isclose.html).
    #[track_caller]
    pub fn isclose(self, other: Var<'t>, rtol: f64, atol: f64, equal_nan: bool) -> Var<'t> {
        named(self, "isclose", || {
            one_dtype(self, other)?;
            if [rtol, atol].iter().any(|v| v.is_nan() || *v < 0.0) {
                return Err(format!("`rtol` is {rtol} and `atol` {atol}, expected at least 0"));
            }
            let mut close = self.eq(other);
            if equal_nan {
                close = close.logical_or(self.isnan().logical_and(other.isnan()));
            }
            if rtol == 0.0 && atol == 0.0 {
                return Ok(close);
            }
            let float = |x: Var<'t>| if x.dtype().is_float() { x } else { x.to(DType::F32) };
            let most = float(other).mul(rtol).abs().add(atol);
            let gap = float(self).sub(float(other)).abs();
            let is_near = gap.isfinite().logical_and(gap.le(most));
            Ok(close.logical_or(is_near))
        })
    }

    /// Whether all truth values hold, as one without axes; true of none.
    #[track_caller]
    pub fn all_hold(self) -> Var<'t> {
        named(self, "all_hold", || {
            if self.ty().numel() == 0 {
                return Ok(self.tracer().full(TensorType::scalar(DType::Bool), 1.0));
            }
            Ok(self.to(DType::Bool).logical_not().amax(()).logical_not())
        })
    }

    /// Whether shapes and all elements are equal, without axes:
    /// [`torch.equal`](https://docs.pytorch.org/docs/stable/generated/torch.equal.html).
    #[track_caller]
    pub fn equal(self, other: Var<'t>) -> Var<'t> {
        named(self, "equal", || {
            if self.shape() != other.shape() {
                return Ok(self.tracer().full(TensorType::scalar(DType::Bool), 0.0));
            }
            one_dtype(self, other)?;
            Ok(self.eq(other).all_hold())
        })
    }

    /// `self * 2^other`:
    /// [`torch.ldexp`](https://docs.pytorch.org/docs/stable/generated/torch.ldexp.html).
    #[track_caller]
    pub fn ldexp(self, other: Var<'t>) -> Var<'t> {
        named(self, "ldexp", || {
            let by = if other.dtype().is_float() { other } else { other.to(DType::F32) };
            let two = self.tracer().full(by.ty(), 2.0);
            Ok(self.mul(two.pow(by)))
        })
    }

    /// [`pow`](Powers::pow) in f64:
    /// [`torch.float_power`](https://docs.pytorch.org/docs/stable/generated/torch.float_power.html).
    #[track_caller]
    pub fn float_power(self, exponent: impl OperandOf<'t, given::OrNumber>) -> Var<'t> {
        named(self, "float_power", || {
            let x = self.to(DType::F64);
            Ok(match OperandOrNumber::of(exponent, DType::F64)? {
                OperandOrNumber::Value(exponent) => x.pow(exponent.to(DType::F64)),
                OperandOrNumber::Number(exponent, _) => x.pow(exponent),
            })
        })
    }

    /// The least common multiple of integers, not negative:
    /// [`torch.lcm`](https://docs.pytorch.org/docs/stable/generated/torch.lcm.html).
    #[track_caller]
    pub fn lcm(self, other: Var<'t>) -> Var<'t> {
        named(self, "lcm", || {
            let divisor = self.gcd(other);
            let zero = divisor.eq(0.0);
            let by = zero.choose(self.tracer().ones_like(divisor), divisor);
            let product = self.div_trunc(by).mul(other);
            Ok(if product.dtype() == DType::U8 { product } else { product.abs() })
        })
    }

    /// The bits moved up or down by a number of places: see
    /// [`bitwise_left_shift`](Bits::bitwise_left_shift).
    #[track_caller]
    pub fn shifted(self, places: i64) -> Var<'t> {
        named(self, "shifted", || {
            let count = places.unsigned_abs() as f64;
            let by = self.tracer().full(TensorType::scalar(self.dtype()), count);
            Ok(if places < 0 { self.bitwise_right_shift(by) } else { self.bitwise_left_shift(by) })
        })
    }
}

fn one_dtype(x: Var<'_>, other: Var<'_>) -> Made<()> {
    if x.dtype() == other.dtype() {
        return Ok(());
    }
    Err(format!("{} is not of one dtype with the other", other.ty()))
}
