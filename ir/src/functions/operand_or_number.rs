//! What was given for an operand in whose place a number may stand, and the tensor that a number is
//! beside another.

use crate::args::OperandOf;
use crate::ops::infer;
use crate::{Attr, Attrs, DType, Number, Size, Var, given};
use smallvec::SmallVec;

/// What was given for an operand in whose place a number may stand.
pub(super) enum OperandOrNumber<'t> {
    Value(Var<'t>),
    /// A number, and whether it was given as an integer or a size.
    Number(Number, bool),
}

impl<'t> OperandOrNumber<'t> {
    /// What an argument is, beside a tensor of that dtype.
    ///
    /// # Errors
    /// If it is an integer that an f64 does not hold beside integers.
    pub(super) fn of(
        argument: impl OperandOf<'t, given::OrNumber>,
        dtype: DType,
    ) -> Result<Self, String> {
        let (mut vars, mut attrs): (SmallVec<[Var<'t>; 4]>, _) = (SmallVec::new(), Attrs::new());
        argument.append(&mut vars, &mut attrs);
        if let Some(x) = vars.pop() {
            return Ok(OperandOrNumber::Value(x));
        }
        if let Some(Attr::Int(number)) = attrs.get("scalar") {
            infer::need_exact(dtype, *number)?;
        }
        let is_whole = !matches!(attrs.get("scalar"), Some(Attr::Float(_)));
        let number = attrs.number("scalar").ok_or("takes a value or a number")?;
        if number.size().is_some_and(Size::is_out_of_range) {
            return Err(format!("takes a number, found the size {number} out of range"));
        }
        Ok(OperandOrNumber::Number(number, is_whole && !matches!(number, Number::Ratio(..))))
    }

    /// The operand as a tensor, and `x` in the dtype that it has beside it.
    pub(super) fn beside(self, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        match self {
            OperandOrNumber::Value(y) => (x, y),
            OperandOrNumber::Number(number, _) => x.beside(number),
        }
    }
}
