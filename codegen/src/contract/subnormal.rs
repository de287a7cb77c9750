//! When sums of bf16 pairs may be subnormal: `vdpbf16ps` treats these as zero.

/// True if a chain of products may leave a nonzero sum below the least normal f32. The arguments
/// are the least nonzero magnitudes of both sides, as bits of bf16.
///
/// A normal bf16 is a whole number of 2<sup>e - 7</sup>, where `e` is its exponent. So products and
/// sums, rounded or not, are whole numbers of 2<sup>e + f - 14</sup> for the least exponents.
pub(super) fn may_be_subnormal(a: u16, b: u16) -> bool {
    let (a, b) = (a >> 7, b >> 7);
    a == 0 || b == 0 || a + b < 2 * 127 + 14 - 126
}
