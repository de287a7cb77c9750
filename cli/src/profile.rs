//! `tracecast profile`: where the time of a program goes.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tracecast::{Graph, Profile, Store, Tensor, TensorType};
use tracecast_runtime::collective::{Group, threads};
use tracecast_runtime::files;

use crate::failure::Failure;
use crate::program::ProgramFile;
use crate::run::{SizeValues, keep};
use crate::target::Target;

/// How long a rank waits for another one.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a program many times and tells what each of its kernels takes
///
/// A kernel's bytes are those that it has to read and write, its operations those on floats. Its
/// limit is the time in which the machine could do as much, measured before: data that stays in a
/// cache may exceed it. Without arrays the program runs on numbers from 0 to 1 and on zeros where
/// it takes integers, at the sizes it was traced with where they are names. A program with
/// collectives runs on as many threads as it is for, and the times are those of rank 0.
#[derive(clap::Args)]
pub(crate) struct ProfileCommand {
    #[command(flatten)]
    program: ProgramFile,

    /// The arrays to run on, one for each port
    #[arg(long, value_name = "FILE.npz")]
    inputs: Option<PathBuf>,

    #[command(flatten)]
    sizes: SizeValues,

    /// The number of runs that are timed
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    runs: u32,

    /// Writes the run of median length in the trace event format, which Perfetto shows
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,

    /// Prints one line of JSON for each kernel instead of a table
    #[arg(long)]
    json: bool,

    /// Tells first how long compiling took: each pass, and each kernel with the size of its code
    #[arg(long, conflicts_with = "json")]
    compile: bool,

    #[command(flatten)]
    target: Target,
}

impl ProfileCommand {
    /// Runs the program; writes the table.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        let (graph, mut store) = self.program.read_with_values()?;
        let (graph, mut arrays) = match &self.inputs {
            Some(path) => {
                let (graph, arrays) = self.sizes.open(graph, path, &store)?;
                (graph, Some(arrays))
            }
            None => (self.sizes.as_traced(&graph)?, None),
        };
        let mut inputs = Vec::new();
        for (seed, port) in graph.ports().iter().enumerate() {
            let tensor = match &mut arrays {
                Some(arrays) => arrays.read(port)?,
                None if store.contains(&port.name) => None,
                None => Some(sample(&port.ty, seed as u64)?),
            };
            if let Some(tensor) = tensor {
                keep(port, tensor, &mut inputs, &mut store);
            }
        }
        let (executable, report) = self.target.compile(graph.clone(), self.program.policies()?)?;
        if self.compile {
            writeln!(out, "{report}")?;
        }
        let inputs: Vec<(&str, &Tensor)> =
            inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        let profile = match executable.program().ranks().filter(|ranks| *ranks > 1) {
            Some(ranks) => self.on_ranks(ranks, &graph, &store, &inputs)?,
            None => Profile::of(
                &executable,
                &mut store,
                &inputs,
                self.runs as usize,
                self.target.limits(),
            )?,
        };
        if let Some(path) = &self.trace {
            files::replace(path, trace_events(&profile).to_string().as_bytes())
                .map_err(|error| Failure::in_file(path, error.to_string()))?;
        }
        if self.json {
            profile.kernels.iter().try_for_each(|kernel| {
                let limit = profile.limits.map(|limits| kernel.of_limit(limits));
                let line = json!({
                    "kernel": kernel.name,
                    "form": kernel.form,
                    "schedule": kernel.schedule,
                    "us": kernel.time.as_secs_f64() * 1e6,
                    "bytes": kernel.cost.bytes(),
                    "flops": kernel.cost.flops,
                    "gflops": kernel.gflops(),
                    "gbytes": kernel.gbytes(),
                    "of_limit": limit,
                });
                writeln!(out, "{line}")
            })?;
        } else {
            write!(out, "{profile}")?;
        }
        Ok(())
    }

    /// The profile of rank 0 among as many threads, all of which have the same arrays.
    fn on_ranks(
        &self,
        ranks: usize,
        graph: &Graph,
        store: &Store,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Profile, Failure> {
        let (limits, runs) = (self.target.limits(), self.runs as usize);
        let of_rank = |rank: Group, mut store: Store| -> Result<Profile, Failure> {
            let (executable, _) = self.target.compile(graph.clone(), self.program.policies()?)?;
            let executable = executable.on_ranks(Arc::new(rank), 0)?;
            Ok(Profile::of(&executable, &mut store, inputs, runs, limits)?)
        };
        let profiles = std::thread::scope(|scope| {
            let of_rank = &of_rank;
            let started = threads(ranks, DEADLINE).into_iter().map(|rank| {
                Ok(store.try_clone().map(|own| scope.spawn(move || of_rank(rank, own)))?)
            });
            let started = started.collect::<Result<Vec<_>, Failure>>()?;
            let ended = started.into_iter().map(|rank| match rank.join() {
                Ok(profile) => profile,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All of them, so that no rank is left behind.
            ended.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>, _>>()
        });
        Ok(profiles?.swap_remove(0))
    }
}

/// Numbers that every program can take.
fn sample(ty: &TensorType, seed: u64) -> Result<Tensor, Failure> {
    if ty.dtype.is_float() {
        return Ok(Tensor::rand(ty.shape.clone(), seed)?.cast(ty.dtype)?);
    }
    Ok(Tensor::zeros(ty.clone())?)
}

/// The run of median length as complete events, in microseconds.
fn trace_events(profile: &Profile) -> Value {
    let events = profile.kernels.iter().map(|kernel| {
        json!({
            "name": kernel.name,
            "cat": kernel.form,
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "ts": kernel.typical.start.as_secs_f64() * 1e6,
            "dur": kernel.typical.time.as_secs_f64() * 1e6,
            "args": {
                "bytes": kernel.cost.bytes(),
                "flops": kernel.cost.flops,
            },
        })
    });
    json!({ "traceEvents": events.collect::<Vec<_>>(), "displayTimeUnit": "ns" })
}
