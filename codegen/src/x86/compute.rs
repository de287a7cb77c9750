//! Scalar instructions as instructions on vectors.

use super::inst::{One, Op, Shift, Two, compare};
use super::select::{Pair, Result, Select};
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
    /// An instruction that computes with its operands: what [`Capability`](crate::plan::phases::Capability) promises, and nothing else.
    pub(super) fn compute(&mut self, v: Val, inst: &Inst, args: &[Pair]) -> Result<Pair> {
        let (op, ty) = (inst.op, inst.ty);
        let from = inst.args.last().map_or(ty, |a| self.ty(*a));
        let lanes = self.task.cut.lanes;
        if !lanes.hold(ty) || !lanes.hold(from) {
            return no_code(op, ty);
        }
        match op {
            ScalarOp::Add
            | ScalarOp::Sub
            | ScalarOp::Mul
            | ScalarOp::Div
            | ScalarOp::Rem
            | ScalarOp::Max
            | ScalarOp::Min
            | ScalarOp::And
            | ScalarOp::Or => self.binary(op, ty, args[0], args[1]),
            ScalarOp::Neg | ScalarOp::Abs => self.sign(op, ty, args[0]),
            ScalarOp::Cmp(cmp) => Ok(self.compare(cmp, from, args[0], args[1])),
            ScalarOp::MulAdd if ty.is_float() => Ok(self.both(Op::Fma, args)),
            ScalarOp::Select => Ok(self.blend(args[0], args[1], args[2])),
            ScalarOp::Not if !ty.is_float() => Ok(self.not(args[0])),
            ScalarOp::Convert => self.convert(from, ty, args[0]),
            ScalarOp::Round(dtype) if ty == Scalar::F32 => self.round(v, dtype, args[0]),
            ScalarOp::Call(f) if ty == Scalar::F32 => self.function(f, args[0]),
            ScalarOp::Sqrt if ty.is_float() => Ok(self.one(One::Sqrt, args[0])),
            ScalarOp::Floor if ty.is_float() => Ok(self.one(One::Floor, args[0])),
            ScalarOp::WrapU8 if ty == Scalar::I32 => {
                let low = self.splat(0xff);
                Ok(self.two(Two::And, args[0], low))
            }
            ScalarOp::MulAdd
            | ScalarOp::Not
            | ScalarOp::Round(_)
            | ScalarOp::Call(_)
            | ScalarOp::Sqrt
            | ScalarOp::Floor
            | ScalarOp::WrapU8
            | ScalarOp::Const(_)
            | ScalarOp::Load(_)
            | ScalarOp::Index(_)
            | ScalarOp::Row(_)
            | ScalarOp::Register(_)
            | ScalarOp::Acc
            | ScalarOp::Random { .. }
            | ScalarOp::Check(_) => no_code(op, ty),
        }
    }

    /// An instruction of two operands of its own type.
    pub(super) fn binary(&mut self, op: ScalarOp, ty: Scalar, a: Pair, b: Pair) -> Result<Pair> {
        use Scalar::{Bool, F32, F64, I32, I64};
        let binary = match op {
            ScalarOp::Add => match ty {
                F32 | F64 => Two::Add,
                I32 | I64 => Two::IntAdd,
                Bool => return no_code(op, ty),
            },
            ScalarOp::Sub => match ty {
                F32 | F64 => Two::Sub,
                I32 | I64 => Two::IntSub,
                Bool => return no_code(op, ty),
            },
            ScalarOp::Mul => match ty {
                F32 | F64 => Two::Mul,
                I32 | I64 => Two::IntMul,
                Bool => Two::And,
            },
            ScalarOp::Div if ty.is_float() => Two::Div,
            ScalarOp::Max => match ty {
                F32 | F64 => return Ok(self.extreme(Two::Max, a, b)),
                I32 | I64 => Two::IntMax,
                Bool => Two::Or,
            },
            ScalarOp::Min => match ty {
                F32 | F64 => return Ok(self.extreme(Two::Min, a, b)),
                I32 | I64 => Two::IntMin,
                Bool => Two::And,
            },
            ScalarOp::And if !ty.is_float() => Two::And,
            ScalarOp::Or if !ty.is_float() => Two::Or,
            ScalarOp::Div
            | ScalarOp::Rem
            | ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Const(_)
            | ScalarOp::Load(_)
            | ScalarOp::Index(_)
            | ScalarOp::Row(_)
            | ScalarOp::Register(_)
            | ScalarOp::Acc
            | ScalarOp::MulAdd
            | ScalarOp::Neg
            | ScalarOp::Abs
            | ScalarOp::Sqrt
            | ScalarOp::Floor
            | ScalarOp::Call(_)
            | ScalarOp::Round(_)
            | ScalarOp::Cmp(_)
            | ScalarOp::Not
            | ScalarOp::Select
            | ScalarOp::Convert
            | ScalarOp::WrapU8
            | ScalarOp::Random { .. }
            | ScalarOp::Check(_) => return no_code(op, ty),
        };
        Ok(self.two(binary, a, b))
    }

    /// The larger or smaller of two floats; see [`ScalarOp::Max`].
    fn extreme(&mut self, op: Two, a: Pair, b: Pair) -> Pair {
        // The processor gives its second operand for equal numbers and for NaN.
        let best = self.two(op, b, a);
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
                self.two(Two::Xor, x, bit)
            }
            Scalar::F32 | Scalar::F64 => {
                let rest = self.constant(sign(ty) - 1);
                self.two(Two::And, x, rest)
            }
            Scalar::I32 | Scalar::I64 if negates => {
                let zero = self.splat(0);
                self.two(Two::IntSub, zero, x)
            }
            Scalar::I32 | Scalar::I64 => self.one(One::IntAbs, x),
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
            Combine::Value(op) => self.binary(op, ty, a, b),
            Combine::Position(_) => Err(format!("{reduction} of vectors of {}", ty.name())),
        }
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
    pub(super) fn nearest_bf16(&mut self, x: Pair) -> Pair {
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
}
