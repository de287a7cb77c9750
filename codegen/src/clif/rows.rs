//! The rows of a call: their positions along the outer axes, the stages of each, and the levels of
//! the cascade that reduces long rows.

use super::emitter::{Emitter, scalar_type};
use super::reduce::Reduce;
use super::row::Row;
use crate::plan::phases;
use crate::plan::{Plan, Stage};
use cranelift::codegen::ir::BlockArg;
use cranelift::prelude::{InstBuilder, IntCC, Value, types};
use tracecast_ir::kernel::{GROUP, LEVELS, ROW_CHUNK, Scalar};

impl<'a> Emitter<'a> {
    /// All rows of the call; there is at least one.
    pub(super) fn rows(&mut self) {
        let outer = self.plan.row_axis();
        if outer == 0 {
            self.stages();
            self.fb.ins().return_(&[]);
            return;
        }
        let mut first = vec![self.begin];
        first.extend(self.split(self.begin));
        let head = self.fb.create_block();
        let exit = self.fb.create_block();
        for _ in 0..=outer {
            self.fb.append_block_param(head, types::I64);
        }
        let args: Vec<BlockArg> = first.into_iter().map(BlockArg::from).collect();
        self.fb.ins().jump(head, &args);
        self.fb.switch_to_block(head);
        let params = self.fb.block_params(head).to_vec();
        let (row, index) = self.start_rows(params[0], params[1..].to_vec());
        self.stages();
        let (row, index) = self.after(row, &index);
        let next: Vec<BlockArg> = std::iter::once(row).chain(index).map(BlockArg::from).collect();
        let more = self.fb.ins().icmp(IntCC::SignedLessThan, row, self.end);
        self.fb.ins().brif(more, head, &next, exit, &[]);
        self.fb.switch_to_block(exit);
        self.fb.ins().return_(&[]);
    }

    /// A row's position along each outer axis.
    fn split(&mut self, row: Value) -> Vec<Value> {
        let outer = self.plan.row_axis();
        let mut rest = row;
        let mut index = Vec::with_capacity(outer);
        for axis in (0..outer).rev() {
            if axis == 0 {
                index.push(rest);
                break;
            }
            // No row exists if an axis is empty.
            let extent = self.plan.extents[axis];
            let (above, at) = match extent.number() {
                Some(extent) => {
                    let at = self.fb.ins().urem_imm_u(rest, extent.max(1));
                    (self.fb.ins().udiv_imm_u(rest, extent.max(1)), at)
                }
                None => {
                    let extent = self.size(extent);
                    let at = self.fb.ins().urem(rest, extent);
                    (self.fb.ins().udiv(rest, extent), at)
                }
            };
            index.push(at);
            rest = above;
        }
        index.reverse();
        index
    }

    fn stages(&mut self) {
        for (number, strided) in self.plan.strided.iter().enumerate() {
            self.gather(number, strided);
        }
        for stage in &self.plan.stages {
            match (stage.once, stage.first) {
                (true, _) => {
                    self.each_row(self.states.len(), |em, _| em.once(stage));
                }
                (false, true) => self.first_row(stage),
                (false, false) => self.row_stage(stage, self.states.len()),
            }
        }
    }

    /// A row stage, if the row is the first of the call.
    fn first_row(&mut self, stage: &'a Stage) {
        let (first, after) = (self.fb.create_block(), self.fb.create_block());
        let row = self.state().row;
        let is_first = self.fb.ins().icmp(IntCC::Equal, row, self.begin);
        self.fb.ins().brif(is_first, first, &[], after, &[] as &[BlockArg]);
        self.fb.switch_to_block(first);
        self.row_stage(stage, 1);
        self.fb.ins().jump(after, &[]);
        self.fb.switch_to_block(after);
    }

