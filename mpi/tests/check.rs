//! Runs the script `check`, with four random moments unless `TRACECAST_MOMENTS` says how many.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

/// The exit code of the script where it cannot run.
const NOT_RUN: i32 = 77;

#[test]
fn processes_have_the_bits_of_threads_and_end_with_those_that_fail() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("check");
    let binaries = Path::new(env!("CARGO_BIN_EXE_tracecast-mpi-check")).parent().unwrap();
    let moments = std::env::var("TRACECAST_MOMENTS").unwrap_or_else(|_| "4".to_owned());
    let ended = Command::new(script)
        .env("TRACECAST_BINARIES", binaries)
        .env("TRACECAST_MOMENTS", moments)
        .status()
        .unwrap();
    match ended.code() {
        Some(NOT_RUN) => println!("NOT RUN: the script says what is missing"),
        code => assert_eq!(code, Some(0), "the script says what failed"),
    }
}
