//! [`Pool`]: threads that share the parts of one job at a time, over data that the caller lends.
//!
//! It stands in the place of a general pool because a step launches a kernel every few
//! microseconds: giving a job must not allocate, a thread that has just worked must notice the next
//! job at once, and nobody may wait for a thread that has not begun. So a job is a counter of parts
//! that are left, which everybody takes from, the caller included; threads without work look for it
//! for a while before they sleep. At first they do not yield: on a busy machine whoever yields is
//! away for milliseconds.
#![allow(
    unsafe_code,
    reason = "a job lives on its caller's stack while other threads work on it, and the system is asked for a processor"
)]

mod processor;
mod team;
#[cfg(test)]
mod tests;

pub(crate) use team::{Team, part};

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a thread without work looks for it without yielding: longer than a small program takes
/// from one step to the next. Waking a thread costs the caller some ten microseconds on a virtual
/// machine, and as many as a hundred pass before it works.
const SPIN: Duration = Duration::from_micros(100);
/// How long it looks for work before it sleeps. From [`SPIN`] on it yields each time it has looked.
///
/// The host of a virtual machine takes the processor of a sleeping thread away and often gives back
/// one that shares its core with others. A training step of ResNet-18 takes 0.85 of the time with 5
/// ms that it takes with 0.1 ms; 1 ms gives 0.92, and 20 or 100 ms no more.
const LINGER: Duration = Duration::from_millis(5);
/// How often it looks, some ten nanoseconds apart, before it looks at the clock.
const LOOKS: usize = 64;

/// Threads that help a caller.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What the threads and the caller see.
struct Shared {
    /// Held by the caller of the job: there is one at a time.
    caller: Mutex<()>,
    /// The job, while parts of it are not done.
    job: AtomicPtr<Job<'static>>,
    /// Parts that nobody has taken.
    left: Line<AtomicUsize>,
    /// Parts that are not done.
    undone: Line<AtomicUsize>,
    /// How many threads sleep until they are woken.
    asleep: AtomicUsize,
    /// True from when a thread is woken until one gets up.
    rising: AtomicBool,
    /// The processor on which the caller was when it woke threads.
    processor: AtomicUsize,
    /// True while the caller sleeps until all is done.
    waiting: AtomicBool,
    stopped: AtomicBool,
    /// Held by who falls asleep, so that no call comes too early.
    bed: Mutex<()>,
    called: Condvar,
    done: Condvar,
    linger: Duration,
}

/// On cache lines of its own: processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// A job, which lives until its last part is done.
struct Job<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    parts: usize,
    /// What the first panic of a part said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Pool {
    /// That many threads beside the caller. They look for work before they sleep only if each of
    /// them has a processor to itself.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(workers: usize, processors: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            caller: Mutex::default(),
            job: AtomicPtr::new(null_mut()),
            left: Line::default(),
            undone: Line::default(),
            asleep: AtomicUsize::new(0),
            rising: AtomicBool::new(false),
            processor: AtomicUsize::new(usize::MAX),
            waiting: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            bed: Mutex::default(),
            called: Condvar::new(),
            done: Condvar::new(),
            linger: if workers < processors { LINGER } else { Duration::ZERO },
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(workers) };
        for i in 1..=workers {
            let shared = pool.shared.clone();
            let builder = thread::Builder::new().name(format!("tracecast-{i}"));
            pool.workers.push(builder.spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Wakes the threads, so that they notice the next jobs without delay.
    pub(crate) fn wake(&self) {
        self.shared.wake(self.workers.len());
    }

    /// Runs `f` for every part, each once, on the caller and on threads that have nothing else to
    /// do; on the caller alone if another job is not done yet, as inside of one.
    ///
    /// # Panics
    /// If a part does: once all are done, or at once if the caller is alone.
    pub(crate) fn each(&self, parts: usize, f: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        let caller = match shared.caller.try_lock() {
            Ok(caller) => caller,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..parts).for_each(f),
        };
        if parts == 0 {
            return;
        }
        let job = Job { run: f, parts, panic: Mutex::default() };
        shared.give(&job);
        // The caller always begins with the same part, whose data may lie in its processor's cache.
        job.part(0);
        shared.undone.0.fetch_sub(1, Ordering::AcqRel);
        let own = 1 + std::iter::repeat_with(|| shared.take()).take_while(|taken| *taken).count();
        if own == parts && shared.rising.swap(false, Ordering::Relaxed) {
            // Who was woken may be waiting for this very processor.
            thread::yield_now();
        }
        shared.wait();
        drop(caller);
        let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Pool {
    /// Runs `f` once on each of the threads, but not on the caller. Must not be called inside of a
    /// job.
    ///
    /// # Panics
    /// If `f` does, once it has come to its end everywhere.
    pub(crate) fn on_each(&self, f: &(dyn Fn() + Sync)) {
        let shared = &*self.shared;
        let caller = shared.caller.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that has its part waits for the others, so that it takes no second one.
        let all_have_one = Barrier::new(self.workers.len());
        let one = |part: usize| {
            if part > 0 {
                let done = catch_unwind(AssertUnwindSafe(f));
                all_have_one.wait();
                done.unwrap_or_else(|panic| resume_unwind(panic));
            }
        };
        let job = Job { run: &one, parts: 1 + self.workers.len(), panic: Mutex::default() };
        shared.give(&job);
        job.part(0);
        shared.undone.0.fetch_sub(1, Ordering::AcqRel);
        shared.wait();
        drop(caller);
        let panic = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.wake();
        for worker in self.workers.drain(..) {
            // It does not panic: panics of parts are the caller's.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.workers.len())
    }
}

impl Job<'_> {
    fn part(&self, i: usize) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.run)(i))) {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            match *first {
                None => *first = Some(panic),
                // Dropping what a panic said may panic again, and nobody would count this part.
                Some(_) => std::mem::forget(panic),
            }
        }
    }
}

