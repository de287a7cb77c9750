//! The command-line tool: trains the example model, shows programs between passes, runs them, lists the ops.
//!
//! Results go to standard output, progress, warnings and errors to standard error. The exit code is 0 if all went well, 1 if a
//! program or its data is wrong, 2 if the command line is.

mod asm;
mod dataset;
mod digits;
mod dot;
mod dump;
mod escaped;
mod excerpt;
mod explain;
mod failure;
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

use clap::{Parser, Subcommand};

use crate::escaped::Escaped;
use crate::failure::Failure;

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
    Explain(explain::Explain),
    Run(run::Run),
    Profile(profile::ProfileCommand),
    ServeBench(serve_bench::ServeBench),
    Ops(ops::Ops),
    Policy(policy::PolicyCommand),
}

fn main() -> ExitCode {
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
    let done =
        execute(&arguments.command, &mut out).and_then(|()| out.flush().map_err(Failure::Output));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn execute(command: &Command, out: &mut impl Write) -> Result<(), Failure> {
    match command {
        Command::Train(train) => train.execute(out),
        Command::Dump(dump) => dump.execute(out),
        Command::Explain(explain) => explain.execute(out),
        Command::Run(run) => run.execute(out),
        Command::Profile(profile) => profile.execute(out),
        Command::ServeBench(bench) => bench.execute(out),
        Command::Ops(ops) => ops.execute(out),
        Command::Policy(policy) => policy.execute(out),
    }
}
