//! Mixed sizes and threads for as long as asked, with weights published once a second: memory stays
//! flat, nothing fails, and every answer is that of the version which its run took.

use crate::{Failure, Verdict, resident, tell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracecast::prelude::*;
use tracecast::{Jit, Published, Session, Weights};

/// Threads that run at the same time.
const CALLERS: usize = 4;
/// How long a thread lives before another takes its place.
const LIFE: Duration = Duration::from_secs(7);
const ROWS: usize = 300;
const WIDTH: usize = 64;
const COLUMNS: usize = 96;
/// Versions are numbers up to this one, so that sums of them are exact in all dtypes on the way.
const VERSIONS: f64 = 97.0;
/// Memory beyond the most of the first fifth of the time that is no growth.
const SLACK: usize = 8 << 20;

/// What all threads share.
struct Service {
    /// Of one thread and of two.
    heads: [Jit; 2],
    served: Published,
    done: AtomicBool,
    runs: AtomicU64,
    /// What went wrong, and how often.
    wrong: Mutex<(u64, Option<String>)>,
}

/// Runs for so long; see the module.
pub(crate) fn run(time: Duration, few: bool) -> Verdict {
    let mut store = Store::new()
        .with("w", Tensor::full(TensorType::new(DType::F32, [WIDTH, COLUMNS]), 1.0)?)
        .with("b", Tensor::full(TensorType::new(DType::F32, [COLUMNS]), 1.0)?)
        .with("version", Tensor::scalar(1.0_f32));
    let head = |threads: usize| {
        let head = jit(Options::new().threads(threads), |t| {
            let h = autocast(t, "cpu", DType::BF16, || t.input("x").matmul(t.param("w")));
            t.output("y", h.to(DType::F32) + t.param("b"));
        });
        head.sizes("x: [rows, _]")
    };
    let service = Service {
        heads: [head(1), head(2)],
        served: Published::new(store.snapshot()),
        done: AtomicBool::new(false),
        runs: AtomicU64::new(0),
        wrong: Mutex::default(),
    };
    let mut memory = Vec::new();
    thread::scope(|scope| {
        for number in 0..CALLERS {
            let service = &service;
            scope.spawn(move || service.callers(number));
        }
        let watched = service.publish(&mut store, time, &mut memory);
        service.done.store(true, Ordering::Relaxed);
        watched
    })?;
    let runs = service.runs.into_inner();
    let (failures, first) = service.wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{runs} runs in {:.0} s, {failures} of them wrong", time.as_secs_f64());
    let well =
        tell(failures == 0, &first.unwrap_or_else(|| "every answer is of one version".into()));
    Ok(tell(few || flat(&memory), &words(&memory)) && well)
}

/// Splits memory into that of the first fifth of the time and the rest: the most of both.
fn most(memory: &[usize]) -> (usize, usize) {
    let (first, rest) = memory.split_at(memory.len().div_ceil(5));
    let most = |of: &[usize]| of.iter().copied().max().unwrap_or(0);
    (most(first), most(rest))
}

fn flat(memory: &[usize]) -> bool {
    let (first, rest) = most(memory);
    rest <= first + SLACK
}

fn words(memory: &[usize]) -> String {
    let mb = |bytes: usize| bytes as f64 / 1e6;
    let (first, rest) = most(memory);
    let last = memory.last().copied().unwrap_or(0);
    format!(
        "memory was at most {:.1} MB in the first fifth of the time and {:.1} MB later, {:.1} MB at the end",
        mb(first),
        mb(rest),
        mb(last)
    )
}

impl Service {
    /// Threads, one after another.
    fn callers(&self, number: usize) {
        let mut life = 0;
        while !self.done.load(Ordering::Relaxed) {
            life += 1;
            let seed = (number * 1_000_003 + life * 7919) as u64;
            let lived = thread::scope(|scope| scope.spawn(|| self.call(seed)).join());
            let why = match lived {
                Ok(Ok(())) => continue,
                Ok(Err(why)) => why.to_string(),
                Err(_) => "a thread panicked".to_owned(),
            };
            let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
            wrong.0 += 1;
            wrong.1.get_or_insert(why);
        }
    }

    /// Runs with sizes that are drawn, until its time is over.
    fn call(&self, mut dice: u64) -> Result<(), Failure> {
        let (start, mut session) = (Instant::now(), Session::new());
        while start.elapsed() < LIFE && !self.done.load(Ordering::Relaxed) {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (rows, head) = ((dice >> 33) as usize % ROWS + 1, (dice >> 61) as usize % 2);
            let x = Tensor::full(TensorType::new(DType::F32, [rows, WIDTH]), 1.0)?;
            let weights = self.served.current();
            let out = self.heads[head].run_on(&weights, &mut session, &[("x", &x)])?;
            check(&weights, rows, &out["y"])?;
            self.runs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Publishes once a second what a step of training makes of the weights; notes how much memory
    /// there is.
    fn publish(
        &self,
        store: &mut Store,
        time: Duration,
        memory: &mut Vec<usize>,
    ) -> Result<(), Failure> {
        let step = jit(Options::new().threads(1), |t| {
            let version = t.param("version");
            let next = version.ge(VERSIONS).choose(version * 0.0 + 1.0, version + 1.0);
            t.update(version, next);
            for name in ["w", "b"] {
                let old = t.param(name);
                t.update(old, old * 0.0 + next);
            }
        });
        let start = Instant::now();
        while start.elapsed() < time {
            thread::sleep(Duration::from_secs(1).min(time.saturating_sub(start.elapsed())));
            step.run(store, &[])?;
            self.served.publish(store.snapshot());
            memory.push(resident()?);
        }
        Ok(())
    }
}

/// Every element tells the version that it was computed from.
fn check(weights: &Weights, rows: usize, y: &Tensor) -> Result<(), Failure> {
    let version = weights.get("version")?.item::<f32>()?;
    let expected = version * (WIDTH + 1) as f32;
    let found = y.to_vec::<f32>()?;
    match found.iter().find(|value| **value != expected) {
        None if found.len() == rows * COLUMNS => Ok(()),
        None => Err(format!("{} numbers for {rows} rows", found.len()).into()),
        Some(value) => {
            let number = value / (WIDTH + 1) as f32;
            Err(format!("an answer of version {version} has a number of version {number}").into())
        }
    }
}
