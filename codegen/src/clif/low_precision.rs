//! Low-precision floats in registers: bf16 inline, f16 one at a time by a routine.

use super::Emitter;
use crate::routines::{NarrowFloat, Precision, Routine};
use cranelift::prelude::{FloatCC, InstBuilder, Value, types};
use tracecast_ir::DType;

impl Emitter<'_> {
    /// The f32 whose high half is in the low half of 32-bit integers with nothing above.
    pub(super) fn bf16_from_low_half(&mut self, bits: Value, vector: bool) -> Value {
        let bits = self.fb.ins().ishl_imm_u(bits, 16);
        self.bitcast(if vector { types::F32X4 } else { types::F32 }, bits)
    }

    /// The bits of the nearest bf16 in 32-bit integers: half of a step is added, less one if the last bit is even; a NaN becomes
    /// quiet and keeps its high half.
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

    /// The f32 of f16 bits.
    pub(super) fn f16_from_bits(&mut self, bits: Value) -> Value {
        self.routine(Routine::Widen(NarrowFloat::F16), &[bits], types::F32)
    }

    /// The bits of the 16-bit float nearest to an f64, in a 32-bit integer.
    pub(super) fn half_from_f64(&mut self, dtype: DType, x: Value) -> Value {
        match NarrowFloat::of(dtype) {
            Some(narrow) => {
                self.routine(Routine::Narrow(Precision::Double, narrow), &[x], types::I32)
            }
            None => self.fail(format!("narrowing to {dtype}"), types::I32),
        }
    }

    /// The bits of the nearest f16, in a 32-bit integer.
    pub(super) fn f16_bits(&mut self, x: Value) -> Value {
        self.routine(Routine::Narrow(Precision::Single, NarrowFloat::F16), &[x], types::I32)
    }
}
