//! The programs of the benches as text: what is compiled is written into a folder, so that the code
//! that two versions of the compiler make of it can be compared (`benches/same-code`).
//!
//! With `TRACECAST_BENCH_PROGRAMS=FOLDER` in the environment a bench compiles and runs what it
//! would measure, and measures nothing. Benches under criterion get the flag `--test` too.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use tracecast::Options;
use tracecast::ir::Printer;
use tracecast::passes::{Pipeline, Precision};

/// Where programs are to be written, if they are.
const VARIABLE: &str = "TRACECAST_BENCH_PROGRAMS";

/// The folder that programs are written into; nothing if the bench is to measure.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}

/// These options, under which each program is written as it was traced, if programs are asked for.
/// The first line of the text has the options of `tracecast dump` by which it is compiled the same
/// way; equal programs are written once.
///
/// # Panics
/// If the folder cannot be written to: without the programs the bench would be of no use.
pub(crate) fn written(options: Options) -> Options {
    let Some(folder) = folder() else { return options };
    let passes = options.passes();
    let mut flags = String::new();
    if passes.precision == Precision::Optimised {
        flags += " --precision optimised";
    }
    if !passes.fold {
        flags += " --no-fold";
    }
    options.observer(move |pass, graph| {
        if pass != Pipeline::TRACED {
            return;
        }
        let text = format!("; options:{flags}\n{}", Printer::FULL.show(graph));
        let mut hash = DefaultHasher::new();
        text.hash(&mut hash);
        let path = folder.join(format!("{}-{:016x}.tc", graph.name(), hash.finish()));
        std::fs::write(path, text).expect("the folder for programs can be written to");
    })
}
