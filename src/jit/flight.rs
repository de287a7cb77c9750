//! [`Flights`]: compilations under way. Whoever needs a program that another thread compiles already waits for that one.

use super::compiled::Compiled;
use super::signature::Signature;
use crate::error::{Error, Result};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The compilations of one closure that are under way.
#[derive(Default)]
pub(super) struct Flights {
    open: Mutex<HashMap<Signature, Arc<Flight>>>,
    waits: AtomicU64,
}

/// What came of a compilation.
type Outcome = std::result::Result<Arc<Compiled>, Arc<Error>>;

#[derive(Default)]
struct Flight {
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
}

/// How a program came about.
pub(super) enum Landed {
    /// This thread has compiled it.
    Own(Arc<Compiled>),
    /// Another thread has, for this signature.
    Others(Arc<Compiled>),
}

thread_local! {
    /// The closures that this thread is compiling, by the addresses of their flights.
    static ABOVE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Flights {
    /// Compiles for a signature, or waits for the thread that does. A failure is that of everybody who waited, and the next call tries again.
    ///
    /// A thread that is compiling does not wait, so that two closures which run each other end with an error and not in waiting for each
    /// other.
    ///
    /// # Errors
    /// That of the compilation; or the closure is compiled by this thread already, because it runs itself.
    pub(super) fn board(
        &self,
        closure: &str,
        signature: &Signature,
        compile: impl FnOnce() -> Result<Arc<Compiled>>,
    ) -> Result<Landed> {
        let this = std::ptr::from_ref(self).addr();
        if ABOVE.with_borrow(|above| above.contains(&this)) {
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
                    return flight.wait().map(Landed::Others).map_err(Error::Shared);
                }
                None => Some(open.entry(signature.clone()).or_default().clone()),
            }
        };
        ABOVE.with_borrow_mut(|above| above.push(this));
        let done = catch_unwind(AssertUnwindSafe(compile));
        ABOVE.with_borrow_mut(Vec::pop);
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

    /// How often a thread has waited.
    pub(super) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Signature, Arc<Flight>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    fn wait(&self) -> Outcome {
        let mut outcome = self.outcome();
        loop {
            match &*outcome {
                Some(outcome) => return outcome.clone(),
                None => {
                    outcome = self.landed.wait(outcome).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
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
