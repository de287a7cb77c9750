//! Choices of schedules that a bench switches off, to compare what is chosen with what else is
//! correct (feature `regret`). Without the feature all of them are on.

#![cfg_attr(
    not(feature = "regret"),
    allow(dead_code, unreachable_pub, reason = "without the feature there is no bench")
)]

use std::sync::atomic::{AtomicU8, Ordering};

/// A choice that prefers one schedule to another by what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Choice {
    /// Drivers for convolutions: without them every convolution is a product through windows.
    Drivers = 1,
    /// The cost of packing: without it an image is made wherever it is correct.
    Packing = 2,
    /// Implicit GEMM with vectors along channels.
    Channels = 4,
    /// Products of a few rows by columns along `k`.
    Gemv = 8,
    /// Operands that are read in place.
    InPlace = 16,
    /// Few columns as rows.
    Swap = 32,
}

static WITHOUT: AtomicU8 = AtomicU8::new(0);

/// Switches choices off in this process, and all others on: while programs are compiled and while
/// they run.
pub fn choose_without(choices: &[Choice]) {
    let bits = choices.iter().fold(0, |bits, choice| bits | *choice as u8);
    WITHOUT.store(bits, Ordering::Relaxed);
}

/// True if a choice is switched off.
pub(crate) fn is_without(choice: Choice) -> bool {
    cfg!(feature = "regret") && WITHOUT.load(Ordering::Relaxed) & choice as u8 != 0
}
