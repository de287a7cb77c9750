//! From a phase of a plan to instructions on a group of positions: two vectors, or one where what is left does not fill two of 512 bits.
//!
//! Both halves take the same steps side by side, so that each fills the other's waits. Values that are the same along the row are one
//! vector for both halves, and so is everything of a single vector. Truth values are masks.

use super::frame::PointerFrom;
use super::functions::{Sequence, sequence};
use super::inst::{Base, Inst, Load, One, Op, Place, Shift, Two, V, compare};
use super::{Cell, Task, Turn};
use crate::machine::Width;
use crate::plan::Sink;
use crate::plan::phases::{Capability, Class, Lanes};
use smallvec::SmallVec;
use std::collections::HashMap;
use tracecast_ir::kernel::{Scalar, ScalarOp, Val};

/// The two halves of a group.
pub(super) type Pair = [V; 2];

/// The bytes of a line of the cache.
const LINE: usize = 64;

/// Why a phase has no code.
pub(super) type Result<T> = std::result::Result<T, String>;

/// An operand's last group that is copied, since there are no masks for its small elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) pointer: u16,
    pub(super) size: u8,
    pub(super) stage: u16,
    /// Into the operand rather than from it.
    pub(super) out: bool,
}

/// A reduction in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accumulator {
    /// Where its lanes are in the scratch.
    pub(super) lanes: i32,
    /// What they start from.
    pub(super) identity: u64,
}

/// What both bodies of a loop share.
#[derive(Default)]
pub(super) struct Tables {
    /// Each with the row it belongs to.
    pub(super) cells: Vec<(u8, Cell)>,
    /// The row at hand.
    pub(super) turn: u8,
    pub(super) pointers: Vec<PointerFrom>,
    /// The cells whose numbers are made ready, and whether all 16 bytes count.
    pub(super) ready: Vec<(u16, bool)>,
    /// Reductions in registers.
    pub(super) accumulators: Vec<Accumulator>,
    pub(super) staged: Vec<Staged>,
    /// The two vectors that say which of the last positions there are.
    pub(super) masks: Option<[u16; 2]>,
    /// The pointers, and sizes of elements, that are streamed to.
    pub(super) streamed: Vec<(u16, u8)>,
}

impl Tables {
    pub(super) fn cell(&mut self, cell: Cell) -> u16 {
        let cell = (self.turn, cell);
        let at = self.cells.iter().position(|c| *c == cell).unwrap_or_else(|| {
            self.cells.push(cell);
            self.cells.len() - 1
        });
        at as u16
    }

    pub(super) fn ready(&mut self, cell: Cell, wide: bool) -> u16 {
        let from = (self.cell(cell), wide);
        let at = self.ready.iter().position(|r| *r == from).unwrap_or_else(|| {
            self.ready.push(from);
            self.ready.len() - 1
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
        let same = |s: &&Staged| s.pointer == pointer && s.size == size && s.out == out;
        if let Some(found) = self.staged.iter().find(same) {
            return found.stage;
        }
        let stage = self.staged.len() as u16;
        self.staged.push(Staged { pointer, size, stage, out });
        stage
    }
}

/// Which positions a body is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Two vectors of them.
    Pair,
    /// Two vectors of them, whose results go past the caches.
    Streamed,
    /// One vector, of 512 bits.
    Single,
    /// Fewer than sixteen.
    Last,
}

/// A body in the making.
pub(super) struct Select<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) tables: &'a mut Tables,
    pub(super) insts: Vec<Inst>,
    /// Fewer than sixteen positions are left.
    pub(super) last: bool,
    /// Vectors have 512 bits, and instructions can leave lanes out.
    pub(super) long: bool,
    /// Lanes have 64 bits.
    pub(super) doubles: bool,
    /// Halves are one vector.
    single: bool,
    /// Halves are the even and the odd positions: pairs of bf16, which need not be moved to be widened.
    pub(super) interleaved: bool,
    streams: bool,
    /// The sink at hand goes past the caches.
    pub(super) past: bool,
    /// No NaN can have so many bits set that rounding it carries into its sign.
    pub(super) tame: bool,
    values: HashMap<Val, Pair>,
    known: HashMap<Op, V>,
    /// Rounded values before their low halves are cleared, for stores.
    pub(super) rounded: HashMap<Val, Pair>,
    /// Rounded values as f16.
    pub(super) halves: HashMap<Val, Pair>,
}

