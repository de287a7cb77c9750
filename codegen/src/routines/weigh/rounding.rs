//! What rows are rounded to while they are still in vectors, as a type: loops over rows are
//! instantiated with it.

use super::Vector;

/// A rounding of f32.
pub(super) trait Rounding {
    /// The nearest number that there is, to even in the middle; a NaN stays a NaN.
    fn of<V: Vector>(x: V) -> V;
}

/// Nothing is rounded.
pub(super) enum Exact {}

/// To f16.
pub(super) enum ToF16 {}

/// To bf16.
pub(super) enum ToBf16 {}

impl Rounding for Exact {
    #[inline(always)]
    fn of<V: Vector>(x: V) -> V {
        x
    }
}

impl Rounding for ToF16 {
    #[inline(always)]
    fn of<V: Vector>(x: V) -> V {
        x.nearest_f16()
    }
}

impl Rounding for ToBf16 {
    #[inline(always)]
    fn of<V: Vector>(x: V) -> V {
        let bits = x.bits();
        let odd = V::and(V::sar::<16>(bits), V::splat_bits(1));
        let near = V::int_add(V::int_add(bits, V::splat_bits(0x7fff)), odd);
        let quiet = V::or(bits, V::splat_bits(0x0040_0000));
        let near = V::select(x.eq(x), V::from_bits(near), V::from_bits(quiet));
        V::from_bits(V::and(near.bits(), V::splat_bits(0xffff_0000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::kernel::half;

    #[test]
    fn roundings_have_the_bits_of_their_definitions() {
        // All bf16 with what is of interest below, so that there are ties of both.
        let tails = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=u32::from(u16::MAX)).flat_map(|high| tails.map(|low| high << 16 | low)) {
            let x = f32::from_bits(bits);
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(same(ToBf16::of(x), half::round_to_bf16(x)), "{x:e}");
            assert!(same(ToF16::of(x), half::round_to_f16(x)), "{x:e}");
            assert!(same(Exact::of(x), x));
        }
    }
}
