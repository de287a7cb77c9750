//! Sizes the [`Workspace`] of a product before it runs.

use super::engines::with_engine;
#[cfg(target_arch = "x86_64")]
use super::gemv::TOGETHER;
use super::macrokernel::chain_room;
#[cfg(target_arch = "x86_64")]
use super::micro;
use super::micro::Engine;
use super::operand::Source;
use super::pack::room;
use super::work::{NARROW, Work};
use super::workspace::{Workspace, most};
use crate::machine::{Cpu, InstructionSet};
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// Workspace of [`super::contract()`] for `[rows, cols, k]`, at any position.
pub(crate) fn workspace(
    cpu: &Cpu,
    acc: DType,
    [rows, cols, k]: [usize; 3],
    [a, b]: [&Source<'_>; 2],
) -> Workspace {
    if rows == 0 || cols == 0 {
        return Workspace::default();
    }
    Work::new(cpu, 0..rows, 0..cols, k, [a, b], &[]).workspace(acc)
}

impl Work<'_> {
    /// Workspace of whichever path it takes.
    pub(super) fn workspace(&self, acc: DType) -> Workspace {
        #[cfg(target_arch = "x86_64")]
        if acc == DType::F32 && self.along_k().is_some() {
            return self.workspace_of_few();
        }
        let cpu = self.cpu;
        with_engine!(cpu, acc, self.in_pairs(), E => self.workspace_with::<E>())
    }

    /// Workspace of [`Run::run`].
    fn workspace_with<E: Engine>(&self) -> Workspace {
        let (blocking, one_group) = self.cut::<E>();
        let (m, n, k) = (self.rows.len(), self.cols.len(), self.k);
        let rows = if one_group { m } else { blocking.rows.min(m) };
        let cols = blocking.columns.min(n);
        // An operand with one group is packed for all of `k`, the other for a block.
        let block = k.min(CONTRACT_BLOCK);
        let [left_steps, right_steps] = if one_group { [k, block] } else { [block, k] };
        let left = match self.left_as_it_lies::<E>() {
            Some(_) => 0,
            None => room::<E>(rows, 1, left_steps),
        };
        let packed = match self.as_it_lies::<E>() {
            Some(_) => cols.min(E::LANES),
            None if self.b.source.is_packed() => 0,
            None => cols,
        };
        let right = if packed == 0 { 0 } else { room::<E>(packed, E::WIDTH, right_steps) };
        let of_right = if self.b.through::<E>().is_some() { 0 } else { self.b.filled(cols, block) };
        let filled = self.a.filled(rows, block).max(of_right).max(self.dense(rows, cols));
        let (chains, sums) = (chain_room::<E>(rows), sums::<E>(rows, cols));
        let listed = most(self.a.listed(rows, block), self.b.listed(cols, block));
        Workspace { left, right, filled, chains, sums, listed, steps: 0 }.times(size_of::<E::Num>())
    }

    /// Workspace of [`Work::run_few`].
    #[cfg(target_arch = "x86_64")]
    fn workspace_of_few(&self) -> Workspace {
        type E = micro::avx512::Avx512F32;
        let (m, n, k) = (self.rows.len(), self.cols.len().min(TOGETHER), self.k);
        Workspace {
            left: room::<E>(m, 1, k),
            filled: self.a.filled(m, k).max(self.dense(m, n)),
            listed: self.a.listed(m, k),
            sums: sums::<E>(m, n),
            ..Workspace::default()
        }
        .times(size_of::<f32>())
    }

    /// Elements that [`Work::finish`] gathers: of narrow groups, as the last may be.
    fn dense(&self, rows: usize, cols: usize) -> usize {
        rows.saturating_mul(if self.traded { cols } else { cols.min(NARROW) })
    }
}

/// Elements of the sums of a group, or of a smaller one.
fn sums<E: Engine>(rows: usize, cols: usize) -> usize {
    rows.saturating_mul(cols.next_multiple_of(E::LANES) + E::LANES)
}
