//! Instruction selection: from a phase of a plan to instructions on a group of positions, which is
//! two vectors, or one where what is left does not fill two of 512 bits.
//!
//! The two halves of a group take the same steps side by side, so that each hides the latencies of
//! the other. What is the same along the row is one vector for both halves. Truth values are masks,
//! all bits of a lane or none.

use super::frame::PointerFrom;
use super::functions::{Sequence, sequence, sequence_of_doubles};
use super::inst::{Base, Binary, Inst, Load, MemRef, Op, Shift, Unary, VReg, compare};
use super::task::{Cell, Prefetched, RowScratch, Task};
use crate::machine::Width;
use crate::plan::Sink;
use crate::plan::phases::{Capability, Class, Lanes};
use smallvec::SmallVec;
use std::collections::HashMap;
use tracecast_ir::kernel::{Scalar, ScalarOp, Val};

/// The two halves of a group.
pub(super) type Pair = [VReg; 2];

/// The bytes of a line of the cache.
const LINE: usize = 64;

/// Why a phase has no code.
pub(super) type Result<T> = std::result::Result<T, String>;

/// The last group of an operand, which is copied element by element since no mask has elements so
/// small.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailCopy {
    pub(super) pointer: u16,
    pub(super) size: u8,
    pub(super) stage: u16,
    /// Into the operand rather than from it.
    pub(super) out: bool,
}

/// A reduction in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accumulator {
    /// The offset of its lanes in the scratch.
    pub(super) lanes: i32,
    /// What they are initialised to.
    pub(super) identity: u64,
}

/// What the bodies of a loop share.
#[derive(Default)]
pub(super) struct Tables {
    /// What the caller stores, each with the row that it belongs to.
    pub(super) cells: Vec<(u8, Cell)>,
    /// The row that is being selected.
    pub(super) row: u8,
    pub(super) pointers: Vec<PointerFrom>,
    /// The cells that the prologue broadcasts to a vector, and whether all of their 16 bytes count.
    pub(super) broadcasts: Vec<(u16, bool)>,
    /// Reductions in registers.
    pub(super) accumulators: Vec<Accumulator>,
    pub(super) tail_copies: Vec<TailCopy>,
    /// The broadcasts that hold the masks of the tail.
    pub(super) masks: Option<[u16; 2]>,
    /// The pointers, and sizes of elements, of non-temporal stores.
    pub(super) streamed: Vec<(u16, u8)>,
}

impl Tables {
    pub(super) fn cell(&mut self, cell: Cell) -> u16 {
        let cell = (self.row, cell);
        let at = self.cells.iter().position(|c| *c == cell).unwrap_or_else(|| {
            self.cells.push(cell);
            self.cells.len() - 1
        });
        at as u16
    }

    pub(super) fn broadcast(&mut self, cell: Cell, all_16_bytes: bool) -> u16 {
        let from = (self.cell(cell), all_16_bytes);
        let at = self.broadcasts.iter().position(|r| *r == from).unwrap_or_else(|| {
            self.broadcasts.push(from);
            self.broadcasts.len() - 1
        });
        at as u16
    }

    pub(super) fn pointer(&mut self, from: PointerFrom) -> u16 {
        let at = self.pointers.iter().position(|p| *p == from).unwrap_or_else(|| {
            self.pointers.push(from);
            self.pointers.len() - 1
        });
        at as u16
    }

    pub(super) fn stage(&mut self, pointer: u16, size: u8, out: bool) -> u16 {
        let same = |s: &&TailCopy| s.pointer == pointer && s.size == size && s.out == out;
        if let Some(found) = self.tail_copies.iter().find(same) {
            return found.stage;
        }
        let stage = self.tail_copies.len() as u16;
        self.tail_copies.push(TailCopy { pointer, size, stage, out });
        stage
    }
}

/// Which positions a body is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// Two vectors of them.
    Pair,
    /// Two vectors of them, with non-temporal stores.
    NonTemporal,
    /// One vector, of 512 bits.
    Single,
    /// Fewer than sixteen.
    Tail,
}

