//! What this machine can do at best, measured here and now.

use crate::machine::{InstructionSet, Vectors};
use crate::routines::peak_flops;
use std::hint::black_box;
use std::time::{Duration, Instant};
use tracecast_runtime::Limits;

/// Elements that a thread goes through: more than its share of any cache.
const ELEMENTS: usize = 8 << 20;

/// What that many threads, one on each core at most, can do at best on this machine with these
/// vectors: fused multiply-adds in registers; reading memory or scaling it in place, whichever
/// moves more.
///
/// Both are measured, in some 50 ms, and hold for the moment: other work on the machine lowers them
/// as it lowers kernels.
///
/// ```
/// use tracecast_codegen::{Vectors, measure_limits};
///
/// let limits = measure_limits(1, Vectors::Native);
/// assert!(limits.flops > 1e8 && limits.bytes > 1e8);
/// ```
pub fn measure_limits(threads: usize, vectors: Vectors) -> Limits {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.clamp(1, cores);
    let instructions = InstructionSet::of(vectors);
    let flops: f64 = on_each(threads, |_| peak_flops(instructions)).iter().sum();
    let mut all: Vec<Vec<f32>> = (0..threads).map(|_| vec![1.0; ELEMENTS]).collect();
    let times = |times: Vec<(Duration, Duration)>| {
        let slowest = |part: fn(&(Duration, Duration)) -> Duration| {
            times.iter().map(part).max().unwrap_or(Duration::MAX).as_secs_f64()
        };
        let bytes = (threads * ELEMENTS * size_of::<f32>()) as f64;
        (bytes / slowest(|t| t.0)).max(2.0 * bytes / slowest(|t| t.1))
    };
    let taken = std::thread::scope(|scope| {
        let running: Vec<_> = all.iter_mut().map(|data| scope.spawn(|| sweep(data))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    Limits { flops, bytes: times(taken) }
}

/// [`Limits::flops`] of the calling thread, in less than a millisecond.
pub fn measure_flops(vectors: Vectors) -> f64 {
    peak_flops(InstructionSet::of(vectors))
}

fn on_each<T: Send>(threads: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let f = &f;
        let running: Vec<_> = (0..threads).map(|i| scope.spawn(move || f(i))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// The least times of reading all of the data and of scaling it in place.
fn sweep(data: &mut [f32]) -> (Duration, Duration) {
    let (mut read, mut scaled) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        let start = Instant::now();
        let lanes = data.as_chunks::<16>().0.iter().fold([0u32; 16], |mut sums, chunk| {
            sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum |= x.to_bits());
            sums
        });
        black_box(lanes);
        read = read.min(start.elapsed());
        let factor = black_box(1.0);
        let start = Instant::now();
        data.iter_mut().for_each(|x| *x *= factor);
        black_box(&mut *data);
        scaled = scaled.min(start.elapsed());
    }
    (read, scaled)
}
