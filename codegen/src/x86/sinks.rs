//! What happens to the results of a phase: stores, which narrow, row buffers, and accumulators.

use super::frame::PointerFrom;
use super::inst::{Base, Binary, Load, MemRef, Op, Shift, Store, Unary};
use super::select::{Pair, Result, Select};
use super::task::Cell;
use crate::plan::Sink;
use crate::plan::phases::Class;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Reduction, Scalar, Val};

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
                let base = Base::RowBuffer(self.row_scratch().buffers[*buffer]);
                self.store_full(MemRef { base, offset: 0 }, pair);
                Ok(())
            }
            Sink::Reduce { reduction, value, .. } => {
                let lanes =
                    self.row_scratch().lanes.get(&number).ok_or("a reduction has no lanes")?;
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
            Sink::Combine { combiner, dtype, value, .. } => {
                let ty = self.ty(*value);
                let cell = self.tables.cell(Cell::Sink(number));
                let pointer = self.tables.pointer(PointerFrom::Cell(cell));
                let Some(op) = combiner.combines(ty) else {
                    return self.store(*dtype, *value, pointer);
                };
                let pair = self.arg(*value)?;
                let before = self.load_lanes(pointer);
                let after = self.arithmetic(op, ty, &[before, pair])?;
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
            let place = MemRef { base, offset: 0 };
            let before = self.load(Load::Full, place, self.task.lane());
            let after = self.combined(how, ty, before, pair)?;
            self.store_full(place, after);
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
        if self.is_512 {
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
        self.each_half(|select, half, at| {
            let place = MemRef { base, offset: select.task.width.bytes() * at as i32 };
            select.put(Store::Full, place, pair[at], half)
        });
    }

    /// Stores elements as large as a lane that have been loaded; those there are, if fewer than
    /// sixteen are left.
    fn store_again(&mut self, pointer: u16, pair: Pair) {
        let place = self.lanes_at(pointer);
        if !self.last || self.is_512 {
            self.store_full(place, pair);
            return;
        }
        let masks = self.masks();
        for half in [0usize, 1] {
            let place = MemRef { offset: 32 * half as i32, ..place };
            let args = [pair[half], masks[half]];
            self.push(Op::Store(Store::Masked, place), &args, half as u8);
        }
    }

    /// Narrows a value and stores it.
    fn store(&mut self, dtype: DType, value: Val, pointer: u16) -> Result<()> {
        let pair = self.arg(value)?;
        match dtype {
            DType::F32 | DType::I32 | DType::F64 | DType::I64 => self.store_lanes(pointer, pair),
            DType::Bool if self.is_64() => {
                let one = self.constant(1);
                let bit = self.binary(Binary::And, pair, one);
                let place = self.group(pointer, 1, true);
                self.each_half(|select, half, at| {
                    let place = MemRef { offset: 8 * at as i32, ..place };
                    select.push(Op::Store(Store::Eighth, place), &[bit[at]], half)
                });
            }
            DType::F16 => {
                let place = self.group(pointer, 2, true);
                let ready = self.rounded_f16.get(&value).copied();
                self.each_half(|select, half, at| {
                    let bytes = select.task.width.bytes() / 2;
                    let place = MemRef { offset: bytes * at as i32, ..place };
                    let (how, from) = match ready {
                        Some(ready) => (Store::Low, ready[at]),
                        None => (Store::F16, pair[at]),
                    };
                    select.put(how, place, from, half)
                });
            }
            DType::BF16 => {
                let bits = match self.rounded_bf16.get(&value) {
                    Some(bits) => *bits,
                    None => self.nearest_bf16(pair),
                };
                let low = self.shift(Shift::Right, 16, bits);
                if self.interleaved {
                    let mask = self.splat(0xffff_0000);
                    let high = self.binary(Binary::And, bits, mask);
                    let words = self.binary(Binary::Or, [low[0]; 2], [high[1]; 2]);
                    let place = MemRef { base: Base::Pointer { pointer, size: 2 }, offset: 0 };
                    self.put(Store::Full, place, words[0], 2);
                    return Ok(());
                }
                if self.is_512 {
                    self.store_narrow(Unary::Truncate16, low, pointer);
                    return Ok(());
                }
                let words = self.push(Op::Binary(Binary::NarrowU16), &low, 2);
                self.store_words(words, pointer);
            }
            DType::U8 if self.is_512 => self.store_narrow(Unary::Truncate8, pair, pointer),
            DType::Bool if self.is_512 => {
                let one = self.splat(1);
                let bit = self.binary(Binary::And, pair, one);
                self.store_narrow(Unary::Truncate8, bit, pointer);
            }
            DType::U8 => {
                let mask = self.splat(0xff);
                let low = self.binary(Binary::And, pair, mask);
                let words = self.push(Op::Binary(Binary::NarrowI16), &low, 2);
                self.store_bytes(Binary::NarrowU8, words, None, pointer);
            }
            DType::Bool => {
                let words = self.push(Op::Binary(Binary::NarrowI16), &pair, 2);
                self.store_bytes(Binary::NarrowI8, words, Some(0x0101_0101), pointer);
            }
            other => return Err(format!("storing vectors of {other}")),
        }
        Ok(())
    }

    /// Stores the low words or bytes of sixteen lanes.
    fn store_narrow(&mut self, narrow: Unary, pair: Pair, pointer: u16) {
        let (size, how) =
            if narrow == Unary::Truncate16 { (2, Store::Low) } else { (1, Store::Quarter) };
        let low = self.unary(narrow, pair);
        self.store_parts(pointer, size, how, low);
    }

    /// Stores sixteen elements of each half.
    fn store_parts(&mut self, pointer: u16, size: u8, how: Store, parts: Pair) {
        let place = self.group(pointer, size, true);
        self.each_half(|select, half, at| {
            let place = MemRef { offset: 16 * i32::from(size) * at as i32, ..place };
            select.put(how, place, parts[at], half)
        });
    }

    /// Stores sixteen words, whose quarters are out of order.
    fn store_words(&mut self, words: u32, pointer: u16) {
        let words = self.push(Op::Unary(Unary::Permute64(0b11_01_10_00)), &[words], 2);
        let place = self.group(pointer, 2, true);
        self.put(Store::Full, place, words, 2);
    }

    /// Stores sixteen words as bytes.
    fn store_bytes(&mut self, narrow: Binary, words: u32, mask: Option<u32>, pointer: u16) {
        let words = self.push(Op::Unary(Unary::Permute64(0b11_01_10_00)), &[words], 2);
        let bytes = self.push(Op::Binary(narrow), &[words, words], 2);
        let mut bytes = self.push(Op::Unary(Unary::Permute64(0b00_00_10_00)), &[bytes], 2);
        if let Some(mask) = mask {
            let mask = self.source(Op::Splat(mask));
            bytes = self.push(Op::Binary(Binary::And), &[bytes, mask], 2);
        }
        let place = self.group(pointer, 1, true);
        self.put(Store::Low, place, bytes, 2);
    }

    /// Stores a value that is the same all along the row, given in its format in memory.
    fn store_pattern(&mut self, number: usize, dtype: DType, pointer: u16) {
        let size = dtype.bytes() as u8;
        let slot = self.tables.broadcast(Cell::Pattern(number), true);
        let pattern = self.source(Op::Broadcast(slot));
        if i32::from(size) == self.task.lane() {
            self.store_lanes(pointer, [pattern; 2]);
            return;
        }
        if self.is_512 && size <= 2 {
            let how = if size == 1 { Store::Quarter } else { Store::Low };
            return self.store_parts(pointer, size, how, [pattern; 2]);
        }
        let place = self.group(pointer, size, true);
        let how = if size == 1 { Store::Low } else { Store::Full };
        let vector = self.task.width.bytes();
        for part in 0..(self.positions() * i32::from(size) + vector - 1) / vector {
            let place = MemRef { offset: place.offset + vector * part, ..place };
            self.put(how, place, pattern, 2);
        }
    }
}
