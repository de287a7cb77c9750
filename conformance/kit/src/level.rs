//! [`Level`]: how much of the language a device is held to.

use std::fmt;
use std::str::FromStr;

/// How much of the language a device is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Elementwise programs, state, order and memory.
    Maps,
    /// What training an MLP takes: products, reductions, gradients, autocast, the loss scaler.
    Mlp,
    /// Attention, norms and convolutions besides.
    Attention,
    /// Everything.
    Everything,
}

impl Level {
    /// All of them, the smallest first.
    pub const ALL: [Level; 4] = [Level::Maps, Level::Mlp, Level::Attention, Level::Everything];

    /// The name in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Maps => "maps",
            Level::Mlp => "mlp",
            Level::Attention => "attention",
            Level::Everything => "everything",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Level::ALL.into_iter().find(|level| level.name() == name);
        known.ok_or_else(|| "expected maps, mlp, attention or everything".to_owned())
    }
}
