//! GEMV and products of few rows: transposes columns contiguous along `k` in registers.

use super::micro::avx2::Avx2F32;
use super::micro::avx512::Avx512F32;
use super::micro::{Engine, eights, few};
use super::operand::Scratch;
use super::pack::{Lines, room, strips};
use super::span::leading;
use super::{Chosen, Finish, Load, Schedule, Work};
use crate::machine::InstructionSet;
use smallvec::smallvec;
use tracecast_ir::DType;

/// Columns per call of the epilogue.
pub(super) const TOGETHER: usize = 1024;

impl Work<'_> {
    /// The right operand, if few rows use columns that are contiguous along `k`.
    pub(super) fn along_k(&self) -> Option<Lines> {
        let wide = self.has_avx512();
        let most = match self.cpu.instructions {
            InstructionSet::Avx512 if self.in_pairs() => few::ROWS_OF_PAIRS,
            InstructionSet::Avx512 => few::ROWS,
            InstructionSet::Avx2 if self.cols.len() >= eights::COLUMNS => eights::ROWS,
            InstructionSet::Avx2 | InstructionSet::Portable => 0,
        };
        let few = self.rows.len() <= most && self.k > 0;
        let is_read = |dtype| if wide { few::reads(dtype) } else { eights::reads(dtype) };
        let reads = |b: &Lines| b.along == 1 && b.round.is_none() && is_read(b.dtype);
        self.b.in_memory().filter(|b| few && reads(b))
    }

    fn has_avx512(&self) -> bool {
        self.cpu.instructions == InstructionSet::Avx512
    }

    /// The left operand, if its rows are read in place.
    fn rows_in_place(&self) -> Option<Lines> {
        let fits = |a: &Lines| a.along == 1 && a.dtype == DType::F32 && a.round.is_none();
        self.a.in_memory().filter(fits)
    }

    /// The schedule for few rows and such columns.
    pub(super) fn chosen_along(&self) -> Chosen {
        let rows = self.rows.len();
        let columns = match self.has_avx512() {
            true => few::COLUMNS,
            false => eights::VECTORS[rows - 1] * eights::SIDE,
        };
        let left = self.a.source.load(self.rows_in_place().is_some());
        Chosen {
            swapped: self.traded,
            tile: Some([rows, columns]),
            blocks: smallvec![("nc", TOGETHER)],
            ..Chosen::new(Schedule::Gemv, [left, Load::InPlace])
        }
    }

    /// Computes few rows by columns that are contiguous along `k`.
    ///
    /// # Safety
    ///
    /// The CPU must be the work's. Operands must be readable for its rows, columns and `k`, and the
    /// destination writable.
    pub(super) unsafe fn run_few(&self, b: Lines, scratch: &mut Scratch, finish: &mut Finish<'_>) {
        if self.has_avx512() {
            // SAFETY: the caller's contract.
            unsafe { self.run_along::<Avx512F32>(b, scratch, finish) }
        } else {
            // SAFETY: the caller's contract.
            unsafe { self.run_along::<Avx2F32>(b, scratch, finish) }
        }
    }

    /// # Safety
    ///
    /// The CPU must be the engine's. Operands must be readable for the rows, columns and `k`, and
    /// the destination writable.
    unsafe fn run_along<E: Engine<Num = f32>>(
        &self,
        b: Lines,
        scratch: &mut Scratch,
        finish: &mut Finish<'_>,
    ) {
        let a = if let Some(lines) = self.rows_in_place() {
            few::Rows { base: lines.from(self.rows.start, 0).base.cast(), row: lines.across }
        } else {
            let (filled, runs) = (&mut scratch.filled, &mut scratch.runs);
            // SAFETY: the caller's contract.
            let lines = unsafe { self.a.lines::<f32>(self.rows.clone(), 0..self.k, filled, runs) };
            let rows = scratch.left.room::<f32>(room::<E>(self.rows.len(), 1, self.k));
            for row in 0..self.rows.len() {
                let to = rows.wrapping_add(row * self.k);
                // SAFETY: the lines are readable or filled, and there is room for all of them.
                unsafe { E::pack(&lines.from(row, 0), 1, self.k, to, 1) };
            }
            few::Rows { base: rows, row: self.k as isize }
        };
        for part in strips(self.cols.len(), TOGETHER) {
            let first = self.cols.start + part.start;
            let cols = first..first + part.count;
            let ld = leading::<E>(cols.len());
            let sums = scratch.sums.room::<f32>(self.rows.len() * ld);
            let sizes = [self.rows.len(), cols.len(), self.k];
            let b = b.from(cols.start, 0);
            let product = if self.has_avx512() { few::product } else { eights::product };
            // SAFETY: operands are ready, sums have room; `along_k` checked CPU and columns.
            unsafe { product(sizes, a, b, sums, ld) };
            self.finish::<E>(self.rows.clone(), cols, scratch, finish);
        }
    }
}
