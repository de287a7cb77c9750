//! [`Map`]: how an op computes one element, and what passes may know about it without knowing the
//! op.

use super::{Func, MapFn};
use std::ops::Deref;

/// What an elementwise op makes of the elements it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// New numbers, for which it needs all operands.
    New,
    /// One of them, with a sign changed at most, so that rounding them to nearest first gives the
    /// bits of rounding the result.
    Chosen {
        /// The operands from this one on are the elements, those before choose.
        from: usize,
    },
    /// The largest or the smallest of them. Numbers that are merely widened stay what they are, but
    /// of two that rounding makes equal another may be taken: of the two zeros.
    Extreme,
}

/// The rule for one element of a result, see [`Lower::Map`](super::Lower::Map).
#[derive(Clone)]
pub struct Map {
    rule: Func<MapFn>,
    elements: Elements,
    is_cheap: bool,
}

impl Map {
    /// A rule that makes new numbers.
    pub const fn new(rule: Func<MapFn>) -> Self {
        Map { rule, elements: Elements::New, is_cheap: false }
    }

    /// The same rule, of an op that hands elements on.
    #[must_use]
    pub const fn with_elements(mut self, elements: Elements) -> Self {
        self.elements = elements;
        self
    }

    /// The same rule, cheaper to apply again than its result is to store.
    #[must_use]
    pub const fn cheap(mut self) -> Self {
        self.is_cheap = true;
        self
    }

    /// What it makes of the elements it is given.
    pub const fn elements(&self) -> Elements {
        self.elements
    }

    /// The first of the operands whose elements it hands on; `None` if it makes new numbers.
    pub const fn handed_on_from(&self) -> Option<usize> {
        match self.elements {
            Elements::New => None,
            Elements::Chosen { from } => Some(from),
            Elements::Extreme => Some(0),
        }
    }

    /// True if it is cheaper to apply again than its result is to store.
    pub const fn is_cheap(&self) -> bool {
        self.is_cheap
    }
}

impl Deref for Map {
    type Target = MapFn;

    fn deref(&self) -> &MapFn {
        &*self.rule
    }
}
