//! Which keys the queries of several heads see, by the masks of a call.

use super::settings::MultiHead;
use super::sizes::{Sizes, fits};
use crate::functions::{Made, PadMode};
use crate::ops::elementwise::Elementwise;
use crate::ops::view::Views;
use crate::{DType, Shape, Size, TensorType, Var};

/// Which keys a query sees, over `[N, heads, L, S]` or what broadcasts to it: truth values, or
/// floats that are added to the scores.
#[derive(Clone, Copy)]
pub(super) enum Seen<'t> {
    /// Those up to its own position, and nothing else says what it sees.
    Causal(Var<'t>),
    /// What a mask says.
    Masked(Var<'t>),
}

impl<'t> Seen<'t> {
    /// What the masks of a call say together; nothing if there are none.
    ///
    /// # Errors
    /// A mask of another dtype or shape.
    pub(super) fn of(of: &MultiHead<'t>, sizes: &Sizes, query: Var<'t>) -> Made<Option<Seen<'t>>> {
        let Sizes { batch, queries, keys, .. } = *sizes;
        let (t, one, heads) = (query.tracer(), Size::from(1), Size::from(of.heads));
        // What belongs to the layer is seen by all.
        let more = i64::from(of.more.is_some()) + i64::from(of.zero);
        let spread = |mask: Var<'t>, [a, b, c]: [Size; 3]| {
            let mask = match more {
                0 => mask,
                more => mask.pad_last(&[0, more], PadMode::Constant(0.0)),
            };
            let mask = mask.reshape([a, b, c, keys + more]);
            if mask.dtype() == DType::Bool { mask.logical_not() } else { mask }
        };
        let mut all = Vec::new();
        if let Some(mask) = of.mask {
            let shapes = [vec![queries, keys], vec![batch * heads, queries, keys]];
            let which = checked("mask", mask, &shapes)?;
            all.push(spread(mask, [[one, one, queries], [batch, heads, queries]][which]));
        }
        if let Some(padding) = of.padding {
            let shape = if query.rank() == 3 { vec![batch, keys] } else { vec![keys] };
            checked("padding", padding, &[shape])?;
            all.push(spread(padding, [batch, one, one]));
        }
        if of.causal {
            let row = t.iota(DType::I64, Shape::from([queries, one]), 0);
            let column = t.iota(DType::I64, Shape::from([one, keys]), 1);
            let mask = spread(column.gt(row), [one, one, queries]);
            if all.is_empty() && more == 0 {
                return Ok(Some(Seen::Causal(mask)));
            }
            all.push(mask);
        }
        Ok(all.into_iter().reduce(both).map(Seen::Masked))
    }

    /// As a mask.
    pub(super) fn mask(self) -> Var<'t> {
        let (Seen::Causal(mask) | Seen::Masked(mask)) = self;
        mask
    }

    /// As what is added to the scores `[N · heads, L, S]`.
    pub(super) fn added(self, of: &MultiHead<'t>, sizes: &Sizes, query: Var<'t>) -> Var<'t> {
        let mask = self.mask();
        let mask = match mask.dtype() {
            DType::Bool => zero_or_never(mask, query.dtype()),
            _ => mask,
        };
        let (rows, keys) = (mask.size(2), mask.size(3));
        match mask.size(0) == 1 && mask.size(1) == 1 {
            true => mask.reshape([Size::from(1), rows, keys]),
            false => {
                let heads = Size::from(of.heads);
                mask.expand_to(&Shape::from([sizes.batch, heads, rows, keys])).flatten(0, 1)
            }
        }
    }
}

/// Which of the shapes a mask has.
fn checked(what: &str, mask: Var<'_>, shapes: &[Vec<Size>]) -> Made<usize> {
    if mask.dtype() != DType::Bool && !mask.dtype().is_float() {
        return Err(format!("takes masks of bool or floating point, found {}", mask.ty()));
    }
    shapes.iter().position(|shape| fits(mask, shape)).ok_or_else(|| {
        let shapes: Vec<String> = shapes.iter().map(|s| Shape::new(s).to_string()).collect();
        format!("the {what} is {}, expected {}", mask.ty(), shapes.join(" or "))
    })
}

/// What two masks say together.
fn both<'t>(a: Var<'t>, b: Var<'t>) -> Var<'t> {
    match (a.dtype() == DType::Bool, b.dtype() == DType::Bool) {
        (true, true) => a.logical_and(b),
        (true, false) => zero_or_never(a, b.dtype()) + b,
        (false, true) => a + zero_or_never(b, a.dtype()),
        (false, false) => a + b,
    }
}

/// Zero where a key is seen, and minus infinity where it is not.
fn zero_or_never<'t>(mask: Var<'t>, dtype: DType) -> Var<'t> {
    let number = |x: f64| mask.tracer().full(TensorType::scalar(dtype), x);
    mask.choose(number(0.0), number(f64::NEG_INFINITY))
}
