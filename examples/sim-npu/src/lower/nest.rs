//! Maps and rows: outer axes are counted, stages run in strips along the row.

use super::scalar::Around;
use super::sinks::{Frame, Targets};
use super::{Lowered, Lowering, extents, refuse};
use crate::isa::Command;
use tracecast_runtime::ir::kernel::{Nest, Over, Segment};

impl Lowering {
    pub(super) fn nest(&mut self, nest: &Nest) -> Lowered<()> {
        // The same code for one segment after another.
        for segment in &nest.segments {
            self.program.registers = 0;
            self.segment(nest, segment)?;
        }
        Ok(())
    }

    fn segment(&mut self, nest: &Nest, segment: &Segment) -> Lowered<()> {
        let sizes = extents(&segment.extents)?;
        let Some((length, outer)) = sizes.split_last() else { return refuse("a nest has no row") };
        let row = outer.len();
        self.axes(sizes.len());
        let rows: Vec<usize> = nest.buffers.iter().map(|_| self.table(*length)).collect();
        let registers = self.table(nest.registers.len());
        let around = Around {
            loads: &nest.loads,
            slots: &segment.inputs,
            rows: &rows,
            row,
            registers,
            sum: None,
        };
        let targets = Targets { extents: &sizes, slots: &segment.outputs, rows: &rows, registers };
        let mut frame = Frame::default();
        let mut body = Vec::new();
        for stage in &nest.stages {
            let (mut code, regs) = self.code(&stage.body, &around)?;
            self.sinks((&stage.body, &stage.sinks), &regs, &mut code, &targets, &mut frame)?;
            let extent = if stage.over == Over::Row { *length } else { 1 };
            body.append(&mut frame.before);
            body.push(Command::Strips { axis: row, extent, code });
            body.append(&mut frame.behind);
        }
        self.program.commands.append(&mut frame.first);
        self.program.commands.extend(counted(0, outer, body));
        self.program.commands.append(&mut frame.last);
        Ok(())
    }
}

/// A block at every position of axes from the first on.
pub(super) fn counted(first: usize, extents: &[usize], body: Vec<Command>) -> Vec<Command> {
    let axes = extents.iter().enumerate().rev();
    axes.fold(body, |body, (axis, extent)| {
        vec![Command::Count { axis: first + axis, extent: *extent, body }]
    })
}
