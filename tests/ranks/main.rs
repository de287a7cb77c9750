//! Parallel runs: collectives over threads against the interpreter, ranks that fail, and training.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod failures;
mod programs;
mod training;
