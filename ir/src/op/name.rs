//! [`OpName`]: what an op is called, for people and for tables.

use std::fmt;

/// The public, ATen-style name of an op.
///
/// It prints, and two of them are equal for one op; but it cannot be compared with a text, so that
/// nothing is decided by what an op is called. What is true of an op stands in its
/// [`Facts`](super::Facts), what its loops are in [`Lower`](super::Lower). Policies, the parser and
/// messages about mistyped names look ops up by their text; `tests/tidy/ops.rs` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpName(&'static str);

impl OpName {
    /// The name of a new op.
    pub const fn new(text: &'static str) -> OpName {
        OpName(text)
    }

    /// The text, to look the op up by: in a policy table, among the ops that a text may name, or
    /// among those that a user may mean.
    pub const fn text(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
