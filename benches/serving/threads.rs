//! Throughput of two threads on one set of weights, against one thread and against two that share
//! nothing: what the machine itself gives.

use crate::{Failure, Verdict, layers, tell, weights};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use tracecast::prelude::*;
use tracecast::{Jit, Session, Weights};

const ROUNDS: usize = 7;
/// The least that two threads have to do of what one does.
const LEAST: f64 = 1.8;

/// A program and the weights that it runs on.
type Served = (Jit, Weights);

/// Measures; see the module.
pub(crate) fn run(few: bool) -> Verdict {
    let (rounds, time) = if few { (1, 5) } else { (ROUNDS, 1000) };
    let time = Duration::from_millis(time);
    println!("runs a second, the median of {rounds} rounds of {:.1} s", time.as_secs_f64());
    let heads = ["rows", "weights", "one", "two", "two apart", "two/one", "apart/one"];
    println!("{}", heads.map(|head| format!("{head:>11}")).concat());
    let mut well = true;
    // In the second-level cache of a processor, packed weights included.
    for (rows, wide, hidden) in [(8, 64, 128), (16, 128, 256), (32, 256, 256)] {
        let made = || -> Result<Served, Failure> {
            Ok((jit(Options::new().threads(1), layers), weights(wide, hidden)?.snapshot()))
        };
        let served = [made()?, made()?];
        let x = Tensor::rand([rows, wide], 3)?;
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            rates[0].push(rate(&[&served[0]], &x, time)?);
            rates[1].push(rate(&[&served[0], &served[0]], &x, time)?);
            rates[2].push(rate(&[&served[0], &served[1]], &x, time)?);
        }
        let [one, two, apart] = rates.map(median);
        let size = format!("{} KB", (2 * wide * hidden * 4) >> 10);
        println!(
            "{rows:>11}{size:>11}{one:>11.0}{two:>11.0}{apart:>11.0}{:>11.2}{:>11.2}",
            two / one,
            apart / one
        );
        well &= two >= LEAST * one;
    }
    Ok(tell(few || well, &format!("two threads do {LEAST} times as much as one")))
}

/// Runs threads for a second, each on what is given for it.
fn rate(served: &[&Served], x: &Tensor, time: Duration) -> Result<f64, Failure> {
    let ready = Barrier::new(served.len());
    let one = |(predict, weights): &Served| {
        // Of its own, as that of a request is.
        let x = Tensor::from_bytes(x.ty().clone(), x.bytes().to_vec())?;
        let mut session = Session::new();
        for _ in 0..50 {
            predict.run_on(weights, &mut session, &[("x", &x)])?;
        }
        ready.wait();
        let (start, mut runs) = (Instant::now(), 0_u32);
        while start.elapsed() < time {
            for _ in 0..16 {
                predict.run_on(weights, &mut session, &[("x", &x)])?;
            }
            runs += 16;
        }
        Ok::<f64, Failure>(f64::from(runs) / start.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = served.iter().map(|own| scope.spawn(move || one(own))).collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| Failure::from("a thread panicked"))?);
        rates.sum()
    })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}
