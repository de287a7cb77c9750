//! [`Pair`]: two vectors whose steps are taken in turn.

use super::Vector;
use tracecast_ir::kernel::math::Lane;

/// The lanes of a vector, and those of another.
#[derive(Clone, Copy)]
pub(super) struct Pair<L>(pub(super) L, pub(super) L);

/// Methods that do the same to both.
macro_rules! both {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(
            #[inline(always)]
            fn $name($($arg: $ty),*) -> $out {
                Pair(L::$name($($arg.0),*), L::$name($($arg.1),*))
            }
        )*
    };
}

impl<L: Lane> Lane for Pair<L> {
    type Bits = Pair<L::Bits>;

    both! {
        add(self: Self, o: Self) -> Self;
        sub(self: Self, o: Self) -> Self;
        mul(self: Self, o: Self) -> Self;
        div(self: Self, o: Self) -> Self;
        fma(self: Self, b: Self, c: Self) -> Self;
        sqrt(self: Self) -> Self;
        max(self: Self, o: Self) -> Self;
        min(self: Self, o: Self) -> Self;
        lt(self: Self, o: Self) -> Self::Bits;
        eq(self: Self, o: Self) -> Self::Bits;
        select(mask: Self::Bits, a: Self, b: Self) -> Self;
        bits(self: Self) -> Self::Bits;
        from_bits(b: Self::Bits) -> Self;
        int_add(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        int_sub(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        and(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        or(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        xor(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        int_eq(a: Self::Bits, b: Self::Bits) -> Self::Bits;
        scale(self: Self, n: Self, whole: Self::Bits) -> Self;
        scale_down(self: Self, n: Self, whole: Self::Bits) -> Self;
    }

    #[inline(always)]
    fn splat(v: f32) -> Self {
        Pair(L::splat(v), L::splat(v))
    }
    #[inline(always)]
    fn splat_bits(v: u32) -> Self::Bits {
        Pair(L::splat_bits(v), L::splat_bits(v))
    }
    #[inline(always)]
    fn shl<const N: i32>(a: Self::Bits) -> Self::Bits {
        Pair(L::shl::<N>(a.0), L::shl::<N>(a.1))
    }
    #[inline(always)]
    fn sar<const N: i32>(a: Self::Bits) -> Self::Bits {
        Pair(L::sar::<N>(a.0), L::sar::<N>(a.1))
    }
    #[inline(always)]
    fn parts(self) -> (Self, Self) {
        let ((e, m), (other_e, other_m)) = (self.0.parts(), self.1.parts());
        (Pair(e, other_e), Pair(m, other_m))
    }
    #[inline(always)]
    fn or_exact(self, good: Self::Bits, x: Self, exact: fn(f32) -> f32) -> Self {
        Pair(self.0.or_exact(good.0, x.0, exact), self.1.or_exact(good.1, x.1, exact))
    }
}

impl<V: Vector> Vector for Pair<V> {
    const WIDTH: usize = 2 * V::WIDTH;
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        Pair(V::load(from), V::load(&from[V::WIDTH..]))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        self.0.store(to);
        self.1.store(&mut to[V::WIDTH..]);
    }
    #[inline(always)]
    fn nearest_f16(self) -> Self {
        Pair(self.0.nearest_f16(), self.1.nearest_f16())
    }
}
