//! Values to try facts on: every one of the small dtypes, and the odd ones of the large.

use tracecast_ir::eval::Value;
use tracecast_ir::kernel::{half, narrow};
use tracecast_ir::{DType, TensorType};

/// The floats that tests of large dtypes are about: zeros, ones, ties, ends of ranges, what is no
/// number.
const ODD: [f64; 30] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
    3.0,
    -3.0,
    0.1,
    -0.1,
    1.003_906_25,
    -1.000_488_281_25,
    100.5,
    -255.0,
    65_504.0,
    -65_519.0,
    65_520.0,
    1e-8,
    -6e-8,
    6.1e-5,
    1e-45,
    -1.2e-38,
    3.4e38,
    -3.4e38,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    16_777_217.0,
];

/// The bits of every value of a dtype of at most 16 bits, and of those of [`some`] otherwise.
pub(crate) fn every(dtype: DType) -> Vec<u64> {
    match dtype {
        DType::Bool => vec![0, 1],
        _ if dtype.bytes() == 1 => (0..256).collect(),
        DType::F16 | DType::BF16 => (0..=u64::from(u16::MAX)).collect(),
        _ => some(dtype),
    }
}

/// The bits of some hundreds of values, few enough to pair each with each.
pub(crate) fn some(dtype: DType) -> Vec<u64> {
    let spread = |count: u64, bits: u32| {
        // Odd steps through all patterns: every exponent, both signs.
        (0..count).map(move |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits))
    };
    let odd = || ODD.iter().copied();
    let numbers = |ends: [i64; 4]| {
        let near = [0, 1, -1, 2, -2, 3, -7, 8, 46_340, 46_341, -46_341, 65_535, 65_536, 16_777_217];
        near.into_iter().chain(ends)
    };
    match dtype {
        _ if dtype.bytes() == 1 => every(dtype),
        DType::F16 => odd()
            .map(|v| u64::from(half::f64_to_f16(v)))
            .chain([0x7e01, 0xfe00, 1, 0x8001, 0x3ff, 0x400])
            .chain(spread(224, 16))
            .collect(),
        DType::BF16 => odd()
            .map(|v| u64::from(half::f64_to_bf16(v)))
            .chain([0x7fc1, 0xffc0, 1, 0x8001, 0x7f, 0x80])
            .chain(spread(224, 16))
            .collect(),
        DType::F32 => odd()
            .map(|v| u64::from((v as f32).to_bits()))
            .chain([1, 0x8000_0001, 0x007f_ffff, 0x0080_0000, 0xffc0_0001])
            .chain(spread(224, 32))
            .collect(),
        DType::F64 => odd()
            .map(f64::to_bits)
            .chain([1, 0x8000_0000_0000_0001, 0x0010_0000_0000_0000, 0xfff8_0000_0000_0001])
            .chain(spread(160, 64))
            .collect(),
        DType::I32 => {
            let ends = [i32::MAX, i32::MIN, i32::MAX - 1, i32::MIN + 1].map(i64::from);
            numbers(ends).map(|v| u64::from(v as i32 as u32)).chain(spread(24, 32)).collect()
        }
        DType::I64 => {
            let ends = [i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1];
            numbers(ends).map(|v| v as u64).chain(spread(24, 64)).collect()
        }
        other => panic!("there are no values of {other} to try"),
    }
}

/// Numbers to put in the place of an operand of that dtype, all of which it holds.
pub(crate) fn numbers(dtype: DType) -> Vec<f64> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -0.5,
        3.0,
        1.5,
        -255.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    match dtype {
        DType::Bool => vec![0.0, 1.0],
        DType::U8 => vec![0.0, 1.0, 2.0, 127.0, 255.0],
        DType::I32 | DType::I64 => vec![0.0, 1.0, -1.0, 2.0, -7.0, 2_147_483_647.0],
        _ => {
            let is_held = |v: &f64| v.is_nan() || narrow::round_f64(dtype, *v) == *v;
            floats.into_iter().filter(is_held).collect()
        }
    }
}

/// Each value of the list with each.
pub(crate) fn pairs(list: &[u64]) -> [Vec<u64>; 2] {
    let first = list.iter().flat_map(|v| std::iter::repeat_n(*v, list.len()));
    let second = list.iter().flat_map(|_| list.iter().copied());
    [first.collect(), second.collect()]
}

/// A tensor of one axis with these elements, given by their bits.
pub(crate) fn tensor(dtype: DType, elements: &[u64]) -> Value {
    let size = dtype.bytes();
    let bytes: Vec<u8> =
        elements.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect();
    Value::new(TensorType::new(dtype, [elements.len()]), bytes)
        .expect("the bytes are those of the type")
}

/// The elements' bits.
pub(crate) fn bits(value: &Value) -> Vec<u64> {
    let element =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    value.bytes.chunks_exact(value.ty.dtype.bytes()).map(element).collect()
}

/// True if the sign bit of a float is set.
pub(crate) fn has_sign(dtype: DType, bits: u64) -> bool {
    bits >> (8 * dtype.bytes() - 1) & 1 == 1
}
