//! Bad input is an error that names its place and cause, never a panic and never a wrong result.
//!
//! `TRACECAST_FUZZ` multiplies the number of tries, `TRACECAST_RANDOM_SEED` sets the first seed.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]
#![allow(clippy::print_stdout, reason = "the output says what the tries came to")]

mod support;

#[path = "robust/edges.rs"]
mod edges;
#[path = "robust/facade.rs"]
mod facade;
#[path = "robust/mutate.rs"]
mod mutate;
#[path = "robust/outcome.rs"]
mod outcome;
#[path = "robust/runs.rs"]
mod runs;
#[path = "robust/texts.rs"]
mod texts;

use mutate::{mutate, repaired};
use outcome::{Outcome, caught, devices, follow};
use std::collections::BTreeMap;
use std::time::Instant;
use support::dice::Dice;
use support::random::program;
use tracecast_ir::text;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = setting("TRACECAST_RANDOM_SEED", 0);
    first..first + setting("TRACECAST_FUZZ", 1) * count
}

/// Texts of valid programs: random ones, and those of the filetests.
fn corpus() -> Vec<String> {
    let mut texts: Vec<String> = (0..60).map(|seed| program(1000 + seed, 10).to_string()).collect();
    let mut folders =
        vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests")];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                folders.push(path);
            } else {
                texts.extend(graphs(&std::fs::read_to_string(path).unwrap_or_default()));
            }
        }
    }
    texts
}

/// The graphs of a filetest below its regions.
fn graphs(file: &str) -> Vec<String> {
    let regions: Vec<&str> = file.lines().filter(|l| l.starts_with("region")).collect();
    let plain: Vec<&str> =
        file.lines().filter(|l| !l.starts_with(';') && !l.starts_with("region")).collect();
    let starts = (0..plain.len()).filter(|&i| plain[i].starts_with("graph"));
    let graph = |at: usize| {
        let length = plain[at..].iter().position(|l| l.starts_with('}'))?;
        let text = [&regions[..], &plain[at..=at + length]].concat().join("\n");
        text::parse(&text).is_ok().then_some(text)
    };
    starts.filter_map(graph).collect()
}

/// Counts how programs ended, and remembers the faults.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<String, usize>,
    faults: Vec<String>,
}

impl Tally {
    /// Tries one program; `what` tells it from others.
    fn note(&mut self, what: &str, attempt: impl FnOnce() -> Result<Outcome, String>) {
        let start = Instant::now();
        match attempt() {
            Ok(outcome) if start.elapsed().as_secs() < 5 => {
                if std::env::var_os("TRACECAST_SHOW").is_some() {
                    println!("{outcome:?}");
                }
                let kind = format!("{outcome:?}");
                *self
                    .outcomes
                    .entry(kind.split('(').next().unwrap_or_default().to_owned())
                    .or_default() += 1;
            }
            Ok(outcome) => {
                self.faults.push(format!("{what}: {outcome:?} after {:?}", start.elapsed()))
            }
            Err(fault) => self.faults.push(format!("{what}: {fault}")),
        }
        assert!(
            self.faults.len() < 20,
            "{} faults:\n{}",
            self.faults.len(),
            self.faults.join("\n")
        );
    }

    /// Fails if there was a fault, or if fewer than that many programs were computed.
    fn end(self, computed: usize) {
        println!("{:?}", self.outcomes);
        assert!(
            self.faults.is_empty(),
            "{} faults:\n{}",
            self.faults.len(),
            self.faults.join("\n")
        );
        assert!(
            self.outcomes.get("Computed").is_some_and(|n| *n >= computed),
            "{:?}",
            self.outcomes
        );
    }
}

#[test]
fn mutated_programs_are_refused_or_computed() {
    let (devices, corpus) = (devices(), corpus());
    let mut tally = Tally::default();
    for seed in seeds(2000) {
        let mut dice = Dice::new(seed);
        let (text, other) = (&corpus[dice.below(corpus.len())], &corpus[dice.below(corpus.len())]);
        let text = mutate(&mut dice, text, other);
        let end = |text: &str, dice: &mut Dice| match repaired(dice, text.to_owned()) {
            Err((text, error)) => {
                assert!(
                    error.line <= text.lines().count().max(1) + 1
                        && error.column >= 1
                        && !error.message.is_empty()
                );
                Ok(Outcome::Refused(error.to_string()))
            }
            Ok((text, graph)) => follow(&graph, &devices, dice).map_err(|e| format!("{e}\n{text}")),
        };
        tally.note(&format!("seed {seed}"), || {
            caught(|| end(&text, &mut dice)).and_then(|r| r).map_err(|e| {
                smallest(&text, e, |t| {
                    caught(|| end(t, &mut Dice::new(seed))).and_then(|r| r).err()
                })
            })
        });
    }
    tally.end(500);
}

/// The text with lines left out as long as it is at fault in the same way.
fn smallest(text: &str, fault: String, again: impl Fn(&str) -> Option<String>) -> String {
    let kind =
        |fault: &str| fault.lines().next().unwrap_or_default().chars().take(60).collect::<String>();
    let (mut lines, wanted) = (text.lines().collect::<Vec<_>>(), kind(&fault));
    for at in (1..lines.len()).rev() {
        let mut fewer = lines.clone();
        fewer.remove(at);
        if again(&fewer.join("\n")).is_some_and(|f| kind(&f) == wanted) {
            lines = fewer;
        }
    }
    format!("{fault}\nsmallest:\n{}", lines.join("\n"))
}

#[test]
fn ops_at_the_edges_of_their_domain() {
    let devices = devices();
    let mut tally = Tally::default();
    for (op, sample) in edges::samples(2) {
        let mut sizes: Vec<usize> =
            sample.operands.iter().flat_map(|(ty, _)| ty.shape.numbers().to_vec()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for (size, to) in sizes.iter().flat_map(|&n| [(n, 0), (n, 1)]) {
            let sample = edges::resized(&sample, size, to);
            tally.note("resized", || {
                edges::tried(op, &sample, &devices, &mut Dice::new(size as u64))
            });
        }
    }
    tally.end(500);
}

#[test]
fn ops_far_outside_their_domain() {
    let devices = devices();
    let mut tally = Tally::default();
    let samples: Vec<_> = edges::samples(usize::MAX).collect();
    for seed in seeds(5000) {
        let mut dice = Dice::new(seed);
        let (op, sample) = &samples[dice.below(samples.len())];
        let mut sample = edges::stretched(&mut dice, op, sample);
        if dice.chance(30) {
            sample = edges::stretched(&mut dice, op, &sample);
        }
        tally.note(&format!("seed {seed}"), || edges::tried(op, &sample, &devices, &mut dice));
    }
    tally.end(500);
}

#[test]
fn wrong_runs_are_refused_and_leave_no_trace() {
    let devices = devices();
    let mut tried = 0;
    for seed in seeds(400) {
        let device = &devices[(seed % 3) as usize];
        match runs::wrong_run(seed, device) {
            Ok(was_tried) => tried += usize::from(was_tried),
            Err(fault) => panic!("seed {seed} on {device:?}: {fault}\n{}", program(seed, 8)),
        }
    }
    assert!(tried > 300, "{tried}");
}
