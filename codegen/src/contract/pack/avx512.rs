//! Packs into f32, or into pairs of bf16, with AVX-512: sixteen lines by sixteen numbers at once.

use super::cells::{Bf16, RoundedToBf16, by_cells};
use super::loads::{Numbers, One, Two, first, least_of, pair, smaller};
use super::{Alternate, CHUNK, Elements, Lines, Rows, Wider, pack_singly};
use core::arch::x86_64 as x86;
use tracecast_ir::DType;

/// Numbers of a vector.
const LANES: usize = 16;

/// A routine that packs lines, and returns what [`Engine::pack`](super::super::micro::Engine::pack)
/// does: lines, their count, steps, destination, and its stride of steps. It needs AVX-512F, BW and
/// VL, and memory as that says.
type PackFn = unsafe fn(&Lines, usize, usize, *mut f32, usize) -> u16;

/// Prefetch distance along a line, in bytes.
const AHEAD: usize = 512;

/// The routine that packs these lines to f32.
pub(in crate::contract) fn pack_f32(lines: &Lines) -> PackFn {
    let in_order = lines.across == 1 || lines.along == 1;
    if !in_order {
        return lines_singly;
    }
    by_cells!(lines, C => pack::<One<C>>, lines_singly)
}

/// Packs lines element by element.
///
/// # Safety
///
/// Lines must be readable. `ld` is at least `count`, and `dst` writable for `k * ld + 8` numbers.
unsafe fn lines_singly(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) -> u16 {
    // SAFETY: the caller vouches for the lines and their places.
    unsafe { pack_singly(lines, count, k, dst, ld) };
    u16::MAX
}

/// The routine that packs these lines to pairs: bf16, or f32 that is rounded to it.
pub(in crate::contract) fn pack_pairs(lines: &Lines) -> PackFn {
    match lines.dtype {
        _ if lines.across != 1 && lines.along != 1 => pairs_singly,
        DType::BF16 => pack::<Two<Bf16>>,
        _ => pack::<Two<RoundedToBf16>>,
    }
}

/// A line whose steps are contiguous, as are its numbers.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. The line must be readable for `k` elements of these
/// numbers' dtype, and `dst` writable for their numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn line<N: Numbers>(
    line: *const u8,
    k: usize,
    dst: *mut u32,
    mut least: x86::__m512i,
) -> x86::__m512i {
    let some = LANES * N::STEPS;
    for p in (0..k).step_by(some) {
        let count = some.min(k - p);
        // SAFETY: these steps of the line.
        let numbers = unsafe { N::along(line.wrapping_add(p * N::BYTES), count) };
        least = N::smaller(least, numbers);
        let to = dst.wrapping_add(p / N::STEPS);
        let mask = first(count.div_ceil(N::STEPS)) as u16;
        // SAFETY: the numbers of these steps.
        unsafe { x86::_mm512_mask_storeu_epi32(to.cast(), mask, numbers) };
    }
    least
}

/// [`Engine::join`](super::super::micro::Engine::join) of f32 whose values are those of bf16.
///
/// # Safety
///
/// The CPU must have AVX-512F and BW. `count` numbers must be readable at `from`, writable at `to`.
/// They may be the same if `apart` is positive.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::contract) unsafe fn join_pairs(
    from: *const u32,
    to: *mut u32,
    count: usize,
    apart: isize,
) -> u16 {
    let mut least = x86::_mm512_set1_epi16(-1);
    let first = (-apart).max(0) as usize;
    let end = count - apart.max(0) as usize;
    for i in (first..end.saturating_sub(LANES - 1)).step_by(LANES) {
        let at = from.wrapping_add(i);
        // SAFETY: the caller's contract; in place, what is read has not been overwritten.
        let step = unsafe { x86::_mm512_loadu_si512(at.cast()) };
        // SAFETY: as above.
        let after = unsafe { x86::_mm512_loadu_si512(at.wrapping_offset(apart).cast()) };
        let both = pair(step, after);
        least = smaller(least, both);
        // SAFETY: as above.
        unsafe { x86::_mm512_storeu_si512(to.wrapping_add(i).cast(), both) };
    }
    least_of(least)
}

