//! What becomes of user code that asks for the type of a value that has none: the result of a
//! failed op.
//!
//! A recording that is guarded ends there, without a panic message: whatever the code would decide
//! by a made-up answer is wrong. Library code handles such values by itself and is exempt.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static ASKED: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// How a guarded recording ended early.
pub enum Ended {
    /// The code at this line asked for the type of a value that has none.
    Asked(&'static Location<'static>),
    /// The code panicked.
    Panicked(Box<dyn Any + Send>),
}

/// Unwinds from where unknown sizes were asked for to [`guarded`].
struct Asked;

/// Runs `body`, which ends where it asks for the type of a value that has none. Where panics abort,
/// it goes on with a made-up type.
///
/// # Errors
/// If it ended early.
pub fn guarded<R>(body: impl FnOnce() -> R) -> Result<R, Ended> {
    let outer = (GUARDED.replace(true), ASKED.take());
    let ended = catch_unwind(AssertUnwindSafe(body));
    let asked = ASKED.replace(outer.1);
    GUARDED.set(outer.0);
    match (ended, asked) {
        (Err(panic), _) if !panic.is::<Asked>() => Err(Ended::Panicked(panic)),
        (_, Some(at)) => Err(Ended::Asked(at)),
        (Ok(result), None) => Ok(result),
        (Err(panic), None) => Err(Ended::Panicked(panic)),
    }
}

/// Told by every question about a value or a size that has no answer.
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn asked() {
    if GUARDED.get() {
        ASKED.set(ASKED.get().or(Some(Location::caller())));
        if cfg!(panic = "unwind") {
            resume_unwind(Box::new(Asked));
        }
    }
}

/// Code of the library, until it is dropped: questions are free.
pub struct Exempt(bool);

/// Begins code that handles values of no type by itself.
#[must_use]
pub fn exempt() -> Exempt {
    Exempt(GUARDED.replace(false))
}

impl Drop for Exempt {
    fn drop(&mut self) {
        GUARDED.set(self.0);
    }
}
