//! The steps of a run in which ranks exchange values: one begins a bucket with its operands, one
//! waits for its results. Where ranks see each other's memory, the second does all of it.

use super::Timing;
use super::away::read_within;
use crate::buckets::Bucket;
use crate::collective::{Collective, Done, Flight, Label, Pending, Places, Reduction, Transfer};
use crate::device::{Bound, Device, Queue};
use crate::error::{Error, Result};
use crate::memory::Span;
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
    /// From when it began until its results were there, counted from the start of the run. Values
    /// that are [reduced](crate::Collective::reduce) in place are so while the run waits for them.
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
    /// True if values are reduced in place. Then all that the program exchanges are reductions:
    /// others begin in another order than they are waited for.
    in_memory: bool,
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
    /// When the operands of each were there.
    ready: Vec<Instant>,
    flying: Vec<Option<Pending>>,
    /// Memory of earlier runs.
    spare: Vec<Vec<u8>>,
    timings: Vec<ExchangeTiming>,
}

impl Ranks {
    pub(super) fn new(
        collective: Arc<dyn Collective>,
        program: u64,
        buckets: &[Bucket],
        device: &dyn Device,
    ) -> Self {
        let idle = |bucket: &Bucket| ExchangeTiming {
            name: bucket.name.clone(),
            bytes: 0,
            flight: Timing::default(),
            wait: Timing::default(),
        };
        let origin = Instant::now();
        let run = Run {
            origin,
            ready: vec![origin; buckets.len()],
            flying: buckets.iter().map(|_| None).collect(),
            spare: vec![Vec::new(); buckets.len()],
            timings: buckets.iter().map(idle).collect(),
        };
        let alike = buckets.iter().all(|bucket| bucket.what == Exchange::AllReduce);
        Ranks {
            in_memory: collective.sees_memory()
                && device.merges()
                && device.queue().is_none()
                && alike,
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

/// A bucket with the places of its operands, and once it is waited for those of its results.
pub(super) struct Tied {
    pub(super) ranks: Arc<Ranks>,
    pub(super) device: Arc<dyn Device>,
    pub(super) bucket: Bucket,
    pub(super) number: usize,
    pub(super) places: Arc<Places>,
}

/// Begins the exchange.
pub(super) struct Begin(pub(super) Tied);

/// Waits for its results.
pub(super) struct Finish(pub(super) Tied);

impl Tied {
    fn label(&self) -> Label {
        let (program, step) = (self.ranks.program, self.ranks.step.load(Ordering::Relaxed));
        Label { program, step, bucket: self.number as u64 }
    }
}

impl Bound for Begin {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let Tied { device, places, .. } = &self.0;
        self.begin(|mut data| {
            for Span { memory, at, len } in &places.operands {
                let (part, rest) = data.split_at_mut(*len);
                device.download(memory, *at, part)?;
                data = rest;
            }
            Ok(())
        })
    }
}

impl Begin {
    /// Reads the operands behind the commands that the queue has, and waits for those.
    pub(super) fn give(&self, queue: &mut dyn Queue) -> Result<()> {
        let Tied { device, places, .. } = &self.0;
        self.begin(|mut data| {
            for bytes in read_within(&**device, queue, places.operands.iter())? {
                let (part, rest) = data.split_at_mut(bytes.len());
                part.copy_from_slice(&bytes);
                data = rest;
            }
            Ok(())
        })
    }

    /// Begins with the bytes of the operands, which `read` fills in; where values are reduced in
    /// place, without.
    fn begin(&self, read: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let Tied { ranks, bucket, number, places, .. } = &self.0;
        let bytes = places.bytes();
        let pending = match ranks.in_memory {
            true => None,
            false => {
                let mut data = std::mem::take(&mut ranks.run().spare[*number]);
                data.resize(bytes, 0);
                read(&mut data)?;
                Some(ranks.collective.start(bucket.transfer, self.0.label(), data)?)
            }
        };
        let mut run = ranks.run();
        run.timings[*number].bytes = bytes;
        run.ready[*number] = Instant::now();
        run.flying[*number] = pending;
        Ok(())
    }
}

impl Bound for Finish {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let device = &self.0.device;
        self.finish(&mut |bytes, Span { memory, at, .. }| device.upload(bytes, memory, *at))
    }
}

impl Finish {
    /// Has the queue copy the results to the device.
    pub(super) fn give(&self, queue: &mut dyn Queue) -> Result<()> {
        self.finish(&mut |bytes, to| match bytes.is_empty() {
            true => Ok(()),
            false => queue.upload(bytes.to_vec().into(), to),
        })
    }

    /// Waits for the results, and has `write` take those that are not in place already.
    fn finish(&self, write: &mut dyn FnMut(&[u8], &Span) -> Result<()>) -> Result<()> {
        let Tied { ranks, number, .. } = &self.0;
        let waits = Instant::now();
        let Flight { began, ended } = match ranks.in_memory {
            true => self.reduce()?,
            false => self.take(write)?,
        };
        let mut run = ranks.run();
        let origin = run.origin;
        let since = |at: Instant| at.saturating_duration_since(origin);
        let timing = &mut run.timings[*number];
        timing.flight =
            Timing { start: since(began), time: ended.saturating_duration_since(began) };
        timing.wait = Timing { start: since(waits), time: waits.elapsed() };
        Ok(())
    }

    /// Reduces the values in place.
    fn reduce(&self) -> Result<Flight> {
        let Tied { ranks, device, bucket, number, places } = &self.0;
        let Transfer::Reduce { across, dtype } = bucket.transfer else {
            return Err(Error::Parallel(format!("{} is no reduction", bucket.name)));
        };
        let ready = ranks.run().ready[*number];
        let (label, device) = (self.0.label(), &**device);
        ranks.collective.reduce(&Reduction { across, dtype, label, ready, places, device })
    }

    /// Waits for the bytes that were exchanged, and takes them.
    fn take(&self, write: &mut dyn FnMut(&[u8], &Span) -> Result<()>) -> Result<Flight> {
        let Tied { ranks, bucket, number, places, .. } = &self.0;
        let pending = ranks.run().flying[*number].take();
        let none = || Error::Parallel(format!("{} has not begun", bucket.name));
        let Done { data, began, ended } = ranks.collective.wait(pending.ok_or_else(none)?)?;
        let mut from = self.own_part(data.len());
        for to in &places.results {
            match &mut from {
                Some(from) => {
                    write(&data[*from..*from + to.len], to)?;
                    *from += to.len;
                }
                None => write(&vec![0; to.len], to)?,
            }
        }
        ranks.run().spare[*number] = data;
        Ok(Flight { began, ended })
    }

    /// Where the part that this rank keeps begins in what the ranks made of their bytes; `None` if
    /// it keeps nothing of it.
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
