//! Microkernels of contractions: a tile of rows by vectors of columns, accumulated over `k`.
//!
//! One definition serves every element type and CPU: an [`Engine`] is its data.

pub(super) mod alternating;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
mod cell;
#[cfg(target_arch = "x86_64")]
pub(super) mod depthwise;
pub(super) mod elementwise;
mod engine;
pub(super) mod gemm;
#[cfg(target_arch = "x86_64")]
pub(super) mod gemv;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod pairs;
pub(super) mod portable;
pub(super) mod sweep;
mod vector;

#[cfg(target_arch = "x86_64")]
pub(super) use cell::{Bf16, F16};
pub(super) use engine::{Elementwise, Engine};
pub(super) use vector::{Microkernel, Number};

/// Lines of no more windows than this leave half of the widest vectors empty.
pub(super) const SHORT: usize = 8;
