//! [`Work`]: the part of a product that a thread computes, and where its sums go.

use super::operand::{Operand, Source};
use super::prefetch::Prefetch;
use super::sink::Sink;
use super::without::{Choice, is_without};
use crate::machine::Cpu;
use std::ops::Range;

/// Products of at most this many columns swap rows and columns.
const FEW_COLUMNS: usize = 4;
/// Results of fewer columns go to the epilogue in one call.
pub(super) const NARROW: usize = 64;

/// Where each sum goes, once.
pub(crate) enum Finish<'a> {
    /// To an epilogue. What it reads and writes may be prefetched.
    Epilogue(&'a mut Sink<'a>),
    /// To this matrix (as below), rounded to bf16 by the epilogue or by stores from registers.
    Rounded(&'a mut Sink<'a>, *mut u8, usize),
    /// Unrounded, to a matrix: element (0, 0) and row stride in elements.
    Store(*mut u8, usize),
}

/// A range of rows and columns of a product.
pub(super) struct Work<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
    pub(super) k: usize,
    pub(super) a: Operand<'a>,
    pub(super) b: Operand<'a>,
    /// Rows and columns of the result are swapped.
    pub(super) traded: bool,
    /// What the epilogue reads and writes.
    pub(super) prefetched: &'a [Prefetch],
}

impl<'a> Work<'a> {
    pub(super) fn new(
        cpu: &'a Cpu,
        rows: Range<usize>,
        cols: Range<usize>,
        k: usize,
        [a, b]: [&Source<'a>; 2],
        prefetched: &'a [Prefetch],
    ) -> Self {
        let traded = !b.is_packed()
            && cols.len() <= FEW_COLUMNS
            && rows.len() > cols.len()
            && !is_without(Choice::Swap);
        // A line is a row of the left operand or a column of the right one.
        let (a, b) =
            (Operand { source: *a, columns: false }, Operand { source: *b, columns: true });
        if traded {
            Work { cpu, rows: cols, cols: rows, k, a: b, b: a, traded, prefetched: &[] }
        } else {
            Work { cpu, rows, cols, k, a, b, traded, prefetched }
        }
    }
}
