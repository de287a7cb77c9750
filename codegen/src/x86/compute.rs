//! Scalar instructions as instructions on vectors.

use super::inst::{Binary, Op, Shift, Unary, compare};
use super::select::{Pair, Result, Select};
use crate::plan::Arithmetic;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Cmp, Combine, Inst, Reduction, Scalar, ScalarOp, Val};

/// The sign bit of a float.
fn sign(ty: Scalar) -> u64 {
    if ty == Scalar::F64 { 1 << 63 } else { 1 << 31 }
}

fn no_code(op: ScalarOp, ty: Scalar) -> Result<Pair> {
    Err(format!("{} of vectors of {}", op.name(), ty.name()))
}

impl Select<'_> {
    /// An instruction that computes with its operands: what
    /// [`Capability`](crate::plan::phases::Capability) promises, and nothing else.
    pub(super) fn compute(&mut self, v: Val, inst: &Inst, args: &[Pair]) -> Result<Pair> {
        let (op, ty) = (inst.op, inst.ty);
        let from = inst.args.last().map_or(ty, |a| self.ty(*a));
        let lanes = self.task.cut.lanes;
        if !lanes.hold(ty) || !lanes.hold(from) {
            return no_code(op, ty);
        }
        match op {
            ScalarOp::Neg | ScalarOp::Abs => self.sign(op, ty, args[0]),
            ScalarOp::Cmp(cmp) => Ok(self.compare(cmp, from, args[0], args[1])),
            ScalarOp::MulAdd if ty.is_float() => Ok(self.both(Op::Fma, args)),
            ScalarOp::Select => Ok(self.blend(args[0], args[1], args[2])),
            ScalarOp::Not if !ty.is_float() => Ok(self.not(args[0])),
            ScalarOp::Convert => self.convert(from, ty, args[0]),
            ScalarOp::Round(dtype) if ty == Scalar::F32 => self.round(v, dtype, args[0]),
            ScalarOp::Call(f) if ty.is_float() => self.function(f, args[0]),
            ScalarOp::Sqrt if ty.is_float() => Ok(self.unary(Unary::Sqrt, args[0])),
            ScalarOp::Floor if ty.is_float() => Ok(self.unary(Unary::Floor, args[0])),
            ScalarOp::WrapU8 if ty == Scalar::I32 => {
                let low = self.splat(0xff);
                Ok(self.binary(Binary::And, args[0], low))
            }
            _ => self.arithmetic(op, ty, args),
        }
    }

    /// An instruction of two operands of its own type.
    pub(super) fn arithmetic(&mut self, op: ScalarOp, ty: Scalar, args: &[Pair]) -> Result<Pair> {
        let (Some(arithmetic), &[a, b]) = (Arithmetic::of(op, ty), args) else {
            return no_code(op, ty);
        };
        let inst = match arithmetic {
            Arithmetic::FloatAdd => Binary::Add,
            Arithmetic::FloatSub => Binary::Sub,
            Arithmetic::FloatMul => Binary::Mul,
            Arithmetic::FloatDiv => Binary::Div,
            Arithmetic::FloatMax => return Ok(self.extreme(Binary::Max, a, b)),
            Arithmetic::FloatMin => return Ok(self.extreme(Binary::Min, a, b)),
            Arithmetic::IntAdd => Binary::IntAdd,
            Arithmetic::IntSub => Binary::IntSub,
            Arithmetic::IntMul => Binary::IntMul,
            Arithmetic::IntDiv | Arithmetic::IntRem => return no_code(op, ty),
            Arithmetic::IntMax => Binary::IntMax,
            Arithmetic::IntMin => Binary::IntMin,
            Arithmetic::BitAnd => Binary::And,
            Arithmetic::BitOr => Binary::Or,
        };
        Ok(self.binary(inst, a, b))
    }

    /// The larger or smaller of two floats; see [`ScalarOp::Max`].
    fn extreme(&mut self, op: Binary, a: Pair, b: Pair) -> Pair {
        // The processor gives its second operand for equal numbers and for NaN.
        let best = self.binary(op, b, a);
        if self.is_number(b) {
            return best;
        }
        let nan = self.is_nan(b);
        self.blend(nan, b, best)
    }

    /// A negation or absolute value.
    fn sign(&mut self, op: ScalarOp, ty: Scalar, x: Pair) -> Result<Pair> {
        let negates = op == ScalarOp::Neg;
        Ok(match ty {
            Scalar::F32 | Scalar::F64 if negates => {
                let bit = self.constant(sign(ty));
                self.binary(Binary::Xor, x, bit)
            }
            Scalar::F32 | Scalar::F64 => {
                let rest = self.constant(sign(ty) - 1);
                self.binary(Binary::And, x, rest)
            }
            Scalar::I32 | Scalar::I64 if negates => {
                let zero = self.splat(0);
                self.binary(Binary::IntSub, zero, x)
            }
            Scalar::I32 | Scalar::I64 => self.unary(Unary::IntAbs, x),
            Scalar::Bool => return no_code(op, ty),
        })
    }

    /// Two partial results of a reduction as one.
    pub(super) fn combine(
        &mut self,
        reduction: Reduction,
        ty: Scalar,
        a: Pair,
        b: Pair,
    ) -> Result<Pair> {
        match reduction.combines() {
            Combine::Value(op) => self.arithmetic(op, ty, &[a, b]),
            Combine::Position(_) => Err(format!("{reduction} of vectors of {}", ty.name())),
        }
    }

    /// True for constants that are not NaN.
    fn is_number(&self, pair: Pair) -> bool {
        let fine = |v: u32| match self.insts[v as usize].op {
            Op::Splat(bits) => !f32::from_bits(bits).is_nan(),
            Op::Splat64(bits) => !f64::from_bits(bits).is_nan(),
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
                self.binary(Binary::Compare(code), a, b)
            }
            (Cmp::Eq, Scalar::I32 | Scalar::I64 | Scalar::Bool) => {
                self.binary(Binary::IntEqual, a, b)
            }
            (Cmp::Ne, Scalar::Bool) => self.binary(Binary::Xor, a, b),
            (Cmp::Ne, Scalar::I32 | Scalar::I64) => {
                let equal = self.binary(Binary::IntEqual, a, b);
                self.not(equal)
            }
            (Cmp::Lt, Scalar::I32 | Scalar::I64) => self.binary(Binary::IntGreater, b, a),
            (Cmp::Le, Scalar::I32 | Scalar::I64) => {
                let greater = self.binary(Binary::IntGreater, a, b);
                self.not(greater)
            }
            (Cmp::Lt, Scalar::Bool) => self.binary(Binary::AndNot, a, b),
            (Cmp::Le, Scalar::Bool) => {
                let not = self.not(a);
                self.binary(Binary::Or, not, b)
            }
        }
    }

    fn convert(&mut self, from: Scalar, to: Scalar, x: Pair) -> Result<Pair> {
        use Scalar::{Bool, F32, F64, I32, I64};
        Ok(match (from, to) {
            _ if from == to => x,
            (I32, F32) | (I64, F64) => self.unary(Unary::ToFloat, x),
            (Bool, _) => {
                let one = self.constant(match to {
                    F32 => u64::from(1f32.to_bits()),
                    F64 => 1f64.to_bits(),
                    _ => 1,
                });
                self.binary(Binary::And, x, one)
            }
            (_, Bool) => {
                let zero = self.splat(0);
                self.compare(Cmp::Ne, from, x, zero)
            }
            (F32, I32) | (F64, I64) => {
                // What is too large gives the smallest integer, all of whose bits are wrong then. A
                // NaN gives 0.
                let raw = self.unary(Unary::ToInt, x);
                let limit = self.constant(match to {
                    I32 => u64::from(2_147_483_648f32.to_bits()),
                    _ => 9_223_372_036_854_775_808f64.to_bits(),
                });
                let large = self.binary(Binary::Compare(compare::GREATER_EQUAL), x, limit);
                let best = self.binary(Binary::Xor, raw, large);
                let number = self.binary(Binary::Compare(compare::ORDERED), x, x);
                self.binary(Binary::And, best, number)
            }
            _ => return Err(format!("vectors of {} as {}", from.name(), to.name())),
        })
    }

    fn round(&mut self, v: Val, dtype: DType, x: Pair) -> Result<Pair> {
        Ok(match dtype {
            DType::F32 => x,
            DType::F16 => {
                let half = self.both(Op::ToF16, &[x]);
                self.rounded_f16.insert(v, half);
                self.unary(Unary::FromF16, half)
            }
            DType::BF16 => {
                let bits = self.nearest_bf16(x);
                self.rounded_bf16.insert(v, bits);
                let high = self.splat(0xffff_0000);
                self.binary(Binary::And, bits, high)
            }
            other => return Err(format!("rounding vectors to {other}")),
        })
    }

    /// The nearest bf16 in the high half of each lane, with anything below. See
    /// [`tracecast_ir::kernel::half::f32_to_bf16`].
    pub(super) fn nearest_bf16(&mut self, x: Pair) -> Pair {
        let one = self.splat(1);
        let less = self.splat(0x7fff);
        let high = self.shift(Shift::Right, 16, x);
        let odd = self.binary(Binary::And, high, one);
        let sum = self.binary(Binary::IntAdd, x, less);
        let sum = self.binary(Binary::IntAdd, sum, odd);
        if self.nan_safe_rounding {
            return sum;
        }
        // All bits set are a NaN.
        let nan = self.is_nan(x);
        match self.is_512 {
            true => {
                let ones = self.splat(u32::MAX);
                self.blend(nan, ones, sum)
            }
            false => self.binary(Binary::Or, sum, nan),
        }
    }
}
