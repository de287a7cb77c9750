//! The conversions of every low-precision float, made from its row in the table of dtypes: one
//! number at a time, and over tiles on any CPU. What a CPU converts with instructions of its own is
//! in the tables of routines.

use super::{NarrowFloat, TileFn};
use tracecast_ir::kernel::narrow::{self, LowFloat, PerLowFloat};

/// The f32 of some bits.
pub(crate) type WidenFn = extern "C" fn(u32) -> f32;
/// The bits of the nearest number.
pub(crate) type NarrowFn = extern "C" fn(f32) -> u32;
/// The bits of the number nearest to an f64.
pub(crate) type NarrowF64Fn = extern "C" fn(f64) -> u32;
/// The nearest number.
pub(crate) type RoundFn = extern "C" fn(f32) -> f32;
/// The number nearest to an f64.
pub(crate) type RoundF64Fn = extern "C" fn(f64) -> f64;

/// Defines what gives the instance of a generic function for a float.
macro_rules! instances {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $function:ident;)*) => { $(
        $(#[$doc])*
        pub(crate) fn $name(float: NarrowFloat) -> $type {
            struct Instance;
            impl PerLowFloat for Instance {
                type Output = $type;
                fn make<F: LowFloat>(self) -> $type {
                    $function::<F>
                }
            }
            narrow::with(float.dtype(), Instance).expect("a narrow float is a low-precision float")
        }
    )* };
}

instances! {
    /// The f32 of bits, of which those beyond the float's are ignored.
    widen: WidenFn = widen_one;
    /// The bits of the number nearest to an f32.
    narrow: NarrowFn = narrow_one;
    /// The bits of the number nearest to an f64.
    narrow_f64: NarrowF64Fn = narrow_one_f64;
    /// The number nearest to an f32.
    round: RoundFn = round_one;
    /// The number nearest to an f64.
    round_f64: RoundF64Fn = round_one_f64;
    /// Widens a tile.
    widen_tile: TileFn = widen_all;
    /// Narrows a tile.
    narrow_tile: TileFn = narrow_all;
    /// Rounds a tile.
    round_tile: TileFn = round_all;
}

extern "C" fn widen_one<F: LowFloat>(bits: u32) -> f32 {
    narrow::widen(F::DTYPE, bits as u16)
}

extern "C" fn narrow_one<F: LowFloat>(x: f32) -> u32 {
    u32::from(narrow::narrow(F::DTYPE, x))
}

extern "C" fn narrow_one_f64<F: LowFloat>(x: f64) -> u32 {
    u32::from(narrow::narrow_f64(F::DTYPE, x))
}

extern "C" fn round_one<F: LowFloat>(x: f32) -> f32 {
    narrow::round(F::DTYPE, x)
}

extern "C" fn round_one_f64<F: LowFloat>(x: f64) -> f64 {
    narrow::round_f64(F::DTYPE, x)
}

/// [`TileFn`] from the float to f32.
unsafe extern "C" fn widen_all<F: LowFloat>(src: *const u8, dst: *mut u8, n: usize) {
    for i in 0..n {
        let bits = if F::DTYPE.bytes() == 1 {
            // SAFETY: `i < n`, so the caller vouches for the element, which is one byte.
            u16::from(unsafe { src.wrapping_add(i).read() })
        } else {
            // SAFETY: `i < n`, so the caller vouches for the element, which is two bytes.
            unsafe { src.cast::<u16>().wrapping_add(i).read_unaligned() }
        };
        let x = narrow::widen(F::DTYPE, bits);
        // SAFETY: `i < n`, so the caller vouches for the element.
        unsafe { dst.cast::<f32>().wrapping_add(i).write_unaligned(x) };
    }
}

/// [`TileFn`] from f32 to the float.
unsafe extern "C" fn narrow_all<F: LowFloat>(src: *const u8, dst: *mut u8, n: usize) {
    for i in 0..n {
        // SAFETY: `i < n`, so the caller vouches for the element.
        let x = unsafe { src.cast::<f32>().wrapping_add(i).read_unaligned() };
        let bits = narrow::narrow(F::DTYPE, x);
        if F::DTYPE.bytes() == 1 {
            // SAFETY: `i < n`, so the caller vouches for the element, which is one byte.
            unsafe { dst.wrapping_add(i).write(bits as u8) };
        } else {
            // SAFETY: `i < n`, so the caller vouches for the element, which is two bytes.
            unsafe { dst.cast::<u16>().wrapping_add(i).write_unaligned(bits) };
        }
    }
}

/// [`TileFn`] from f32 to the float's values as f32.
unsafe extern "C" fn round_all<F: LowFloat>(src: *const u8, dst: *mut u8, n: usize) {
    for i in 0..n {
        // SAFETY: `i < n`, so the caller vouches for the element.
        let x = unsafe { src.cast::<f32>().wrapping_add(i).read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.cast::<f32>().wrapping_add(i).write_unaligned(narrow::round(F::DTYPE, x)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::DType;

    /// Those without kernels as yet, too.
    #[test]
    fn each_float_is_converted_by_its_own_row() {
        struct Check;
        impl PerLowFloat for Check {
            type Output = ();
            fn make<F: LowFloat>(self) {
                let bytes = F::DTYPE.bytes();
                let all: Vec<u16> = (0..=u16::MAX).take(1 << (8 * bytes)).collect();
                let elements: Vec<u8> =
                    all.iter().flat_map(|b| b.to_le_bytes()[..bytes].to_vec()).collect();
                let (mut wide, mut again) = (vec![0f32; all.len()], vec![0u8; elements.len()]);
                let mut rounded = vec![0f32; all.len()];
                // SAFETY: the buffers have that number of elements.
                unsafe { widen_all::<F>(elements.as_ptr(), wide.as_mut_ptr().cast(), all.len()) };
                // SAFETY: as above.
                unsafe { narrow_all::<F>(wide.as_ptr().cast(), again.as_mut_ptr(), all.len()) };
                let odd: Vec<f32> = wide.iter().map(|x| x * 1.03).collect();
                // SAFETY: as above.
                unsafe {
                    round_all::<F>(odd.as_ptr().cast(), rounded.as_mut_ptr().cast(), all.len())
                };
                for (i, bits) in all.iter().enumerate() {
                    let x = narrow::widen(F::DTYPE, *bits);
                    let own = &elements[i * bytes..][..bytes];
                    assert!(wide[i].to_bits() == x.to_bits() || x.is_nan() && wide[i].is_nan());
                    assert!(
                        x.is_nan() || &again[i * bytes..][..bytes] == own,
                        "{} {bits:#x}",
                        F::DTYPE
                    );
                    let near = narrow::round(F::DTYPE, odd[i]);
                    assert!(near.is_nan() && rounded[i].is_nan() || near == rounded[i]);
                    assert!(x.is_nan() || widen_one::<F>((*bits).into()) == x);
                    assert!(x.is_nan() || narrow_one::<F>(x) == narrow_one_f64::<F>(x.into()));
                }
            }
        }
        DType::ALL.into_iter().for_each(|dtype| {
            narrow::with(dtype, Check);
        });
    }
}
