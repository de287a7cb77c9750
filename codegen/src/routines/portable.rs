//! The portable routines: the scalar definitions, one element at a time.

use super::{Routine, Tiles, gather_rows, random};
use tracecast_ir::kernel::{half, math};

/// Routines for any CPU.
pub(super) static TILES: Tiles = Tiles {
    wide: false,
    functions: [
        function!(exp, exp_f64),
        function!(log, log_f64),
        function!(tanh, tanh_f64),
        function!(erf, erf_f64),
        function!(sin, sin_f64),
        function!(cos, cos_f64),
    ],
    f16_to_f32: tile!(half::f16_to_f32),
    f32_to_f16: tile!(half::f32_to_f16),
    bf16_to_f32: tile!(half::bf16_to_f32),
    f32_to_bf16: tile!(half::f32_to_bf16),
    round_f16: tile!(half::round_to_f16),
    round_bf16: tile!(half::round_to_bf16),
    random: random::in_a_row,
    bring: gather_rows::PLAIN,
};

/// Maps `n` elements one by one.
///
/// # Safety
///
/// `src` must be readable for `n` elements, `dst` writable; they may be the same memory if `T` and `U` are of one size.
#[inline(always)]
unsafe fn map<T: Copy, U>(src: *const u8, dst: *mut u8, n: usize, f: impl Fn(T) -> U) {
    let (src, dst) = (src.cast::<T>(), dst.cast::<U>());
    for i in 0..n {
        // SAFETY: `i < n`, so the caller vouches for the element.
        let x = unsafe { src.wrapping_add(i).read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.wrapping_add(i).write_unaligned(f(x)) };
    }
}

macro_rules! tile {
    ($f:expr) => {{
        unsafe extern "C" fn tile(src: *const u8, dst: *mut u8, n: usize) {
            // SAFETY: the contract of `TileFn` is that of `map`.
            unsafe { map(src, dst, n, $f) }
        }
        tile
    }};
}

macro_rules! function {
    ($f:ident, $double:ident) => {{
        extern "C" fn one(x: f32) -> f32 {
            math::$f(x)
        }
        extern "C" fn one_f64(x: f64) -> f64 {
            math::$double(x)
        }
        Routine { tile: tile!(math::$f::<f32>), one, one_f64 }
    }};
}

use {function, tile};
