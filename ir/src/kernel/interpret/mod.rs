//! The meaning of scalar code and of reductions: what the evaluation of every form of kernel is
//! made of.
//!
//! It is written to be read, not to be fast. The loops are those of the forms
//! ([`forms`](super::forms)); buffers come from the caller.

mod machine;
pub(crate) mod reduce;
pub(crate) mod scalar;

pub(crate) use machine::{Machine, each_position};

use scalar::Bits;

/// The number of a check that failed, and what it found.
pub(crate) type Failed = Option<(u32, Option<i64>)>;

/// Why a kernel is not evaluated to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// It means nothing: it is not what the kernel builder makes.
    Malformed(String),
    /// There is not enough memory.
    Memory(String),
}

/// The kernel is not what the kernel builder makes.
pub(crate) fn malformed(what: &str) -> Stopped {
    Stopped::Malformed(what.to_owned())
}

/// Room for a number of values.
pub(crate) fn room<T>(count: usize) -> Result<Vec<T>, Stopped> {
    let mut room = Vec::new();
    let short = |error| Stopped::Memory(format!("memory for {count} values: {error}"));
    room.try_reserve_exact(count).map_err(short)?;
    Ok(room)
}

/// A value, repeated.
pub(crate) fn repeated<T: Clone>(value: T, count: usize) -> Result<Vec<T>, Stopped> {
    let mut all = room(count)?;
    all.resize(count, value);
    Ok(all)
}

/// A value of a body.
pub(crate) fn of(values: &[Bits], value: u32) -> Result<Bits, Stopped> {
    values
        .get(value as usize)
        .copied()
        .ok_or_else(|| malformed("a sink takes a value that is not computed"))
}
