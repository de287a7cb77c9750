//! Deinterleaves rows with AVX2: sixteen elements become eight numbers of each parity.

use super::cells::{Octet, by_cells};
use super::x86::{load, one};
use super::{Alternate, Elements, Rows};
use core::arch::x86_64 as x86;

/// [`Engine::alternate`](super::super::micro::Engine::alternate) into f32.
///
/// # Safety
///
/// The CPU must have AVX2 and F16C. Rows must be readable, and each place writable for its count of
/// numbers in every row.
pub(in crate::contract) unsafe fn alternate_f32(
    from: &Elements,
    rows: Rows,
    to: [Alternate<f32>; 2],
) -> Option<u16> {
    // All elements of a parity, or none.
    let fits = |kind: usize| [0, (rows.elements + 1 - kind) / 2].contains(&to[kind].count);
    if rows.elements < 8 || !(fits(0) && fits(1)) {
        return None;
    }
    let run = by_cells!(from, C => alternate::<C>, return None);
    // SAFETY: the caller's contract.
    unsafe { run(from.base, rows, to) }
    Some(u16::MAX)
}

/// # Safety
///
/// The CPU must have AVX2 and F16C. Rows must be readable, of eight octet elements at least, and
/// each place writable for its numbers in every row: all of its parity or none.
#[target_feature(enable = "avx2,f16c")]
unsafe fn alternate<O: Octet>(base: *const u8, rows: Rows, to: [Alternate<f32>; 2]) {
    let Rows { count, along, elements, pitch, .. } = rows;
    let order = x86::_mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    let whole = elements / 16 * 16;
    // What is left of pairs behind these; the last eight may begin before.
    let last = (elements - 8) / 2 * 2;
    let rest = (whole..last).step_by(8).chain((whole + 1 < elements).then_some(last));
    for row in 0..count {
        let from = base.wrapping_offset(row as isize * along * O::BYTES as isize);
        let places = to.map(|kind| kind.to.wrapping_add(row * pitch));
        for i in (0..whole).step_by(16) {
            // SAFETY: eight elements of the row.
            let low = unsafe { load::<O>(from.wrapping_add(i * O::BYTES)) };
            // SAFETY: the next eight.
            let high = unsafe { load::<O>(from.wrapping_add((i + 8) * O::BYTES)) };
            let kinds = [
                x86::_mm256_shuffle_ps::<0x88>(low, high),
                x86::_mm256_shuffle_ps::<0xdd>(low, high),
            ];
            for (kind, halves) in kinds.into_iter().enumerate() {
                if to[kind].count == 0 {
                    continue;
                }
                let pairs = x86::_mm256_permute4x64_pd::<0xd8>(x86::_mm256_castps_pd(halves));
                let numbers = x86::_mm256_castpd_ps(pairs);
                // SAFETY: the places of eight numbers of the kind.
                unsafe { x86::_mm256_storeu_ps(places[kind].wrapping_add(i / 2), numbers) };
            }
        }
        for i in rest.clone() {
            // SAFETY: eight elements of the row.
            let numbers = unsafe { load::<O>(from.wrapping_add(i * O::BYTES)) };
            let numbers = x86::_mm256_permutevar8x32_ps(numbers, order);
            let kinds =
                [x86::_mm256_castps256_ps128(numbers), x86::_mm256_extractf128_ps::<1>(numbers)];
            for (kind, numbers) in kinds.into_iter().enumerate() {
                if to[kind].count > 0 {
                    // SAFETY: the places of four numbers of the kind.
                    unsafe { x86::_mm_storeu_ps(places[kind].wrapping_add(i / 2), numbers) };
                }
            }
        }
        if elements % 2 == 1 && to[0].count > 0 {
            // SAFETY: the last element.
            let number = unsafe { one::<O>(from.wrapping_add((elements - 1) * O::BYTES)) };
            // SAFETY: its place.
            unsafe { places[0].wrapping_add(elements / 2).write(number) };
        }
    }
}
