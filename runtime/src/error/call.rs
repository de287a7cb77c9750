//! [`UnrecordedCall`]: a call of an exported program that has no meaning here.

use std::fmt;

/// A call of an exported program that cannot be recorded, and others like it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrecordedCall {
    /// What is called, such as `aten.add.Tensor`.
    pub target: String,
    /// What was expected and what was found.
    pub message: String,
    /// The arguments of the first such call.
    pub arguments: String,
    /// The Python line of the first such call.
    pub line: String,
    /// How many calls there are.
    pub count: usize,
}

impl fmt::Display for UnrecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnrecordedCall { target, message, arguments, line, count } = self;
        write!(f, "{target}: {message}")?;
        if *count > 1 {
            write!(f, ", {count} times")?;
        }
        if !line.is_empty() {
            write!(f, "\n    at {line}")?;
        }
        if arguments.is_empty() { Ok(()) } else { write!(f, "\n    called with {arguments}") }
    }
}

/// All calls of a program that cannot be recorded, one below the other.
pub(super) fn listed(calls: &[UnrecordedCall]) -> String {
    let what = if calls.len() == 1 { "a call" } else { "calls" };
    let mut text = format!("has {what} that cannot be recorded here:");
    for call in calls {
        text.push_str("\n  ");
        text.push_str(&call.to_string());
    }
    text
}
