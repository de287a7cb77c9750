//! Loads and stores of operands, one element or sixteen.

use super::emitter::{Emitter, MEMORY, scalar_type, vector_type};
use crate::plan::{Neighbours, Place};
use cranelift::codegen::ir::BlockArg;
use cranelift::prelude::{InstBuilder, IntCC, Type, Value, types};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{Access, Scalar};
use tracecast_ir::{DType, Size};

/// Sixteen elements, in vectors of four.
pub(super) type Group = SmallVec<[Value; 4]>;

/// Where the elements of a row lie: at `address + position * step * size`, and further for indices
/// that vary.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// Of element 0.
    start: Value,
    /// Of position 0.
    address: Value,
    /// In elements.
    step: Size,
    dtype: DType,
    /// A condition on the whole row.
    row_guard: Option<Value>,
    /// Conditions on each position: the number at position 0, its step, and the bound.
    guards: Vec<(Value, Size, Size)>,
    /// The value where a condition fails.
    fill: u64,
    /// Varying indices, by number of the operand, and their strides.
    pub(super) varying: SmallVec<[(usize, Size); 1]>,
    /// The element of position 0, and the count of elements, if indices vary.
    bounds: Option<(Value, Size)>,
}

impl Base {
    /// The dtype of the elements.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The condition on the whole row.
    pub(super) fn guard(&self) -> Option<Value> {
        self.row_guard
    }
}

