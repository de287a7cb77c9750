//! Packs windows that lie back to back, one for each row, so that each position has its place.
//!
//! So are weights of a transposed convolution packed, of which each phase reads other positions.

use super::super::prefetch::ask_bytes;
use super::avx512::{store, turn_lines};
use super::loads::{self, Numbers, One, first};
use super::x86::{self as octets, Octet, eights as eights_of};
use super::{Elements, WindowRows, window_rows_singly};
use crate::routines;
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

/// A routine that packs windows: the first window's elements, the windows, and the destination.
type WindowRowsFn = unsafe fn(&Elements, &WindowRows<'_>, *mut f32);

/// The routine that packs these windows to f32, sixteen rows at a time.
pub(in crate::contract) fn by_sixteens(from: &Elements) -> WindowRowsFn {
    match (from.dtype, from.round) {
        (DType::F32, None) => sixteens::<One<loads::F32>>,
        (DType::BF16, None) => sixteens::<One<loads::Bf16>>,
        (DType::F16, None) => sixteens::<One<loads::F16>>,
        _ => window_rows_singly,
    }
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Windows must be readable, of the dtype that is loaded,
/// and each place writable for `rows.count` numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn sixteens<N: Numbers>(from: &Elements, rows: &WindowRows<'_>, dst: *mut f32) {
    let WindowRows { count, places, .. } = *rows;
    let window = places.len();
    for plane in 0..rows.planes {
        for j in (0..count).step_by(16) {
            let n = 16.min(count - j);
            let mask = first(n) as u16;
            let first = from.moved(plane as isize * rows.apart + (j * window) as isize);
            if let Some(ahead) = rows.ahead {
                ask_bytes(first.moved(ahead).base, n * window * N::BYTES);
            }
            for (part, places) in places.chunks(16).enumerate() {
                let line = first.moved(part as isize * 16).base;
                // SAFETY: positions of a row's window.
                let row = |l: usize| unsafe {
                    N::along(line.wrapping_add(l * window * N::BYTES), places.len())
                };
                for ([place, step], numbers) in places.iter().zip(turn_lines(n, row)) {
                    let to = dst.wrapping_add(place + plane * step + j);
                    // SAFETY: the numbers' places.
                    unsafe { store(to.cast(), mask, numbers) };
                }
            }
        }
    }
}

/// The routine that packs these windows to f32, eight rows at a time.
pub(in crate::contract) fn by_eights(from: &Elements, rows: &WindowRows<'_>) -> WindowRowsFn {
    let are_many = rows.count >= 8 && rows.places.len() >= 8;
    match (from.dtype, from.round) {
        (DType::F32, None) if are_many => eights::<octets::F32>,
        (DType::BF16, None) if are_many => eights::<octets::Bf16>,
        (DType::F16, None) if are_many => eights::<octets::F16>,
        _ => window_rows_singly,
    }
}

/// # Safety
///
/// The CPU must have AVX2 and F16C. Windows must be readable, of the dtype that is loaded, and each
/// place writable for `rows.count` numbers. Rows and positions are eight or more.
#[target_feature(enable = "avx2,f16c")]
unsafe fn eights<O: Octet>(from: &Elements, rows: &WindowRows<'_>, dst: *mut f32) {
    let WindowRows { count, places, .. } = *rows;
    let window = places.len();
    for plane in 0..rows.planes {
        for j in eights_of(count) {
            let first = from.moved(plane as isize * rows.apart + (j * window) as isize);
            if let Some(ahead) = rows.ahead {
                ask_bytes(first.moved(ahead).base, 8 * window * O::BYTES);
            }
            for start in eights_of(window) {
                let row = |l: usize| {
                    // SAFETY: positions of a row's window.
                    unsafe { O::load(first.base.wrapping_add((l * window + start) * O::BYTES)) }
                };
                let turned = routines::transpose(std::array::from_fn(row));
                for ([place, step], numbers) in places[start..].iter().zip(turned) {
                    let to = dst.wrapping_add(place + plane * step + j);
                    // SAFETY: the numbers' places.
                    unsafe { x86::_mm256_storeu_ps(to, numbers) };
                }
            }
        }
    }
}
