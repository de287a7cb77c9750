//! One element of an op from one element of each operand: the op's own scalar code, interpreted.

use crate::kernel::interpret::Machine;
use crate::kernel::interpret::scalar::{Bits, convert};
use crate::kernel::{Body, Scalar, ScalarOp, Val};
use crate::op::{Lower, Map, MapCx, OpDef, Position};
use crate::{Attrs, DType, Size, Source, TensorType};
use smallvec::{SmallVec, smallvec};

/// Every integer up to this one is an f64.
const EXACT: u64 = 1 << 53;

/// The element that an elementwise op makes of these numbers, one for each operand, which lie in
/// the operands' dtypes.
///
/// It has the bits that a kernel gives, but for the payload of a NaN. `None` if it depends on more
/// than the operands and the attributes, such as its position; if it is an integer that no f64 is;
/// if a check fails; or if the op is not elementwise.
///
/// ```
/// use tracecast_ir::ops::elementwise::SQRT;
/// use tracecast_ir::{Attrs, DType, TensorType, eval};
///
/// let root = |x: f64| eval::element(&SQRT, &Attrs::new(), &[(DType::BF16, x)], &TensorType::scalar(DType::BF16));
/// assert_eq!(root(2.0), Some(1.4140625));
/// ```
pub fn element(
    op: &OpDef,
    attrs: &Attrs,
    operands: &[(DType, f64)],
    result: &TensorType,
) -> Option<f64> {
    let Lower::Map(rule) = op.lowering()? else { return None };
    let mut code = Body::default();
    let value = emit(op, rule, attrs, operands, result, &mut code)?;
    let is_left =
        |op| matches!(op, ScalarOp::Index(_) | ScalarOp::Argument(_) | ScalarOp::Random { .. });
    if code.insts.iter().any(|inst| is_left(inst.op)) {
        return None;
    }
    let mut machine = Machine::new(&[], 1);
    let mut values = Vec::with_capacity(code.insts.len());
    machine.run(&code, &[], &mut values).ok()?;
    let bits = *values.get(value as usize)?;
    machine.failed.is_none().then(|| number(code.ty(value), bits)).flatten()
}

/// Appends the code for the element, rounded as its dtype holds it.
fn emit(
    op: &OpDef,
    rule: &Map,
    attrs: &Attrs,
    operands: &[(DType, f64)],
    result: &TensorType,
    code: &mut Body,
) -> Option<Val> {
    let dtypes: SmallVec<[DType; 4]> = operands.iter().map(|(dtype, _)| *dtype).collect();
    let mut args: SmallVec<[Val; 4]> = SmallVec::new();
    for (dtype, number) in operands {
        args.push(code.constant(Scalar::of(*dtype)?, *number));
    }
    Scalar::of(result.dtype)?;
    // A position that shows in the code if it is asked for.
    let at = Position { strides: smallvec![Size::from(1)], ..Position::default() };
    let position = vec![at.clone(); result.shape.rank()];
    let (mut checks, mut arguments) = (Vec::new(), Vec::new());
    let mut cx = MapCx {
        body: code,
        attrs,
        result,
        operands: &dtypes,
        origin: (op.name, Source::Unknown),
        checks: &mut checks,
        arguments: &mut arguments,
        position: &position,
        number: Some(&at),
    };
    let value = rule(&mut cx, &args);
    Some(if op.rounding.is_exact(result.dtype) {
        value
    } else {
        code.as_dtype(value, result.dtype)
    })
}

/// The bits as an f64, if one is exactly that.
fn number(ty: Scalar, bits: Bits) -> Option<f64> {
    let is_written = ty != Scalar::I64 || (bits as i64).unsigned_abs() <= EXACT;
    is_written.then(|| f64::from_bits(convert(bits, ty, Scalar::F64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{elementwise, index, random};

    fn made(op: &OpDef, attrs: Attrs, operands: &[(DType, f64)], to: DType) -> Option<f64> {
        element(op, &attrs, operands, &TensorType::scalar(to))
    }

    #[test]
    fn an_element_is_rounded_to_its_dtype_once() {
        let third =
            |dtype| made(&elementwise::DIV, Attrs::new(), &[(dtype, 1.0), (dtype, 3.0)], dtype);
        assert_eq!(third(DType::F64), Some(1.0 / 3.0));
        assert_eq!(third(DType::F32), Some(f64::from(1.0_f32 / 3.0)));
        assert_eq!(third(DType::BF16), Some(0.333_984_375));
        let wrapped = made(&elementwise::NEG, Attrs::new(), &[(DType::U8, 1.0)], DType::U8);
        assert_eq!(wrapped, Some(255.0));
    }

    #[test]
    fn what_depends_on_more_than_numbers_is_not_known() {
        let rng = [(DType::I64, 1.0), (DType::I64, 2.0)];
        let stream = Attrs::new().with("stream", 0_i64);
        assert_eq!(made(&random::RANDOM, stream, &rng, DType::F32), None, "its position");
        let by_zero = [(DType::I32, 1.0), (DType::I32, 0.0)];
        assert_eq!(made(&elementwise::DIV_TRUNC, Attrs::new(), &by_zero, DType::I32), None);
        let range = Attrs::new().with("low", 0_i64).with("high", 3_i64);
        let checked = |x| made(&index::CHECK_RANGE, range.clone(), &[(DType::I64, x)], DType::I64);
        assert_eq!((checked(2.0), checked(3.0)), (Some(2.0), None));
        let large = 2.0_f64.powi(53);
        let square = [(DType::I64, large), (DType::I64, 3.0)];
        assert_eq!(made(&elementwise::MUL, Attrs::new(), &square, DType::I64), None);
    }
}
