//! What can go wrong with a program: while it is recorded, read from text, verified, or goes
//! through passes.

use std::fmt;
use thiserror::Error;

/// An op that could not be recorded.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{op}: {message}{}", place(.source_line, .scope))]
pub struct TraceError {
    /// The op, or `input`, `output`, … for the parts of a graph that are not ops.
    pub op: String,
    /// What was expected and what was found.
    pub message: String,
    /// The line of the user's program.
    pub source_line: String,
    /// The module path.
    pub scope: String,
}

fn place(source: &str, scope: &str) -> String {
    let mut out = String::new();
    if !source.is_empty() {
        out.push_str("\n  at ");
        out.push_str(source);
    }
    if !scope.is_empty() {
        out.push_str("\n  in ");
        out.push_str(scope);
    }
    out
}

/// A text that is not a program.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// How many characters the error covers, at least 1.
    pub length: usize,
    /// What was expected and what was found.
    pub message: String,
}

/// Everything a verifier found wrong with a graph.
#[derive(Clone, Debug, Error, PartialEq)]
pub struct VerifyErrors(
    /// At least one.
    pub Vec<VerifyError>,
);

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{e}")?;
        }
        Ok(())
    }
}

/// One thing wrong with a graph.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("%{node}: {op}: {message}{}", place(.source_line, ""))]
pub struct VerifyError {
    /// The index of the node.
    pub node: usize,
    /// Its op.
    pub op: String,
    /// What was expected and what was found.
    pub message: String,
    /// The line of the user's program.
    pub source_line: String,
}

/// A pipeline of passes that could not finish.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PassError {
    /// The program is wrong before any pass has run.
    #[error("the traced program is wrong\n{0}")]
    Input(VerifyErrors),
    /// A pass could not do its work.
    #[error("pass `{pass}`: {error}")]
    InPass {
        /// The name of the pass.
        pass: &'static str,
        /// What it could not record.
        error: TraceError,
    },
    /// A pass made a program that is wrong.
    #[error("after pass `{pass}` the program is wrong\n{errors}")]
    AfterPass {
        /// The name of the pass.
        pass: &'static str,
        /// Everything the verifier found.
        errors: VerifyErrors,
    },
}
