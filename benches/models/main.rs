//! Networks of usual size, evaluated or trained: the time of a step, of the first call, and peak
//! memory. One network a command.
//!
//! ```sh
//! cargo bench --bench models -- resnet18 --mode train --dtype f32 --threads 2
//! cargo bench --bench models -- resnet18 --mode train --profile
//! cargo bench --bench models -- resnet18 --archive resnet18.pt2    # the same network as torch.export wrote it
//! ```
//!
//! `benches/peers/models.py` runs the same networks in PyTorch, in turn with this bench
//! (`--turns`). `VECTORS=avx2` takes other instructions than the machine's best.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program of its own")]

mod convolutional;
#[path = "../support/data.rs"]
#[allow(dead_code, reason = "the other benches cast and sum what they fill")]
mod data;
mod measure;
#[path = "../support/memory.rs"]
mod memory;
mod networks;
mod tagger;
mod transformers;
mod unet;
#[path = "../support/vectors.rs"]
mod vectors;

use std::process::ExitCode;
use tracecast::DType;

/// The command line.
pub(crate) struct Asked {
    pub(crate) network: String,
    pub(crate) train: bool,
    pub(crate) dtype: DType,
    pub(crate) threads: usize,
    /// Timed steps.
    pub(crate) rounds: usize,
    /// Steps are counted out on standard input, a line each turn.
    pub(crate) turns: bool,
    /// Prints the kernels and their limits as well.
    pub(crate) profile: bool,
    /// The archive of `torch.export` whose network replaces the one written with `nn`.
    pub(crate) archive: Option<String>,
    /// Every value of the program is stored, so that nothing that fusion recomputes costs more than
    /// its bytes.
    pub(crate) store_all: bool,
    /// Kernels run in the order of recording.
    pub(crate) recorded_order: bool,
}

const USAGE: &str = "usage: cargo bench --bench models -- NETWORK [--mode eval|train] [--dtype f32|bf16] [--threads N] \
    [--rounds N] [--profile] [--turns] [--archive FILE.pt2] [--store-all] [--recorded-order] | --list";

fn main() -> ExitCode {
    let done = asked(std::env::args().skip(1)).and_then(|asked| match asked {
        Some(asked) => measure::run(&asked).map_err(|error| error.to_string()),
        None => Ok(()),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// What the arguments say; nothing if they only ask for the names of the networks.
fn asked(args: impl Iterator<Item = String>) -> Result<Option<Asked>, String> {
    // Cargo adds `--bench`.
    let mut args = args.filter(|arg| arg != "--bench");
    let mut asked = Asked {
        network: String::new(),
        train: true,
        dtype: DType::F32,
        threads: 2,
        rounds: 10,
        turns: false,
        profile: false,
        archive: None,
        store_all: false,
        recorded_order: false,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("`{arg}` needs a value\n{USAGE}"));
        match arg.as_str() {
            "--mode" => {
                asked.train = match value()?.as_str() {
                    "train" => true,
                    "eval" => false,
                    other => return Err(format!("expected eval or train, found `{other}`")),
                }
            }
            "--dtype" => {
                asked.dtype = match value()?.as_str() {
                    "f32" => DType::F32,
                    "bf16" => DType::BF16,
                    other => return Err(format!("expected f32 or bf16, found `{other}`")),
                }
            }
            "--archive" => asked.archive = Some(value()?),
            "--threads" => asked.threads = number(&arg, &value()?)?,
            "--rounds" => asked.rounds = number(&arg, &value()?)?,
            "--turns" => asked.turns = true,
            "--profile" => asked.profile = true,
            "--store-all" => asked.store_all = true,
            "--recorded-order" => asked.recorded_order = true,
            "--list" => {
                networks::NAMES.iter().for_each(|name| println!("{name}"));
                return Ok(None);
            }
            name if asked.network.is_empty() && networks::NAMES.contains(&name) => {
                name.clone_into(&mut asked.network);
            }
            other => {
                let names = networks::NAMES.join(", ");
                return Err(format!("unknown argument `{other}`\n{USAGE}\nnetworks: {names}"));
            }
        }
    }
    if asked.network.is_empty() {
        return Err(format!(
            "expected a network\n{USAGE}\nnetworks: {}",
            networks::NAMES.join(", ")
        ));
    }
    Ok(Some(asked))
}

/// A whole number above 0.
fn number(arg: &str, value: &str) -> Result<usize, String> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("`{arg}` takes a number above 0, found `{value}`"))
}
