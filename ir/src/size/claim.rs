//! What can be claimed of sizes, and the claims that a program depends on.

use super::Size;
use std::fmt;

/// How two sizes are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The left is the right.
    Equal,
    /// The left is the right or more.
    AtLeast,
    /// The right is a multiple of the left, which is not zero.
    Divides,
}

/// Something that sizes may fulfil: `length == width`, `length >= 16`, `4 divides length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The left side.
    pub left: Size,
    /// How it is related to the other.
    pub relation: Relation,
    /// The right side.
    pub right: Size,
}

impl Size {
    /// The claim that this is as large as the other.
    pub fn equals(self, other: impl Into<Size>) -> Claim {
        Claim { left: self, relation: Relation::Equal, right: other.into() }
    }

    /// The claim that this is `least` or more.
    pub fn at_least(self, least: impl Into<Size>) -> Claim {
        Claim { left: self, relation: Relation::AtLeast, right: least.into() }
    }

    /// The claim that this is a multiple of `by`, which is not zero.
    pub fn multiple_of(self, by: impl Into<Size>) -> Claim {
        Claim { left: by.into(), relation: Relation::Divides, right: self }
    }
}

impl Claim {
    /// The same of the sizes that `with` makes of these.
    #[must_use]
    pub fn map(self, with: impl Fn(Size) -> Size) -> Claim {
        Claim { left: with(self.left), right: with(self.right), ..self }
    }

    /// Whether it holds of these two numbers.
    pub fn holds(relation: Relation, left: i64, right: i64) -> bool {
        match relation {
            Relation::Equal => left == right,
            Relation::AtLeast => left >= right,
            Relation::Divides => left != 0 && right % left == 0,
        }
    }

    /// True if it is another claim in other words.
    pub(super) fn says(self, other: Claim) -> bool {
        if self.relation != other.relation {
            return false;
        }
        let (mine, others) = (self.left - self.right, other.left - other.right);
        match self.relation {
            Relation::Equal => mine == others || -mine == others,
            Relation::AtLeast => mine == others,
            Relation::Divides => self == other,
        }
    }

    /// Whether it holds, if both sides are numbers.
    pub(super) fn of_numbers(self) -> Option<bool> {
        Some(Claim::holds(self.relation, self.left.plain()?, self.right.plain()?))
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = match self.relation {
            Relation::Equal => "==",
            Relation::AtLeast => ">=",
            Relation::Divides => "divides",
        };
        write!(f, "{} {relation} {}", self.left, self.right)
    }
}

/// A claim that held for the sizes a program was traced with, and that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeGuard {
    /// What has to hold.
    pub claim: Claim,
    /// The op that depends on it, or what else asked.
    pub op: String,
    /// The line that recorded it; empty if that is not known.
    pub source: String,
}

impl fmt::Display for SizeGuard {
    /// `length == width of "add" at "m.rs:7:3"`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}", self.claim, self.op)?;
        if self.source.is_empty() { Ok(()) } else { write!(f, " at {:?}", self.source) }
    }
}