impl<'a> Select<'a> {
    /// The body of a phase.
    pub(super) fn body(
        task: &'a Task<'a>,
        tables: &'a mut Tables,
        part: Part,
    ) -> Result<Vec<Inst>> {
        let mut select = Select {
            task,
            tables,
            insts: Vec::new(),
            last: part == Part::Last,
            long: task.width == Width::Bits512,
            doubles: task.cut.lanes == Lanes::Bits64,
            single: part == Part::Single || part == Part::Last && task.lanes() == 16,
            interleaved: matches!(part, Part::Pair | Part::Streamed)
                && task.width == Width::Bits512
                && is_all_bf16(task),
            streams: part == Part::Streamed,
            past: false,
            tame: is_tame(task),
            values: HashMap::new(),
            known: HashMap::new(),
            rounded: HashMap::new(),
            halves: HashMap::new(),
        };
        // The pointer to waiting values comes first: it has no cell to be fetched from.
        if task.cut.waits.iter().any(Option::is_some) {
            select.tables.pointer(PointerFrom::Waits);
        }
        if select.last && !select.long {
            select.masks();
        }
        for turn in 0..task.turns.len() {
            select.tables.turn = turn as u8;
            if part == Part::Pair {
                task.asked.iter().enumerate().for_each(|(number, size)| select.ask(number, *size));
            }
            select.row()?;
        }
        Ok(select.insts)
    }

    /// What happens at the positions of a row.
    fn row(&mut self) -> Result<()> {
        let task = self.task;
        self.values.clear();
        self.rounded.clear();
        self.halves.clear();
        for v in &task.phase.insts {
            let pair = self.value_of(*v)?;
            if let Some(offset) = task.cut.waits[*v as usize] {
                let place = self.waiting(offset);
                self.store_whole(place, pair);
            }
            self.values.insert(*v, pair);
        }
        for sink in &task.phase.sinks {
            let slot = if let Sink::Store { slot, .. } = &task.stage.sinks[*sink] {
                Some(*slot)
            } else {
                None
            };
            self.past = self.streams && slot.is_some_and(|slot| task.plan.may_stream(slot));
            self.sink(*sink)?;
        }
        Ok(())
    }

