//! Runs of a known program of one thread: their times alone, and while another thread has the same
//! `Jit` compile one new signature after another on all cores but one.

use crate::{Failure, Verdict, layers, tell, weights};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tracecast::prelude::*;
use tracecast::{Jit, Session, Weights};

const RUNS: usize = 10_000;
const REPEATS: usize = 3;
/// The most that the 99th of 100 runs may be slower beside a compilation.
const MOST: f64 = 2.0;

/// Measures; see the module.
pub(crate) fn run(few: bool) -> Verdict {
    let (runs, repeats) = if few { (20, 1) } else { (RUNS, REPEATS) };
    let cores = thread::available_parallelism()?.get();
    let options = Options::new().threads(1).compile_threads((cores - 1).max(1));
    let predict = jit(options.infer_sizes(false), layers);
    let weights = weights(256, 256)?.snapshot();
    println!("a run of a known program, {runs} times, alone and while another thread compiles");
    println!("{:>10}{:>12}{:>12}{:>14}{:>8}", "", "p50 µs", "p99 µs", "longest µs", "beside");
    let mut worst: f64 = 0.0;
    for repeat in 0..repeats {
        let alone = times(&predict, &weights, runs)?;
        let before = predict.counters().misses;
        let beside = beside_compilations(&predict, &weights, runs, repeat)?;
        let compiled = predict.counters().misses - before;
        line("alone", &alone, 0);
        line("beside", &beside, compiled);
        worst = worst.max(at(&beside, 0.99).as_secs_f64() / at(&alone, 0.99).as_secs_f64());
    }
    let wanted =
        format!("the worst p99 beside compilations is {worst:.2} × that alone, wanted {MOST}");
    Ok(tell(few || worst <= MOST, &wanted))
}

/// The times of runs of the known program, the shortest first.
fn times(predict: &Jit, weights: &Weights, runs: usize) -> Result<Vec<Duration>, Failure> {
    let x = Tensor::rand([8, 256], 3)?;
    let mut session = Session::new();
    for _ in 0..50 {
        predict.run_on(weights, &mut session, &[("x", &x)])?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        predict.run_on(weights, &mut session, &[("x", &x)])?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

/// The same while another thread compiles.
fn beside_compilations(
    predict: &Jit,
    weights: &Weights,
    runs: usize,
    repeat: usize,
) -> Result<Vec<Duration>, Failure> {
    let (done, begun) = (AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let compiling = scope.spawn(|| {
            begun.wait();
            // Numbers of rows that no repeat has met.
            for rows in (1000 * (repeat + 1)).. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let x = Tensor::rand([rows, 256], 4)?;
                predict.prepare(&weights.to_store(), &[("x", &x)])?;
            }
            Ok::<(), Failure>(())
        });
        begun.wait();
        let times = times(predict, weights, runs);
        done.store(true, Ordering::Relaxed);
        compiling.join().map_err(|_| "the thread that compiles panicked")??;
        times
    })
}

/// The time that this part of the runs took at most.
fn at(times: &[Duration], part: f64) -> Duration {
    times[((times.len() - 1) as f64 * part).round() as usize]
}

fn line(what: &str, times: &[Duration], compiled: u64) {
    let micros = |part: f64| at(times, part).as_secs_f64() * 1e6;
    let [p50, p99, longest] = [0.5, 0.99, 1.0].map(micros);
    println!("{what:>10}{p50:>12.1}{p99:>12.1}{longest:>14.1}{compiled:>8}");
}
