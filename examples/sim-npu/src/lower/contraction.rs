//! Contractions: both factors are put into panels, then each strip of a row of the result is a sum
//! of products, and its epilogue follows.

use super::nest::counted;
use super::scalar::Around;
use super::sinks::{Frame, Targets};
use super::{Lowered, Lowering, extent, extents, refuse, row_major};
use crate::isa::{Affine, Cell, Command, Inst};
use tracecast_runtime::ir::Size;
use tracecast_runtime::ir::kernel::{Contract, Factor, Scalar};

impl Lowering {
    pub(super) fn contraction(&mut self, contract: &Contract) -> Lowered<()> {
        if contract.acc != Scalar::F32 {
            return refuse(format!("it does not sum products in {}", contract.acc.name()));
        }
        let batch = extents(&contract.batch)?;
        let [m, n, k] = [extent(contract.m)?, extent(contract.n)?, extent(contract.k)?];
        let (i, j) = (batch.len(), batch.len() + 1);
        self.axes(batch.len() + 2);
        let mut of_batch = Vec::new();
        let left = self.panel(&contract.a, i, [contract.m, contract.k], &mut of_batch)?;
        let right = self.panel(&contract.b, i, [contract.k, contract.n], &mut of_batch)?;

        let sum = self.register();
        let at = |axis: usize, stride: usize| {
            let mut strides = vec![0; j + 1];
            strides[axis] = stride as i64;
            Affine { offset: 0, strides }
        };
        let mut code = vec![Inst::Dot {
            to: sum,
            left: Cell { table: left, at: at(i, k) },
            right: Cell { table: right, at: at(j, 1) },
            length: k,
            step: n as i64,
        }];
        let slots: Vec<usize> = (0..self.inputs).collect();
        let around = Around {
            loads: &contract.loads,
            slots: &slots,
            rows: &[],
            row: j,
            registers: 0,
            sum: Some(sum),
        };
        let (epilogue, regs) = self.code(&contract.epilogue.body, &around)?;
        code.extend(epilogue);
        let sizes = [&batch[..], &[m, n]].concat();
        let written: Vec<usize> = (0..self.outputs).collect();
        let targets = Targets { extents: &sizes, slots: &written, rows: &[], registers: 0 };
        let mut frame = Frame::default();
        let stage = (&contract.epilogue.body, &contract.epilogue.sinks[..]);
        self.sinks(stage, &regs, &mut code, &targets, &mut frame)?;
        if !frame.before.is_empty() {
            return refuse("an epilogue reduces rows");
        }
        let strips = Command::Strips { axis: j, extent: n, code };
        of_batch.push(Command::Count { axis: i, extent: m, body: vec![strips] });
        self.program.commands.append(&mut frame.first);
        self.program.commands.extend(counted(0, &batch, of_batch));
        self.program.commands.append(&mut frame.last);
        Ok(())
    }

    /// Puts a factor into a table, rows of columns. Its axes are those from `first` on.
    fn panel(
        &mut self,
        factor: &Factor,
        first: usize,
        ends: [Size; 2],
        commands: &mut Vec<Command>,
    ) -> Lowered<usize> {
        let sizes = extents(&factor.axes(ends))?;
        self.axes(first + sizes.len());
        let words = sizes.iter().fold(1usize, |words, size| words.saturating_mul(*size));
        let table = self.table(words);
        let slots: Vec<usize> = (0..self.inputs).collect();
        let row = first + sizes.len().saturating_sub(1);
        let around =
            Around { loads: &factor.loads, slots: &slots, rows: &[], row, registers: 0, sum: None };
        let (mut code, regs) = self.code(&factor.body, &around)?;
        let Some(from) = regs.get(factor.value as usize).copied() else {
            return refuse("a factor has a value that is not there");
        };
        if factor.body.ty(factor.value) != Scalar::F32 {
            return refuse("a factor is no f32");
        }
        let strides = [vec![0; first], row_major(&sizes)].concat();
        code.push(Inst::Poke { from, to: Cell { table, at: Affine { offset: 0, strides } } });
        let (length, outer) = sizes.split_last().map_or((1, &[][..]), |(last, rest)| (*last, rest));
        let strips = Command::Strips { axis: row, extent: length, code };
        commands.extend(counted(first, outer, vec![strips]));
        Ok(table)
    }
}
