//! Rust's operators on values: `&x + &y`, `-x`, `x * 2.0`, `1 - x`, `x % 3`, `5 % x`, `a & !b`,
//! `x & 1`, `1 << x`. What is computed is the op of that name.

use super::bits::Bits;
use super::division::Divisions;
use super::elementwise::{Elementwise, RSUB};
use super::power::Powers;
use crate::{Args, Attrs, OperandOf, Var, given};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

/// A value on the left, a value or a number on the right.
macro_rules! with_number {
    ($($trait:ident $method:ident: $family:ident $op:ident),+) => { $(
        impl<'t, T: OperandOf<'t, given::OrNumber>> $trait<T> for Var<'t> {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, other: T) -> Var<'t> {
                $family::$op(self, other)
            }
        }

        impl<'t, T: OperandOf<'t, given::OrNumber>> $trait<T> for &Var<'t> {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, other: T) -> Var<'t> {
                $family::$op(*self, other)
            }
        }
    )+ };
}

with_number!(
    Add add: Elementwise add,
    Sub sub: Elementwise sub,
    Mul mul: Elementwise mul,
    Div div: Elementwise div,
    Rem rem: Divisions remainder,
    BitAnd bitand: Bits bitwise_and,
    BitOr bitor: Bits bitwise_or,
    BitXor bitxor: Bits bitwise_xor,
    Shl shl: Bits bitwise_left_shift,
    Shr shr: Bits bitwise_right_shift
);

/// One value.
macro_rules! of_one {
    ($($trait:ident $method:ident: $family:ident $op:ident),+) => { $(
        impl<'t> $trait for Var<'t> {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self) -> Var<'t> {
                $family::$op(self)
            }
        }

        impl<'t> $trait for &Var<'t> {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self) -> Var<'t> {
                $family::$op(*self)
            }
        }
    )+ };
}

of_one!(Neg neg: Elementwise neg, Not not: Bits bitwise_not);

/// A number on the left: the ops that PyTorch records for it.
macro_rules! reflected {
    ($number:ty: $($trait:ident $method:ident $record:expr),+) => { $(
        impl<'t> $trait<Var<'t>> for $number {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, x: Var<'t>) -> Var<'t> {
                let record: fn(Var<'t>, $number) -> Var<'t> = $record;
                x.tracer().at_caller(|| record(x, self))
            }
        }

        impl<'t> $trait<&Var<'t>> for $number {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, x: &Var<'t>) -> Var<'t> {
                $trait::$method(self, *x)
            }
        }
    )+ };
}

reflected!(f64:
    Add add |x, number| x + number,
    Sub sub |x, number| x.rsub(number),
    Mul mul |x, number| x * number,
    Div div |x, number| x.reciprocal() * number
);
reflected!(i64:
    Add add |x, number| x + number,
    Sub sub |x, number| {
        let attrs = Attrs::new().with("scalar", number);
        x.tracer().apply(&RSUB, Args::of(&[x]), attrs)[0]
    },
    Mul mul |x, number| x * number,
    Div div |x, number| x.reciprocal() * number,
    BitAnd bitand |x, number| x & number,
    BitOr bitor |x, number| x | number,
    BitXor bitxor |x, number| x ^ number
);

#[cfg(test)]
mod tests {
    use crate::{DType, Tracer, Var};

    /// The name of the op that made a value.
    fn made_by(x: Var<'_>) -> String {
        x.tracer().with_graph(|g| g.node(x.id().node).op.name().to_string())
    }

    #[test]
    fn operators_take_references_and_numbers_on_both_sides() {
        let t = Tracer::new("g");
        let x = t.constant(DType::F32, &[2], &[1.0, 2.0]);
        let n = t.constant(DType::I64, &[2], &[1.0, 2.0]);
        let (a, b, m) = (&x, &x, &n);
        let found = [
            a + b,
            x - a,
            a * x,
            x / x,
            x % 3,
            -a,
            m & m,
            n | n,
            n ^ m,
            !n,
            2 - x,
            1.0 / a,
            x * 2,
            n & 1,
            6 | m,
            1 ^ n,
            m << 2,
            n >> m,
            1 << n,
            64 >> m,
            5 % n,
            2.5 % a,
        ];
        let names = found.map(made_by);
        let wanted = [
            "add",
            "sub",
            "mul",
            "div",
            "remainder",
            "neg",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "bitwise_not",
            "rsub",
            "mul",
            "mul",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "bitwise_left_shift",
            "bitwise_right_shift",
            "bitwise_left_shift",
            "bitwise_right_shift",
            "remainder",
            "remainder",
        ];
        assert_eq!(names, wanted);
        assert!(t.error().is_none());
    }

    #[test]
    fn numbers_promote_as_in_pytorch_or_are_refused() {
        use DType::{BF16, Bool, F32, I32, I64, U8};
        let result = |dtype: DType, call: fn(Var<'_>) -> Var<'_>| {
            let t = Tracer::new("g");
            let y = call(t.input("x", crate::TensorType::new(dtype, [2])));
            let dtype = y.dtype();
            t.error().map_or(Ok(dtype), |error| Err(error.message))
        };
        assert_eq!(result(Bool, |x| x & 1), Ok(I64));
        assert_eq!(result(U8, |x| 1 << x), Ok(U8));
        assert_eq!(result(I32, |x| 5.5 % x), Ok(F32));
        assert_eq!(result(BF16, |x| 5 % x), Ok(BF16));
        assert_eq!(result(I64, |x| x & i64::MAX), Ok(I64));
        let refused = |dtype, call, why: &str| {
            let told = result(dtype, call).expect_err("is refused");
            assert!(told.contains(why), "{told}");
        };
        refused(U8, |x| x & 300, "`scalar` is 300, out of range for u8: 0 to 255");
        refused(U8, |x| -1 >> x, "`value` is -1, out of range for u8: 0 to 255");
        refused(I64, |x| x & 1.5, "takes integers or bool, found f32[2]");
        refused(F32, |x| x << 1, "takes integers, found f32[2]");
        let truths = "takes numbers, found bool[2]";
        refused(Bool, |x| x - 1, truths);
        refused(Bool, |x| 1 - x, truths);
        refused(Bool, |x| x - x, truths);
        refused(Bool, |x| x.to(I64) - x, truths);
        // Of a float all digits that it has are there.
        assert_eq!(result(F32, |x| x + ((1 << 53) + 1)), Ok(F32));
        let digits = "9007199254740993 has more digits than the numbers of a program";
        refused(I64, |x| x + ((1 << 53) + 1), digits);
        refused(I64, |x| ((1 << 53) + 1) - x, digits);
        refused(I64, |x| ((1 << 53) + 1) >> x, digits);
    }

    #[test]
    fn an_operator_that_fails_names_the_line_it_stands_on() {
        let t = Tracer::new("g");
        let x = t.constant(DType::F32, &[2], &[1.0, 2.0]);
        let n = t.constant(DType::F32, &[3], &[1.0, 2.0, 3.0]);
        let _ = 1.0 - (x + n);
        let line = line!() - 1;
        let error = t.error().expect("shapes that do not go together").to_string();
        assert!(error.contains(&format!("operators.rs:{line}")), "{error}");
    }
}
