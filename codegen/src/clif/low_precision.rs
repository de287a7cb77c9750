//! Low-precision floats in registers: bf16 inline, others one at a time by a routine.

use super::emitter::{Emitter, MEMORY};
use crate::routines::{NarrowFloat, Precision, Routine};
use cranelift::prelude::{FloatCC, InstBuilder, Value, types};
use tracecast_ir::DType;
use tracecast_ir::kernel::Scalar;

impl Emitter<'_> {
    /// The f32 whose high half is in the low half of 32-bit integers with nothing above.
    pub(super) fn bf16_from_low_half(&mut self, bits: Value, vector: bool) -> Value {
        let bits = self.fb.ins().ishl_imm_u(bits, 16);
        self.bitcast(if vector { types::F32X4 } else { types::F32 }, bits)
    }

    /// The bits of the nearest bf16 in 32-bit integers: half of a step is added, less one if the
    /// last bit is even; a NaN becomes quiet and keeps its high half.
    pub(super) fn bf16_in_low_half(&mut self, x: Value, vector: bool) -> Value {
        let bits = self.bitcast(if vector { types::I32X4 } else { types::I32 }, x);
        let nan = self.fb.ins().fcmp(FloatCC::Unordered, x, x);
        let high = self.fb.ins().ushr_imm_u(bits, 16);
        if !vector {
            let odd = self.fb.ins().band_imm_u(high, 1);
            let sum = self.fb.ins().iadd_imm_u(bits, 0x7fff);
            let sum = self.fb.ins().iadd(sum, odd);
            let quiet = self.fb.ins().bor_imm_u(bits, 0x0040_0000);
            let rounded = self.fb.ins().select(nan, quiet, sum);
            return self.fb.ins().ushr_imm_u(rounded, 16);
        }
        let one = self.constant(types::I32X4, 1);
        let odd = self.fb.ins().band(high, one);
        let less = self.constant(types::I32X4, 0x7fff);
        let sum = self.fb.ins().iadd(bits, less);
        let sum = self.fb.ins().iadd(sum, odd);
        let quiet = self.constant(types::I32X4, 0x7fc0_0000);
        let rounded = self.fb.ins().bitselect(nan, quiet, sum);
        self.fb.ins().ushr_imm_u(rounded, 16)
    }

    /// The bits of an element of a low-precision float in memory, in a 32-bit integer.
    pub(super) fn load_low_bits(&mut self, dtype: DType, at: Value) -> Value {
        match dtype.bytes() {
            1 => self.fb.ins().uload8(types::I32, MEMORY, at, 0),
            _ => self.fb.ins().uload16(types::I32, MEMORY, at, 0),
        }
    }

    /// The f32 of the bits of a low-precision float.
    pub(super) fn low_from_bits(&mut self, dtype: DType, bits: Value) -> Value {
        match (dtype, NarrowFloat::of(dtype)) {
            (DType::BF16, _) => self.bf16_from_low_half(bits, false),
            (_, Some(narrow)) => self.routine(Routine::Widen(narrow), &[bits], types::F32),
            (_, None) => self.fail(format!("widening {dtype}"), types::F32),
        }
    }

    /// The bits of the low-precision float nearest to an f32 or f64, as an integer of its size.
    pub(super) fn low_bits(&mut self, dtype: DType, from: Scalar, x: Value) -> Value {
        let bits = match (dtype, from, Precision::of(from), NarrowFloat::of(dtype)) {
            (DType::BF16, Scalar::F32, ..) => self.bf16_in_low_half(x, false),
            (_, _, Some(precision), Some(narrow)) => {
                self.routine(Routine::Narrow(precision, narrow), &[x], types::I32)
            }
            _ => self.fail(format!("narrowing {} to {dtype}", from.name()), types::I32),
        };
        let size = if dtype.bytes() == 1 { types::I8 } else { types::I16 };
        self.fb.ins().ireduce(size, bits)
    }
}
