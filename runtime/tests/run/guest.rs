//! A device with a queue: the interpreter on a thread of its own, which is held, counted, and made
//! to fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tracecast_runtime::ir::kernel::Kernel;
use tracecast_runtime::{
    Bound, Device, DeviceId, Error, Fault, FaultKind, HostBytes, HostMemory, Landing, Launch,
    Memory, MemoryStats, Progress, Queue, ReferenceDevice, Result, SharedQueue, Span, Timeline,
};

/// The device.
#[derive(Debug)]
pub(crate) struct Guest {
    name: String,
    queue: SharedQueue,
    pub(crate) inside: Arc<Inside>,
}

/// What the device, its queue and tests see.
#[derive(Debug)]
pub(crate) struct Inside {
    id: DeviceId,
    progress: Progress,
    held: Mutex<bool>,
    freed: Condvar,
    /// How many commands run before one fails, and how.
    fault: Mutex<Option<(usize, FaultKind)>>,
    memory: Mutex<Vec<(Memory, usize)>>,
    limit: AtomicUsize,
    pub(crate) uploads: AtomicUsize,
    pub(crate) downloads: AtomicUsize,
    pub(crate) copies: AtomicUsize,
    pub(crate) launches: AtomicUsize,
    /// How often the host waited.
    pub(crate) waits: AtomicUsize,
    /// How often the timeline is asked before the queue goes on by itself; 0 for ever.
    asks: AtomicUsize,
    pub(crate) trims: AtomicUsize,
}

impl Guest {
    /// One to which a number of steps are given before the first has ended.
    pub(crate) fn new(name: &str, in_flight: usize) -> Arc<Self> {
        Guest::within(name, in_flight, Duration::from_secs(5))
    }

    /// The same for whose commands nobody waits longer than that.
    pub(crate) fn within(name: &str, in_flight: usize, limit: Duration) -> Arc<Self> {
        let id: DeviceId = name.parse().unwrap();
        let inside = Arc::new(Inside {
            id: id.clone(),
            progress: Progress::new(id.clone()),
            held: Mutex::new(false),
            freed: Condvar::new(),
            fault: Mutex::new(None),
            memory: Mutex::default(),
            limit: AtomicUsize::new(usize::MAX),
            uploads: AtomicUsize::new(0),
            downloads: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            launches: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            asks: AtomicUsize::new(0),
            trims: AtomicUsize::new(0),
        });
        let (given, taken) = channel();
        let worker = inside.clone();
        std::thread::spawn(move || worker.work(&taken));
        let queue = Box::new(Line { given, recorded: 0, inside: inside.clone() });
        let queue = SharedQueue::new(id, queue).within(limit).in_flight(in_flight);
        Arc::new(Guest { name: name.to_owned(), queue, inside })
    }
}

impl Inside {
    /// Lets no command run until [`go`](Inside::go).
    pub(crate) fn hold(&self) {
        *self.held.lock().unwrap() = true;
    }

    pub(crate) fn go(&self) {
        *self.held.lock().unwrap() = false;
        self.freed.notify_all();
    }

    /// Goes on once the timeline was asked so often.
    pub(crate) fn go_after(&self, asks: usize) {
        self.asks.store(asks, Ordering::SeqCst);
    }

    /// The number of commands that still run before one fails.
    pub(crate) fn fail_after(&self, commands: usize, kind: FaultKind) {
        *self.fault.lock().unwrap() = Some((commands, kind));
    }

    pub(crate) fn limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::SeqCst);
    }

    /// The bytes in use.
    pub(crate) fn in_use(&self) -> usize {
        let mut memory = self.memory.lock().unwrap();
        memory.retain(|(memory, _)| memory.handles() > 1);
        memory.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What stopped the queue.
    pub(crate) fn stopped(&self) -> Option<Fault> {
        self.progress.stopped()
    }

    fn work(&self, taken: &Receiver<Command>) {
        let mut stopped = false;
        while let Ok(command) = taken.recv() {
            let held = self.held.lock().unwrap();
            drop(self.freed.wait_while(held, |held| *held).unwrap());
            match command {
                Command::Reset => stopped = false,
                _ if stopped => {}
                Command::Record(number) => self.progress.reach(number),
                command => {
                    if let Err(fault) = self.run(command) {
                        stopped = true;
                        self.progress.fail(fault);
                    }
                }
            }
        }
    }

    fn run(&self, command: Command) -> std::result::Result<(), Fault> {
        let mut fault = self.fault.lock().unwrap();
        if let Some((left, kind)) = &mut *fault {
            if *left == 0 {
                let kind = *kind;
                *fault = None;
                return Err(match (kind, &command) {
                    (FaultKind::Lost, _) => Fault::lost(&self.id, "it was pulled out"),
                    (FaultKind::TimedOut, _) => Fault::timed_out(&self.id, Duration::from_secs(1)),
                    (FaultKind::OutOfMemory { asked, in_use, limit }, _) => {
                        Fault::out_of_memory(&self.id, asked, in_use, limit)
                    }
                    (_, Command::Launch(step, _)) => {
                        Fault::launch(&self.id, step, "it was told to fail")
                    }
                    _ => Fault::copy(&self.id, "it was told to fail"),
                });
            }
            *left -= 1;
        }
        drop(fault);
        let count = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::SeqCst);
        let done = match command {
            Command::Upload(from, to) => {
                count(&self.uploads);
                to.memory.get::<HostMemory>().and_then(|memory| memory.write(to.at, &from))
            }
            Command::Download(from, to) => {
                count(&self.downloads);
                let bytes = bytes(&from);
                bytes.and_then(|bytes| to.fill(&bytes))
            }
            Command::Copy(from, to) => {
                count(&self.copies);
                let bytes = bytes(&from);
                bytes.and_then(|bytes| to.memory.get::<HostMemory>()?.write(to.at, &bytes))
            }
            Command::Launch(step, bound) => {
                count(&self.launches);
                return bound.run().map_err(|error| Fault::of(&self.id, &step, error));
            }
            Command::Record(_) | Command::Reset => Ok(()),
        };
        done.map_err(|error| Fault::copy(&self.id, error.to_string()))
    }
}

