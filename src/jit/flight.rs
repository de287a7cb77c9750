//! [`Flights`]: compilations under way. Whoever needs a program that another thread compiles
//! already waits for that one.

use super::compiled::Compiled;
use super::signature::Signature;
use crate::error::{Error, Result};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The compilations of one closure that are under way.
pub(super) struct Flights {
    open: Mutex<HashMap<Signature, Arc<Flight>>>,
    waits: AtomicU64,
    patience: Duration,
}

/// Who waits for a closure that runs for longer gives up: it may be waiting for who waits for it.
/// Closures record ops, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

impl Default for Flights {
    fn default() -> Self {
        Flights { open: Mutex::default(), waits: AtomicU64::new(0), patience: PATIENCE }
    }
}

/// What came of a compilation.
type Outcome = std::result::Result<Arc<Compiled>, Arc<Error>>;

#[derive(Default)]
struct Flight {
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
    /// Since when the closure has been running, if it is.
    in_closure: Mutex<Option<Instant>>,
}

/// How a program came about.
pub(super) enum Landed {
    /// This thread has compiled it.
    Own(Arc<Compiled>),
    /// Another thread has, for this signature.
    Others(Arc<Compiled>),
}

thread_local! {
    /// What this thread is compiling: the addresses of the closures' flights, and the flight that
    /// others wait for.
    static ABOVE: RefCell<Vec<(usize, Option<Arc<Flight>>)>> = const { RefCell::new(Vec::new()) };
}

/// Runs the closure that this thread is compiling.
pub(super) fn in_closure<R>(run: impl FnOnce() -> R) -> R {
    struct Within(Option<Arc<Flight>>);
    impl Drop for Within {
        fn drop(&mut self) {
            self.0.iter().for_each(|flight| *flight.in_closure() = None);
        }
    }
    let own = ABOVE.with_borrow(|above| above.last().and_then(|(_, flight)| flight.clone()));
    let within = Within(own);
    within.0.iter().for_each(|flight| *flight.in_closure() = Some(Instant::now()));
    run()
}

impl Flights {
    /// Compiles for a signature, or waits for the thread that does. A failure is that of everybody
    /// who waited, and the next call tries again.
    ///
    /// A thread that is compiling does not wait, so that two closures which run each other end with
    /// an error and not in waiting for each other. A thread that a closure has started cannot be
    /// told from others: it waits, but not for ever.
    ///
    /// # Errors
    /// That of the compilation; or the closure is compiled by this thread already, because it runs
    /// itself; or it has been running in another thread for too long.
    pub(super) fn board(
        &self,
        closure: &str,
        signature: &Signature,
        compile: impl FnOnce() -> Result<Arc<Compiled>>,
    ) -> Result<Landed> {
        let this = std::ptr::from_ref(self).addr();
        if ABOVE.with_borrow(|above| above.iter().any(|(flights, _)| *flights == this)) {
            let message = "needs itself to be compiled: its closure runs it".to_owned();
            return Err(Error::Closure { name: closure.to_owned(), message });
        }
        let is_compiling = ABOVE.with_borrow(|above| !above.is_empty());
        let flight = {
            let mut open = self.open();
            match open.get(signature) {
                Some(_) if is_compiling => None,
                Some(flight) => {
                    let flight = flight.clone();
                    drop(open);
                    self.waits.fetch_add(1, Ordering::Relaxed);
                    let outcome = flight.wait(self.patience);
                    let outcome = outcome.ok_or_else(|| self.stuck(closure))?;
                    return outcome.map(Landed::Others).map_err(Error::Shared);
                }
                None => Some(open.entry(signature.clone()).or_default().clone()),
            }
        };
        ABOVE.with_borrow_mut(|above| above.push((this, flight.clone())));
        let done = catch_unwind(AssertUnwindSafe(compile));
        ABOVE.with_borrow_mut(Vec::pop);
        // The stack has given up its hold of the flight: who still has it waits for it.
        let Some(flight) = flight else {
            return done.unwrap_or_else(|panic| resume_unwind(panic)).map(Landed::Own);
        };
        self.land(closure, signature, &flight, done)
    }

