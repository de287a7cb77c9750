//! From a [`Plan`] to a function of Cranelift's IR.
//!
//! Here is the outside: the function, its rows, and the stages of a row. `row` emits the phases of
//! a stage, `memory` loads and stores, `reduce` the accumulators, `scalar` the instructions,
//! `low_precision` the 16-bit floats, `alternate` rows that alternate in memory.
//!
//! The function is `fn(slots, begin, end, from, to, scratch, status)`: for the rows from `begin` to
//! `end`, counted row-major over the outer axes, it does the positions from `from` to `to`. Values
//! of a row are plain SSA values; loops carry what changes as block parameters.

mod alternate;
mod choices;
mod low_precision;
mod memory;
mod prefetch;
mod reduce;
mod routine_call;
mod row;
mod row_pairs;
mod scalar;
mod sink;
mod sizes;
mod strided;
mod sum_rows;
#[cfg(test)]
mod tests;
mod vector_call;

pub(crate) use choices::Choices;
pub(crate) use vector_call::LOOPS;

/// The namespace of the names of routines, which are their numbers among [`Lowered::routines`].
pub(crate) const ROUTINES: u32 = 2;

use crate::plan::numbers::SizeTable;
use crate::plan::phases::{self, Capability, Lanes, Phases, VectorLoops};
use crate::plan::{Plan, Sink, Stage, Strides};
use crate::routines::Routine;
use crate::target::{Target, signature};
use crate::x86::Compiled;
use cranelift::codegen::cursor::{Cursor, FuncCursor};
use cranelift::codegen::ir::{
    BlockArg, ConstantData, Endianness, FuncRef, Function, UserExternalName,
};
use cranelift::prelude::{
    AbiParam, Block, FunctionBuilder, FunctionBuilderContext, InstBuilder, IntCC, MemFlagsData,
    Signature, Type, Value, types,
};
use row_pairs::RowState;
use std::collections::HashMap;
use tracecast_ir::Size;
use tracecast_ir::kernel::{GROUP, LEVELS, ROW_CHUNK, Scalar, Val};

/// Accesses do not trap, and may be unaligned.
const MEMORY: MemFlagsData = MemFlagsData::new().with_notrap();

/// A function of Cranelift's IR.
pub(crate) struct Lowered {
    /// The function.
    pub(crate) function: Function,
    /// The scratch that a call needs.
    pub(crate) scratch: usize,
    /// The routines it calls, by the number in their names.
    pub(crate) routines: Vec<Routine>,
    /// The vector loops it calls, by the number in their names.
    pub(crate) loops: Vec<Compiled>,
}