/// A body in the making.
pub(super) struct Select<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) tables: &'a mut Tables,
    pub(super) insts: Vec<Inst>,
    /// Fewer than sixteen positions are left.
    pub(super) last: bool,
    /// Vectors have 512 bits, and instructions can leave lanes out.
    pub(super) is_512: bool,
    /// Halves are one vector.
    single: bool,
    /// Halves are the even and the odd positions: pairs of bf16, which need not be moved to be
    /// widened.
    pub(super) interleaved: bool,
    streams: bool,
    /// The sink that is being selected uses non-temporal stores.
    pub(super) non_temporal: bool,
    /// No NaN has a payload that would overflow when it is rounded to bf16 as a number is.
    pub(super) nan_safe_rounding: bool,
    values: HashMap<Val, Pair>,
    known: HashMap<Op, VReg>,
    /// bf16 values before their low halves are cleared, for stores.
    pub(super) rounded_bf16: HashMap<Val, Pair>,
    /// f16 values as 16 bits, for stores.
    pub(super) rounded_f16: HashMap<Val, Pair>,
}

impl<'a> Select<'a> {
    /// The body of a phase.
    pub(super) fn body(
        task: &'a Task<'a>,
        tables: &'a mut Tables,
        kind: BodyKind,
    ) -> Result<Vec<Inst>> {
        let mut select = Select {
            task,
            tables,
            insts: Vec::new(),
            last: kind == BodyKind::Tail,
            is_512: task.width == Width::Bits512,
            single: kind == BodyKind::Single || kind == BodyKind::Tail && task.lanes() == 16,
            interleaved: matches!(kind, BodyKind::Pair | BodyKind::NonTemporal)
                && task.width == Width::Bits512
                && is_all_bf16(task),
            streams: kind == BodyKind::NonTemporal,
            non_temporal: false,
            nan_safe_rounding: rounds_nan_safely(task),
            values: HashMap::new(),
            known: HashMap::new(),
            rounded_bf16: HashMap::new(),
            rounded_f16: HashMap::new(),
        };
        // The pointer to temporaries comes first, so that it has a register: there is no cell to
        // fetch it from.
        if task.cut.temporaries.iter().any(Option::is_some) {
            select.tables.pointer(PointerFrom::Temporaries);
        }
        if select.last && !select.is_512 {
            select.masks();
        }
        for turn in 0..task.rows.len() {
            select.tables.row = turn as u8;
            if matches!(kind, BodyKind::Pair | BodyKind::NonTemporal) {
                task.prefetched
                    .iter()
                    .enumerate()
                    .for_each(|(number, row)| select.prefetch(number, *row));
            }
            select.row()?;
        }
        Ok(select.insts)
    }

    /// What happens at the positions of a row.
    fn row(&mut self) -> Result<()> {
        let task = self.task;
        self.values.clear();
        self.rounded_bf16.clear();
        self.rounded_f16.clear();
        for v in &task.phase.insts {
            let pair = self.value_of(*v)?;
            if let Some(offset) = task.cut.temporaries[*v as usize] {
                let place = self.temporary(offset);
                self.store_full(place, pair);
            }
            self.values.insert(*v, pair);
        }
        for sink in &task.phase.sinks {
            let slot = if let Sink::Store { slot, .. } = &task.stage.sinks[*sink] {
                Some(*slot)
            } else {
                None
            };
            self.non_temporal = self.streams && slot.is_some_and(|slot| task.plan.may_stream(slot));
            self.sink(*sink)?;
        }
        Ok(())
    }

