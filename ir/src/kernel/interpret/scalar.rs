//! What a [`ScalarOp`] means: bits in, bits out.

use crate::DType;
use crate::kernel::{Cmp, Function, Scalar, ScalarOp, math, narrow, philox};

/// A number of a scalar type, given by its bits as in [`ScalarOp::Const`].
pub(crate) type Bits = u64;

/// What the four number types have in common.
trait Number: Copy + PartialOrd {
    fn of(bits: Bits) -> Self;
    fn bits(self) -> Bits;
    fn is_nan(self) -> bool;
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn mul_add(self, factor: Self, addend: Self) -> Option<Self>;
    fn div(self, o: Self) -> Self;
    fn rem(self, o: Self) -> Option<Self>;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Option<Self>;
    fn floor(self) -> Option<Self>;
    fn call(self, function: Function) -> Option<Self>;
    fn round(self, to: DType) -> Option<Self>;
    fn and(self, o: Self) -> Option<Self>;
    fn or(self, o: Self) -> Option<Self>;
    fn not(self) -> Option<Self>;
}

macro_rules! float {
    ($ty:ident, $word:ident, $function:path, $round:path, $fma:path) => {
        impl Number for $ty {
            fn of(bits: Bits) -> Self {
                $ty::from_bits(bits as $word)
            }
            fn bits(self) -> Bits {
                Bits::from(self.to_bits())
            }
            fn is_nan(self) -> bool {
                $ty::is_nan(self)
            }
            fn add(self, o: Self) -> Self {
                self + o
            }
            fn sub(self, o: Self) -> Self {
                self - o
            }
            fn mul(self, o: Self) -> Self {
                self * o
            }
            fn mul_add(self, factor: Self, addend: Self) -> Option<Self> {
                Some($fma(self, factor, addend))
            }
            fn div(self, o: Self) -> Self {
                self / o
            }
            fn rem(self, _: Self) -> Option<Self> {
                None
            }
            fn neg(self) -> Self {
                -self
            }
            fn abs(self) -> Self {
                $ty::abs(self)
            }
            fn sqrt(self) -> Option<Self> {
                Some($ty::sqrt(self))
            }
            fn floor(self) -> Option<Self> {
                Some($ty::floor(self))
            }
            fn call(self, function: Function) -> Option<Self> {
                Some($function(function, self))
            }
            fn round(self, to: DType) -> Option<Self> {
                to.is_float().then(|| $round(to, self))
            }
            fn and(self, _: Self) -> Option<Self> {
                None
            }
            fn or(self, _: Self) -> Option<Self> {
                None
            }
            fn not(self) -> Option<Self> {
                None
            }
        }
    };
}

float!(f32, u32, Function::of_f32, narrow::round, math::fma);
float!(f64, u64, Function::of_f64, narrow::round_f64, f64::mul_add);

macro_rules! int {
    ($ty:ident, $word:ident) => {
        impl Number for $ty {
            fn of(bits: Bits) -> Self {
                bits as $ty
            }
            fn bits(self) -> Bits {
                Bits::from(self as $word)
            }
            fn is_nan(self) -> bool {
                false
            }
            fn add(self, o: Self) -> Self {
                self.wrapping_add(o)
            }
            fn sub(self, o: Self) -> Self {
                self.wrapping_sub(o)
            }
            fn mul(self, o: Self) -> Self {
                self.wrapping_mul(o)
            }
            fn mul_add(self, _: Self, _: Self) -> Option<Self> {
                None
            }
            fn div(self, o: Self) -> Self {
                if o == 0 { 0 } else { self.wrapping_div(o) }
            }
            fn rem(self, o: Self) -> Option<Self> {
                Some(if o == 0 { 0 } else { self.wrapping_rem(o) })
            }
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
            fn abs(self) -> Self {
                self.wrapping_abs()
            }
            fn sqrt(self) -> Option<Self> {
                None
            }
            fn floor(self) -> Option<Self> {
                None
            }
            fn call(self, _: Function) -> Option<Self> {
                None
            }
            fn round(self, _: DType) -> Option<Self> {
                None
            }
            fn and(self, o: Self) -> Option<Self> {
                Some(self & o)
            }
            fn or(self, o: Self) -> Option<Self> {
                Some(self | o)
            }
            fn not(self) -> Option<Self> {
                Some(!self)
            }
        }
    };
}

int!(i32, u32);
int!(i64, u64);

/// The result of an instruction that reads only its operands, of types `from` (that of the first
/// operand) and `ty`.
///
/// `None` if there is no such instruction for these types.
pub(crate) fn apply(op: ScalarOp, ty: Scalar, from: Scalar, args: &[Bits]) -> Option<Bits> {
    match op {
        ScalarOp::Const(bits) => Some(bits),
        ScalarOp::Select => match args {
            [c, x, y] => Some(if *c != 0 { *x } else { *y }),
            _ => None,
        },
        ScalarOp::Convert => Some(convert(*args.first()?, from, ty)),
        ScalarOp::WrapU8 => Some(args.first()? & 0xff),
        ScalarOp::Random { stream } => match args {
            [key, step, element] => {
                Some(Bits::from(philox::random_bits(*key as i64, *step as i64, stream, *element)))
            }
            _ => None,
        },
        ScalarOp::Cmp(cmp) => match args {
            [a, b] => Some(Bits::from(compare(cmp, from, *a, *b))),
            _ => None,
        },
        _ => match ty {
            Scalar::F32 => number::<f32>(op, args),
            Scalar::F64 => number::<f64>(op, args),
            Scalar::I32 => number::<i32>(op, args),
            Scalar::I64 => number::<i64>(op, args),
            Scalar::Bool => truth(op, args),
        },
    }
}