    /// Tells those who wait.
    fn land(
        &self,
        closure: &str,
        signature: &Signature,
        flight: &Arc<Flight>,
        done: std::thread::Result<Result<Arc<Compiled>>>,
    ) -> Result<Landed> {
        self.open().remove(signature);
        match done {
            Ok(Ok(program)) => {
                flight.land(Ok(program.clone()));
                Ok(Landed::Own(program))
            }
            // Whoever waits holds the flight, and nobody comes to it any more.
            Ok(Err(error)) if Arc::strong_count(flight) == 1 => Err(error),
            Ok(Err(error)) => {
                let error = Arc::new(error);
                flight.land(Err(error.clone()));
                Err(Error::Shared(error))
            }
            Err(panic) => {
                let message = format!("panicked: {}", said(&*panic));
                let error = Error::Closure { name: closure.to_owned(), message };
                flight.land(Err(Arc::new(error)));
                resume_unwind(panic)
            }
        }
    }

    /// What a thread is told that gives up waiting.
    fn stuck(&self, closure: &str) -> Error {
        let seconds = self.patience.as_secs_f64();
        let message = format!(
            "is run by another thread to be compiled, and has not come to its end for {seconds} s: if it waits for this thread, which needs the same program, neither can go on"
        );
        Error::Closure { name: closure.to_owned(), message }
    }

    /// How often a thread has waited.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Signature, Arc<Flight>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// What came of it; `None` once its closure has been running for so long.
    fn wait(&self, patience: Duration) -> Option<Outcome> {
        let mut outcome = self.outcome();
        loop {
            if let Some(outcome) = &*outcome {
                return Some(outcome.clone());
            }
            let running = self.in_closure().map_or(Duration::ZERO, |since| since.elapsed());
            let rest = patience.checked_sub(running).filter(|rest| !rest.is_zero())?;
            let waited = self.landed.wait_timeout(outcome, rest);
            outcome = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn in_closure(&self) -> MutexGuard<'_, Option<Instant>> {
        self.in_closure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn land(&self, outcome: Outcome) {
        *self.outcome() = Some(outcome);
        self.landed.notify_all();
    }

    fn outcome(&self) -> MutexGuard<'_, Option<Outcome>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The words of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::AxisNames;
    use crate::trace::Types;
    use std::thread;

    fn failed() -> Error {
        Error::Closure { name: "step".to_owned(), message: "failed".to_owned() }
    }

    /// Waits for the compilation of a signature that another thread compiles: what comes of it.
    fn waiter(flights: &Flights, signature: &Signature) -> String {
        let compile = || unreachable!("another thread compiles it");
        flights.board("step", signature, compile).err().expect("it fails").to_string()
    }

    #[test]
    fn a_thread_that_the_closure_waits_for_gets_an_error() {
        let flights = Flights { patience: Duration::from_millis(50), ..Flights::default() };
        let signature = Signature::of(&Types::default(), &AxisNames::default());
        let mut told = String::new();
        let outcome = flights.board("step", &signature, || {
            in_closure(|| {
                thread::scope(|scope| {
                    told = scope.spawn(|| waiter(&flights, &signature)).join().expect("no panic");
                });
            });
            Err(failed())
        });
        assert!(
            told.starts_with("`step` is run by another thread") && told.contains("0.05 s"),
            "{told}"
        );
        assert!(outcome.err().is_some_and(|error| error.to_string().contains("failed")));
    }

    #[test]
    fn a_compilation_behind_the_closure_may_take_as_long_as_it_takes() {
        let flights = Flights { patience: Duration::from_millis(5), ..Flights::default() };
        let signature = Signature::of(&Types::default(), &AxisNames::default());
        thread::scope(|scope| {
            let mut other = None;
            let outcome = flights.board("step", &signature, || {
                in_closure(|| {});
                other = Some(scope.spawn(|| waiter(&flights, &signature)));
                while flights.waits() == 0 {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_millis(50));
                Err(failed())
            });
            let told = other.and_then(|other| other.join().ok()).expect("it has been started");
            assert!(told.contains("failed") && outcome.is_err(), "{told}");
        });
    }
}
