//! The steps of a run in which ranks exchange values: one begins a bucket with its operands, one waits for its results.

use super::Timing;
use crate::buckets::Bucket;
use crate::collective::{Collective, Done, Label, Pending};
use crate::device::{Bound, Device};
use crate::error::{Error, Result};
use crate::memory::Memory;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tracecast_ir::op::Exchange;

/// What became of an exchange in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeTiming {
    /// Its name, as [`Program::exchanges`](crate::Program::exchanges) gives it.
    pub name: String,
    /// The bytes that this rank gave.
    pub bytes: usize,
    /// From when its operands were there until its results were, counted from the start of the run.
    pub flight: Timing,
    /// When the run came to need the results, and how long it waited.
    pub wait: Timing,
}

/// What the exchanges of an executable share.
#[derive(Debug)]
pub(super) struct Ranks {
    pub(super) collective: Arc<dyn Collective>,
    /// A number that stands for the program.
    pub(super) program: u64,
    /// The number of the next step.
    step: AtomicU64,
    /// Held by a run from its beginning to its end.
    turn: Mutex<()>,
    run: Mutex<Run>,
}

/// What is known of the run that is going on, or of the last one.
#[derive(Debug)]
struct Run {
    origin: Instant,
    flying: Vec<Option<Pending>>,
    /// Memory of earlier runs.
    spare: Vec<Vec<u8>>,
    timings: Vec<ExchangeTiming>,
}

impl Ranks {
    pub(super) fn new(collective: Arc<dyn Collective>, program: u64, buckets: &[Bucket]) -> Self {
        let idle = |bucket: &Bucket| ExchangeTiming {
            name: bucket.name.clone(),
            bytes: 0,
            flight: Timing::default(),
            wait: Timing::default(),
        };
        let run = Run {
            origin: Instant::now(),
            flying: buckets.iter().map(|_| None).collect(),
            spare: vec![Vec::new(); buckets.len()],
            timings: buckets.iter().map(idle).collect(),
        };
        Ranks {
            collective,
            program,
            step: AtomicU64::new(0),
            turn: Mutex::default(),
            run: Mutex::new(run),
        }
    }

    /// A run begins, once no other goes on.
    pub(super) fn begin(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut run = self.run();
        run.origin = Instant::now();
        run.flying.iter_mut().for_each(|flying| *flying = None);
        turn
    }

    pub(super) fn at_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// A run has come to its end.
    pub(super) fn end(&self) {
        self.step.fetch_add(1, Ordering::Relaxed);
    }

    /// What became of the exchanges of the last run.
    pub(super) fn timings(&self) -> Vec<ExchangeTiming> {
        self.run().timings.clone()
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place of a value: memory, an offset, a length.
pub(super) type At = (Memory, usize, usize);

/// A bucket with the places of its operands, or of its results.
pub(super) struct Tied {
    pub(super) ranks: Arc<Ranks>,
    pub(super) device: Arc<dyn Device>,
    pub(super) bucket: Bucket,
    pub(super) number: usize,
    pub(super) places: Vec<At>,
}

/// Begins the exchange.
pub(super) struct Begin(pub(super) Tied);

/// Waits for its results.
pub(super) struct Finish(pub(super) Tied);

impl Bound for Begin {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let Tied { ranks, device, bucket, number, places } = &self.0;
        let mut data = std::mem::take(&mut ranks.run().spare[*number]);
        data.resize(places.iter().map(|(.., len)| len).sum(), 0);
        let mut rest = &mut data[..];
        for (memory, at, len) in places {
            let (part, tail) = rest.split_at_mut(*len);
            device.download(memory, *at, part)?;
            rest = tail;
        }
        let (program, step) = (ranks.program, ranks.step.load(Ordering::Relaxed));
        let label = Label { program, step, bucket: *number as u64 };
        let bytes = data.len();
        let pending = ranks.collective.start(bucket.transfer, label, data)?;
        let mut run = ranks.run();
        run.timings[*number].bytes = bytes;
        run.flying[*number] = Some(pending);
        Ok(())
    }
}

impl Bound for Finish {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let Tied { ranks, device, bucket, number, places } = &self.0;
        let (pending, origin) = {
            let mut run = ranks.run();
            (run.flying[*number].take(), run.origin)
        };
        let none = || Error::Parallel(format!("{} has not begun", bucket.name));
        let waits = Instant::now();
        let Done { data, began, ended } = ranks.collective.wait(pending.ok_or_else(none)?)?;
        let since = |at: Instant| at.saturating_duration_since(origin);
        let mut from = self.own_part(data.len());
        for (memory, at, len) in places {
            match &mut from {
                Some(from) => {
                    device.upload(&data[*from..*from + len], memory, *at)?;
                    *from += len;
                }
                None => device.upload(&vec![0; *len], memory, *at)?,
            }
        }
        let mut run = ranks.run();
        let timing = &mut run.timings[*number];
        timing.flight =
            Timing { start: since(began), time: ended.saturating_duration_since(began) };
        timing.wait = Timing { start: since(waits), time: waits.elapsed() };
        run.spare[*number] = data;
        Ok(())
    }
}

impl Finish {
    /// Where the part that this rank keeps begins in what the ranks made of their bytes; `None` if it keeps nothing of it.
    fn own_part(&self, len: usize) -> Option<usize> {
        let Tied { ranks, bucket, .. } = &self.0;
        let (rank, size) = (ranks.collective.rank(), ranks.collective.size());
        match bucket.what {
            Exchange::ReduceTo if rank != bucket.root => None,
            Exchange::ReduceScatter => Some(rank * (len / size)),
            _ => Some(0),
        }
    }
}
