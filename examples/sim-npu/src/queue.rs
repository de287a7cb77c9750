//! The queue of a chip: commands go to a thread of its own, which has the bytes of the memory and
//! does one command after another.

use crate::chip::{Call, Chip};
use crate::counts::count;
use crate::faults::Point;
use crate::{Defect, machine};
use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tracecast_runtime::{
    Bound, Error, Fault, FaultKind, HostBytes, Landing, Queue, Result, Span, Timeline,
};

/// What the thread is told. A command holds what it names until it is done.
enum Command {
    Upload(HostBytes, Span),
    Download(Span, Landing),
    Copy(Span, Span),
    Launch(Arc<str>, Arc<dyn Bound>),
    Record(u64),
    Reset,
}

/// The end of the queue that commands are given to.
pub(crate) struct Line {
    chip: Arc<Chip>,
    given: Sender<Command>,
    recorded: u64,
}

impl Line {
    /// Starts the thread of a chip.
    ///
    /// # Errors
    /// If there can be no other thread.
    pub(crate) fn start(chip: &Arc<Chip>) -> Result<Self> {
        let (given, taken) = channel();
        let worker = Worker {
            chip: chip.clone(),
            bytes: vec![0; chip.space.limit()],
            uploaded: HashSet::new(),
            held: None,
            raised: None,
        };
        let thread = std::thread::Builder::new().name(chip.id.to_string());
        thread
            .spawn(move || worker.work(&taken))
            .map_err(|why| Error::Device(format!("{}: no thread for its queue: {why}", chip.id)))?;
        Ok(Line { chip: chip.clone(), given, recorded: 0 })
    }

    fn give(&self, command: Command) -> Result<()> {
        self.chip.is_entered();
        self.chip.pending.fetch_add(1, Ordering::SeqCst);
        self.given
            .send(command)
            .map_err(|_| Fault::lost(&self.chip.id, "its thread is gone").into())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.chip.resume();
    }
}

impl Queue for Line {
    fn upload(&mut self, from: HostBytes, to: &Span) -> Result<()> {
        self.chip.addresses(to)?;
        if from.len() != to.len {
            let found = from.len();
            return Err(Error::Device(format!("{}: {found} bytes for {}", self.chip.id, to.len)));
        }
        self.give(Command::Upload(from, to.clone()))
    }

    fn download(&mut self, from: &Span, to: Landing) -> Result<()> {
        self.chip.addresses(from)?;
        self.give(Command::Download(from.clone(), to))
    }

    fn copy(&mut self, from: &Span, to: &Span) -> Result<()> {
        let (from_where, to_where) = (self.chip.addresses(from)?, self.chip.addresses(to)?);
        if from_where.len() != to_where.len() {
            return Err(Error::Device(format!(
                "{}: {} bytes for {}",
                self.chip.id, from.len, to.len
            )));
        }
        self.give(Command::Copy(from.clone(), to.clone()))
    }

    fn launch(&mut self, step: &Arc<str>, bound: &Arc<dyn Bound>) -> Result<()> {
        if (&**bound as &dyn Any).downcast_ref::<Call>().is_none() {
            return Err(Error::Device(format!("{}: a kernel of another device", self.chip.id)));
        }
        self.give(Command::Launch(step.clone(), bound.clone()))
    }

    fn record(&mut self) -> u64 {
        self.recorded += 1;
        if self.chip.has(Defect::EarlyEvent) {
            self.chip.progress.reach(self.recorded);
        }
        if self.give(Command::Record(self.recorded)).is_err() {
            self.chip.progress.fail(Fault::lost(&self.chip.id, "its thread is gone"));
        }
        self.recorded
    }

    fn timeline(&self) -> Arc<dyn Timeline> {
        Arc::new(Watched(self.chip.clone()))
    }

    fn reset(&mut self) -> Result<()> {
        if let Some(lost) = self.chip.progress.stopped().filter(Fault::is_lost) {
            return Err(lost.into());
        }
        self.chip.progress.recover(self.recorded);
        self.give(Command::Reset)
    }
}

/// The timeline, with waits counted.
struct Watched(Arc<Chip>);

impl Timeline for Watched {
    fn poll(&self, number: u64) -> Option<std::result::Result<(), Fault>> {
        self.0.progress.poll(number)
    }

    fn wait(&self, number: u64, at_most: Duration) -> std::result::Result<(), Fault> {
        count(&self.0.counters.waits);
        self.0.progress.wait(number, at_most)
    }
}

/// The thread's side: the chip, and the bytes of its memory, which nobody else sees.
struct Worker {
    chip: Arc<Chip>,
    bytes: Vec<u8>,
    /// Where uploads went, if later ones are to be wrong.
    uploaded: HashSet<usize>,
    /// A launch that is to change places with the next.
    held: Option<Command>,
    /// A fault that is told too late.
    raised: Option<Fault>,
}

