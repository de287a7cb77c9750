//! Scalar instructions and sinks as instructions on vectors.

use super::Cell;
use super::frame::PointerFrom;
use super::inst::{Base, Load, One, Op, Place, Shift, Store, Two, compare};
use super::select::{Pair, Result, Select};
use crate::plan::Sink;
use crate::plan::phases::Class;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Cmp, Inst, Reduction, Scalar, ScalarOp, Val};

/// The sign bit of a float.
fn sign(ty: Scalar) -> u64 {
    if ty == Scalar::F64 { 1 << 63 } else { 1 << 31 }
}

impl Select<'_> {
    /// An instruction that computes with its operands.
    pub(super) fn compute(&mut self, v: Val, inst: &Inst, args: &[Pair]) -> Result<Pair> {
        let ty = inst.ty;
        let from = inst.args.last().map_or(ty, |a| self.ty(*a));
        let two = |i: Two| Ok((i, args[0], args[1]));
        let (op, a, b) = match (inst.op, ty) {
            (ScalarOp::Add, Scalar::F32 | Scalar::F64) => two(Two::Add),
            (ScalarOp::Sub, Scalar::F32 | Scalar::F64) => two(Two::Sub),
            (ScalarOp::Mul, Scalar::F32 | Scalar::F64) => two(Two::Mul),
            (ScalarOp::Div, Scalar::F32 | Scalar::F64) => two(Two::Div),
            (ScalarOp::Add, Scalar::I32 | Scalar::I64) => two(Two::IntAdd),
            (ScalarOp::Sub, Scalar::I32 | Scalar::I64) => two(Two::IntSub),
            (ScalarOp::Mul, Scalar::I32 | Scalar::I64) => two(Two::IntMul),
            (ScalarOp::Mul, Scalar::Bool) => two(Two::And),
            (ScalarOp::And, Scalar::Bool | Scalar::I32 | Scalar::I64) => two(Two::And),
            (ScalarOp::Or, Scalar::Bool | Scalar::I32 | Scalar::I64) => two(Two::Or),
            (ScalarOp::Max, _) => return self.combine(Reduction::Max, ty, args[0], args[1]),
            (ScalarOp::Min, _) => return self.combine(Reduction::Min, ty, args[0], args[1]),
            (ScalarOp::Cmp(cmp), _) => return Ok(self.compare(cmp, from, args[0], args[1])),
            (ScalarOp::MulAdd, Scalar::F32 | Scalar::F64) => return Ok(self.both(Op::Fma, args)),
            (ScalarOp::Select, _) => return Ok(self.blend(args[0], args[1], args[2])),
            (ScalarOp::Not, Scalar::Bool | Scalar::I32 | Scalar::I64) => {
                return Ok(self.not(args[0]));
            }
            (ScalarOp::Convert, _) => return self.convert(from, ty, args[0]),
            (ScalarOp::Round(dtype), Scalar::F32) => return self.round(v, dtype, args[0]),
            (ScalarOp::Call(f), Scalar::F32) => return self.function(f, args[0]),
            (ScalarOp::Sqrt, Scalar::F32 | Scalar::F64) => return Ok(self.one(One::Sqrt, args[0])),
            (ScalarOp::Floor, Scalar::F32 | Scalar::F64) => {
                return Ok(self.one(One::Floor, args[0]));
            }
            (ScalarOp::Abs, Scalar::I32 | Scalar::I64) => return Ok(self.one(One::IntAbs, args[0])),
            (ScalarOp::Abs, Scalar::F32 | Scalar::F64) => {
                Ok((Two::And, args[0], self.constant(sign(ty) - 1)))
            }
            (ScalarOp::Neg, Scalar::F32 | Scalar::F64) => {
                Ok((Two::Xor, args[0], self.constant(sign(ty))))
            }
            (ScalarOp::Neg, Scalar::I32 | Scalar::I64) => Ok((Two::IntSub, self.splat(0), args[0])),
            (ScalarOp::WrapU8, Scalar::I32) => Ok((Two::And, args[0], self.splat(0xff))),
            (op, ty) => Err(format!("{op:?} of vectors of {}", ty.name())),
        }?;
        Ok(self.two(op, a, b))
    }

    /// A sum, maximum or minimum; see [`ScalarOp::Max`].
    fn combine(&mut self, how: Reduction, ty: Scalar, a: Pair, b: Pair) -> Result<Pair> {
        let op = match (how, ty) {
            (Reduction::Sum, Scalar::F32 | Scalar::F64) => Two::Add,
            (Reduction::Sum, Scalar::I32 | Scalar::I64) => Two::IntAdd,
            (Reduction::Max, Scalar::I32 | Scalar::I64) => Two::IntMax,
            (Reduction::Min, Scalar::I32 | Scalar::I64) => Two::IntMin,
            (Reduction::Max, Scalar::Bool) => Two::Or,
            (Reduction::Min, Scalar::Bool) => Two::And,
            (Reduction::Max | Reduction::Min, Scalar::F32 | Scalar::F64) => {
                // The processor gives its second operand for equal numbers and for NaN.
                let op = if how == Reduction::Max { Two::Max } else { Two::Min };
                let best = self.two(op, b, a);
                if self.is_number(b) {
                    return Ok(best);
                }
                let nan = self.is_nan(b);
                return Ok(self.blend(nan, b, best));
            }
            _ => return Err(format!("{how:?} of vectors of {}", ty.name())),
        };
        Ok(self.two(op, a, b))
    }

    /// True for constants that are not NaN.
    fn is_number(&self, pair: Pair) -> bool {
        let fine = |v: u32| match self.insts[v as usize].op {
            Op::Splat(bits) => !f32::from_bits(bits).is_nan(),
            Op::SplatDouble(bits) => !f64::from_bits(bits).is_nan(),
            _ => false,
        };
        pair.into_iter().all(fine)
    }

    fn compare(&mut self, cmp: Cmp, ty: Scalar, a: Pair, b: Pair) -> Pair {
        match (cmp, ty) {
            (_, Scalar::F32 | Scalar::F64) => {
                let code = match cmp {
                    Cmp::Eq => compare::EQUAL,
                    Cmp::Ne => compare::NOT_EQUAL,
                    Cmp::Lt => compare::LESS,
                    Cmp::Le => compare::LESS_EQUAL,
                };
                self.two(Two::Compare(code), a, b)
            }
            (Cmp::Eq, Scalar::I32 | Scalar::I64 | Scalar::Bool) => self.two(Two::IntEqual, a, b),
            (Cmp::Ne, Scalar::Bool) => self.two(Two::Xor, a, b),
            (Cmp::Ne, Scalar::I32 | Scalar::I64) => {
                let equal = self.two(Two::IntEqual, a, b);
                self.not(equal)
            }
            (Cmp::Lt, Scalar::I32 | Scalar::I64) => self.two(Two::IntGreater, b, a),
            (Cmp::Le, Scalar::I32 | Scalar::I64) => {
                let greater = self.two(Two::IntGreater, a, b);
                self.not(greater)
            }
            (Cmp::Lt, Scalar::Bool) => self.two(Two::AndNot, a, b),
            (Cmp::Le, Scalar::Bool) => {
                let not = self.not(a);
                self.two(Two::Or, not, b)
            }
        }
    }

    fn convert(&mut self, from: Scalar, to: Scalar, x: Pair) -> Result<Pair> {
        use Scalar::{Bool, F32, F64, I32, I64};
        Ok(match (from, to) {
            _ if from == to => x,
            (I32, F32) | (I64, F64) => self.one(One::ToFloat, x),
            (Bool, _) => {
                let one = self.constant(match to {
                    F32 => u64::from(1f32.to_bits()),
                    F64 => 1f64.to_bits(),
                    _ => 1,
                });
                self.two(Two::And, x, one)
            }
            (_, Bool) => {
                let zero = self.splat(0);
                self.compare(Cmp::Ne, from, x, zero)
            }
            (F32, I32) | (F64, I64) => {
                // What is too large gives the smallest integer, all of whose bits are wrong then. A NaN gives 0.
                let raw = self.one(One::ToInt, x);
                let limit = self.constant(match to {
                    I32 => u64::from(2_147_483_648f32.to_bits()),
                    _ => 9_223_372_036_854_775_808f64.to_bits(),
                });
                let large = self.two(Two::Compare(compare::GREATER_EQUAL), x, limit);
                let best = self.two(Two::Xor, raw, large);
                let number = self.two(Two::Compare(compare::ORDERED), x, x);
                self.two(Two::And, best, number)
            }
            _ => return Err(format!("vectors of {} as {}", from.name(), to.name())),
        })
    }

    fn round(&mut self, v: Val, dtype: DType, x: Pair) -> Result<Pair> {
        Ok(match dtype {
            DType::F32 => x,
            DType::F16 => {
                let half = self.both(Op::ToHalf, &[x]);
                self.halves.insert(v, half);
                self.one(One::FromHalf, half)
            }
            DType::BF16 => {
                let bits = self.nearest_bf16(x);
                self.rounded.insert(v, bits);
                let high = self.splat(0xffff_0000);
                self.two(Two::And, bits, high)
            }
            other => return Err(format!("rounding vectors to {other}")),
        })
    }

    /// The nearest bf16 in the high half of each lane, with anything below. See [`tracecast_ir::kernel::half::f32_to_bf16`].
    fn nearest_bf16(&mut self, x: Pair) -> Pair {
        let one = self.splat(1);
        let less = self.splat(0x7fff);
        let high = self.shift(Shift::Right, 16, x);
        let odd = self.two(Two::And, high, one);
        let sum = self.two(Two::IntAdd, x, less);
        let sum = self.two(Two::IntAdd, sum, odd);
        if self.tame {
            return sum;
        }
        // All bits set are a NaN.
        let nan = self.is_nan(x);
        match self.long {
            true => {
                let ones = self.splat(u32::MAX);
                self.blend(nan, ones, sum)
            }
            false => self.two(Two::Or, sum, nan),
        }
    }

    /// What happens to a result of the phase.
    pub(super) fn sink(&mut self, number: usize) -> Result<()> {
        let task = self.task;
        match &task.stage.sinks[number] {
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
            Sink::Add { dtype, value, .. } => {
                let ty = self.ty(*value);
                if Scalar::of(*dtype) != Some(ty) {
                    return Err(format!("adding {} to {dtype}", ty.name()));
                }
                let pair = self.arg(*value)?;
                let cell = self.tables.cell(Cell::Sink(number));
                let pointer = self.tables.pointer(PointerFrom::Cell(cell));
                let before = self.load_lanes(pointer);
                let after = self.combine(Reduction::Sum, ty, before, pair)?;
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
