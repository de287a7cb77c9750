//! Scalar instructions, one at a time or four.

use super::emitter::{Emitter, scalar_type, vector_type};
use crate::plan::Arithmetic;
use crate::plan::phases::Lanes;
use crate::routines::{NarrowFloat, Precision, Routine};
use cranelift::prelude::{FloatCC, InstBuilder, IntCC, Type, Value, types};
use tracecast_ir::DType;
use tracecast_ir::kernel::{Cmp, Combine, Inst, Reduction, Scalar, ScalarOp};

impl Emitter<'_> {
    /// An instruction that is neither a source nor a check; `from` is the type of its (last)
    /// operand. Four at a time it does what [`Capability`](crate::plan::phases::Capability)
    /// promises of Cranelift, and nothing else.
    pub(super) fn compute(
        &mut self,
        inst: &Inst,
        from: Scalar,
        args: &[Value],
        vector: bool,
    ) -> Value {
        let (op, ty) = (inst.op, inst.ty);
        if vector && !(Lanes::Bits32.hold(ty) && Lanes::Bits32.hold(from)) {
            return self
                .fail(format!("{} of vectors of {}", op.name(), ty.name()), vector_type(ty));
        }
        match op {
            ScalarOp::Const(bits) => self.number(ty, bits, vector),
            ScalarOp::MulAdd if ty.is_float() => self.mul_add(ty, args, vector),
            ScalarOp::Neg => match ty {
                Scalar::F32 | Scalar::F64 => self.fb.ins().fneg(args[0]),
                Scalar::I32 | Scalar::I64 => self.fb.ins().ineg(args[0]),
                Scalar::Bool => self.no_code(op, ty, vector),
            },
            ScalarOp::Abs => match ty {
                Scalar::F32 | Scalar::F64 => self.fb.ins().fabs(args[0]),
                Scalar::I32 | Scalar::I64 => self.fb.ins().iabs(args[0]),
                Scalar::Bool => self.no_code(op, ty, vector),
            },
            ScalarOp::Sqrt if ty.is_float() => self.fb.ins().sqrt(args[0]),
            ScalarOp::Floor if ty.is_float() && (self.target.floor || !vector) => {
                self.floor(ty, args[0])
            }
            ScalarOp::Call(function) if !vector => {
                self.float_routine(ty, |precision| Routine::Function(function, precision), args)
            }
            ScalarOp::Round(dtype) => self.round(dtype, ty, args[0], vector),
            ScalarOp::Cmp(cmp) => self.compare(cmp, from, args, vector),
            ScalarOp::Not => match ty {
                Scalar::Bool if !vector => self.fb.ins().bxor_imm_u(args[0], 1),
                Scalar::Bool | Scalar::I32 | Scalar::I64 => self.fb.ins().bnot(args[0]),
                Scalar::F32 | Scalar::F64 => self.no_code(op, ty, vector),
            },
            ScalarOp::Select if vector => {
                let mask = self.bitcast(vector_type(ty), args[0]);
                self.fb.ins().bitselect(mask, args[1], args[2])
            }
            ScalarOp::Select => self.fb.ins().select(args[0], args[1], args[2]),
            ScalarOp::Convert => self.convert(from, ty, args[0], vector),
            ScalarOp::WrapU8 if ty == Scalar::I32 && vector => {
                let low = self.constant(types::I32X4, 0xff);
                self.fb.ins().band(args[0], low)
            }
            ScalarOp::WrapU8 if ty == Scalar::I32 => self.fb.ins().band_imm_u(args[0], 0xff),
            ScalarOp::Random { stream } if !vector => {
                let stream = self.fb.ins().iconst(types::I32, i64::from(stream));
                let args = [args[0], args[1], stream, args[2]];
                self.routine(Routine::Random, &args, types::I32)
            }
            _ => self.binary(op, ty, vector, args),
        }
    }

    fn no_code(&mut self, op: ScalarOp, ty: Scalar, vector: bool) -> Value {
        let clif = if vector { vector_type(ty) } else { scalar_type(ty) };
        self.fail(format!("{} of {}", op.name(), ty.name()), clif)
    }

    /// An instruction of two operands of its own type.
    pub(super) fn binary(
        &mut self,
        op: ScalarOp,
        ty: Scalar,
        vector: bool,
        args: &[Value],
    ) -> Value {
        let (Some(arithmetic), &[a, b]) = (Arithmetic::of(op, ty), args) else {
            return self.no_code(op, ty, vector);
        };
        match arithmetic {
            Arithmetic::FloatAdd => self.fb.ins().fadd(a, b),
            Arithmetic::FloatSub => self.fb.ins().fsub(a, b),
            Arithmetic::FloatMul => self.fb.ins().fmul(a, b),
            Arithmetic::FloatDiv => self.fb.ins().fdiv(a, b),
            Arithmetic::FloatMax => self.extreme(true, ty, vector, a, b),
            Arithmetic::FloatMin => self.extreme(false, ty, vector, a, b),
            Arithmetic::IntAdd => self.fb.ins().iadd(a, b),
            Arithmetic::IntSub => self.fb.ins().isub(a, b),
            Arithmetic::IntMul => self.fb.ins().imul(a, b),
            Arithmetic::IntDiv if !vector => self.divide(true, ty, a, b),
            Arithmetic::IntRem if !vector => self.divide(false, ty, a, b),
            Arithmetic::IntDiv | Arithmetic::IntRem => self.no_code(op, ty, vector),
            Arithmetic::IntMax => self.fb.ins().smax(a, b),
            Arithmetic::IntMin => self.fb.ins().smin(a, b),
            Arithmetic::BitAnd => self.fb.ins().band(a, b),
            Arithmetic::BitOr => self.fb.ins().bor(a, b),
        }
    }

    /// A product and a sum with one rounding: an instruction, or a call for each number.
    fn mul_add(&mut self, ty: Scalar, args: &[Value], vector: bool) -> Value {
        if self.target.mul_add {
            return self.fb.ins().fma(args[0], args[1], args[2]);
        }
        if !vector {
            return self.float_routine(ty, Routine::MulAdd, args);
        }
        let mut result = args[2];
        for lane in 0..4 {
            let each: Vec<Value> =
                args.iter().map(|arg| self.fb.ins().extractlane(*arg, lane)).collect();
            let one = self.float_routine(ty, Routine::MulAdd, &each);
            result = self.fb.ins().insertlane(result, one, lane);
        }
        result
    }

    /// A call of a routine with a result.
    pub(super) fn routine(&mut self, routine: Routine, args: &[Value], result: Type) -> Value {
        self.call(routine, args, Some(result)).expect("the signature has a result")
    }

    /// A call of the routine that there is for each precision of a float.
    pub(super) fn float_routine(
        &mut self,
        ty: Scalar,
        routine: impl FnOnce(Precision) -> Routine,
        args: &[Value],
    ) -> Value {
        match Precision::of(ty) {
            Some(precision) => self.routine(routine(precision), args, scalar_type(ty)),
            None => self.fail(format!("a routine of {}", ty.name()), scalar_type(ty)),
        }
    }

    /// A number given by its bits.
    pub(super) fn number(&mut self, ty: Scalar, bits: u64, vector: bool) -> Value {
        match ty {
            Scalar::Bool if vector => {
                self.constant(types::I32X4, if bits != 0 { u32::MAX } else { 0 })
            }
            _ if vector => self.constant(vector_type(ty), bits as u32),
            Scalar::F32 => self.fb.ins().f32const(f32::from_bits(bits as u32)),
            Scalar::F64 => self.fb.ins().f64const(f64::from_bits(bits)),
            Scalar::I32 => self.fb.ins().iconst(types::I32, i64::from(bits as u32)),
            Scalar::I64 => self.fb.ins().iconst(types::I64, bits as i64),
            Scalar::Bool => self.fb.ins().iconst(types::I8, i64::from(bits != 0)),
        }
    }

    /// Two partial results of a reduction as one.
    pub(super) fn combine(
        &mut self,
        reduction: Reduction,
        ty: Scalar,
        vector: bool,
        a: Value,
        b: Value,
    ) -> Value {
        match reduction.combines() {
            Combine::Value(op) => self.binary(op, ty, vector, &[a, b]),
            Combine::Position(_) => {
                let clif = if vector { vector_type(ty) } else { scalar_type(ty) };
                self.fail(format!("{reduction} of {}", ty.name()), clif)
            }
        }
    }

    /// The larger or smaller of two floats: `a` unless `b` is beyond it or NaN; a NaN in `a` stays.
    fn extreme(&mut self, larger: bool, ty: Scalar, vector: bool, a: Value, b: Value) -> Value {
        let (low, high) = if larger { (a, b) } else { (b, a) };
        let beyond = self.fb.ins().fcmp(FloatCC::LessThan, low, high);
        let nan = self.fb.ins().fcmp(FloatCC::Unordered, b, b);
        if vector {
            let float = vector_type(ty);
            let beyond = self.bitcast(float, beyond);
            let best = self.fb.ins().bitselect(beyond, b, a);
            let nan = self.bitcast(float, nan);
            self.fb.ins().bitselect(nan, b, best)
        } else {
            let best = self.fb.ins().select(beyond, b, a);
            self.fb.ins().select(nan, b, best)
        }
    }

    /// Truncated division that never traps: by 0 it gives 0, and the smallest number by -1 wraps.
    fn divide(&mut self, quotient: bool, ty: Scalar, a: Value, b: Value) -> Value {
        let clif = scalar_type(ty);
        let one = self.fb.ins().iconst(clif, 1);
        let zero = self.fb.ins().iconst(clif, 0);
        let by_zero = self.fb.ins().icmp_imm_s(IntCC::Equal, b, 0);
        let by_minus_one = self.fb.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let special = self.fb.ins().bor(by_zero, by_minus_one);
        let safe = self.fb.ins().select(special, one, b);
        let (result, negated) = if quotient {
            (self.fb.ins().sdiv(a, safe), self.fb.ins().ineg(a))
        } else {
            (self.fb.ins().srem(a, safe), zero)
        };
        let result = self.fb.ins().select(by_minus_one, negated, result);
        self.fb.ins().select(by_zero, zero, result)
    }

    fn floor(&mut self, ty: Scalar, x: Value) -> Value {
        match ty {
            _ if self.target.floor => self.fb.ins().floor(x),
            _ => self.float_routine(ty, Routine::Floor, &[x]),
        }
    }

    fn round(&mut self, dtype: DType, ty: Scalar, x: Value, vector: bool) -> Value {
        match (dtype, ty) {
            (DType::BF16, Scalar::F32) => {
                let bits = self.bf16_in_low_half(x, vector);
                self.bf16_from_low_half(bits, vector)
            }
            (DType::F32, Scalar::F64) => {
                let narrow = self.fb.ins().fdemote(types::F32, x);
                self.fb.ins().fpromote(types::F64, narrow)
            }
            (DType::F32, Scalar::F32) | (DType::F64, Scalar::F64) => x,
            _ => match NarrowFloat::of(dtype).filter(|_| !vector) {
                Some(narrow) => {
                    self.float_routine(ty, |precision| Routine::Round(precision, narrow), &[x])
                }
                None => {
                    let clif = if vector { vector_type(ty) } else { scalar_type(ty) };
                    self.fail(format!("rounding {} to {dtype}", ty.name()), clif)
                }
            },
        }
    }

    fn compare(&mut self, cmp: Cmp, ty: Scalar, args: &[Value], vector: bool) -> Value {
        let (a, b) = (args[0], args[1]);
        if ty.is_float() {
            let code = match cmp {
                Cmp::Eq => FloatCC::Equal,
                Cmp::Ne => FloatCC::NotEqual,
                Cmp::Lt => FloatCC::LessThan,
                Cmp::Le => FloatCC::LessThanOrEqual,
            };
            return self.fb.ins().fcmp(code, a, b);
        }
        let signed = ty != Scalar::Bool;
        let code = match cmp {
            Cmp::Eq => IntCC::Equal,
            Cmp::Ne => IntCC::NotEqual,
            Cmp::Lt if signed => IntCC::SignedLessThan,
            Cmp::Le if signed => IntCC::SignedLessThanOrEqual,
            Cmp::Lt => IntCC::UnsignedLessThan,
            Cmp::Le => IntCC::UnsignedLessThanOrEqual,
        };
        if vector && cmp == Cmp::Ne {
            let equal = self.fb.ins().icmp(IntCC::Equal, a, b);
            return self.fb.ins().bnot(equal);
        }
        self.fb.ins().icmp(code, a, b)
    }

    pub(super) fn convert(&mut self, from: Scalar, to: Scalar, x: Value, vector: bool) -> Value {
        use Scalar::{Bool, F32, F64, I32, I64};
        match (from, to) {
            _ if from == to => x,
            (F32, F64) => self.fb.ins().fpromote(types::F64, x),
            (F64, F32) => self.fb.ins().fdemote(types::F32, x),
            (I32, I64) => self.fb.ins().sextend(types::I64, x),
            (I64, I32) => self.fb.ins().ireduce(types::I32, x),
            (Bool, _) if vector => {
                let one = if to == F32 { 1f32.to_bits() } else { 1 };
                let one = self.constant(types::I32X4, one);
                let bits = self.fb.ins().band(x, one);
                self.bitcast(vector_type(to), bits)
            }
            (Bool, I32 | I64) => self.fb.ins().uextend(scalar_type(to), x),
            (Bool, _) => {
                let wide = self.fb.ins().uextend(types::I32, x);
                self.fb.ins().fcvt_from_sint(scalar_type(to), wide)
            }
            (_, Bool) => {
                let zero = self.number(from, 0, vector);
                self.compare(Cmp::Ne, from, &[x, zero], vector)
            }
            (I32 | I64, _) if vector => self.fb.ins().fcvt_from_sint(types::F32X4, x),
            (I32 | I64, _) => self.fb.ins().fcvt_from_sint(scalar_type(to), x),
            (F32, I32) if vector => self.fb.ins().fcvt_to_sint_sat(types::I32X4, x),
            (F32 | F64, _) => self.fb.ins().fcvt_to_sint_sat(scalar_type(to), x),
        }
    }
}
