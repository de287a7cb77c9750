//! What threads on one set of weights add to the memory of a process: eight against one, each in a
//! process of its own.

use crate::{Failure, Verdict, resident, tell};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use tracecast::Session;
use tracecast::prelude::*;

/// The name under which the bench runs itself with a number of threads.
pub(crate) const CHILD: &str = "memory-of";

const MATRICES: usize = 8;
const WIDTH: usize = 1024;
/// Weights are packed in the fourth.
const RUNS: usize = 5;
/// The most that eight threads may need of what one needs.
const MOST: f64 = 1.3;

/// Measures; see the module.
pub(crate) fn run(few: bool) -> Verdict {
    let weights = (MATRICES * WIDTH * WIDTH * 4) as f64 / 1e6;
    println!(
        "MB above the start of a process, {weights:.1} MB of weights, {RUNS} runs of each thread"
    );
    let of = |threads: usize| -> Result<f64, Failure> {
        let own = std::env::current_exe()?;
        let out = Command::new(own).args(["--bench", CHILD, &threads.to_string()]).output()?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        Ok(said.trim().parse::<f64>().map_err(|_| format!("{said}{:?}", out.stderr))? / 1e6)
    };
    let (one, eight) = (of(1)?, of(8)?);
    println!("one thread {one:.1}, eight threads {eight:.1}");
    let wanted = format!("eight need {:.2} × the memory of one, wanted {MOST}", eight / one);
    Ok(tell(few || eight <= MOST * one, &wanted))
}

/// Runs threads, and prints the bytes that the process has gained.
pub(crate) fn child(threads: usize) -> Verdict {
    let before = resident()?;
    let predict = jit(Options::new().threads(1), |t| {
        let weights = (0..MATRICES).map(|i| t.param(&format!("w{i}")));
        t.output("y", weights.fold(t.input("x"), |x, w| x.matmul(w).relu()));
    });
    let mut store = Store::new();
    for i in 0..MATRICES {
        store.insert(&format!("w{i}"), Tensor::rand([WIDTH, WIDTH], i as u64)?);
    }
    let weights = store.snapshot();
    let x = Tensor::rand([8, WIDTH], 99)?;
    let (ran, measured) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        let one = || {
            let mut session = Session::new();
            let done = (0..RUNS)
                .try_for_each(|_| predict.run_on(&weights, &mut session, &[("x", &x)]).map(drop));
            ran.wait();
            measured.wait();
            done
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        ran.wait();
        let after = resident();
        measured.wait();
        for thread in all {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        println!("{}", after?.saturating_sub(before));
        Ok(true)
    })
}
