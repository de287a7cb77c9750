//! What packing with a CPU's vectors is generic over: vectors of 32-bit lanes, elements that become
//! f32, and the packed numbers of a vector.

use core::arch::x86_64 as x86;

/// A vector of 32-bit lanes. Its methods may be called only on a CPU that has it.
pub(in crate::contract) trait Lanes: Copy {
    const LANES: usize;
    /// As many vectors as a vector has lanes.
    type Square: AsMut<[Self]> + IntoIterator<Item = Self>;
    /// Zeros.
    fn square() -> Self::Square;
    fn zero() -> Self;
    fn or(self, other: Self) -> Self;
    fn transposed(square: Self::Square) -> Self::Square;
    /// Stores the lanes whose bit of the mask is set.
    ///
    /// # Safety
    ///
    /// `to` must be writable for them.
    unsafe fn store(self, to: *mut u32, mask: u16);
}

/// Elements of one dtype in memory, which become f32: vectors have 32 bits of each, or 16 in the
/// low half. Methods may be called only on a CPU with AVX2 and F16C, or with AVX-512.
pub(in crate::contract) trait Element {
    /// Of one element.
    const BYTES: usize;
    fn eight(bits: x86::__m256i) -> x86::__m256;
    fn sixteen(bits: x86::__m512i) -> x86::__m512;
    /// The same of those at even places, if they have 16 bits.
    fn evens(bits: x86::__m512i) -> x86::__m512;
}

/// f32 in memory.
pub(in crate::contract) struct F32;
/// f32, rounded to bf16.
pub(in crate::contract) struct RoundedToBf16;
/// f32, rounded to f16.
pub(in crate::contract) struct RoundedToF16;

/// How elements become the packed numbers of a vector. A number holds one step of `k`, or two.
pub(in crate::contract) trait Numbers {
    type Vector: Lanes;
    /// Of one element in memory.
    const BYTES: usize;
    /// Steps of `k` in a number.
    const STEPS: usize = 1;

    /// The first `count` steps of a line; zeros after them.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector. `p` must be readable for `count` elements, at most those of a
    /// vector.
    unsafe fn along(p: *const u8, count: usize) -> Self::Vector;

    /// One number of each line, of stride `S`, one or two: from a step and from the one after it.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector. What masks name must be readable, with what is in between.
    unsafe fn across<const S: usize>(from: [*const u8; 2], masks: [u16; 2]) -> Self::Vector;

    /// The same; elements that masks do not name are readable as well.
    ///
    /// # Safety
    ///
    /// The CPU must have the vector. Elements of all its lanes must be readable.
    #[inline(always)]
    unsafe fn within<const S: usize>(from: [*const u8; 2], masks: [u16; 2]) -> Self::Vector {
        // SAFETY: the caller's contract.
        unsafe { Self::across::<S>(from, masks) }
    }

    /// Least magnitudes so far, negated, in 16-bit lanes: zero is the largest. For pairs only.
    #[inline(always)]
    fn smaller(least: Self::Vector, _: Self::Vector) -> Self::Vector {
        least
    }

    /// What [`Engine::pack`](super::super::micro::Engine::pack) returns of them.
    #[inline(always)]
    fn least(_: Self::Vector) -> u16 {
        u16::MAX
    }
}

/// A mask of the lowest `count` bits.
#[inline(always)]
pub(in crate::contract) fn first(count: usize) -> u64 {
    (1 << count) - 1
}

/// Spreads a mask to every second bit.
#[inline(always)]
pub(super) fn spread(mask: u16) -> u32 {
    if mask == u16::MAX {
        return 0x5555_5555;
    }
    let mut bits = u32::from(mask);
    bits = (bits | bits << 8) & 0x00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f;
    bits = (bits | bits << 2) & 0x3333_3333;
    (bits | bits << 1) & 0x5555_5555
}

/// [`Numbers::across`] of elements of any stride, in bytes.
///
/// # Safety
///
/// The CPU must have the vector. What masks name must be readable.
#[inline(always)]
pub(super) unsafe fn gathered<N: Numbers>(
    from: [*const u8; 2],
    masks: [u16; 2],
    stride: isize,
) -> N::Vector {
    // For the most lanes, of the widest elements.
    let mut lines = [[0u8; 64]; 2];
    for ((line, from), mask) in lines.iter_mut().zip(from).zip(masks).take(N::STEPS) {
        for (lane, to) in line.chunks_exact_mut(N::BYTES).enumerate().take(N::Vector::LANES) {
            if mask >> lane & 1 == 1 {
                let element = from.wrapping_offset(lane as isize * stride);
                // SAFETY: an element that the mask names.
                unsafe { std::ptr::copy_nonoverlapping(element, to.as_mut_ptr(), N::BYTES) };
            }
        }
    }
    let lines = lines.each_ref().map(|line| line.as_ptr());
    // SAFETY: as many elements as the most lanes.
    unsafe { N::across::<1>(lines, [first(N::Vector::LANES) as u16; 2]) }
}