    /// The row at hand.
    pub(super) fn turn(&self) -> &'a Turn {
        &self.task.turns[usize::from(self.tables.turn)]
    }

    /// What the loop may be asked for.
    pub(super) fn can(&self) -> Capability {
        Capability { loops: self.task.width.loops(), lanes: self.task.cut.lanes }
    }

    pub(super) fn ty(&self, v: Val) -> Scalar {
        self.task.stage.body.ty(v)
    }

    /// Appends an instruction for one half, or for both if that is 2.
    pub(super) fn push(&mut self, op: Op, args: &[V], half: u8) -> V {
        self.insts.push(Inst { op, args: SmallVec::from_slice(args), half, fixed: None });
        (self.insts.len() - 1) as V
    }

    /// A value that is the same for both halves and made without operands.
    pub(super) fn source(&mut self, op: Op) -> V {
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
        if self.doubles { [self.source(Op::SplatDouble(bits)); 2] } else { self.splat(bits as u32) }
    }

    /// The same instruction for both halves; one, if the operands are the same.
    pub(super) fn both(&mut self, op: Op, args: &[Pair]) -> Pair {
        if args.iter().all(|a| a[0] == a[1]) {
            let args: SmallVec<[V; 3]> = args.iter().map(|a| a[0]).collect();
            return [self.push(op, &args, 2); 2];
        }
        [0, 1].map(|half| {
            let args: SmallVec<[V; 3]> = args.iter().map(|a| a[half]).collect();
            self.push(op, &args, half as u8)
        })
    }

    /// How many positions there are in the group.
    pub(super) fn positions(&self) -> i32 {
        self.task.lanes() * if self.single { 1 } else { 2 }
    }

    /// What `make` makes of each half, or of both at once; it is told the half, and its place in pairs.
    pub(super) fn halves(&mut self, mut make: impl FnMut(&mut Self, u8, usize) -> V) -> Pair {
        match self.single {
            true => [make(self, 2, 0); 2],
            false => [0u8, 1].map(|half| make(self, half, usize::from(half))),
        }
    }

    pub(super) fn two(&mut self, op: Two, a: Pair, b: Pair) -> Pair {
        self.both(Op::Two(op), &[a, b])
    }

    pub(super) fn one(&mut self, op: One, a: Pair) -> Pair {
        self.both(Op::One(op), &[a])
    }

    pub(super) fn shift(&mut self, shift: Shift, by: u8, a: Pair) -> Pair {
        self.both(Op::Shift(shift, by), &[a])
    }

    pub(super) fn blend(&mut self, mask: Pair, set: Pair, clear: Pair) -> Pair {
        let from = &self.insts[mask[0] as usize];
        match from.op {
            // What compares gives a mask that needs not become a vector first.
            Op::Two(two) if self.long && two.is_mask() => {
                let of = |i: usize| mask.map(|m| self.insts[m as usize].args[i]);
                self.both(Op::Choose(two), &[clear, set, of(0), of(1)])
            }
            _ => self.both(Op::Blend, &[clear, set, mask]),
        }
    }

    /// The masks of the last group.
    pub(super) fn masks(&mut self) -> Pair {
        let slots = match self.tables.masks {
            Some(slots) => slots,
            None => {
                let slots = [0, 1].map(|half| self.tables.ready(Cell::Mask(half), false));
                self.tables.masks = Some(slots);
                slots
            }
        };
        slots.map(|s| self.source(Op::Ready(s)))
    }

    /// A scratch place of the positions of both halves.
    fn waiting(&mut self, offset: i32) -> Place {
        let pointer = self.tables.pointer(PointerFrom::Waits);
        Place { base: Base::Pointer { pointer, size: 4 }, offset: self.task.waits + offset }
    }

    /// Asks for the lines of a row of results that belong to the group.
    fn ask(&mut self, number: usize, size: u8) {
        let cell = self.tables.cell(Cell::Asked(number));
        let pointer = self.tables.pointer(PointerFrom::Cell(cell));
        for offset in (0..self.positions() * i32::from(size)).step_by(LINE) {
            self.push(Op::Ask(Place { base: Base::Pointer { pointer, size }, offset }), &[], 2);
        }
    }

    /// A number that the caller knows, in every lane.
    pub(super) fn given(&mut self, cell: Cell) -> Pair {
        let slot = self.tables.ready(cell, false);
        [self.source(Op::Ready(slot)); 2]
    }

    /// An operand of this phase.
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
            let offset = self.task.cut.waits[v as usize]
                .ok_or("a value of another phase does not wait for this one")?;
            let place = self.waiting(offset);
            self.lazy(place)
        };
        self.values.insert(v, pair);
        Ok(pair)
    }

    fn value_of(&mut self, v: Val) -> Result<Pair> {
        let inst = &self.task.stage.body.insts[v as usize];
        match inst.op {
            ScalarOp::Load(l) => self.operand(v, l as usize),
            ScalarOp::Index(_) if inst.ty != Scalar::I32 || self.doubles => {
                Err(format!("positions as vectors of {}", inst.ty.name()))
            }
            ScalarOp::Index(i) => {
                let affine = &self.task.plan.positions[i as usize];
                let step = affine.strides.last().copied().unwrap_or(0) as i32;
                let cell = self.tables.cell(Cell::Start(v));
                let first = self.push(Op::Position { cell, step }, &[], 2);
                let lanes = self.task.width.bytes() / 4;
                let steps = self.halves(|select, _, at| {
                    let start = step.wrapping_mul(lanes * at as i32);
                    select.source(Op::Steps { start, step })
                });
                Ok(self.two(Two::IntAdd, [first; 2], steps))
            }
            ScalarOp::Row(_) if !self.can().keeps(inst.ty) => {
                Err(format!("a row buffer of vectors of {}", inst.ty.name()))
            }
            ScalarOp::Row(b) => {
                let place = Place { base: Base::Row(self.turn().buffers[b as usize]), offset: 0 };
                // A buffer that this stage writes as well is read here and now.
                match self.task.cut.class[v as usize] {
                    Class::Free => Ok(self.lazy(place)),
                    _ => Ok(self.load(Load::Whole, place, self.task.lane())),
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
                op if op.is_at_home() => [self.source(*op); 2],
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
        let steps = sequence(f, self.task.width).ok_or_else(|| format!("{f:?} of vectors"))?;
        Ok(self.call(steps, x))
    }

    /// True where the value is NaN.
    pub(super) fn is_nan(&mut self, x: Pair) -> Pair {
        self.two(Two::Compare(compare::UNORDERED), x, x)
    }

    /// All bits inverted.
    pub(super) fn not(&mut self, x: Pair) -> Pair {
        let ones = self.splat(u32::MAX);
        self.two(Two::Xor, x, ones)
    }
}

/// True if everything that is loaded and stored along the row is bf16, and all positions are alike.
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
    task.cut.waits.iter().all(Option::is_none)
        && task.phase.insts.iter().all(fits)
        && task.phase.sinks.iter().all(stores)
}

/// True if every NaN is one that the processor makes, or a bf16: nothing else is loaded, and arithmetic keeps their bits.
fn is_tame(task: &Task<'_>) -> bool {
    use tracecast_ir::DType::{BF16, Bool, I32, I64, U8};
    let plain = |l: &crate::plan::Source| match &l.place {
        crate::plan::Place::At(access) => !f32::from_bits(access.fill as u32).is_nan(),
        crate::plan::Place::Stream | crate::plan::Place::Gathered(_) => true,
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
