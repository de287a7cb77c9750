//! Calls of the products, with this thread's memory for packing.

use super::{Address, with_packed};
use crate::contract::{self, Driver, Panels, Sink, Source};
use crate::machine::Cpu;
use std::ops::Range;

/// Packs some columns of a right operand, from a multiple of [`contract::PIECE`] to another one or
/// the end, to their place in memory for all of them, which no thread uses. Returns the least of
/// the numbers, for [`Source::Packed`].
pub(in crate::run) fn keep(
    cpu: &Cpu,
    panels: &Panels,
    piece: Range<usize>,
    b: &Source<'_>,
    to: Address,
) -> u16 {
    with_packed(|packed| {
        // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them, and
        // the panels were made for it; matrices are operands of the kernel, whose accesses stay
        // inside for these columns and all of `k`; the place is the caller's.
        unsafe { contract::keep(cpu, panels, piece, b, packed, to.0) }
    })
}

/// Computes a part of a product, whose sums go to the sink or to where it stores them.
pub(in crate::run) fn product(part: &dyn Driver, sink: &mut Sink<'_>) {
    // SAFETY: the instructions are those of this CPU, as `InstructionSet::of` chose them; operands
    // and results are those of the kernel, whose accesses stay inside for parts of its extents, or
    // memory that is lent for this run; parts share no results.
    with_packed(|packed| unsafe { part.run(packed, sink) });
}