    /// Where the row that is being selected has its scratch.
    pub(super) fn row_scratch(&self) -> &'a RowScratch {
        &self.task.rows[usize::from(self.tables.row)]
    }

    /// True if lanes have 64 bits.
    pub(super) fn is_64(&self) -> bool {
        self.task.cut.lanes == Lanes::Bits64
    }

    /// What the loop may be prefetched for.
    pub(super) fn can(&self) -> Capability {
        Capability { loops: self.task.width.loops(), lanes: self.task.cut.lanes }
    }

    pub(super) fn ty(&self, v: Val) -> Scalar {
        self.task.stage.body.ty(v)
    }

    /// Appends an instruction for one half, or for both if that is 2.
    pub(super) fn push(&mut self, op: Op, args: &[VReg], half: u8) -> VReg {
        self.insts.push(Inst { op, args: SmallVec::from_slice(args), half, fixed: None });
        (self.insts.len() - 1) as VReg
    }

    /// A value that is the same for both halves and made without operands.
    pub(super) fn source(&mut self, op: Op) -> VReg {
        if let Some(v) = self.known.get(&op) {
            return *v;
        }
        let v = self.push(op, &[], 2);
        self.known.insert(op, v);
        v
    }

    pub(super) fn splat(&mut self, bits: u32) -> Pair {
        [self.source(Op::Splat(bits)); 2]
    }

    /// Bits of a lane in all of them.
    pub(super) fn constant(&mut self, bits: u64) -> Pair {
        if self.is_64() { [self.source(Op::Splat64(bits)); 2] } else { self.splat(bits as u32) }
    }

    /// The same instruction for both halves; one, if the operands are the same.
    pub(super) fn both(&mut self, op: Op, args: &[Pair]) -> Pair {
        if args.iter().all(|a| a[0] == a[1]) {
            let args: SmallVec<[VReg; 3]> = args.iter().map(|a| a[0]).collect();
            return [self.push(op, &args, 2); 2];
        }
        [0, 1].map(|half| {
            let args: SmallVec<[VReg; 3]> = args.iter().map(|a| a[half]).collect();
            self.push(op, &args, half as u8)
        })
    }

    /// How many positions there are in the group.
    pub(super) fn positions(&self) -> i32 {
        self.task.lanes() * if self.single { 1 } else { 2 }
    }

    /// What `make` makes of each half, or of both at once; it is told the half, and its place in
    /// pairs.
    pub(super) fn each_half(&mut self, mut make: impl FnMut(&mut Self, u8, usize) -> VReg) -> Pair {
        match self.single {
            true => [make(self, 2, 0); 2],
            false => [0u8, 1].map(|half| make(self, half, usize::from(half))),
        }
    }

    pub(super) fn binary(&mut self, op: Binary, a: Pair, b: Pair) -> Pair {
        self.both(Op::Binary(op), &[a, b])
    }

    pub(super) fn unary(&mut self, op: Unary, a: Pair) -> Pair {
        self.both(Op::Unary(op), &[a])
    }

    pub(super) fn shift(&mut self, shift: Shift, by: u8, a: Pair) -> Pair {
        self.both(Op::Shift(shift, by), &[a])
    }

    pub(super) fn blend(&mut self, mask: Pair, set: Pair, clear: Pair) -> Pair {
        let from = &self.insts[mask[0] as usize];
        match from.op {
            // A comparison gives a mask register, from which to choose without a vector in between.
            Op::Binary(two) if self.is_512 && two.is_mask() => {
                let of = |i: usize| mask.map(|m| self.insts[m as usize].args[i]);
                self.both(Op::CompareBlend(two), &[clear, set, of(0), of(1)])
            }
            _ => self.both(Op::Blend, &[clear, set, mask]),
        }
    }

    /// The masks of the last group.
    pub(super) fn masks(&mut self) -> Pair {
        let slots = match self.tables.masks {
            Some(slots) => slots,
            None => {
                let slots = [0, 1].map(|half| self.tables.broadcast(Cell::Mask(half), false));
                self.tables.masks = Some(slots);
                slots
            }
        };
        slots.map(|s| self.source(Op::Broadcast(s)))
    }

    /// A value in the scratch that another phase has left or will read.
    fn temporary(&mut self, offset: i32) -> MemRef {
        let pointer = self.tables.pointer(PointerFrom::Temporaries);
        MemRef { base: Base::Pointer { pointer, size: 4 }, offset: self.task.temporaries + offset }
    }

    /// Prefetches the lines of a row that belong to the group.
    fn prefetch(&mut self, number: usize, Prefetched { bytes: size, written }: Prefetched) {
        let cell = self.tables.cell(Cell::Prefetch(number));
        let pointer = self.tables.pointer(PointerFrom::Cell(cell));
        for offset in (0..self.positions() * i32::from(size)).step_by(LINE) {
            self.push(
                Op::Prefetch(MemRef { base: Base::Pointer { pointer, size }, offset }, written),
                &[],
                2,
            );
        }
    }

    /// A number that the caller knows, in every lane.
    pub(super) fn given(&mut self, cell: Cell) -> Pair {
        let slot = self.tables.broadcast(cell, false);
        [self.source(Op::Broadcast(slot)); 2]
    }

    /// A value as an operand: made by this phase, the same along the row, or left by another phase.
    pub(super) fn arg(&mut self, v: Val) -> Result<Pair> {
        if let Some(pair) = self.values.get(&v) {
            return Ok(*pair);
        }
        let pair = if self.task.cut.class[v as usize] == Class::Uniform {
            match self.task.stage.body.insts[v as usize].op {
                ScalarOp::Const(bits) => match self.ty(v) {
                    Scalar::Bool => self.splat(if bits == 0 { 0 } else { u32::MAX }),
                    _ => self.constant(bits),
                },
                _ => self.given(Cell::Uniform(v)),
            }
        } else {
            let offset = self.task.cut.temporaries[v as usize]
                .ok_or("a value of another phase has no place in the scratch")?;
            let place = self.temporary(offset);
            self.lazy(place)
        };
        self.values.insert(v, pair);
        Ok(pair)
    }

    fn value_of(&mut self, v: Val) -> Result<Pair> {
        let inst = &self.task.stage.body.insts[v as usize];
        match inst.op {
            ScalarOp::Load(l) => self.operand(v, l as usize),
            ScalarOp::Index(_) if inst.ty != Scalar::I32 || self.is_64() => {
                Err(format!("positions as vectors of {}", inst.ty.name()))
            }
            ScalarOp::Index(i) => {
                let affine = &self.task.plan.positions[i as usize];
                let step = affine.strides.last().and_then(|step| step.number());
                let step = step.ok_or("positions whose steps are names")? as i32;
                let cell = self.tables.cell(Cell::Start(v));
                let first = self.push(Op::Position { cell, step }, &[], 2);
                let lanes = self.task.width.bytes() / 4;
                let steps = self.each_half(|select, _, at| {
                    let start = step.wrapping_mul(lanes * at as i32);
                    select.source(Op::Ramp { start, step })
                });
                Ok(self.binary(Binary::IntAdd, [first; 2], steps))
            }
            ScalarOp::Row(_) if !self.can().keeps(inst.ty) => {
                Err(format!("a row buffer of vectors of {}", inst.ty.name()))
            }
            ScalarOp::Row(b) => {
                let place = MemRef {
                    base: Base::RowBuffer(self.row_scratch().buffers[b as usize]),
                    offset: 0,
                };
                // A buffer that this stage also writes is read before it is written.
                match self.task.cut.class[v as usize] {
                    Class::Free => Ok(self.lazy(place)),
                    _ => Ok(self.load(Load::Full, place, self.task.lane())),
                }
            }
            _ => {
                let args = inst
                    .args
                    .iter()
                    .map(|a| self.arg(*a))
                    .collect::<Result<SmallVec<[Pair; 3]>>>()?;
                self.compute(v, inst, &args)
            }
        }
    }

    /// A function as the instructions of its definition.
    pub(super) fn call(&mut self, steps: &'static Sequence, x: Pair) -> Pair {
        let mut values: Vec<Pair> = vec![x];
        for (op, args) in &steps.steps {
            let args: SmallVec<[Pair; 3]> = args.iter().map(|a| values[*a as usize]).collect();
            values.push(match op {
                Op::Blend => self.blend(args[2], args[1], args[0]),
                op if op.is_rematerialised() => [self.source(*op); 2],
                op => self.both(*op, &args),
            });
        }
        values[steps.result as usize]
    }

    /// A reduction's accumulators: in registers, or, if there are many, in the scratch.
    pub(super) fn accumulator(&mut self, lanes: i32, identity: u64) -> Option<[u8; 2]> {
        let vectors = self.task.vectors();
        let at = self.tables.accumulators.iter().position(|a| a.lanes == lanes).or_else(|| {
            let taken = vectors * self.tables.accumulators.len();
            let room = taken + vectors <= self.task.width.accumulators();
            room.then(|| {
                self.tables.accumulators.push(Accumulator { lanes, identity });
                self.tables.accumulators.len() - 1
            })
        })?;
        // The second half goes to the next vector: of the same lanes, or of the others.
        Some([vectors * at, vectors * at + usize::from(!self.single)].map(|number| number as u8))
    }

    /// The steps of a function of one float.
    pub(super) fn function(&mut self, f: tracecast_ir::kernel::Function, x: Pair) -> Result<Pair> {
        let steps = match self.is_64() {
            true => sequence_of_doubles(f),
            false => sequence(f, self.task.width),
        };
        Ok(self.call(steps.ok_or_else(|| format!("{f:?} of vectors"))?, x))
    }

    /// True where the value is NaN.
    pub(super) fn is_nan(&mut self, x: Pair) -> Pair {
        self.binary(Binary::Compare(compare::UNORDERED), x, x)
    }

    /// All bits inverted.
    pub(super) fn not(&mut self, x: Pair) -> Pair {
        let ones = self.splat(u32::MAX);
        self.binary(Binary::Xor, x, ones)
    }
}

