//! Rows of elements that alternate, told apart with AVX2: eight elements become four numbers of each kind.

use super::x86::{Bf16, F16, F32, Octet};
use super::{Alternate, Elements, Rows};
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

/// [`Engine::alternate`](super::super::micro::Engine::alternate) into f32.
///
/// # Safety
///
/// As there; the CPU must have AVX2 and F16C.
pub(in crate::contract) unsafe fn alternate_f32(
    from: &Elements,
    rows: Rows,
    to: [Alternate<f32>; 2],
) -> Option<u16> {
    // All of a kind, or none.
    let fits = |kind: usize| [0, (rows.elements + 1 - kind) / 2].contains(&to[kind].count);
    if rows.elements < 8 || !(fits(0) && fits(1)) {
        return None;
    }
    match (from.dtype, from.round) {
        // SAFETY: the caller's contract.
        (DType::F32, None) => unsafe { alternate::<F32>(from.base, rows, to) },
        // SAFETY: the caller's contract.
        (DType::BF16, None) => unsafe { alternate::<Bf16>(from.base, rows, to) },
        // SAFETY: the caller's contract.
        (DType::F16, None) => unsafe { alternate::<F16>(from.base, rows, to) },
        _ => return None,
    }
    Some(u16::MAX)
}

/// # Safety
///
/// As [`alternate_f32`], for eight elements at least of the octets' dtype, and all of a kind or none.
#[target_feature(enable = "avx2,f16c")]
unsafe fn alternate<O: Octet>(base: *const u8, rows: Rows, to: [Alternate<f32>; 2]) {
    let Rows { count, along, elements, pitch, .. } = rows;
    let order = x86::_mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    // The last eight begin at an even element, and may leave one.
    let last = (elements - 8) / 2 * 2;
    for row in 0..count {
        let from = base.wrapping_offset(row as isize * along * O::BYTES as isize);
        let [even, odd] = to.map(|kind| kind.to.wrapping_add(row * pitch));
        for i in (0..last).step_by(8).chain([last]) {
            // SAFETY: eight elements of the row.
            let numbers = unsafe { O::load(from.wrapping_add(i * O::BYTES)) };
            let numbers = x86::_mm256_permutevar8x32_ps(numbers, order);
            let [first, other] =
                [x86::_mm256_castps256_ps128(numbers), x86::_mm256_extractf128_ps::<1>(numbers)];
            if to[0].count > 0 {
                // SAFETY: the places of four numbers of the first kind.
                unsafe { x86::_mm_storeu_ps(even.wrapping_add(i / 2), first) };
            }
            if to[1].count > 0 {
                // SAFETY: the places of four numbers of the other kind.
                unsafe { x86::_mm_storeu_ps(odd.wrapping_add(i / 2), other) };
            }
        }
        if elements % 2 == 1 && to[0].count > 0 {
            // SAFETY: the last element.
            let number = unsafe { O::one(from.wrapping_add((elements - 1) * O::BYTES)) };
            // SAFETY: its place.
            unsafe { even.wrapping_add(elements / 2).write(number) };
        }
    }
}
