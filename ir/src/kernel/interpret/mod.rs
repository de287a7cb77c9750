//! The meaning of scalar code and of reductions: what the evaluation of every form of kernel is made of.
//!
//! It is written to be read, not to be fast. The loops are those of the forms ([`forms`](super::forms)); buffers come from the caller.

mod machine;
pub(crate) mod reduce;
pub(crate) mod scalar;

pub(crate) use machine::{Machine, each_position};

use scalar::Bits;

/// The number of a check that failed, and what it found.
pub(crate) type Failed = Option<(u32, Option<i64>)>;

/// Why a kernel means nothing: it is not what the kernel builder makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

/// The kernel is not what the kernel builder makes.
pub(crate) fn malformed(what: &str) -> Malformed {
    Malformed(what.to_owned())
}

/// A value of a body.
pub(crate) fn of(values: &[Bits], value: u32) -> Result<Bits, Malformed> {
    values
        .get(value as usize)
        .copied()
        .ok_or_else(|| malformed("a sink takes a value that is not computed"))
}
