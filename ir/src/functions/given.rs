//! What was given for an operand in whose place a number may stand, and the tensor that a number is beside another.

use crate::args::OperandOf;
use crate::ops::infer;
use crate::{Attr, Attrs, DType, Number, Var, given};
use smallvec::SmallVec;

/// What was given for an operand in whose place a number may stand.
pub(super) enum Given<'t> {
    Value(Var<'t>),
    /// A number, and whether it was given as an integer.
    Number(f64, bool),
}

impl<'t> Given<'t> {
    /// What an argument is, beside a tensor of that dtype.
    ///
    /// # Errors
    /// If it is a size that depends on names, or an integer that an f64 does not hold beside integers.
    pub(super) fn of(
        argument: impl OperandOf<'t, given::OrNumber>,
        dtype: DType,
    ) -> Result<Self, String> {
        let (mut vars, mut attrs): (SmallVec<[Var<'t>; 4]>, _) = (SmallVec::new(), Attrs::new());
        argument.append(&mut vars, &mut attrs);
        if let Some(x) = vars.pop() {
            return Ok(Given::Value(x));
        }
        let number = match attrs.get("scalar") {
            Some(Attr::Int(number)) => {
                infer::need_exact(dtype, *number)?;
                return Ok(Given::Number(*number as f64, true));
            }
            Some(Attr::Size(size)) => Some(Number::Size(*size)),
            _ => attrs.number("scalar"),
        };
        let value = number.and_then(Number::value);
        value.map(|value| Given::Number(value, false)).ok_or_else(|| {
            let found = number.map_or_else(String::new, |number| number.to_string());
            format!("takes a number here, found the size {found}: pin it")
        })
    }

    /// The operand as a tensor, and `x` in the dtype that it has beside it.
    pub(super) fn beside(self, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        match self {
            Given::Value(y) => (x, y),
            Given::Number(number, _) => x.beside(number),
        }
    }
}
