//! The fuzz targets of `fuzz/` without a fuzzer: each on its corpus, and on mutations of it with
//! fixed seeds. A fault that fuzzing has found stays in the corpus under a name that says what it
//! was.
//!
//! `TRACECAST_FUZZ` multiplies the number of mutations, `TRACECAST_RANDOM_SEED` sets the first
//! seed.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]
#![allow(unreachable_pub, reason = "the crate of the targets is another one")]

#[path = "../fuzz/src/npz.rs"]
mod npz;
#[path = "robust/outcome.rs"]
mod outcome;
#[path = "../fuzz/src/policy.rs"]
mod policy;
#[path = "../fuzz/src/program.rs"]
mod program;
#[path = "../fuzz/src/pt2.rs"]
mod pt2;
#[path = "../fuzz/src/safetensors.rs"]
mod safetensors;
#[path = "../fuzz/src/scratch.rs"]
mod scratch;
mod support;
#[path = "../fuzz/src/text.rs"]
mod text;

use outcome::caught;
use std::path::Path;
use support::dice::Dice;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Tries a target on its corpus and on that many mutations of it.
fn try_out(target: &str, mutations: u64, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} has {} files", files.len());
    let corpus: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, bytes) in files.iter().zip(&corpus) {
        caught(|| run(bytes)).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
    }
    let first = setting("TRACECAST_RANDOM_SEED", 0);
    for seed in first..first + setting("TRACECAST_FUZZ", 1) * mutations {
        let bytes = mutated(&mut Dice::new(seed), &corpus);
        caught(|| run(&bytes)).unwrap_or_else(|fault| {
            panic!("seed {seed}: {fault}\n{:?}", String::from_utf8_lossy(&bytes))
        });
    }
}

/// An input of the corpus with a few bytes changed, left out, or taken from another one.
fn mutated(dice: &mut Dice, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[dice.below(corpus.len())].clone();
    for _ in 0..1 + dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        let end = (at + 1 + dice.below(16)).min(bytes.len());
        match dice.below(5) {
            0 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let other = &corpus[dice.below(corpus.len())];
                let from = dice.below(other.len() + 1);
                let to = (from + 1 + dice.below(32)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn texts() {
    try_out("text", 500, text::run);
}

#[test]
fn archives_of_arrays() {
    try_out("npz", 300, npz::run);
}

#[test]
fn archives_of_safe_tensors() {
    try_out("safetensors", 300, safetensors::run);
}

#[test]
fn exported_models() {
    try_out("pt2", 300, pt2::run);
}

#[test]
fn policy_files() {
    try_out("policy", 300, policy::run);
}

#[test]
fn programs() {
    try_out("program", 150, program::run);
}
