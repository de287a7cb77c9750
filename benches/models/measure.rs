//! The time and the memory of a network's steps.

use crate::Asked;
use crate::memory;
use crate::networks::Network;
use crate::vectors;
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::{Duration, Instant};
use tracecast::nn::Model;
use tracecast::prelude::*;
use tracecast::{Limits, Outputs, Profile, Result, measure_limits};

/// The learning rate of AdamW; its other settings are PyTorch's.
const RATE: f64 = 1e-4;

/// Steps from the first to the last of which memory is counted, and whose losses are compared.
const FIRST_STEPS: usize = 5;

/// A network that takes steps.
struct Stepper {
    program: Program,
    store: Store,
    batch: Vec<(&'static str, Tensor)>,
}

enum Program {
    Train(Box<TrainStep>),
    Evaluate(Box<Jit>),
}

impl Stepper {
    fn new(asked: &Asked) -> Result<Self> {
        let mut network = Network::named(&asked.network);
        if let Some(path) = &asked.archive {
            let start = Instant::now();
            network.model = Box::new(tracecast::pt2::open(path)?);
            eprintln!("opened in {} ms", ms(start.elapsed()));
        }
        let mut store = Store::new();
        network.start(&mut store);
        let Network { model, batch, loss } = network;
        let options = Options::new()
            .vectors(vectors::named())
            .threads(asked.threads)
            .store_all(asked.store_all)
            .plan_memory(!asked.recorded_order);
        let low = asked.dtype.is_low().then_some(asked.dtype);
        let program = if asked.train {
            let step = TrainStep::new(model, move |t, model| {
                loss.of(model.forward(t.input("x")), t.input("y"))
            });
            let step = step.optimizer(AdamW::new(RATE)).options(options);
            let step = if low.is_some() { step.autocast("cpu", low) } else { step };
            Program::Train(Box::new(step.build()?))
        } else {
            Program::Evaluate(Box::new(jit(options, move |t| {
                let model = Model::new(&*model, nn::Context::evaluation(t));
                let forward = || model.forward(t.input("x"));
                let out = match low {
                    Some(low) => autocast(t, "cpu", low, forward),
                    None => forward(),
                };
                t.output("out", out);
            })))
        };
        Ok(Stepper { program, store, batch })
    }

    /// Takes a step: its time, and what it gives.
    fn step(&mut self) -> Result<(Duration, Outputs)> {
        let batch: Vec<(&str, &Tensor)> = self.batch.iter().map(|(name, x)| (*name, x)).collect();
        let start = Instant::now();
        let outputs = match &self.program {
            Program::Train(step) => step.run(&mut self.store, &batch)?.outputs,
            Program::Evaluate(program) => program.run(&mut self.store, &batch)?,
        };
        Ok((start.elapsed(), outputs))
    }

    /// Where the time of steps goes, on a machine of these limits.
    fn profile(&mut self, steps: usize, limits: Limits) -> Result<Profile> {
        let batch: Vec<(&str, &Tensor)> = self.batch.iter().map(|(name, x)| (*name, x)).collect();
        let program = match &self.program {
            Program::Train(step) => step.jit(),
            Program::Evaluate(program) => program,
        };
        program.profile(&mut self.store, &batch, steps, Some(limits))
    }

    /// What backward needs of forward, and all that lies between kernels at one time, in bytes.
    fn planned(&self) -> Result<[usize; 2]> {
        let batch: Vec<(&str, &Tensor)> = self.batch.iter().map(|(name, x)| (*name, x)).collect();
        let program = match &self.program {
            Program::Train(step) => step.jit(),
            Program::Evaluate(program) => program,
        };
        let report = program.prepare(&self.store, &batch)?;
        Ok([report.saved_bytes, report.peak_bytes])
    }