impl Worker {
    fn work(mut self, taken: &Receiver<Command>) {
        let mut stopped = false;
        while let Ok(command) = taken.recv() {
            self.chip.wait_while_paused();
            if self.chip.has(Defect::EarlyEvent) {
                std::thread::sleep(Duration::from_micros(200));
            }
            let is_launch = matches!(command, Command::Launch(..));
            if self.chip.has(Defect::LostOrder) && is_launch && self.held.is_none() {
                self.held = Some(command);
                self.chip.pending.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let mut late = self.held.take();
            if !is_launch && let Some(late) = late.take() {
                drop(self.run(&late));
            }
            match command {
                Command::Reset => stopped = false,
                dropped if stopped => drop(dropped),
                Command::Record(number) => {
                    if !self.chip.has(Defect::EarlyEvent) {
                        self.chip.progress.reach(number);
                    }
                    if let Some(fault) = self.raised.take() {
                        stopped = true;
                        self.chip.progress.fail(fault);
                    }
                }
                command => {
                    let run = catch_unwind(AssertUnwindSafe(|| self.run(&command)));
                    if let Some(late) = &late {
                        drop(self.run(late));
                    }
                    // What it holds is free before anybody hears of its end.
                    drop(command);
                    let lost = || Fault::lost(&self.chip.id, "its thread has panicked");
                    if let Err(fault) = run.unwrap_or_else(|_| Err(lost())) {
                        stopped = true;
                        self.chip.progress.fail(fault);
                    }
                }
            }
            self.chip.pending.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn run(&mut self, command: &Command) -> std::result::Result<(), Fault> {
        let Worker { chip, bytes, uploaded, raised, .. } = self;
        if chip.faults.strikes(Point::Lost) {
            return Err(Fault::lost(&chip.id, "it was pulled out"));
        }
        let failed = |what: &str, len: usize, why: &dyn std::fmt::Display| {
            Fault::copy(&chip.id, format!("{what} of {len} bytes: {why}"))
        };
        let no_answer = |what: &str, len: usize| match chip.faults.strikes(Point::Copy) {
            true => Err(failed(what, len, &"the link does not answer")),
            false => Ok(()),
        };
        match command {
            Command::Upload(from, to) => {
                count(&chip.counters.uploads);
                no_answer("upload", to.len)?;
                let at = chip.addresses(to).map_err(|why| failed("upload", to.len, &why))?;
                let is_scalar = to.len == 4 && chip.id.ordinal() > 0;
                let is_stale =
                    chip.has(Defect::StaleUpload) || chip.has(Defect::ScaleNotCopied) && is_scalar;
                if is_stale && !uploaded.insert(at.start) {
                    return Ok(());
                }
                bytes[at].copy_from_slice(from);
                chip.clock.carried(to.len);
            }
            Command::Download(from, to) => {
                count(&chip.counters.downloads);
                no_answer("download", from.len)?;
                let at = chip.addresses(from).map_err(|why| failed("download", from.len, &why))?;
                to.fill(&bytes[at]).map_err(|why| failed("download", from.len, &why))?;
                chip.clock.carried(from.len);
            }
            Command::Copy(from, to) => {
                count(&chip.counters.copies);
                no_answer("copy", from.len)?;
                let places = chip.addresses(from).and_then(|at| Ok((at, chip.addresses(to)?)));
                let (from_where, to_where) =
                    places.map_err(|why| failed("copy", from.len, &why))?;
                bytes.copy_within(from_where, to_where.start);
                chip.clock.copied(from.len);
            }
            Command::Launch(step, bound) => {
                let Some(call) = (&**bound as &dyn Any).downcast_ref::<Call>() else {
                    return Err(Fault::launch(&chip.id, step, "it is a kernel of another device"));
                };
                match launch(chip, bytes, step, call) {
                    Err(fault)
                        if fault.kind == FaultKind::Check
                            && chip.has(Defect::UpdateBeforeCheck) =>
                    {
                        *raised = Some(fault);
                    }
                    done => done?,
                }
            }
            Command::Record(_) | Command::Reset => {}
        }
        Ok(())
    }
}

fn launch(
    chip: &Chip,
    bytes: &mut [u8],
    step: &str,
    call: &Call,
) -> std::result::Result<(), Fault> {
    count(&chip.counters.launches);
    if chip.faults.strikes(Point::Launch) {
        return Err(Fault::launch(&chip.id, step, "the vector unit does not answer"));
    }
    let check = |number, found| Fault::check(&chip.id, step, &call.kernel, &[], number, found);
    if !call.kernel.checks.is_empty() {
        count(&chip.counters.checked);
        if chip.faults.strikes(Point::Check) {
            return Err(check(0, None));
        }
    }
    let mut ways = chip.ways;
    if ways.has(Defect::FoundInfOnFirst) && chip.id.ordinal() > 0 {
        ways.defect = Some(Defect::WhenIgnored);
    }
    let done = machine::run_in_ways(&call.program, bytes, &call.operands, ways)
        .map_err(|why| Fault::launch(&chip.id, step, why))?;
    chip.clock.ran(done.cycles);
    match done.raised {
        Some((number, found)) => Err(check(number as usize, found)),
        None => Ok(()),
    }
}