fn bytes(from: &Span) -> Result<Vec<u8>> {
    let mut bytes = vec![0; from.len];
    from.memory.get::<HostMemory>()?.read(from.at, &mut bytes)?;
    Ok(bytes)
}

enum Command {
    Upload(HostBytes, Span),
    Download(Span, Landing),
    Copy(Span, Span),
    Launch(Arc<str>, Arc<dyn Bound>),
    Record(u64),
    Reset,
}

struct Line {
    given: Sender<Command>,
    recorded: u64,
    inside: Arc<Inside>,
}

impl Line {
    fn give(&self, command: Command) -> Result<()> {
        self.given.send(command).map_err(|_| Error::Device("its thread is gone".to_owned()))
    }
}

impl Queue for Line {
    fn upload(&mut self, from: HostBytes, to: &Span) -> Result<()> {
        self.give(Command::Upload(from, to.clone()))
    }

    fn download(&mut self, from: &Span, to: Landing) -> Result<()> {
        self.give(Command::Download(from.clone(), to))
    }

    fn copy(&mut self, from: &Span, to: &Span) -> Result<()> {
        self.give(Command::Copy(from.clone(), to.clone()))
    }

    fn launch(&mut self, step: &Arc<str>, bound: &Arc<dyn Bound>) -> Result<()> {
        self.give(Command::Launch(step.clone(), bound.clone()))
    }

    fn record(&mut self) -> u64 {
        self.recorded += 1;
        self.give(Command::Record(self.recorded)).unwrap();
        self.recorded
    }

    fn timeline(&self) -> Arc<dyn Timeline> {
        Arc::new(Watched(self.inside.clone()))
    }

    fn reset(&mut self) -> Result<()> {
        if let Some(lost) = self.inside.progress.stopped().filter(Fault::is_lost) {
            return Err(lost.into());
        }
        self.inside.progress.recover(self.recorded);
        self.give(Command::Reset)
    }
}

/// Counts how often the host waits.
struct Watched(Arc<Inside>);

impl Timeline for Watched {
    fn poll(&self, number: u64) -> Option<std::result::Result<(), Fault>> {
        if self.0.asks.load(Ordering::SeqCst) > 0 && self.0.asks.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.0.go();
            let _ = self.0.progress.wait(number, Duration::from_secs(5));
        }
        self.0.progress.poll(number)
    }

    fn wait(&self, number: u64, at_most: Duration) -> std::result::Result<(), Fault> {
        self.0.waits.fetch_add(1, Ordering::SeqCst);
        self.0.progress.wait(number, at_most)
    }
}

impl Device for Guest {
    fn name(&self) -> &str {
        &self.name
    }

    fn queue(&self) -> Option<&SharedQueue> {
        Some(&self.queue)
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        ReferenceDevice.load(kernel)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        let (in_use, limit) = (self.inside.in_use(), self.inside.limit.load(Ordering::SeqCst));
        if in_use.saturating_add(bytes) > limit {
            return Err(Fault::out_of_memory(&self.inside.id, bytes, in_use, Some(limit)).into());
        }
        let memory = ReferenceDevice.alloc(bytes)?;
        // What a step reads without having written it is seen.
        memory.get::<HostMemory>()?.write(0, &vec![0xa5; bytes])?;
        self.inside.memory.lock().unwrap().push((memory.clone(), bytes));
        Ok(memory)
    }

    fn trim(&self) {
        self.inside.trims.fetch_add(1, Ordering::SeqCst);
    }

    fn memory_stats(&self) -> Option<MemoryStats> {
        Some(MemoryStats::new(self.inside.in_use()))
    }
}

pub(crate) fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}
