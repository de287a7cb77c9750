//! What happens to the results of a phase: stores, which narrow, row buffers, and accumulators.

use super::Cell;
use super::frame::PointerFrom;
use super::inst::{Base, Load, One, Op, Place, Shift, Store, Two};
use super::select::{Pair, Result, Select};
use crate::plan::Sink;
use crate::plan::phases::Class;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Reduction, Scalar, ScalarOp, Val};

impl Select<'_> {
    /// True if the table has such a sink of vectors.
    fn takes(&self, sink: &Sink) -> bool {
        let takes = |v: Val| {
            let uniform = self.task.cut.class[v as usize] == Class::Uniform;
            self.can().takes(sink, self.ty(v), uniform) == Class::Vector
        };
        sink.values().last().is_some_and(|v| takes(*v))
    }

    /// What happens to a result of the phase.
    pub(super) fn sink(&mut self, number: usize) -> Result<()> {
        let task = self.task;
        let sink = &task.stage.sinks[number];
        if !self.takes(sink) {
            return Err("a sink of vectors that loops do not have".to_owned());
        }
        match sink {
            Sink::Store { dtype, value, .. } => {
                let cell = self.tables.cell(Cell::Sink(number));
                let pointer = self.tables.pointer(PointerFrom::Cell(cell));
                if task.cut.class[*value as usize] == Class::Uniform {
                    self.store_pattern(number, *dtype, pointer);
                    return Ok(());
                }
                self.store(*dtype, *value, pointer)
            }
            Sink::Keep { value, buffer } => {
                let pair = self.arg(*value)?;
                let base = Base::Row(self.turn().buffers[*buffer]);
                self.store_whole(Place { base, offset: 0 }, pair);
                Ok(())
            }
            Sink::Reduce { reduction, value, .. } => {
                let lanes = self.turn().lanes.get(&number).ok_or("a reduction has no lanes")?;
                let pair = self.arg(*value)?;
                self.reduce(*reduction, self.ty(*value), *lanes, pair)
            }
            Sink::Column { reduction, value, .. } => {
                let ty = self.ty(*value);
                let pair = self.arg(*value)?;
                let cell = self.tables.cell(Cell::Sink(number));
                let pointer = self.tables.pointer(PointerFrom::Cell(cell));
                let before = self.load_lanes(pointer);
                let start = self.constant(reduction.identity(ty));
                let first = self.given(Cell::First(number));
                let before = self.blend(first, start, before);
                let after = self.combine(*reduction, ty, before, pair)?;
                self.store_again(pointer, after);
                Ok(())
            }
            Sink::Add { value, .. } => {
                let ty = self.ty(*value);
                let pair = self.arg(*value)?;
                let cell = self.tables.cell(Cell::Sink(number));
                let pointer = self.tables.pointer(PointerFrom::Cell(cell));
                let before = self.load_lanes(pointer);
                let after = self.binary(ScalarOp::Add, ty, before, pair)?;
                self.store_again(pointer, after);
                Ok(())
            }
            Sink::Set { .. } => Err("a register set in a row stage".to_owned()),
        }
    }

    fn reduce(&mut self, how: Reduction, ty: Scalar, lanes: i32, pair: Pair) -> Result<()> {
        let identity = how.identity(ty);
        let Some(numbers) = self.accumulator(lanes, identity) else {
            let sixteen = self.positions() == 16 && self.task.alternates();
            let base = if sixteen { Base::Lanes(lanes) } else { Base::Fixed(lanes) };
            let place = Place { base, offset: 0 };
            let before = self.load(Load::Whole, place, self.task.lane());
            let after = self.combined(how, ty, before, pair)?;
            self.store_whole(place, after);
            return Ok(());
        };
        let before = numbers.map(|n| self.source(Op::Acc(n)));
        let after = self.combined(how, ty, before, pair)?;
        for half in [0, 1] {
            let register = self.task.width.accumulator(numbers[half]);
            self.insts[after[half] as usize].fixed = Some(register);
        }
        Ok(())
    }

    /// The lanes with one more value; those beyond the last position stay.
    fn combined(&mut self, how: Reduction, ty: Scalar, before: Pair, pair: Pair) -> Result<Pair> {
        // Equal operands of both halves would make one instruction of the two that are needed.
        let after = self.combine(how, ty, before, pair)?;
        if !self.last {
            return Ok(after);
        }
        if self.long {
            return Ok(self.both(Op::Tail, &[before, after]));
        }
        let masks = self.masks();
        Ok(self.blend(masks, after, before))
    }

    /// Stores results as large as a lane.
    fn store_lanes(&mut self, pointer: u16, pair: Pair) {
        if self.last {
            return self.store_again(pointer, pair);
        }
        let base = self.lanes_at(pointer).base;
        self.halves(|select, half, at| {
            let place = Place { base, offset: select.task.width.bytes() * at as i32 };
            select.put(Store::Whole, place, pair[at], half)
        });
    }

    /// Stores elements as large as a lane that have been loaded; those there are, if fewer than sixteen are left.
    fn store_again(&mut self, pointer: u16, pair: Pair) {
        let place = self.lanes_at(pointer);
        if !self.last || self.long {
            self.store_whole(place, pair);
            return;
        }
        let masks = self.masks();
        for half in [0usize, 1] {
            let place = Place { offset: 32 * half as i32, ..place };
            let args = [pair[half], masks[half]];
            self.push(Op::Store(Store::Masked, place), &args, half as u8);
        }
    }

    /// Narrows a value and stores it.
    fn store(&mut self, dtype: DType, value: Val, pointer: u16) -> Result<()> {
        let pair = self.arg(value)?;
        match dtype {
            DType::F32 | DType::I32 | DType::F64 | DType::I64 => self.store_lanes(pointer, pair),
            DType::Bool if self.doubles => {
                let one = self.constant(1);
                let bit = self.two(Two::And, pair, one);
                let place = self.group(pointer, 1, true);
                self.halves(|select, half, at| {
                    let place = Place { offset: 8 * at as i32, ..place };
                    select.push(Op::Store(Store::Eighth, place), &[bit[at]], half)
                });
            }
            DType::F16 => {
                let place = self.group(pointer, 2, true);
                let ready = self.halves.get(&value).copied();
                self.halves(|select, half, at| {
                    let bytes = select.task.width.bytes() / 2;
                    let place = Place { offset: bytes * at as i32, ..place };
                    let (how, from) = match ready {
                        Some(ready) => (Store::Low, ready[at]),
                        None => (Store::Half, pair[at]),
                    };
                    select.put(how, place, from, half)
                });
            }
            DType::BF16 => {
                let bits = match self.rounded.get(&value) {
                    Some(bits) => *bits,
                    None => self.nearest_bf16(pair),
                };
                let low = self.shift(Shift::Right, 16, bits);
                if self.interleaved {
                    let mask = self.splat(0xffff_0000);
                    let high = self.two(Two::And, bits, mask);
                    let words = self.two(Two::Or, [low[0]; 2], [high[1]; 2]);
                    let place = Place { base: Base::Pointer { pointer, size: 2 }, offset: 0 };
                    self.put(Store::Whole, place, words[0], 2);
                    return Ok(());
                }
                if self.long {
                    self.store_narrow(One::Words, low, pointer);
                    return Ok(());
                }
                let words = self.push(Op::Two(Two::NarrowU16), &low, 2);
                self.store_words(words, pointer);
            }
            DType::U8 if self.long => self.store_narrow(One::Bytes, pair, pointer),
            DType::Bool if self.long => {
                let one = self.splat(1);
                let bit = self.two(Two::And, pair, one);
                self.store_narrow(One::Bytes, bit, pointer);
            }
            DType::U8 => {
                let mask = self.splat(0xff);
                let low = self.two(Two::And, pair, mask);
                let words = self.push(Op::Two(Two::NarrowI16), &low, 2);
                self.store_bytes(Two::NarrowU8, words, None, pointer);
            }
            DType::Bool => {
                let words = self.push(Op::Two(Two::NarrowI16), &pair, 2);
                self.store_bytes(Two::NarrowI8, words, Some(0x0101_0101), pointer);
            }
            other => return Err(format!("storing vectors of {other}")),
        }
        Ok(())
    }

    /// Stores the low words or bytes of sixteen lanes.
    fn store_narrow(&mut self, narrow: One, pair: Pair, pointer: u16) {
        let (size, how) = if narrow == One::Words { (2, Store::Low) } else { (1, Store::Quarter) };
        let low = self.one(narrow, pair);
        self.store_parts(pointer, size, how, low);
    }

    /// Stores sixteen elements of each half.
    fn store_parts(&mut self, pointer: u16, size: u8, how: Store, parts: Pair) {
        let place = self.group(pointer, size, true);
        self.halves(|select, half, at| {
            let place = Place { offset: 16 * i32::from(size) * at as i32, ..place };
            select.put(how, place, parts[at], half)
        });
    }

    /// Stores sixteen words, whose quarters are out of order.
    fn store_words(&mut self, words: u32, pointer: u16) {
        let words = self.push(Op::One(One::Quarters(0b11_01_10_00)), &[words], 2);
        let place = self.group(pointer, 2, true);
        self.put(Store::Whole, place, words, 2);
    }

    /// Stores sixteen words as bytes.
    fn store_bytes(&mut self, narrow: Two, words: u32, mask: Option<u32>, pointer: u16) {
        let words = self.push(Op::One(One::Quarters(0b11_01_10_00)), &[words], 2);
        let bytes = self.push(Op::Two(narrow), &[words, words], 2);
        let mut bytes = self.push(Op::One(One::Quarters(0b00_00_10_00)), &[bytes], 2);
        if let Some(mask) = mask {
            let mask = self.source(Op::Splat(mask));
            bytes = self.push(Op::Two(Two::And), &[bytes, mask], 2);
        }
        let place = self.group(pointer, 1, true);
        self.put(Store::Low, place, bytes, 2);
    }

    /// Stores a value that is the same all along the row, given as it lies in memory.
    fn store_pattern(&mut self, number: usize, dtype: DType, pointer: u16) {
        let size = dtype.bytes() as u8;
        let slot = self.tables.ready(Cell::Bits(number), true);
        let pattern = self.source(Op::Ready(slot));
        if i32::from(size) == self.task.lane() {
            self.store_lanes(pointer, [pattern; 2]);
            return;
        }
        if self.long && size <= 2 {
            let how = if size == 1 { Store::Quarter } else { Store::Low };
            return self.store_parts(pointer, size, how, [pattern; 2]);
        }
        let place = self.group(pointer, size, true);
        let how = if size == 1 { Store::Low } else { Store::Whole };
        let vector = self.task.width.bytes();
        for part in 0..(self.positions() * i32::from(size) + vector - 1) / vector {
            let place = Place { offset: place.offset + vector * part, ..place };
            self.put(how, place, pattern, 2);
        }
    }
}
