//! The portable routines: the scalar definitions, one element at a time.

use super::{FunctionRoutines, OneF16, Tiles, gather_rows, random, sum_rows};
use tracecast_ir::kernel::{Definition, PerFunction, half};

/// Routines for any CPU.
pub(super) static TILES: Tiles = Tiles {
    functions: |function| function.with(Functions),
    f16_to_f32: tile!(half::f16_to_f32),
    f32_to_f16: tile!(half::f32_to_f16),
    bf16_to_f32: tile!(half::bf16_to_f32),
    f32_to_bf16: tile!(half::f32_to_bf16),
    round_f16: tile!(half::round_to_f16),
    round_bf16: tile!(half::round_to_bf16),
    one_f16: OneF16 { widen: widen_one, narrow: narrow_one, round: round_one },
    random: random::in_a_row,
    sum_rows: sum_rows::portable,
    gather_rows: gather_rows::portable,
};

/// Maps `n` elements one by one.
///
/// # Safety
///
/// `src` must be readable for `n` elements, `dst` writable; they may be the same memory if `T` and
/// `U` are of one size.
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

use tile;

extern "C" fn widen_one(bits: u32) -> f32 {
    half::f16_to_f32(bits as u16)
}

extern "C" fn narrow_one(x: f32) -> u32 {
    half::f32_to_f16(x).into()
}

extern "C" fn round_one(x: f32) -> f32 {
    half::round_to_f16(x)
}

/// Makes the routines of a function from its definition.
struct Functions;

impl PerFunction for Functions {
    type Output = FunctionRoutines;

    fn make<F: Definition>(self) -> FunctionRoutines {
        FunctionRoutines {
            tile: function_tile::<F>,
            tile_f64: function_f64_tile::<F>,
            one: function::<F>,
            one_f64: function_f64::<F>,
        }
    }
}

/// A function over a tile.
///
/// # Safety
///
/// As [`TileFn`](super::TileFn).
unsafe extern "C" fn function_tile<F: Definition>(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: the contract of `TileFn` is that of `map`.
    unsafe { map(src, dst, n, F::of_lanes::<f32>) }
}

/// A function over a tile of f64, whichever CPU it is.
///
/// # Safety
///
/// As [`TileFn`](super::TileFn).
pub(super) unsafe extern "C" fn function_f64_tile<F: Definition>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
) {
    // SAFETY: the contract of `TileFn` is that of `map`.
    unsafe { map(src, dst, n, F::of_f64) }
}

extern "C" fn function<F: Definition>(x: f32) -> f32 {
    F::of_lanes(x)
}

/// A function of one f64, whichever CPU it is.
pub(super) extern "C" fn function_f64<F: Definition>(x: f64) -> f64 {
    F::of_f64(x)
}
