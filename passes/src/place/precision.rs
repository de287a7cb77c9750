//! [`Precision`]: which roundings of a program are kept.

use std::fmt;
use std::str::FromStr;

/// Which results `place` may change, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// None, by no bit: every rounding point stays.
    #[default]
    Exact,
    /// Rounding points are a subset of those of `Exact`: between ops of one kernel values stay in
    /// f32. What the program rounds itself, what lies in memory and what contractions, reductions
    /// and comparisons take is rounded as ever.
    Optimised,
}

impl Precision {
    /// All of them, the default first.
    pub const ALL: [Precision; 2] = [Precision::Exact, Precision::Optimised];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Optimised => "optimised",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Precision::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| format!("expected exact or optimised, found `{text}`"))
    }
}