/// [`Engine::alternate`](super::super::micro::Engine::alternate) into f32.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Rows must be readable, and each place writable for its
/// count of numbers in every row.
pub(in crate::contract) unsafe fn alternate_f32(
    from: &Elements,
    rows: Rows,
    to: [Alternate<f32>; 2],
) -> Option<u16> {
    let run = by_cells!(from, C => alternate::<One<C>>, return None);
    // SAFETY: the caller's contract.
    unsafe { run(from.base, rows, to) }
    Some(u16::MAX)
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Rows must be readable, of these numbers' dtype, and each
/// place writable for its count of numbers in every row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn alternate<N: Numbers>(base: *const u8, rows: Rows, to: [Alternate<f32>; 2]) {
    let even = x86::_mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let odd = x86::_mm512_add_epi32(even, x86::_mm512_set1_epi32(1));
    let counts = to.map(|to| to.count);
    // Numbers whose vectors are whole: all 32 elements exist, and each kind that is stored has 16.
    let least = counts.into_iter().filter(|count| *count > 0).min().unwrap_or(0);
    let whole = (rows.elements / 32).min(least / LANES) * LANES;
    for row in 0..rows.count {
        let base = base.wrapping_offset(row as isize * rows.along * N::BYTES as isize);
        let part = |i: usize, halves: [u16; 2], masks: [u16; 2]| {
            let half = |at: usize, mask: u16| {
                let from = base.wrapping_add(at * N::BYTES);
                // SAFETY: elements of the row.
                unsafe { N::across::<1>(from, mask, from, 0) }
            };
            let (low, high) = (half(2 * i, halves[0]), half(2 * i + LANES, halves[1]));
            for ((order, Alternate { to, count }), mask) in
                [even, odd].into_iter().zip(to).zip(masks)
            {
                if count > i {
                    let numbers = x86::_mm512_permutex2var_epi32(low, order, high);
                    let to = to.wrapping_add(row * rows.pitch + i);
                    // SAFETY: the numbers' places.
                    unsafe { store(to.cast(), mask, numbers) };
                }
            }
        };
        (0..whole).step_by(LANES).for_each(|i| part(i, [u16::MAX; 2], [u16::MAX; 2]));
        for i in (whole..counts[0].max(counts[1])).step_by(LANES) {
            let some = |count: usize| first(count.min(LANES)) as u16;
            let halves = [2 * i, 2 * i + LANES].map(|at| some(rows.elements.saturating_sub(at)));
            part(i, halves, counts.map(|count| some(count.saturating_sub(i))));
        }
    }
}

/// [`Engine::alternate`](super::super::micro::Engine::alternate) into pairs, as [`pack_pairs`].
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Both rows of a pair must be readable, and each place
/// writable for its count of numbers in every row.
pub(in crate::contract) unsafe fn alternate_pairs(
    from: &Elements,
    rows: Rows,
    to: [Alternate<u32>; 2],
) -> Option<u16> {
    let second = rows.second?;
    let alternate = match from.dtype {
        DType::BF16 => alternate_joined::<Two<Bf16>>,
        _ => alternate_joined::<Two<RoundedToBf16>>,
    };
    // SAFETY: the caller vouches for the CPU, the rows and their places.
    Some(unsafe { alternate(from.base, second, rows, to) })
}

/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Both rows of a pair must be readable, of these numbers'
/// dtype, and each place writable for its count of numbers in every row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn alternate_joined<N: Numbers>(
    base: *const u8,
    second: isize,
    rows: Rows,
    to: [Alternate<u32>; 2],
) -> u16 {
    let bytes = N::BYTES as isize;
    let mut least = x86::_mm512_set1_epi16(-1);
    for (kind, Alternate { to, count }) in to.into_iter().enumerate() {
        let whole = count / LANES * LANES;
        let rest = first(count - whole) as u16;
        for row in 0..if count > 0 { rows.count } else { 0 } {
            let base = base.wrapping_offset(row as isize * rows.along * bytes);
            let mut part = |i: usize, mask: u16| {
                let step = base.wrapping_add((2 * i + kind) * N::BYTES);
                let after = step.wrapping_offset(second * bytes);
                // SAFETY: elements of two rows.
                let numbers = unsafe { N::across::<2>(step, mask, after, mask) };
                least = N::smaller(least, numbers);
                let to = to.wrapping_add(row * rows.pitch + i);
                // SAFETY: the numbers' places.
                unsafe { x86::_mm512_mask_storeu_epi32(to.cast(), mask, numbers) };
            };
            (0..whole).step_by(LANES).for_each(|i| part(i, u16::MAX));
            if rest != 0 {
                part(whole, rest);
            }
        }
    }
    least_of(least)
}

