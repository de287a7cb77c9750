//! [`Limits`]: what a machine can do at best.

/// What a machine can do at best: the limits that kernels are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Floating-point operations per second in f32: fused multiply-adds, each counted as two.
    pub flops: f64,
    /// Bytes per second between the cores and memory, reads and writes added.
    pub bytes: f64,
}