impl Emitter<'_> {
    /// The address of position 0, or, if the row's guard fails, of element 0: something that can be
    /// read.
    pub(super) fn safe_address(&mut self, base: &Base) -> Value {
        let address = self.address(base, None, &[]);
        match base.row_guard {
            Some(holds) => self.fb.ins().select(holds, address, base.start),
            None => address,
        }
    }

    /// Computes what is the same along the row. `uniform(i)` is the value of indirect index `i` if
    /// that is the same, too.
    pub(super) fn base(
        &mut self,
        (slot, dtype, elements): (usize, DType, Size),
        place: &Place,
        uniform: impl Fn(usize) -> Option<Value>,
    ) -> Base {
        let size = dtype.bytes() as i64;
        let start = self.slots[slot];
        let mut base = Base {
            start,
            address: start,
            step: place.row_stride(),
            dtype,
            row_guard: None,
            guards: Vec::new(),
            fill: 0,
            varying: SmallVec::new(),
            bounds: None,
        };
        let element = match place {
            Place::At(access) => {
                let mut element = self.at_row(access.offset, &access.strides);
                for (i, stride) in access.indirect.iter().enumerate() {
                    match uniform(i) {
                        Some(index) => {
                            let moved = self.times(index, *stride);
                            element = self.fb.ins().iadd(element, moved);
                        }
                        None => base.varying.push((i, *stride)),
                    }
                }
                self.guards(access, &mut base);
                if !base.varying.is_empty() {
                    base.bounds = Some((element, elements));
                } else if !access.indirect.is_empty() && elements != 0 {
                    element = self.row_inside(element, base.step, elements);
                }
                element
            }
            Place::Gathered { rows, row } => {
                let strided = &self.plan.strided[*rows];
                let row = match strided.neighbours {
                    Neighbours::Positions => self.gathered_row(strided),
                    Neighbours::Loads => self.fb.ins().iconst(types::I64, *row),
                };
                let length = self.fb.ins().isub(self.to, self.from);
                let pitch = self.fb.ins().iadd_imm_s(length, strided.pitch(0));
                base.start =
                    self.fb.ins().iadd_imm_s(self.scratch, i64::from(self.strided_at[*rows]));
                let element = self.fb.ins().imul(row, pitch);
                self.fb.ins().isub(element, self.from)
            }
            Place::Stream => {
                let row = self.state().row;
                let row = self.fb.ins().isub(row, self.begin);
                let length = self.fb.ins().isub(self.to, self.from);
                let element = self.fb.ins().imul(row, length);
                self.fb.ins().isub(element, self.from)
            }
        };
        let bytes = self.scaled(element, size);
        base.address = self.fb.ins().iadd(base.start, bytes);
        base
    }

    /// The element of position 0 if those of all positions lie inside the operand; else one of
    /// which they do.
    fn row_inside(&mut self, element: Value, step: Size, elements: Size) -> Value {
        let row = self.plan.row();
        if let (Some(step), Some(row), Some(elements)) =
            (step.number(), row.number(), elements.number())
        {
            let reach = step * (row - 1).max(0);
            let (low, high) = ((-reach).max(0), elements - 1 - reach.max(0));
            return self.inside(element, low, high);
        }
        let zero = self.fb.ins().iconst(types::I64, 0);
        let (row, elements) = (self.size(row), self.size(elements));
        let steps = self.fb.ins().iadd_imm_s(row, -1);
        let steps = self.fb.ins().smax(steps, zero);
        let reach = self.times(steps, step);
        let back = self.fb.ins().ineg(reach);
        let low = self.fb.ins().smax(back, zero);
        let forth = self.fb.ins().smax(reach, zero);
        let room = self.fb.ins().isub(elements, forth);
        let room = self.fb.ins().isub(room, low);
        let room = self.fb.ins().iadd_imm_s(room, -1);
        let room = self.fb.ins().smax(room, zero);
        let from_low = self.fb.ins().isub(element, low);
        let fine = self.fb.ins().icmp(IntCC::UnsignedLessThanOrEqual, from_low, room);
        self.fb.ins().select(fine, element, low)
    }

    /// The number if it is one of an element, else 0.
    fn element_inside(&mut self, element: Value, elements: Size) -> Value {
        match elements.number() {
            Some(elements) => self.inside(element, 0, elements - 1),
            None => {
                let fine = self.compare_size(IntCC::UnsignedLessThan, element, elements);
                let zero = self.fb.ins().iconst(types::I64, 0);
                self.fb.ins().select(fine, element, zero)
            }
        }
    }

    /// The number if it lies inside those bounds, else the lower one: where a check on an index has
    /// failed, the run goes on.
    fn inside(&mut self, element: Value, low: i64, high: i64) -> Value {
        let from_low = if low == 0 { element } else { self.fb.ins().iadd_imm_s(element, -low) };
        let fine =
            self.fb.ins().icmp_imm_s(IntCC::UnsignedLessThanOrEqual, from_low, (high - low).max(0));
        let low = self.fb.ins().iconst(types::I64, low);
        self.fb.ins().select(fine, element, low)
    }

    fn guards(&mut self, access: &Access, base: &mut Base) {
        base.fill = access.fill;
        for guard in &access.guards {
            let step = guard.strides.last().copied().unwrap_or_default();
            let at = self.at_row(guard.offset, &guard.strides);
            if step != 0 {
                base.guards.push((at, step, guard.extent));
                continue;
            }
            let holds = self.compare_size(IntCC::UnsignedLessThan, at, guard.extent);
            base.row_guard = Some(match base.row_guard {
                Some(other) => self.fb.ins().band(other, holds),
                None => holds,
            });
        }
    }

    /// `v * by`, where `by` is often a power of two.
    pub(super) fn scaled(&mut self, v: Value, by: i64) -> Value {
        match by {
            1 => v,
            _ if by > 0 && by & (by - 1) == 0 => {
                self.fb.ins().ishl_imm_u(v, i64::from(by.trailing_zeros()))
            }
            _ => self.fb.ins().imul_imm_s(v, by),
        }
    }

    /// The address of the element at a position; `None` is position 0.
    pub(super) fn address(
        &mut self,
        base: &Base,
        position: Option<Value>,
        index: &[Value],
    ) -> Value {
        let size = base.dtype.bytes() as i64;
        if let Some((mut element, elements)) = base.bounds {
            if let Some(position) = position.filter(|_| base.step != 0) {
                let moved = self.steps(position, base.step, 1);
                element = self.fb.ins().iadd(element, moved);
            }
            for ((_, stride), index) in base.varying.iter().zip(index) {
                let moved = self.times(*index, *stride);
                element = self.fb.ins().iadd(element, moved);
            }
            let element = self.element_inside(element, elements);
            let bytes = self.scaled(element, size);
            return self.fb.ins().iadd(base.start, bytes);
        }
        let mut address = base.address;
        if let Some(position) = position.filter(|_| base.step != 0) {
            let bytes = self.steps(position, base.step, size);
            address = self.fb.ins().iadd(address, bytes);
        }
        address
    }

    /// One element, or the fill where a guard fails. `index` are the varying indices.
    pub(super) fn load_one(
        &mut self,
        base: &Base,
        position: Option<Value>,
        index: &[Value],
    ) -> Value {
        let mut holds = base.row_guard;
        for (start, step, extent) in &base.guards {
            let at = match position {
                Some(p) => {
                    let moved = self.steps(p, *step, 1);
                    self.fb.ins().iadd(*start, moved)
                }
                None => *start,
            };
            let this = self.compare_size(IntCC::UnsignedLessThan, at, *extent);
            holds = Some(match holds {
                Some(other) => self.fb.ins().band(other, this),
                None => this,
            });
        }
        let Some(holds) = holds else {
            let address = self.address(base, position, index);
            return self.read_one(base.dtype, address);
        };
        let scalar = Scalar::of(base.dtype).unwrap_or(Scalar::F32);
        let (inside, after) = (self.fb.create_block(), self.fb.create_block());
        let result = self.fb.append_block_param(after, scalar_type(scalar));
        let fill = self.number(scalar, base.fill, false);
        self.fb.ins().brif(holds, inside, &[], after, &[BlockArg::from(fill)]);
        self.fb.switch_to_block(inside);
        let address = self.address(base, position, index);
        let value = self.read_one(base.dtype, address);
        self.fb.ins().jump(after, &[BlockArg::from(value)]);
        self.fb.switch_to_block(after);
        result
    }

    /// One element that no guard keeps, unconverted: an integer of its size.
    pub(super) fn load_as_it_lies(
        &mut self,
        base: &Base,
        position: Value,
        index: &[Value],
    ) -> Value {
        let address = self.address(base, Some(position), index);
        match Type::int_with_byte_size(base.dtype.bytes() as u16) {
            Some(size) => self.fb.ins().load(size, MEMORY, address, 0),
            None => self.fail(format!("moving {}", base.dtype), types::I64),
        }
    }

    /// Sixteen neighbours, or the fill if the row's guard fails.
    pub(super) fn load_group(&mut self, base: &Base, position: Value) -> Group {
        let address = self.address(base, Some(position), &[]);
        let Some(holds) = base.row_guard else { return self.read_group(base.dtype, address) };
        let scalar = Scalar::of(base.dtype).unwrap_or(Scalar::F32);
        let (inside, after) = (self.fb.create_block(), self.fb.create_block());
        let results: Group =
            (0..4).map(|_| self.fb.append_block_param(after, vector_type(scalar))).collect();
        let fill = BlockArg::from(self.number(scalar, base.fill, true));
        self.fb.ins().brif(holds, inside, &[], after, &[fill; 4]);
        self.fb.switch_to_block(inside);
        let values: Vec<BlockArg> =
            self.read_group(base.dtype, address).into_iter().map(BlockArg::from).collect();
        self.fb.ins().jump(after, &values);
        self.fb.switch_to_block(after);
        results
    }

    /// The element at an address, widened.
    pub(super) fn read_one(&mut self, dtype: DType, at: Value) -> Value {
        match dtype {
            DType::U8 => self.fb.ins().uload8(types::I32, MEMORY, at, 0),
            DType::Bool => {
                let byte = self.fb.ins().load(types::I8, MEMORY, at, 0);
                self.fb.ins().icmp_imm_s(IntCC::NotEqual, byte, 0)
            }
            _ if dtype.is_low() => {
                let bits = self.load_low_bits(dtype, at);
                self.low_from_bits(dtype, bits)
            }
            _ => match Scalar::of(dtype) {
                Some(scalar) => self.fb.ins().load(scalar_type(scalar), MEMORY, at, 0),
                None => self.fail(format!("loading {dtype}"), types::F32),
            },
        }
    }

    fn read_group(&mut self, dtype: DType, at: Value) -> Group {
        match dtype {
            DType::F32 => self.vectors(types::F32X4, at, 0),
            DType::I32 => self.vectors(types::I32X4, at, 0),
            DType::BF16 => {
                let bits: Group =
                    (0..4).map(|u| self.fb.ins().uload16x4(MEMORY, at, 8 * u)).collect();
                bits.into_iter().map(|b| self.bf16_from_low_half(b, true)).collect()
            }
            DType::U8 | DType::Bool => {
                let halves: Group =
                    (0..2).map(|u| self.fb.ins().uload8x8(MEMORY, at, 8 * u)).collect();
                let mut group = Group::new();
                for half in halves {
                    group.push(self.fb.ins().uwiden_low(half));
                    group.push(self.fb.ins().uwiden_high(half));
                }
                if dtype == DType::Bool {
                    let zero = self.constant(types::I32X4, 0);
                    group = group
                        .into_iter()
                        .map(|v| self.fb.ins().icmp(IntCC::SignedGreaterThan, v, zero))
                        .collect();
                }
                group
            }
            _ => {
                let zero = self.fail(format!("vectors of {dtype}"), types::F32X4);
                smallvec![zero; 4]
            }
        }
    }

    /// Four vectors in a row.
    pub(super) fn vectors(&mut self, ty: Type, at: Value, offset: i32) -> Group {
        if self.target.unaligned {
            return (0..4).map(|u| self.fb.ins().load(ty, MEMORY, at, offset + 16 * u)).collect();
        }
        // Without AVX, Cranelift 0.135 makes the load of a vector comparison a memory operand,
        // which then has to be aligned. It does not look through a cast.
        let other = if ty == types::F32X4 { types::I32X4 } else { types::F32X4 };
        let raw: Group =
            (0..4).map(|u| self.fb.ins().load(other, MEMORY, at, offset + 16 * u)).collect();
        raw.into_iter().map(|v| self.bitcast(ty, v)).collect()
    }

    pub(super) fn store_vectors(&mut self, values: &[Value], at: Value, offset: i32) {
        for (u, v) in values.iter().enumerate() {
            self.fb.ins().store(MEMORY, *v, at, offset + 16 * u as i32);
        }
    }

    /// Narrows and stores one element, computed in `from`.
    pub(super) fn write_one(&mut self, dtype: DType, from: Scalar, value: Value, at: Value) {
        let bits = self.narrowed(dtype, from, value);
        self.fb.ins().store(MEMORY, bits, at, 0);
    }

    /// An element, unconverted.
    pub(super) fn narrowed(&mut self, dtype: DType, from: Scalar, value: Value) -> Value {
        if from == Scalar::F64 && dtype.is_low() {
            return self.low_bits(dtype, from, value);
        }
        let value = match Scalar::of(dtype) {
            Some(to) if dtype == DType::U8 && from.is_float() => {
                let word = self.convert(from, to, value, false);
                let (low, high) = (self.number(to, 0, false), self.number(to, 0xff, false));
                let word = self.fb.ins().smax(word, low);
                self.fb.ins().smin(word, high)
            }
            Some(to) => self.convert(from, to, value, false),
            None => self.fail(format!("storing {dtype}"), types::F32),
        };
        match dtype {
            DType::U8 => self.fb.ins().ireduce(types::I8, value),
            _ if dtype.is_low() => self.low_bits(dtype, Scalar::F32, value),
            _ => value,
        }
    }

    /// Narrows and stores sixteen neighbours.
    pub(super) fn write_group(&mut self, dtype: DType, values: &[Value], at: Value) {
        match dtype {
            DType::F32 | DType::I32 => self.store_vectors(values, at, 0),
            DType::BF16 => {
                let bits: Group = values.iter().map(|v| self.bf16_in_low_half(*v, true)).collect();
                let low = self.fb.ins().unarrow(bits[0], bits[1]);
                let high = self.fb.ins().unarrow(bits[2], bits[3]);
                self.store_vectors(&[low, high], at, 0);
            }
            DType::U8 => {
                let mask = self.constant(types::I32X4, 0xff);
                let bits: Group = values.iter().map(|v| self.fb.ins().band(*v, mask)).collect();
                let low = self.fb.ins().snarrow(bits[0], bits[1]);
                let high = self.fb.ins().snarrow(bits[2], bits[3]);
                let all = self.fb.ins().unarrow(low, high);
                self.store_vectors(&[all], at, 0);
            }
            DType::Bool => {
                let low = self.fb.ins().snarrow(values[0], values[1]);
                let high = self.fb.ins().snarrow(values[2], values[3]);
                let all = self.fb.ins().snarrow(low, high);
                let one = self.constant_bits(types::I8X16, u128::from_le_bytes([1; 16]));
                let all = self.fb.ins().band(all, one);
                self.store_vectors(&[all], at, 0);
            }
            _ => {
                self.fail(format!("vectors of {dtype}"), types::F32X4);
            }
        }
    }

    /// The vectors of sixteen equal elements, given unconverted.
    pub(super) fn repeated(&mut self, bits: Value) -> Vec<Value> {
        let lane = self.fb.func.dfg.value_type(bits);
        let vector = lane.by(16 / lane.bytes()).expect("elements fit a vector");
        let one = self.fb.ins().splat(vector, bits);
        vec![one; lane.bytes() as usize]
    }

    /// A uniform value in all lanes; a truth value becomes a mask.
    pub(super) fn splat(&mut self, ty: Scalar, value: Value) -> Value {
        if ty == Scalar::Bool {
            let wide = self.fb.ins().uextend(types::I32, value);
            let mask = self.fb.ins().ineg(wide);
            return self.fb.ins().splat(types::I32X4, mask);
        }
        self.fb.ins().splat(vector_type(ty), value)
    }

    /// Stores a value that waits between phases, or is kept along the row.
    pub(super) fn park_one(&mut self, ty: Scalar, value: Value, at: Value, offset: i32) {
        let value = if ty == Scalar::Bool {
            let wide = self.fb.ins().uextend(types::I32, value);
            self.fb.ins().ineg(wide)
        } else {
            value
        };
        self.fb.ins().store(MEMORY, value, at, offset);
    }

    /// The reverse of [`Emitter::park_one`].
    pub(super) fn unpark_one(&mut self, ty: Scalar, at: Value, offset: i32) -> Value {
        if ty == Scalar::Bool {
            let mask = self.fb.ins().load(types::I32, MEMORY, at, offset);
            return self.fb.ins().icmp_imm_s(IntCC::NotEqual, mask, 0);
        }
        self.fb.ins().load(scalar_type(ty), MEMORY, at, offset)
    }
}
