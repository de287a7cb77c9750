//! Fused multiply-add of f32 on every CPU.

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

/// `a * b + c`, rounded once. An instruction in kernels for CPUs with FMA, elsewhere a call. The
/// standard `f32::mul_add` rounds some subnormal results twice on x86-64 CPUs without FMA.
///
/// ```
/// use tracecast_ir::kernel::math::fma;
///
/// let x = 1.0 + f32::EPSILON;
/// assert_eq!(fma(x, x, -x * x), f32::EPSILON * f32::EPSILON);
/// ```
#[expect(clippy::disallowed_methods, reason = "only with FMA")]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("fma") {
        return without_fma(a, b, c);
    }
    a.mul_add(b, c)
}

#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
fn without_fma(a: f32, b: f32, c: f32) -> f32 {
    emulated_fma(a, b, c)
}

/// [`fma`] without the instruction, which the compiler turns into vectors: in loops, a third of the
/// time of calls.
///
/// A product of f32 is exact in f64. The sum is rounded to odd, so rounding it again is harmless:
/// Boldo and Melquiond, "Emulation of FMA and correctly rounded sums using proper algorithms".
#[inline(always)]
pub fn emulated_fma(a: f32, b: f32, c: f32) -> f32 {
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