/// True if everything that is loaded and stored along the row is bf16, and no position knows its
/// number.
fn is_all_bf16(task: &Task<'_>) -> bool {
    let body = &task.stage.body;
    let fits = |v: &Val| match body.insts[*v as usize].op {
        ScalarOp::Load(l) => task.plan.loads[l as usize].dtype == tracecast_ir::DType::BF16,
        ScalarOp::Index(_) | ScalarOp::Row(_) => false,
        _ => true,
    };
    let stores = |sink: &usize| match &task.stage.sinks[*sink] {
        Sink::Store { dtype, value, .. } => {
            *dtype == tracecast_ir::DType::BF16 && task.cut.class[*value as usize] != Class::Uniform
        }
        _ => false,
    };
    task.cut.temporaries.iter().all(Option::is_none)
        && task.phase.insts.iter().all(fits)
        && task.phase.sinks.iter().all(stores)
}

/// True if every NaN is one that the processor makes, or was loaded as bf16: arithmetic keeps their
/// payloads, and none of those overflows.
fn rounds_nan_safely(task: &Task<'_>) -> bool {
    use tracecast_ir::DType::{BF16, Bool, I32, I64, U8};
    let plain = |l: &crate::plan::Source| match &l.place {
        crate::plan::Place::At(access) => !f32::from_bits(access.fill as u32).is_nan(),
        crate::plan::Place::Stream | crate::plan::Place::Gathered { .. } => true,
    };
    let loads = &task.plan.loads;
    let loads = loads.iter().all(|l| matches!(l.dtype, BF16 | Bool | I32 | I64 | U8) && plain(l));
    let number = |inst: &tracecast_ir::kernel::Inst| match (inst.op, inst.ty) {
        (ScalarOp::Const(bits), Scalar::F32) => !f32::from_bits(bits as u32).is_nan(),
        (ScalarOp::Const(_), Scalar::F64) => false,
        _ => true,
    };
    loads && task.plan.stages.iter().flat_map(|s| &s.body.insts).all(number)
}
