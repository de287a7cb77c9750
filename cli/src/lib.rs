//! The command-line tool as a function, [`run()`], for the binary `tracecast` and for one that is
//! linked with MPI: trains the example model, shows programs between passes, runs them, lists the
//! ops.
//!
//! Results go to standard output, progress, warnings and errors to standard error. The exit code is
//! 0 if all went well, 1 if a program or its data is wrong, 2 if the command line is.

mod asm;
mod conformance;
mod convert;
mod dataset;
mod devices;
mod digits;
mod dot;
mod dump;
mod escaped;
mod excerpt;
mod explain;
mod failure;
mod manual;
mod ops;
mod plot;
mod policy;
mod profile;
mod program;
mod ranks;
mod report;
mod run;
mod serve_bench;
mod target;
mod train;
mod training;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use tracecast_runtime::Registry;

pub use crate::ranks::World;

use crate::escaped::Escaped;
use crate::failure::Failure;

/// Does what the command line says, and knows the devices of a registry besides: the tool of a
/// device from outside, in a crate of its own.
///
/// ```no_run
/// # fn registry() -> std::sync::Arc<tracecast_runtime::Registry> { unimplemented!() }
/// fn main() -> std::process::ExitCode {
///     tracecast_cli::main_with(&registry())
/// }
/// ```
pub fn main_with(registry: &Arc<Registry>) -> ExitCode {
    devices::know(registry);
    run(None)
}

/// Does what the command line says. With a `world`, training under `mpirun` takes its processes for
/// ranks; without, it is refused there.
///
/// The result is what the process is to end with. If training on processes fails, they cannot be
/// ended in order any more: end this one at once, and `mpirun` ends the others.
pub fn run(world: Option<World>) -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(help_or_error) => {
            // Whoever closed the stream does not want to read it.
            drop(help_or_error.print());
            return ExitCode::from(u8::try_from(help_or_error.exit_code()).unwrap_or(2));
        }
    };
    failure::show_warnings();
    let mut out = Escaped(BufWriter::new(io::stdout().lock()));
    let done = execute(&arguments.command, world, &mut out)
        .and_then(|()| out.flush().map_err(Failure::Output));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Trace tensor programs, rewrite them for mixed precision, and compile them to fused kernels.
#[derive(Parser)]
#[command(name = "tracecast", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Train),
    Dump(dump::Dump),
    Convert(convert::Convert),
    Explain(explain::Explain),
    Conformance(conformance::Conformance),
    Run(run::Run),
    Profile(profile::ProfileCommand),
    ServeBench(serve_bench::ServeBench),
    Ops(ops::Ops),
    Policy(policy::PolicyCommand),
    Completions(manual::Completions),
    Man(manual::Manual),
}

fn execute(command: &Command, world: Option<World>, out: &mut impl Write) -> Result<(), Failure> {
    match command {
        Command::Train(train) => train.execute(world, out),
        Command::Dump(dump) => dump.execute(out),
        Command::Convert(convert) => convert.execute(out),
        Command::Explain(explain) => explain.execute(out),
        Command::Conformance(conformance) => conformance.execute(out),
        Command::Run(run) => run.execute(out),
        Command::Profile(profile) => profile.execute(out),
        Command::ServeBench(bench) => bench.execute(out),
        Command::Ops(ops) => ops.execute(out),
        Command::Policy(policy) => policy.execute(out),
        Command::Completions(completions) => completions.execute(Arguments::command(), out),
        Command::Man(manual) => manual.execute(Arguments::command(), out),
    }
}
