//! [`Rounding`]: where an op rounds, as a value that code reads and as a sentence for its page.

use crate::DType;
use std::fmt;

/// Where an op rounds in a 16-bit run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Where the result is rounded.
    pub at: Rounds,
    /// The same for readers, with the gradient: a line of the op's page.
    pub prose: &'static str,
}

/// Where the result of an op is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Nowhere: what the op computes from numbers of its operands' dtypes is a number of the
    /// result's dtype already, so kernels do not round it. (For `u8`, computed with as `i32`,
    /// results are still wrapped.)
    Nowhere,
    /// Once, to the result's dtype, after everything was computed in the wider type.
    Result,
    /// Where its parts round, each as it would alone.
    Parts,
}

impl Rounding {
    /// Neither the result nor the gradient is rounded.
    pub const NOWHERE: Rounding = Rounding::nowhere("nowhere");
    /// The result is rounded once; a gradient, if there is one, is made of ops that say themselves
    /// where they round.
    pub const RESULT: Rounding = Rounding::result("the result");

    /// The result is not rounded; `prose` says so and what becomes of the gradient.
    pub const fn nowhere(prose: &'static str) -> Rounding {
        Rounding { at: Rounds::Nowhere, prose }
    }

    /// The result is rounded once; `prose` says so and what becomes of the gradient.
    pub const fn result(prose: &'static str) -> Rounding {
        Rounding { at: Rounds::Result, prose }
    }

    /// True if what the op computes is a number of the result's dtype as it is.
    pub fn is_exact(&self, result: DType) -> bool {
        self.at == Rounds::Nowhere && result != DType::U8
    }

    /// The parts of the op round.
    pub const fn parts(prose: &'static str) -> Rounding {
        Rounding { at: Rounds::Parts, prose }
    }
}

/// The prose.
impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prose)
    }
}