    /// A stage of one or two rows: their uniform values, then its phases along them, in chunks if
    /// it reduces a long one.
    fn row_stage(&mut self, stage: &'a Stage, rows: usize) {
        let phases = phases::cut(self.plan, stage, self.target.vector_loops());
        self.scratch_bytes = self.scratch_bytes.max(self.temporaries + phases.bytes);
        let mut rows = self.each_row(rows, |em, _| {
            let mut row = Row::new(em, stage, &phases);
            row.once_per_row(em);
            row
        });
        if let Some(width) = self.target.vector_width.filter(|_| self.plan.row() != 0) {
            self.prepare_wide(&mut rows, width);
        }
        let row = &rows[0];
        if row.reductions().iter().any(|r| r.ty == Scalar::Bool) {
            self.fail("a reduction of truth values", types::I64);
            return;
        }
        let (positions, reductions): (Vec<_>, Vec<_>) =
            row.reductions().into_iter().partition(Reduce::is_position);
        self.start_positions(&positions);
        if reductions.is_empty() {
            row.positions(self, self.from, self.to);
        } else {
            self.reduced(&rows);
        }
        self.set_positions(&positions);
    }

    /// The positions of a row stage that reduces.
    fn reduced(&mut self, rows: &[Row<'_>]) {
        let row = &rows[0];
        let of = |row: &Row<'_>| -> Vec<Reduce> {
            row.reductions().into_iter().filter(|r| !r.is_position()).collect()
        };
        let reductions = &of(row)[..];
        if !self.plan.may_reach(ROW_CHUNK as i64 + 1) {
            rows.iter().for_each(|each| self.start_lanes(&of(each), &row.begun));
            row.positions(self, self.from, self.to);
            self.each_row(rows.len(), |em, turn| {
                let reductions = of(&rows[turn]);
                let values = em.combine_lanes(&reductions);
                em.set_registers(&reductions, &values);
            });
            return;
        }
        let levels = cascade_levels(self.plan);
        let values = self.cascade(row, reductions, levels, self.from, self.to);
        self.set_registers(reductions, &values);
    }

    /// Reduces the positions `from..to` of a row: a loop for each level of the cascade, and one
    /// chunk inside.
    fn cascade(
        &mut self,
        row: &Row<'_>,
        reductions: &[Reduce],
        levels: usize,
        from: Value,
        to: Value,
    ) -> Vec<Value> {
        let Some(inner) = levels.checked_sub(1) else {
            self.start_lanes(reductions, &row.begun);
            row.positions(self, from, to);
            return self.combine_lanes(reductions);
        };
        let head = self.fb.create_block();
        let exit = self.fb.create_block();
        let start = self.fb.append_block_param(head, types::I64);
        let mut args: Vec<BlockArg> = vec![from.into()];
        let mut before = Vec::new();
        for r in reductions {
            args.push(self.identity(r).into());
            before.push(self.fb.append_block_param(head, scalar_type(r.ty)));
            self.fb.append_block_param(exit, scalar_type(r.ty));
        }
        self.fb.ins().jump(head, &args);
        self.fb.switch_to_block(head);
        let end = self.fb.ins().iadd_imm_s(start, cascade_positions(inner));
        let end = self.fb.ins().smin(end, to);
        let group = self.cascade(row, reductions, inner, start, end);
        let first = self.fb.ins().icmp(IntCC::Equal, start, from);
        let mut results: Vec<BlockArg> = Vec::new();
        for (r, (before, group)) in reductions.iter().zip(before.into_iter().zip(group)) {
            let both = self.combine(r.reduction, r.ty, false, before, group);
            results.push(self.fb.ins().select(first, group, both).into());
        }
        let more = self.fb.ins().icmp(IntCC::SignedLessThan, end, to);
        let mut again: Vec<BlockArg> = vec![end.into()];
        again.extend(results.iter().copied());
        self.fb.ins().brif(more, head, &again, exit, &results);
        self.fb.switch_to_block(exit);
        self.fb.block_params(exit).to_vec()
    }
}

/// The positions of a row that one result of a level of the cascade covers: a chunk, a group of
/// chunks, a group of groups.
fn cascade_positions(level: usize) -> i64 {
    (ROW_CHUNK * GROUP.pow(level as u32)) as i64
}

/// The levels of the cascade that the longest row of a plan fills.
fn cascade_levels(plan: &Plan) -> usize {
    let is_enough = |level: &usize| !plan.may_reach(cascade_positions(*level) + 1);
    (1..LEVELS).find(is_enough).unwrap_or(LEVELS)
}
