//! Fused multiply-add of f32 on every CPU.

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

/// `a * b + c`, rounded once. Without FMA in the target, `f32::mul_add` is a slower call, whose
/// fallback on CPUs without FMA rounds some subnormal results twice.
///
/// A product of f32 is exact in f64. The sum is rounded to odd, so rounding it again is harmless:
/// Boldo and Melquiond, "Emulation of FMA and correctly rounded sums using proper algorithms".
///
/// ```
/// use tracecast_ir::kernel::math::fma;
///
/// let x = 1.0 + f32::EPSILON;
/// assert_eq!(fma(x, x, -x * x), f32::EPSILON * f32::EPSILON);
/// ```
#[expect(clippy::disallowed_methods, reason = "only where it is an instruction")]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(not(target_arch = "x86_64"), target_feature = "fma")) {
        return a.mul_add(b, c);
    }
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // The error of the sum, by Knuth's TwoSum. It is NaN where the sum is not finite.
    let rest = sum - product;
    let error = (product - (sum - rest)) + (c - rest);
    // Truncates the sum. Its last bit is set if it is inexact.
    let side = error * sum;
    let truncated = sum.to_bits().wrapping_sub(u64::from(side < 0.0));
    f64::from_bits(truncated | u64::from(side.abs() > 0.0)) as f32
}