/// Emits a plan, with what was chosen for it and the table of what it reads of the sizes of a
/// binding.
///
/// # Errors
/// If it asks for what has no code; what that is.
pub(crate) fn lower(
    target: &Target,
    (plan, choices): (&Plan, Choices),
    table: &SizeTable,
    context: &mut FunctionBuilderContext,
) -> Result<Lowered, String> {
    let mut function = Function::new();
    function.signature = signature(target.isa.default_call_conv());
    let fb = FunctionBuilder::new(&mut function, context);
    let mut emitter = Emitter::new(fb, target, (plan, choices), table);
    match sum_rows::SummedRows::of(plan) {
        Some(summed) => emitter.sum_rows(&summed),
        None => emitter.rows(),
    }
    let Emitter { mut fb, scratch_bytes, routines, loops, failed, .. } = emitter;
    fb.seal_all_blocks();
    fb.finalize(target.isa.frontend_config());
    match failed {
        Some(what) => Err(what),
        None => Ok(Lowered { function, scratch: scratch_bytes as usize, routines, loops }),
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

/// The type of a scalar on its own; truth values are 0 or 1.
fn scalar_type(ty: Scalar) -> Type {
    match ty {
        Scalar::F32 => types::F32,
        Scalar::F64 => types::F64,
        Scalar::I32 => types::I32,
        Scalar::I64 => types::I64,
        Scalar::Bool => types::I8,
    }
}

/// The type of four of them; truth values are masks.
fn vector_type(ty: Scalar) -> Type {
    if ty == Scalar::F32 { types::F32X4 } else { types::I32X4 }
}

/// The state of emission.
struct Emitter<'a> {
    fb: FunctionBuilder<'a>,
    target: &'a Target,
    plan: &'a Plan,
    choices: Choices,
    table: &'a SizeTable,
    entry_block: Block,
    /// The table of addresses.
    slots_at: Value,
    slots: Vec<Value>,
    /// What has been read of the table of sizes, by number.
    entries: HashMap<usize, Value>,
    begin: Value,
    end: Value,
    from: Value,
    to: Value,
    scratch: Value,
    status: Value,
    /// Where gathered operands are in the scratch.
    strided_at: Vec<i32>,
    /// Where values wait between phases.
    temporaries: i32,
    scratch_bytes: i32,
    /// The rows that are worked on together, and which of them code is emitted for.
    states: Vec<RowState>,
    at: usize,
    constants: HashMap<(Type, u128), Value>,
    routines: Vec<Routine>,
    imported: HashMap<Routine, FuncRef>,
    loops: Vec<Compiled>,
    failed: Option<String>,
}

impl<'a> Emitter<'a> {
    fn new(
        mut fb: FunctionBuilder<'a>,
        target: &'a Target,
        (plan, choices): (&'a Plan, Choices),
        table: &'a SizeTable,
    ) -> Self {
        let entry = fb.create_block();
        fb.append_block_params_for_function_params(entry);
        fb.switch_to_block(entry);
        let params = fb.block_params(entry).to_vec();
        let slots = (0..plan.slots)
            .map(|s| fb.ins().load(types::I64, MEMORY, params[0], 8 * s as i32))
            .collect();
        let mut bytes = 0i64;
        let mut reserve = |size: i64| {
            let at = bytes;
            // The last positions of lanes of 64 bits are stored two vectors at a time.
            bytes += (size + 127) / 128 * 128;
            at as i32
        };
        let row = plan.row_at_most().unwrap_or(0);
        let size = |ty: Scalar| row * i64::from(phases::scratch_bytes(ty));
        let reductions =
            |s: &Stage| s.sinks.iter().filter(|s| matches!(s, Sink::Reduce { .. })).count();
        let lanes = plan.stages.iter().map(reductions).max().unwrap_or(0) as i64;
        let mut states: Vec<RowState> = Vec::new();
        for _ in 0..choices.rows {
            let buffer = |(number, ty): (usize, &Scalar)| match states.first() {
                Some(state) if row_pairs::is_shared(plan, number) => state.buffers[number],
                _ => reserve(size(*ty)),
            };
            let buffers = plan.buffers.iter().enumerate().map(buffer).collect();
            let (row, index, registers) = (params[1], Vec::new(), HashMap::new());
            let lanes = reserve(lanes * reduce::LANE_BYTES);
            states.push(RowState { row, index, registers, buffers, lanes });
        }
        let strided_at = plan.strided.iter().map(|rows| reserve(rows.bytes())).collect();
        let temporaries = reserve(0);
        Emitter {
            choices,
            table,
            entry_block: entry,
            slots_at: params[0],
            slots,
            entries: HashMap::new(),
            begin: params[1],
            end: params[2],
            from: params[3],
            to: params[4],
            scratch: params[5],
            status: params[6],
            strided_at,
            temporaries,
            scratch_bytes: bytes as i32,
            states,
            at: 0,
            constants: HashMap::new(),
            routines: Vec::new(),
            imported: HashMap::new(),
            loops: Vec::new(),
            failed: None,
            fb,
            target,
            plan,
        }
    }

    /// All rows of the call; there is at least one.
    fn rows(&mut self) {
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
            let mut row = row::Row::new(em, stage, &phases);
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
            row.reductions().into_iter().partition(reduce::Reduce::is_position);
        self.start_positions(&positions);
        if reductions.is_empty() {
            row.positions(self, self.from, self.to);
        } else {
            self.reduced(&rows);
        }
        self.set_positions(&positions);
    }

    /// The positions of a row stage that reduces.
    fn reduced(&mut self, rows: &[row::Row<'_>]) {
        let row = &rows[0];
        let of = |row: &row::Row<'_>| -> Vec<reduce::Reduce> {
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
        row: &row::Row<'_>,
        reductions: &[reduce::Reduce],
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

    /// `offset + Σ strides * index` over the outer axes.
    fn at_row(&mut self, offset: Size, strides: &Strides) -> Value {
        let mut sum: Option<Value> = None;
        for (axis, &at) in self.state().index.clone().iter().enumerate() {
            let stride = strides.get(axis).copied().unwrap_or_default();
            if stride == 0 {
                continue;
            }
            let term = if stride == 1 { at } else { self.times(at, stride) };
            sum = Some(match sum {
                Some(sum) => self.fb.ins().iadd(sum, term),
                None => term,
            });
        }
        match sum {
            Some(sum) if offset == 0 => sum,
            Some(sum) => self.plus(sum, offset),
            None => self.size(offset),
        }
    }

    /// A vector with that in every 32-bit lane, made once per call.
    fn constant(&mut self, ty: Type, lane: u32) -> Value {
        let lane = u128::from(lane);
        self.constant_bits(ty, lane | lane << 32 | lane << 64 | lane << 96)
    }

    fn constant_bits(&mut self, ty: Type, bits: u128) -> Value {
        if let Some(v) = self.constants.get(&(ty, bits)) {
            return *v;
        }
        let data = self.fb.func.dfg.constants.insert(ConstantData::from(&bits.to_le_bytes()[..]));
        let mut cursor = FuncCursor::new(self.fb.func).at_first_insertion_point(self.entry_block);
        let v = cursor.ins().vconst(ty, data);
        self.constants.insert((ty, bits), v);
        v
    }

    fn bitcast(&mut self, ty: Type, v: Value) -> Value {
        if self.fb.func.dfg.value_type(v) == ty {
            return v;
        }
        self.fb.ins().bitcast(ty, MemFlagsData::new().with_endianness(Endianness::Little), v)
    }

    /// A call of a routine of the host.
    fn call(&mut self, routine: Routine, args: &[Value], result: Option<Type>) -> Option<Value> {
        let function = match self.imported.get(&routine) {
            Some(function) => *function,
            None => self.import_routine(routine, args, result),
        };
        let inst = self.fb.ins().call(function, args);
        self.fb.inst_results(inst).first().copied()
    }

    fn import_routine(
        &mut self,
        routine: Routine,
        args: &[Value],
        result: Option<Type>,
    ) -> FuncRef {
        let params = args.iter().map(|a| AbiParam::new(self.fb.func.dfg.value_type(*a)));
        let mut signature = Signature::new(self.target.isa.default_call_conv());
        signature.params.extend(params);
        signature.returns.extend(result.map(AbiParam::new));
        let signature = self.fb.import_signature(signature);
        let number = self.routines.len() as u32;
        let function = self.import(UserExternalName::new(ROUTINES, number), signature);
        self.routines.push(routine);
        self.imported.insert(routine, function);
        function
    }

    /// What loops of vectors may be asked for, where they are not those of `x86`.
    fn can(&self) -> Capability {
        let loops = VectorLoops::Cranelift { floor: self.target.floor };
        Capability { loops, lanes: Lanes::Bits32 }
    }

    /// Remembers that there is no code for something, and goes on with a value that will not be
    /// used.
    fn fail(&mut self, what: impl Into<String>, ty: Type) -> Value {
        self.failed.get_or_insert(what.into());
        if ty.is_vector() {
            self.constant_bits(ty, 0)
        } else if ty == types::F32 {
            self.fb.ins().f32const(0.0)
        } else if ty == types::F64 {
            self.fb.ins().f64const(0.0)
        } else {
            self.fb.ins().iconst(ty, 0)
        }
    }
}

/// What is known of a row stage's phases while it is emitted.
type Cut<'a> = &'a Phases;
/// Values by instruction.
type Values = HashMap<Val, Value>;
