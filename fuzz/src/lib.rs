//! What is fuzzed, as functions of bytes that panic where something is wrong. `targets/` hands them
//! to libFuzzer, `run` builds and starts it, and `tests/fuzz.rs` of the workspace tries each on its
//! corpus and on mutations of fixed seeds.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../tests/robust/outcome.rs"]
mod outcome;
mod scratch;
#[path = "../../tests/support/mod.rs"]
mod support;

pub mod npz;
pub mod policy;
pub mod program;
pub mod pt2;
pub mod safetensors;
pub mod text;
