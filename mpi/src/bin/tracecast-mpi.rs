//! The command-line tool with MPI: `mpirun -n 4 tracecast-mpi train` trains on four processes. All
//! else is as with `tracecast`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracecast_cli::run(Some(tracecast_mpi::world))
}