/// Packs lines whose stride, or whose `k` stride, is one.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Lines must be readable, of these numbers' dtype. `ld` is
/// at least `count`, and `dst` writable for `k * ld + 8` numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack<N: Numbers>(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) -> u16 {
    let least = x86::_mm512_set1_epi16(-1);
    // No pointer to either: vectors would be passed in memory.
    if lines.across == 1 {
        // SAFETY: the caller vouches for the lines and their places.
        least_of(unsafe { neighbours::<N>(lines, count, k, dst.cast(), ld, least) })
    } else if [count, ld] == [1, 1] {
        // SAFETY: as above.
        least_of(unsafe { line::<N>(lines.base, k, dst.cast(), least) })
    } else {
        // SAFETY: as above.
        least_of(unsafe { runs::<N>(lines, count, k, dst.cast(), ld, least) })
    }
}

/// Adjacent lines: their stride is one.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Lines must be readable, of these numbers' dtype. `ld` is
/// at least `count`, and `dst` writable for `k * ld + 8` numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn neighbours<N: Numbers>(
    lines: &Lines,
    count: usize,
    k: usize,
    dst: *mut u32,
    ld: usize,
    mut least: x86::__m512i,
) -> x86::__m512i {
    let along = lines.along * N::BYTES as isize;
    // Prefetches the next chunk: the other lines of this one come in between.
    let next = CHUNK as isize * along;
    let mut first_step = lines.base;
    let mut to = dst;
    let end = dst.wrapping_add(k.div_ceil(N::STEPS) * ld);
    for p in (0..k).step_by(N::STEPS) {
        for j in (0..count).step_by(16) {
            let mask = first(16.min(count - j)) as u16;
            let there = if p + 1 < k { mask } else { 0 };
            let step = first_step.wrapping_add(j * N::BYTES);
            let after = step.wrapping_offset(along);
            for from in [step, after].into_iter().take(N::STEPS) {
                x86::_mm_prefetch::<{ x86::_MM_HINT_T1 }>(from.wrapping_offset(next).cast());
            }
            // SAFETY: neighbouring lines at one step and at the next, if there is one.
            let numbers = unsafe { N::across::<1>(step, mask, after, there) };
            least = N::smaller(least, numbers);
            let to = to.wrapping_add(j);
            // Numbers beyond these are written later.
            let mask = if to.wrapping_add(16) <= end { u16::MAX } else { mask };
            // SAFETY: their places, or those of later numbers.
            unsafe { store(to, mask, numbers) };
        }
        first_step = first_step.wrapping_offset(along * N::STEPS as isize);
        to = to.wrapping_add(ld);
    }
    least
}

