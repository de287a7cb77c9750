//! What can go wrong while a program goes through its passes.

use thiserror::Error;
use tracecast_ir::{TraceError, VerifyErrors};

/// A pipeline that could not finish.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Error {
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
