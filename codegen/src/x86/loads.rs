//! Loads along the row, which widen what is narrower than a lane, and the accesses to memory that
//! all of selection uses.

use super::frame::PointerFrom;
use super::inst::{Base, Binary, Load, MemRef, Op, Shift, Store, VReg};
use super::select::{Pair, Result, Select};
use super::task::Cell;
use crate::plan::phases::Class;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Scalar, Val};

impl Select<'_> {
    /// A load along the row, widened.
    pub(super) fn operand(&mut self, v: Val, number: usize) -> Result<Pair> {
        let source = &self.task.plan.loads[number];
        if !matches!(self.can().loads(source.dtype), Class::Free | Class::Vector) {
            return Err(format!("vectors of {}", source.dtype));
        }
        let cell = self.tables.cell(Cell::Load(v));
        let pointer = self.tables.pointer(PointerFrom::Cell(cell));
        let pair = match source.dtype {
            DType::F32 | DType::I32 | DType::F64 | DType::I64 => {
                match self.last || !source.read_only {
                    true => self.load_lanes(pointer),
                    false => self.lazy(self.lanes_at(pointer)),
                }
            }
            DType::BF16 if self.interleaved => {
                let place = MemRef { base: Base::Pointer { pointer, size: 2 }, offset: 0 };
                let both = [self.push(Op::Load(Load::Full, place), &[], 2); 2];
                let (even, high) = (self.shift(Shift::Left, 16, both), self.splat(0xffff_0000));
                [even[0], self.binary(Binary::And, both, high)[0]]
            }
            DType::BF16 => {
                let place = self.group(pointer, 2, false);
                let bits = self.load(Load::U16, place, 2);
                self.shift(Shift::Left, 16, bits)
            }
            DType::F16 => {
                let place = self.group(pointer, 2, false);
                self.load(Load::F16, place, 2)
            }
            DType::U8 | DType::Bool => {
                let place = self.group(pointer, 1, false);
                let how = if self.is_64() { Load::U8To64 } else { Load::U8 };
                let bytes = self.load(how, place, 1);
                if source.dtype == DType::U8 {
                    bytes
                } else {
                    let zero = self.splat(0);
                    self.binary(Binary::IntGreater, bytes, zero)
                }
            }
            other => return Err(format!("vectors of {other}")),
        };
        let crate::plan::Place::At(access) = &source.place else { return Ok(pair) };
        if access.guards.is_empty() {
            return Ok(pair);
        }
        let fill = match self.ty(v) {
            Scalar::Bool if access.fill != 0 => u32::MAX,
            _ => access.fill as u32,
        };
        let (fill, holds) = (self.splat(fill), self.given(Cell::Guard(v)));
        Ok(self.blend(holds, pair, fill))
    }

    /// Loads both halves as memory operands of what uses them.
    pub(super) fn lazy(&mut self, place: MemRef) -> Pair {
        self.each_half(|select, half, at| {
            let place =
                MemRef { offset: place.offset + select.task.width.bytes() * at as i32, ..place };
            select.push(Op::Folded(place), &[], half)
        })
    }

    /// Loads both halves now, of elements of that number of bytes.
    pub(super) fn load(&mut self, load: Load, place: MemRef, size: i32) -> Pair {
        self.each_half(|select, half, at| {
            let bytes = select.task.lanes() * size;
            let place = MemRef { offset: place.offset + bytes * at as i32, ..place };
            select.push(Op::Load(load, place), &[], half)
        })
    }

    /// Loads both halves of elements as large as a lane now; under the mask, if there are fewer
    /// than sixteen.
    pub(super) fn load_lanes(&mut self, pointer: u16) -> Pair {
        let place = self.lanes_at(pointer);
        if !self.last || self.is_512 {
            return self.load(Load::Full, place, self.task.lane());
        }
        let masks = self.masks();
        [0usize, 1].map(|half| {
            let place = MemRef { offset: 32 * half as i32, ..place };
            self.push(Op::Load(Load::Masked, place), &[masks[half]], half as u8)
        })
    }

    /// The place of an operand with elements as large as a lane.
    pub(super) fn lanes_at(&self, pointer: u16) -> MemRef {
        MemRef { base: Base::Pointer { pointer, size: self.task.lane() as u8 }, offset: 0 }
    }

    /// Stores both halves without a mask.
    pub(super) fn store_full(&mut self, place: MemRef, pair: Pair) {
        self.each_half(|select, half, at| {
            let place =
                MemRef { offset: place.offset + select.task.width.bytes() * at as i32, ..place };
            select.push(Op::Store(Store::Full, place), &[pair[at]], half)
        });
    }

    /// Stores a result, non-temporally if this body and sink do.
    pub(super) fn put(&mut self, store: Store, place: MemRef, value: VReg, half: u8) -> VReg {
        let streamed = match store {
            Store::Full => Store::NonTemporal,
            Store::Low | Store::F16 => Store::NonTemporalLow,
            other => other,
        };
        let (Base::Pointer { pointer, size }, true) = (place.base, self.non_temporal) else {
            return self.push(Op::Store(store, place), &[value], half);
        };
        if !self.tables.streamed.contains(&(pointer, size)) {
            self.tables.streamed.push((pointer, size));
        }
        let value = if store == Store::F16 { self.push(Op::ToF16, &[value], half) } else { value };
        self.push(Op::Store(streamed, place), &[value], half)
    }

    /// Where a group of an operand with elements of that size is: itself, or a copy of the last
    /// ones.
    pub(super) fn group(&mut self, pointer: u16, size: u8, out: bool) -> MemRef {
        // Masks are of lanes of 32 bits at most.
        if !self.last || self.is_512 && i32::from(size) <= self.task.lane() {
            return MemRef { base: Base::Pointer { pointer, size }, offset: 0 };
        }
        let stage = self.tables.stage(pointer, size, out);
        MemRef { base: Base::TailCopy(stage), offset: 0 }
    }
}
