//! The innermost loops of depthwise convolutions: windows of a plane, three or five positions wide and high, which is read where it lies.
//!
//! Lines of sums are computed row by row of the plane: a vector of a row is loaded once for each position across, and multiplied for each line whose windows see the
//! row. So the chain of a sum takes its products in the order of steps, and a few chains are always on their way.

pub(in crate::contract) mod avx2;
pub(in crate::contract) mod avx512;

use std::ops::Range;

/// So many planes are summed together at most if their lines are short, two in a vector; otherwise half as many.
pub(in crate::contract) const MOST_PLANES: usize = 4;

/// Lines of windows of some planes that lie alike and have the same weights.
pub(in crate::contract) struct Planes<'a> {
    /// How many there are, and where each begins; those that are not there are the first one again.
    pub(in crate::contract) count: usize,
    pub(in crate::contract) bases: [*const u8; MOST_PLANES],
    /// From a row to the next in bytes.
    pub(in crate::contract) row: isize,
    /// Rows and columns that are there.
    pub(in crate::contract) there: [Range<isize>; 2],
    /// As many zeros as a row has elements.
    pub(in crate::contract) zeros: *const u8,
    /// The row and the column of the first position of the first window, and from a position to the next.
    pub(in crate::contract) first: [isize; 2],
    pub(in crate::contract) dilation: [isize; 2],
    /// Lines, and windows of each.
    pub(in crate::contract) counts: [usize; 2],
    /// A number for each position, row by row.
    pub(in crate::contract) weights: &'a [f32],
    /// Where the sums of each plane go, and from a line of them to the next in bytes.
    pub(in crate::contract) sums: [*mut u8; MOST_PLANES],
    pub(in crate::contract) line: isize,
}

/// A loop with a copy of its body for each number, so that sums which these choose stay in registers.
macro_rules! unrolled {
    ($i:ident of $($number:literal)* => $body:block) => {
        $({
            let $i: usize = $number;
            $body
        })*
    };
}

use unrolled;
