//! How far ops that are made of several functions may be from the exact value: for `docs/ops.md`,
//! and for the test that measures it.

use super::functions::{ENTR, LOG_NDTR, LOGIT, NDTR, POLYGAMMA, SINC};
use crate::{Attrs, OpDef};

/// A bound of an op of one f32.
pub struct Bound {
    /// The op.
    pub op: &'static OpDef,
    /// Its attribute `n`, if it has one.
    pub order: Option<i64>,
    /// Units in the last place of the exact value, or of 1 where it is smaller and
    /// [`of_one`](Bound::of_one) says so.
    pub units: f64,
    /// True if the units are at least those of 1: results next to a zero are differences of larger
    /// numbers.
    pub of_one: bool,
}

impl Bound {
    const fn new(op: &'static OpDef, units: f64, of_one: bool) -> Bound {
        Bound { op, order: None, units, of_one }
    }

    const fn of_order(n: i64, units: f64) -> Bound {
        Bound { op: &POLYGAMMA, order: Some(n), units, of_one: false }
    }

    /// The attributes of a call.
    pub fn attrs(&self) -> Attrs {
        match self.order {
            Some(n) => Attrs::new().with("n", n),
            None => Attrs::new(),
        }
    }
}

/// The bounds. The probabilities lie on a steep curve: what the rounding of the operand changes
/// grows with its square.
pub static BOUNDS: [Bound; 8] = [
    Bound::new(&LOGIT, 1.25, true),
    Bound::new(&ENTR, 1.75, false),
    Bound::new(&SINC, 1.0, true),
    Bound::new(&NDTR, 144.0, false),
    Bound::new(&LOG_NDTR, 144.0, false),
    Bound::of_order(2, 6.0),
    Bound::of_order(3, 8.0),
    Bound::of_order(4, 20.0),
];
