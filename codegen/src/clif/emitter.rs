//! [`Emitter`]: the state of emission, and what all of its parts emit with.

use crate::plan::numbers::SizeTable;
use crate::plan::phases::{self, Capability, Lanes, Phases, VectorLoops};
use crate::plan::{Plan, Sink, Stage, Strides};
use crate::routines::Routine;
use crate::target::Target;
use crate::x86::Compiled;
use cranelift::codegen::cursor::{Cursor, FuncCursor};
use cranelift::codegen::ir::{ConstantData, Endianness, FuncRef, UserExternalName};
use cranelift::prelude::{
    AbiParam, Block, FunctionBuilder, InstBuilder, MemFlagsData, Signature, Type, Value, types,
};
use std::collections::HashMap;
use tracecast_ir::Size;
use tracecast_ir::kernel::{LANES, Scalar, Val};

/// The namespace of the names of routines, which are their numbers among
/// [`Lowered::routines`](super::Lowered::routines).
pub(crate) const ROUTINES: u32 = 2;

/// Accesses do not trap, and may be unaligned.
pub(super) const MEMORY: MemFlagsData = MemFlagsData::new().with_notrap();

/// The scratch of one reduction.
pub(super) const LANE_BYTES: i64 = 8 * LANES as i64;

/// What was chosen for a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    /// How many rows are worked on at a time.
    pub(super) rows: usize,
    /// Results are written with streaming stores.
    pub(super) streams: bool,
    /// Cache lines of results are prefetched one pass before they are written.
    pub(super) prefetches: bool,
    /// Rows of a table are prefetched some rows before they are read.
    pub(super) takes_ahead: bool,
}

/// What differs between rows that are worked on together.
#[derive(Clone)]
pub(super) struct RowState {
    /// The row.
    pub(super) row: Value,
    /// Its position along each outer axis.
    pub(super) index: Vec<Value>,
    pub(super) registers: HashMap<usize, Value>,
    /// Where its row buffers begin in the scratch.
    pub(super) buffers: Vec<i32>,
    /// Where the accumulators of a stage begin in the scratch.
    pub(super) lanes: i32,
}

/// The state of emission.
pub(super) struct Emitter<'a> {
    pub(super) fb: FunctionBuilder<'a>,
    pub(super) target: &'a Target,
    pub(super) plan: &'a Plan,
    pub(super) choices: Choices,
    pub(super) table: &'a SizeTable,
    pub(super) entry_block: Block,
    /// The table of addresses.
    pub(super) slots_at: Value,
    pub(super) slots: Vec<Value>,
    /// What has been read of the table of sizes, by number.
    pub(super) entries: HashMap<usize, Value>,
    pub(super) begin: Value,
    pub(super) end: Value,
    pub(super) from: Value,
    pub(super) to: Value,
    pub(super) scratch: Value,
    pub(super) status: Value,
    /// Where gathered operands are in the scratch.
    pub(super) strided_at: Vec<i32>,
    /// Where values wait between phases.
    pub(super) temporaries: i32,
    pub(super) scratch_bytes: i32,
    /// The rows that are worked on together, and which of them code is emitted for.
    pub(super) states: Vec<RowState>,
    pub(super) at: usize,
    pub(super) constants: HashMap<(Type, u128), Value>,
    pub(super) routines: Vec<Routine>,
    pub(super) imported: HashMap<Routine, FuncRef>,
    pub(super) loops: Vec<Compiled>,
    pub(super) failed: Option<String>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
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
                Some(state) if is_shared(plan, number) => state.buffers[number],
                _ => reserve(size(*ty)),
            };
            let buffers = plan.buffers.iter().enumerate().map(buffer).collect();
            let (row, index, registers) = (params[1], Vec::new(), HashMap::new());
            let lanes = reserve(lanes * LANE_BYTES);
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

    /// `offset + Σ strides * index` over the outer axes.
    pub(super) fn at_row(&mut self, offset: Size, strides: &Strides) -> Value {
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
    pub(super) fn constant(&mut self, ty: Type, lane: u32) -> Value {
        let lane = u128::from(lane);
        self.constant_bits(ty, lane | lane << 32 | lane << 64 | lane << 96)
    }

    pub(super) fn constant_bits(&mut self, ty: Type, bits: u128) -> Value {
        if let Some(v) = self.constants.get(&(ty, bits)) {
            return *v;
        }
        let data = self.fb.func.dfg.constants.insert(ConstantData::from(&bits.to_le_bytes()[..]));
        let mut cursor = FuncCursor::new(self.fb.func).at_first_insertion_point(self.entry_block);
        let v = cursor.ins().vconst(ty, data);
        self.constants.insert((ty, bits), v);
        v
    }

    pub(super) fn bitcast(&mut self, ty: Type, v: Value) -> Value {
        if self.fb.func.dfg.value_type(v) == ty {
            return v;
        }
        self.fb.ins().bitcast(ty, MemFlagsData::new().with_endianness(Endianness::Little), v)
    }

    /// A call of a routine of the host.
    pub(super) fn call(
        &mut self,
        routine: Routine,
        args: &[Value],
        result: Option<Type>,
    ) -> Option<Value> {
        let function = match self.imported.get(&routine) {
            Some(function) => *function,
            None => self.import_routine(routine, args, result),
        };
        let inst = self.fb.ins().call(function, args);
        self.fb.inst_results(inst).first().copied()
    }

    pub(super) fn import_routine(
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
    pub(super) fn can(&self) -> Capability {
        let loops = VectorLoops::Cranelift { floor: self.target.floor };
        Capability { loops, lanes: Lanes::Bits32 }
    }

    /// Remembers that there is no code for something, and goes on with a value that will not be
    /// used.
    pub(super) fn fail(&mut self, what: impl Into<String>, ty: Type) -> Value {
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

/// True if all rows have the same in a row buffer.
pub(super) fn is_shared(plan: &Plan, buffer: usize) -> bool {
    let keeps = |s: &Sink| matches!(s, Sink::Keep { buffer: b, .. } if *b == buffer);
    plan.stages.iter().any(|s| s.first && s.sinks.iter().any(keeps))
}

/// What is known of a row stage's phases while it is emitted.
pub(super) type Cut<'a> = &'a Phases;

/// Values by instruction.
pub(super) type Values = HashMap<Val, Value>;

/// The type of a scalar on its own; truth values are 0 or 1.
pub(super) fn scalar_type(ty: Scalar) -> Type {
    match ty {
        Scalar::F32 => types::F32,
        Scalar::F64 => types::F64,
        Scalar::I32 => types::I32,
        Scalar::I64 => types::I64,
        Scalar::Bool => types::I8,
    }
}

/// The type of four of them; truth values are masks.
pub(super) fn vector_type(ty: Scalar) -> Type {
    if ty == Scalar::F32 { types::F32X4 } else { types::I32X4 }
}
