//! The data of the workloads: closed formulae over (index, seed), the same bits in every peer.

use tracecast::{DType, Tensor, TensorType};

/// Numbers from `low` up to `high`: a 32-bit mix of index and seed.
pub(crate) fn fill(shape: &[usize], seed: u32, low: f32, high: f32) -> Tensor {
    let number = |i| f64::from(low + (high - low) * mixed(i, seed));
    Tensor::from_fn(TensorType::new(DType::F32, shape), number).expect("a tensor that fits memory")
}

/// A multiple of 2^-24 from 0 up to 1.
fn mixed(i: usize, seed: u32) -> f32 {
    let mut x = (i as u32).wrapping_mul(0x9E37_79B1).wrapping_add(seed.wrapping_mul(0x85EB_CA77));
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    x ^= x >> 16;
    (x >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// A weight or bias of a layer with that many inputs.
pub(crate) fn weight(shape: &[usize], seed: u32, inputs: usize) -> Tensor {
    let bound = (1.0 / (inputs as f64).sqrt()) as f32;
    fill(shape, seed, -bound, bound)
}

/// Class indices.
pub(crate) fn labels(count: usize, classes: usize, seed: u32) -> Tensor {
    let class = |i| (f64::from(mixed(i, seed)) * classes as f64).floor() as i64;
    let all: Vec<i64> = (0..count).map(class).collect();
    Tensor::new([count], &all).expect("one label each")
}

/// The tensor in another dtype.
pub(crate) fn cast(tensor: &Tensor, dtype: DType) -> Tensor {
    tensor.cast(dtype).expect("floats")
}

/// The sum of the absolute values.
pub(crate) fn magnitude(tensor: &Tensor) -> f64 {
    tensor.to_f64s().iter().map(|x| x.abs()).sum()
}
