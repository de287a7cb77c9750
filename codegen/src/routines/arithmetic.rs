//! Methods of vectors of floats that are one instruction each, for every kind of vector.

/// The methods of a `Wide` that functions of the same names of its `Op` compute, on numbers of the
/// type `$number`.
macro_rules! arithmetic {
    ($number:ty) => {
        #[inline(always)]
        fn splat(v: $number) -> Self {
            Wide(Op::splat(v))
        }
        #[inline(always)]
        fn add(self, o: Self) -> Self {
            Wide(Op::add(self, o))
        }
        #[inline(always)]
        fn sub(self, o: Self) -> Self {
            Wide(Op::sub(self, o))
        }
        #[inline(always)]
        fn mul(self, o: Self) -> Self {
            Wide(Op::mul(self, o))
        }
        #[inline(always)]
        fn div(self, o: Self) -> Self {
            Wide(Op::div(self, o))
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            Wide(Op::sqrt(self))
        }
        #[inline(always)]
        fn max(self, o: Self) -> Self {
            Wide(Op::max(self, o))
        }
        #[inline(always)]
        fn min(self, o: Self) -> Self {
            Wide(Op::min(self, o))
        }
    };
}

pub(super) use arithmetic;
