//! [`Arithmetic`]: the table of operations on two numbers, which both emitters read.

use tracecast_ir::kernel::{Scalar, ScalarOp};

/// What a scalar instruction of two operands of its own type is, by the kind of that type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    FloatAdd,
    FloatSub,
    FloatMul,
    FloatDiv,
    FloatMax,
    FloatMin,
    IntAdd,
    IntSub,
    IntMul,
    IntDiv,
    IntRem,
    IntMax,
    IntMin,
    BitAnd,
    BitOr,
}

impl Arithmetic {
    /// That of an instruction; `None` if it has other operands or there is none of the type. The
    /// product and the minimum of truth values are `and`, the maximum is `or`.
    pub(crate) fn of(op: ScalarOp, ty: Scalar) -> Option<Arithmetic> {
        let [float, int, truth] = match op {
            ScalarOp::Add => [Some(Arithmetic::FloatAdd), Some(Arithmetic::IntAdd), None],
            ScalarOp::Sub => [Some(Arithmetic::FloatSub), Some(Arithmetic::IntSub), None],
            ScalarOp::Mul => {
                [Arithmetic::FloatMul, Arithmetic::IntMul, Arithmetic::BitAnd].map(Some)
            }
            ScalarOp::Div => [Some(Arithmetic::FloatDiv), Some(Arithmetic::IntDiv), None],
            ScalarOp::Rem => [None, Some(Arithmetic::IntRem), None],
            ScalarOp::Max => {
                [Arithmetic::FloatMax, Arithmetic::IntMax, Arithmetic::BitOr].map(Some)
            }
            ScalarOp::Min => {
                [Arithmetic::FloatMin, Arithmetic::IntMin, Arithmetic::BitAnd].map(Some)
            }
            ScalarOp::And => [None, Some(Arithmetic::BitAnd), Some(Arithmetic::BitAnd)],
            ScalarOp::Or => [None, Some(Arithmetic::BitOr), Some(Arithmetic::BitOr)],
            _ => return None,
        };
        match ty {
            Scalar::F32 | Scalar::F64 => float,
            Scalar::I32 | Scalar::I64 => int,
            Scalar::Bool => truth,
        }
    }
}
