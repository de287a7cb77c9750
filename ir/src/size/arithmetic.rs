//! The operators of sizes. What fails gives [`Size::OUT_OF_RANGE`], and what is of a failed op
//! stays [`Size::UNKNOWN`].

use super::polynomial::Polynomial;
use super::{Form, Size, table};
use std::iter::{Product, Sum};
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// Of two sizes that are not both numbers.
fn combine(a: Size, b: Size, by: impl Fn(&Polynomial, &Polynomial) -> Option<Polynomial>) -> Size {
    if a.is_unknown() || b.is_unknown() {
        return Size::UNKNOWN;
    }
    let polynomial = |size: Size| match size.form() {
        Form::Number(n) => Some(Polynomial::number(n)),
        Form::Expression(p) => Some(p.clone()),
        Form::Unknown | Form::OutOfRange => None,
    };
    match (polynomial(a), polynomial(b)) {
        (Some(a), Some(b)) => by(&a, &b).map_or(Size::OUT_OF_RANGE, table::place_of),
        _ => Size::OUT_OF_RANGE,
    }
}

/// `a / b` rounded down.
pub(super) fn floor_division(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let inexact = a % b != 0 && (a < 0) != (b < 0);
    Some(quotient - i64::from(inexact))
}

macro_rules! operators {
    ($($trait:ident $method:ident $number:path, $polynomial:path;)+) => { $(
        impl<T: Into<Size>> $trait<T> for Size {
            type Output = Size;

            fn $method(self, other: T) -> Size {
                let other: Size = other.into();
                match (self.plain(), other.plain()) {
                    (Some(a), Some(b)) => Size::of_number($number(a, b)),
                    _ => combine(self, other, $polynomial),
                }
            }
        }

        // For one integer type alone, so that a literal is of that type.
        impl $trait<Size> for i64 {
            type Output = Size;

            fn $method(self, other: Size) -> Size {
                Size::from(self).$method(other)
            }
        }
    )+ };
}

operators! {
    Add add i64::checked_add, Polynomial::plus;
    Sub sub i64::checked_sub, Polynomial::minus;
    Mul mul i64::checked_mul, Polynomial::times;
    Div div floor_division, Polynomial::over;
}

impl Neg for Size {
    type Output = Size;

    fn neg(self) -> Size {
        Size::from(0) - self
    }
}

impl<T: Into<Size>> AddAssign<T> for Size {
    fn add_assign(&mut self, other: T) {
        *self = *self + other;
    }
}

impl<T: Into<Size>> SubAssign<T> for Size {
    fn sub_assign(&mut self, other: T) {
        *self = *self - other;
    }
}

impl<T: Into<Size>> MulAssign<T> for Size {
    fn mul_assign(&mut self, other: T) {
        *self = *self * other;
    }
}

impl<T: Into<Size>> Sum<T> for Size {
    fn sum<I: Iterator<Item = T>>(items: I) -> Size {
        items.fold(Size::from(0), |sum, item| sum + item)
    }
}

impl<T: Into<Size>> Product<T> for Size {
    fn product<I: Iterator<Item = T>>(items: I) -> Size {
        items.fold(Size::from(1), |product, item| product * item)
    }
}
