//! Microkernels of depthwise convolutions, 3 × 3 or 5 × 5, which read the input in place.
//!
//! An input row is loaded once for each position across, and multiplied for every line that reads
//! it. So a sum takes its products in the order of steps, and a few chains run in parallel.

pub(in crate::contract) mod avx2;
pub(in crate::contract) mod avx512;

use std::ops::Range;

/// The most channels summed together: two share a vector if lines are short, else half as many.
pub(in crate::contract) const MOST_PLANES: usize = 4;

/// Arguments: lines of outputs of some channels of the same layout and weights.
pub(in crate::contract) struct Planes<'a> {
    /// How many there are, and where each begins; missing ones repeat the first.
    pub(in crate::contract) count: usize,
    pub(in crate::contract) bases: [*const u8; MOST_PLANES],
    /// Stride of rows in bytes.
    pub(in crate::contract) row: isize,
    /// Rows and columns in bounds.
    pub(in crate::contract) there: [Range<isize>; 2],
    /// As many zeros as a row has elements.
    pub(in crate::contract) zeros: *const u8,
    /// Row and column of the first input of the first output, and the dilation.
    pub(in crate::contract) first: [isize; 2],
    pub(in crate::contract) dilation: [isize; 2],
    /// Lines, and outputs of each.
    pub(in crate::contract) counts: [usize; 2],
    /// The weights, row by row.
    pub(in crate::contract) weights: &'a [f32],
    /// Destination of each channel's sums, and its stride of lines in bytes.
    pub(in crate::contract) sums: [*mut u8; MOST_PLANES],
    pub(in crate::contract) line: isize,
}

/// An unrolled loop, so that sums which its index selects stay in registers.
macro_rules! unrolled {
    ($i:ident of $($number:literal)* => $body:block) => {
        $({
            let $i: usize = $number;
            $body
        })*
    };
}

use unrolled;
