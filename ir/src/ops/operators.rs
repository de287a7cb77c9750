//! Rust's operators on values: `&x + &y`, `-x`, `x * 2.0`, `1 - x`, `x % 3`, `a & !b`. What is computed is the op of that name.

use super::bits::Bits;
use super::division::Divisions;
use super::elementwise::Elementwise;
use super::power::Powers;
use crate::{OperandOf, Var, given};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

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
    Rem rem: Divisions remainder
);

/// Values on both sides.
macro_rules! with_value {
    ($($trait:ident $method:ident: $op:ident),+) => { $(
        impl<'t, T: OperandOf<'t, given::One>> $trait<T> for Var<'t> {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, other: T) -> Var<'t> {
                Bits::$op(self, other)
            }
        }

        impl<'t, T: OperandOf<'t, given::One>> $trait<T> for &Var<'t> {
            type Output = Var<'t>;

            #[track_caller]
            fn $method(self, other: T) -> Var<'t> {
                Bits::$op(*self, other)
            }
        }
    )+ };
}

with_value!(BitAnd bitand: bitwise_and, BitOr bitor: bitwise_or, BitXor bitxor: bitwise_xor);

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
    Sub sub |x, number| x.rsub(number as f64),
    Mul mul |x, number| x * number,
    Div div |x, number| x.reciprocal() * number
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
        let found =
            [a + b, x - a, a * x, x / x, x % 3, -a, m & m, n | n, n ^ m, !n, 2 - x, 1.0 / a, x * 2];
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
        ];
        assert_eq!(names, wanted);
        assert!(t.error().is_none());
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