fn number<N: Number>(op: ScalarOp, args: &[Bits]) -> Option<Bits> {
    let x = N::of(*args.first()?);
    let y = args.get(1).map(|b| N::of(*b));
    let result = match op {
        ScalarOp::Add => x.add(y?),
        ScalarOp::Sub => x.sub(y?),
        ScalarOp::Mul => x.mul(y?),
        ScalarOp::MulAdd => x.mul_add(y?, args.get(2).map(|b| N::of(*b))?)?,
        ScalarOp::Div => x.div(y?),
        ScalarOp::Rem => x.rem(y?)?,
        ScalarOp::Max => max(x, y?),
        ScalarOp::Min => min(x, y?),
        ScalarOp::Neg => x.neg(),
        ScalarOp::Abs => x.abs(),
        ScalarOp::And => x.and(y?)?,
        ScalarOp::Or => x.or(y?)?,
        ScalarOp::Not => x.not()?,
        ScalarOp::Sqrt => x.sqrt()?,
        ScalarOp::Floor => x.floor()?,
        ScalarOp::Call(function) => x.call(function)?,
        ScalarOp::Round(to) => x.round(to)?,
        ScalarOp::Const(_)
        | ScalarOp::Argument(_)
        | ScalarOp::Load(_)
        | ScalarOp::Index(_)
        | ScalarOp::Row(_)
        | ScalarOp::Register(_)
        | ScalarOp::Acc
        | ScalarOp::Cmp(_)
        | ScalarOp::Select
        | ScalarOp::Convert
        | ScalarOp::WrapU8
        | ScalarOp::Random { .. }
        | ScalarOp::Check(_) => return None,
    };
    Some(result.bits())
}

fn max<N: Number>(x: N, y: N) -> N {
    if x.is_nan() || !y.is_nan() && y <= x { x } else { y }
}

fn min<N: Number>(x: N, y: N) -> N {
    if x.is_nan() || !y.is_nan() && x <= y { x } else { y }
}

fn truth(op: ScalarOp, args: &[Bits]) -> Option<Bits> {
    let x = *args.first()? != 0;
    let y = args.get(1).map(|b| *b != 0);
    Some(Bits::from(match op {
        ScalarOp::And | ScalarOp::Mul | ScalarOp::Min => x & y?,
        ScalarOp::Or | ScalarOp::Max => x | y?,
        ScalarOp::Not => !x,
        _ => return None,
    }))
}

/// Whether a comparison of two numbers of one type holds.
pub(crate) fn compare(cmp: Cmp, ty: Scalar, a: Bits, b: Bits) -> bool {
    fn of<N: Number>(cmp: Cmp, a: Bits, b: Bits) -> bool {
        let (a, b) = (N::of(a), N::of(b));
        match cmp {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
        }
    }
    match ty {
        Scalar::F32 => of::<f32>(cmp, a, b),
        Scalar::F64 => of::<f64>(cmp, a, b),
        Scalar::I32 => of::<i32>(cmp, a, b),
        Scalar::I64 | Scalar::Bool => of::<i64>(cmp, a, b),
    }
}

/// True for the NaNs of the two floats.
pub(crate) fn is_nan(ty: Scalar, bits: Bits) -> bool {
    match ty {
        Scalar::F32 => f32::of(bits).is_nan(),
        Scalar::F64 => f64::of(bits).is_nan(),
        Scalar::I32 | Scalar::I64 | Scalar::Bool => false,
    }
}

/// A number in another scalar type.
pub(crate) fn convert(bits: Bits, from: Scalar, to: Scalar) -> Bits {
    match from {
        _ if from == to => bits,
        Scalar::F32 if to == Scalar::F64 => f64::from(f32::of(bits)).bits(),
        Scalar::F32 => from_float(f64::from(f32::of(bits)), to),
        Scalar::F64 => from_float(f64::of(bits), to),
        Scalar::I32 => from_int(i64::from(i32::of(bits)), to),
        Scalar::I64 | Scalar::Bool => from_int(i64::of(bits), to),
    }
}

fn from_float(v: f64, to: Scalar) -> Bits {
    match to {
        Scalar::F32 => (v as f32).bits(),
        Scalar::F64 => v.bits(),
        Scalar::I32 => (v as i32).bits(),
        Scalar::I64 => (v as i64).bits(),
        Scalar::Bool => Bits::from(v != 0.0),
    }
}

