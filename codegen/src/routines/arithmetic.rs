//! What vectors of floats of every width and precision share: functions that are one instruction
//! each, the methods that call them, and the patch of single lanes.

/// Functions that are one instruction each.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $value:expr;)*) => {
        $(
            #[inline(always)]
            fn $name($($arg: $ty),*) -> $out {
                // SAFETY: called only inside routines whose caller has checked for the features.
                unsafe { $value }
            }
        )*
    };
}

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

/// The methods of a `Wide` that only vectors of f32 have.
macro_rules! single {
    () => {
        arithmetic!(f32);

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            Wide(Op::fma(self, b, c))
        }
        #[inline(always)]
        fn bits(self) -> Bits {
            Op::bits(self)
        }
        #[inline(always)]
        fn from_bits(b: Bits) -> Self {
            Wide(Op::from_bits(b))
        }
    };
}

/// `y` with `exact(x)` in the lanes that are not good.
///
/// # Safety
///
/// `V` must be `LANES` numbers of type `N`.
#[cold]
#[inline(never)]
pub(super) unsafe fn patch<V: Copy, N: Copy, const LANES: usize>(
    y: &V,
    good: impl Fn(usize) -> bool,
    x: &V,
    exact: fn(N) -> N,
) -> V {
    // SAFETY: the caller vouches for it.
    let lanes = |v: &V| unsafe { std::mem::transmute_copy::<V, [N; LANES]>(v) };
    let (mut out, x) = (lanes(y), lanes(x));
    for lane in (0..LANES).filter(|lane| !good(*lane)) {
        out[lane] = exact(x[lane]);
    }
    // SAFETY: as above.
    unsafe { std::mem::transmute_copy::<[N; LANES], V>(&out) }
}

pub(super) use {arithmetic, instructions, single};