/// Lines whose `k` stride is one.
///
/// # Safety
///
/// The CPU must have AVX-512F, BW and VL. Lines must be readable, of these numbers' dtype. `ld` is
/// at least `count`, and `dst` writable for `k * ld + 8` numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn runs<N: Numbers>(
    lines: &Lines,
    count: usize,
    k: usize,
    dst: *mut u32,
    ld: usize,
    mut least: x86::__m512i,
) -> x86::__m512i {
    let across = lines.across * N::BYTES as isize;
    let end = dst.wrapping_add(k.div_ceil(N::STEPS) * ld);
    for j in (0..count).step_by(16) {
        let n = 16.min(count - j);
        let mask = first(n) as u16;
        let start = lines.from(j, 0).base;
        for p in (0..k).step_by(16 * N::STEPS) {
            let steps = (16 * N::STEPS).min(k - p);
            let mut rows = [x86::_mm512_setzero_si512(); 16];
            for (l, row) in rows.iter_mut().enumerate() {
                if l >= n {
                    break;
                }
                let from = start.wrapping_offset(l as isize * across).wrapping_add(p * N::BYTES);
                for line in (0..16 * N::STEPS * N::BYTES).step_by(64) {
                    let prefetched = from.wrapping_add(AHEAD + line);
                    x86::_mm_prefetch::<{ x86::_MM_HINT_T1 }>(prefetched.cast());
                }
                // SAFETY: these steps of a line.
                *row = unsafe { N::along(from, steps) };
                least = N::smaller(least, *row);
            }
            let to = dst.wrapping_add(p / N::STEPS * ld + j);
            for (q, row) in transpose(rows).into_iter().enumerate() {
                if q * N::STEPS >= steps {
                    break;
                }
                let to = to.wrapping_add(q * ld);
                // Numbers beyond these are written later, unless other lines' were written before.
                let whole = count <= 16 && to.wrapping_add(16) <= end;
                // SAFETY: their places, or those of later numbers.
                unsafe { store(to, if whole { u16::MAX } else { mask }, row) };
            }
        }
    }
    least
}

/// Stores the lanes that the mask names.
///
/// # Safety
///
/// `to` must be writable for them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store(to: *mut u32, mask: u16, numbers: x86::__m512i) {
    if mask == u16::MAX {
        // SAFETY: the caller's contract.
        unsafe { x86::_mm512_storeu_si512(to.cast(), numbers) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { x86::_mm512_mask_storeu_epi32(to.cast(), mask, numbers) }
    }
}

/// Pairs element by element.
///
/// # Safety
///
/// Lines must be readable. `ld` is at least `count`, and `dst` writable for `k * ld + 8` numbers.
unsafe fn pairs_singly(lines: &Lines, count: usize, k: usize, dst: *mut f32, ld: usize) -> u16 {
    let dst = dst.cast::<u32>();
    let mut least = u16::MAX;
    for p in (0..k).step_by(2) {
        for j in 0..count {
            let mut both = 0;
            for (step, shift) in [(p, 0), (p + 1, 16)] {
                if step < k {
                    // SAFETY: an element of the operand.
                    let x = unsafe { f32::read(lines.dtype, lines.from(j, step).base) };
                    let high = x.nearest(DType::BF16).to_bits() >> 16;
                    least = least.min((high as u16 & 0x7fff).wrapping_sub(1));
                    both |= high << 16 >> shift;
                }
            }
            // SAFETY: its place.
            unsafe { dst.wrapping_add(p / 2 * ld + j).write(both) };
        }
    }
    least.saturating_add(1)
}

/// Transposes sixteen by sixteen numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::contract) fn transpose(r: [x86::__m512i; 16]) -> [x86::__m512i; 16] {
    let mut t = r;
    for i in 0..8 {
        t[2 * i] = x86::_mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = x86::_mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in [0, 4, 8, 12] {
        u[i] = x86::_mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = x86::_mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = x86::_mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = x86::_mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Quarter `l` of `u[4 * i + c]` holds column `4 * l + c` of rows `4 * i` to `4 * i + 3`.
    let mut out = u;
    for c in 0..4 {
        let even = |i: usize| x86::_mm512_shuffle_i32x4::<0x88>(u[i + c], u[i + 4 + c]);
        let odd = |i: usize| x86::_mm512_shuffle_i32x4::<0xdd>(u[i + c], u[i + 4 + c]);
        out[c] = x86::_mm512_shuffle_i32x4::<0x88>(even(0), even(8));
        out[4 + c] = x86::_mm512_shuffle_i32x4::<0x88>(odd(0), odd(8));
        out[8 + c] = x86::_mm512_shuffle_i32x4::<0xdd>(even(0), even(8));
        out[12 + c] = x86::_mm512_shuffle_i32x4::<0xdd>(odd(0), odd(8));
    }
    out
}