impl Shared {
    /// Gives a job to the threads, but for its first part.
    fn give(&self, job: &Job<'_>) {
        self.job.store(from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        self.undone.0.store(job.parts, Ordering::Relaxed);
        // Who sees this sees the job.
        self.left.0.store(job.parts - 1, Ordering::SeqCst);
        self.wake(job.parts - 1);
    }

    /// Takes a part and does it; false if there is none.
    fn take(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = self.left.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        let Ok(left) = taken else { return false };
        let job = self.job.load(Ordering::Relaxed);
        // SAFETY: the caller of this job goes on only when none of its parts is undone, and the
        // part that was just taken is undone until the subtraction below. Until then the job is
        // where it was, and it is only read.
        let job = unsafe { &*job };
        job.part(job.parts - left);
        let is_last = self.undone.0.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.waiting.load(Ordering::SeqCst) {
            drop(self.bed());
            self.done.notify_one();
        }
        true
    }

    /// Takes parts of jobs until the pool is dropped.
    fn serve(&self) {
        let is_needed =
            || self.left.0.load(Ordering::SeqCst) > 0 || self.stopped.load(Ordering::SeqCst);
        while !self.stopped.load(Ordering::Relaxed) {
            while self.take() {}
            if !self.look(is_needed) {
                self.sleep_unless(is_needed);
            }
        }
    }

    /// Sleeps until woken, which may be for nothing.
    fn sleep_unless(&self, is_needed: impl Fn() -> bool) {
        let bed = self.bed();
        self.asleep.fetch_add(1, Ordering::SeqCst);
        if !is_needed() {
            drop(self.called.wait(bed).unwrap_or_else(PoisonError::into_inner));
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        self.rising.store(false, Ordering::Relaxed);
        processor::leave(self.processor.load(Ordering::Relaxed));
    }

    /// Wakes that many threads, or all that sleep.
    fn wake(&self, threads: usize) {
        let asleep = self.asleep.load(Ordering::SeqCst);
        if asleep > 0 {
            self.processor.store(processor::current(), Ordering::Relaxed);
            self.rising.store(true, Ordering::Relaxed);
            drop(self.bed());
            (0..threads.min(asleep)).for_each(|_| self.called.notify_one());
        }
    }

    /// Until all parts are done.
    fn wait(&self) {
        let is_done = || self.undone.0.load(Ordering::SeqCst) == 0;
        if self.look(is_done) {
            return;
        }
        let mut bed = self.bed();
        self.waiting.store(true, Ordering::SeqCst);
        while !is_done() {
            bed = self.done.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.store(false, Ordering::Relaxed);
    }

    /// Looks for something for a while: whether it has come.
    fn look(&self, has_come: impl Fn() -> bool) -> bool {
        // Most of what comes comes before the first look at the clock.
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
                if has_come() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let elapsed = start.get_or_insert_with(Instant::now).elapsed();
            if elapsed >= self.linger {
                return false;
            }
            if elapsed >= SPIN {
                thread::yield_now();
            }
        }
    }

    fn bed(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
