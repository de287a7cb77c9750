//! The command-line tool. It has no MPI: the crate in the folder `mpi` has a binary that does.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracecast_cli::run(None)
}
