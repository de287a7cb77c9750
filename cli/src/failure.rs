//! What the tool says on standard error: [`Failure`], why it stops, with the exit code it stops
//! with, and what the library logs.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::escaped::Escaped;

/// Why the tool stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line asks for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// A program or its data is wrong, or a file cannot be used.
    #[error("{0}")]
    Input(String),
    /// Standard output cannot be written to.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Something wrong with the contents of a file.
    pub(crate) fn in_file(path: &Path, message: impl Display) -> Self {
        Failure::Input(format!("{}: {message}", path.display()))
    }

    /// Says why on standard error; a reader that went away is no failure and is not told.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Failure::Output(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Failure::Usage(_) => {
                note("error", self);
                ExitCode::from(2)
            }
            Failure::Input(_) | Failure::Output(_) => {
                note("error", self);
                ExitCode::from(1)
            }
        }
    }
}

impl From<tracecast::Error> for Failure {
    fn from(error: tracecast::Error) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<tracecast_ir::PassError> for Failure {
    fn from(error: tracecast_ir::PassError) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<tracecast_ir::TraceError> for Failure {
    fn from(error: tracecast_ir::TraceError) -> Self {
        Failure::Input(error.to_string())
    }
}

/// Shows what the library finds odd.
pub(crate) fn show_warnings() {
    // Nobody else sets a logger in this process.
    drop(log::set_logger(&Shown).map(|()| log::set_max_level(log::LevelFilter::Warn)));
}

/// Shows messages of the library as the tool shows its own.
struct Shown;

impl log::Log for Shown {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target() == "tracecast" && metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            note("warning", record.args());
        }
    }

    fn flush(&self) {}
}

/// Writes a line to standard error. If nobody listens there, there is nobody to tell.
pub(crate) fn note(kind: &str, message: impl Display) {
    drop(writeln!(Escaped(io::stderr()), "{kind}: {message}"));
}