    fn times(&mut self, steps: usize) -> Result<Vec<f64>> {
        (0..steps).map(|_| Ok(ms(self.step()?.0))).collect()
    }
}

/// Measures what is asked for in this process, which must not have measured anything else: memory
/// counts from here.
pub(crate) fn run(asked: &Asked) -> Result<()> {
    let start = jit(Options::new().threads(asked.threads), |t| t.output("y", t.input("x") * 2.0));
    start.run(&mut Store::new(), &[("x", &Tensor::scalar(1f32))])?;
    let base_kb = memory::reset_peak();
    let mut stepper = Stepper::new(asked)?;
    let mut checks = Vec::new();
    let start = Instant::now();
    let [saved, planned] = stepper.planned()?;
    let compiling = start.elapsed();
    let (first, outputs) = stepper.step()?;
    let first = compiling + first;
    // A copy of what a network gives would count as its memory.
    checks.extend(asked.train.then(|| magnitude(&outputs)));
    drop(outputs);
    for _ in 1..FIRST_STEPS {
        let (_, outputs) = stepper.step()?;
        checks.extend(asked.train.then(|| magnitude(&outputs)));
    }
    let peak_kb = base_kb.and_then(memory::peak_above);
    if !asked.train {
        checks.push(magnitude(&stepper.step()?.1));
    }
    let mut line = json!({
        "peer": "tracecast",
        "network": asked.network,
        "mode": if asked.train { "train" } else { "eval" },
        "dtype": asked.dtype.name(),
        "threads": asked.threads,
        "first_ms": ms(first),
        "compile_ms": ms(compiling),
        "saved_mb": saved as f64 / 1e6,
        "planned_mb": planned as f64 / 1e6,
        "peak_mb": peak_kb.map(|kb| (kb as f64 / 102.4).round() / 10.0),
        "checks": checks,
    });
    if asked.turns {
        println!("{line}");
        return turns(&mut stepper);
    }
    let mut times = stepper.times(asked.rounds)?;
    times.sort_by(f64::total_cmp);
    line["median_ms"] = json!(times[times.len() / 2]);
    line["min_ms"] = json!(times[0]);
    line["rounds"] = json!(times.len());
    if asked.profile {
        let limits = measure_limits(asked.threads, vectors::named());
        let profile = stepper.profile(asked.rounds, limits)?;
        println!("{profile}");
        line["in_kernels_ms"] = json!(ms(profile.in_kernels()));
        line["attainable_ms"] = json!(profile.attainable().map(ms));
    }
    println!("{}", sentence(&line));
    println!("{line}");
    Ok(())
}

/// Takes as many steps as each line of standard input says, and prints their times, until there is
/// no more.
fn turns(stepper: &mut Stepper) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let Some(steps) = line.ok().and_then(|line| line.trim().parse().ok()) else { break };
        println!("{}", json!(stepper.times(steps)?));
    }
    Ok(())
}

/// The loss, or the mean magnitude of what the network gives.
fn magnitude(outputs: &Outputs) -> f64 {
    let result = outputs.find("loss").or(outputs.find("out")).map(Tensor::to_f64s);
    let numbers = result.unwrap_or_default();
    numbers.iter().map(|x| x.abs()).sum::<f64>() / numbers.len() as f64
}

/// The line for people.
fn sentence(line: &Value) -> String {
    let text = |key: &str| line[key].as_str().unwrap_or("–").to_owned();
    let number = |key: &str| line[key].as_f64().map_or("–".to_owned(), |x| format!("{x:.1}"));
    let checks: Vec<String> = line["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|x| format!("{:.6}", x.as_f64().unwrap_or(f64::NAN)))
        .collect();
    let of_limit = line["attainable_ms"].as_f64().map(|ms| format!("; {ms:.1} ms are attainable"));
    format!(
        "{} {} {}: median {} ms of {} rounds (least {}), first call {} ms ({} to compile), saved {} MB of {} planned, peak {} MB, {} {}{}",
        text("network"),
        text("mode"),
        text("dtype"),
        number("median_ms"),
        line["rounds"],
        number("min_ms"),
        number("first_ms"),
        number("compile_ms"),
        number("saved_mb"),
        number("planned_mb"),
        number("peak_mb"),
        if line["mode"] == "train" { "losses" } else { "mean magnitude" },
        checks.join(" "),
        of_limit.unwrap_or_default()
    )
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