fn from_int(v: i64, to: Scalar) -> Bits {
    match to {
        Scalar::F32 => (v as f32).bits(),
        Scalar::F64 => (v as f64).bits(),
        Scalar::I32 => (v as i32).bits(),
        Scalar::I64 => v.bits(),
        Scalar::Bool => Bits::from(v != 0),
    }
}

/// The element of a dense buffer in its scalar type; `None` outside of the buffer, or if there are
/// no kernels for the dtype.
pub(crate) fn read(bytes: &[u8], dtype: DType, index: i64) -> Option<Bits> {
    let size = dtype.bytes();
    let at = usize::try_from(index).ok()?.checked_mul(size)?;
    let element = bytes.get(at..at.checked_add(size)?)?;
    Some(match dtype {
        DType::F32 => Bits::from(u32::from_le_bytes(element.try_into().ok()?)),
        DType::F64 | DType::I64 => u64::from_le_bytes(element.try_into().ok()?),
        DType::I32 => Bits::from(u32::from_le_bytes(element.try_into().ok()?)),
        DType::U8 => Bits::from(element[0]),
        DType::Bool => Bits::from(element[0] != 0),
        _ if dtype.is_low() && dtype.is_computable() => {
            narrow::widen(dtype, low_bits(element)).bits()
        }
        _ => return None,
    })
}

/// Narrows a number to `dtype`, as the op `cast` does, and puts it into a dense buffer. `None`
/// where [`read`] gives `None`.
pub(crate) fn write(
    bytes: &mut [u8],
    dtype: DType,
    index: i64,
    from: Scalar,
    bits: Bits,
) -> Option<()> {
    let size = dtype.bytes();
    let at = usize::try_from(index).ok()?.checked_mul(size)?;
    let element = bytes.get_mut(at..at.checked_add(size)?)?;
    let bits = match from {
        _ if dtype == DType::U8 && from.is_float() => {
            Bits::from(f64::of(convert(bits, from, Scalar::F64)) as u8)
        }
        _ if !dtype.is_low() => convert(bits, from, Scalar::of(dtype)?),
        Scalar::F64 => Bits::from(narrow::narrow_f64(dtype, f64::of(bits))),
        _ => Bits::from(narrow::narrow(dtype, f32::of(convert(bits, from, Scalar::F32)))),
    };
    element.copy_from_slice(&bits.to_le_bytes()[..size]);
    Some(())
}

/// The bits of an element of one or two bytes.
fn low_bits(element: &[u8]) -> u16 {
    element.iter().rev().fold(0, |bits, byte| bits << 8 | u16::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f(v: f32) -> Bits {
        v.bits()
    }

    #[test]
    fn larger_and_smaller() {
        let max = |a: f32, b: f32| {
            f32::of(apply(ScalarOp::Max, Scalar::F32, Scalar::F32, &[f(a), f(b)]).unwrap())
        };
        let min = |a: f32, b: f32| {
            f32::of(apply(ScalarOp::Min, Scalar::F32, Scalar::F32, &[f(a), f(b)]).unwrap())
        };
        assert!(
            max(f32::NAN, 1.0).is_nan()
                && max(1.0, f32::NAN).is_nan()
                && min(1.0, f32::NAN).is_nan()
        );
        assert!(max(-0.0, 0.0).is_sign_negative() && min(0.0, -0.0).is_sign_positive());
        assert_eq!((max(1.0, 2.0), min(1.0, 2.0)), (2.0, 1.0));
    }

    #[test]
    fn conversions_saturate_wrap_and_truncate() {
        let i32_of = |v: f32| i32::of(convert(f(v), Scalar::F32, Scalar::I32));
        assert_eq!((i32_of(1e20), i32_of(-1.9), i32_of(f32::NAN)), (i32::MAX, -1, 0));
        assert_eq!(i32::of(convert((1i64 << 32 | 5).bits(), Scalar::I64, Scalar::I32)), 5);
        assert_eq!(i64::of(convert((-3i32).bits(), Scalar::I32, Scalar::I64)), -3);
        assert_eq!(convert(f(f32::NAN), Scalar::F32, Scalar::Bool), 1);
        // Through f64 this would round twice.
        assert_eq!(
            f32::of(convert(9_007_199_791_611_905i64.bits(), Scalar::I64, Scalar::F32)),
            9_007_199_791_611_905i64 as f32
        );
    }

    #[test]
    fn integers_never_trap() {
        let int = |op, a: i32, b: i32| {
            i32::of(apply(op, Scalar::I32, Scalar::I32, &[a.bits(), b.bits()]).unwrap())
        };
        assert_eq!((int(ScalarOp::Div, 7, 0), int(ScalarOp::Rem, 7, 0)), (0, 0));
        assert_eq!(
            (int(ScalarOp::Div, i32::MIN, -1), int(ScalarOp::Rem, i32::MIN, -1)),
            (i32::MIN, 0)
        );
        assert_eq!(int(ScalarOp::Div, -7, 2), -3);
        assert_eq!(apply(ScalarOp::Sqrt, Scalar::I32, Scalar::I32, &[4]), None);
    }
}
