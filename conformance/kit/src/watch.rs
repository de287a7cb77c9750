//! Runs a case on a thread of its own, so that a device that hangs or panics ends only the case.

use crate::kit::Kit;
use crate::report::{CaseReport, Outcome};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;

/// The cases without an answer after which the others are skipped: their threads still hold the
/// device.
const MOST_HANGS: usize = 5;

/// What a case came to within the time limit.
pub(crate) fn watched(
    name: &str,
    kit: &Kit,
    hangs: &mut usize,
    body: Box<dyn FnOnce() -> Outcome + Send>,
) -> CaseReport {
    let report = |outcome| CaseReport { name: name.to_owned(), outcome };
    if *hangs >= MOST_HANGS {
        let because = format!("{hangs} cases before it had no answer from the device");
        return report(Outcome::Skipped { because });
    }
    let (told, heard) = channel();
    let current = kit.current.clone();
    let work = move || {
        let now = || current.as_ref().map(|current| current());
        let before = now();
        let outcome = catch_unwind(AssertUnwindSafe(body))
            .unwrap_or_else(|panic| Outcome::failed(format!("it panics: {}", message(&*panic))));
        let after = now();
        let outcome = match outcome {
            Outcome::Pass if before != after => Outcome::failed(format!(
                "the current device of the thread is {} afterwards, and was {}",
                after.unwrap_or_default(),
                before.unwrap_or_default()
            )),
            outcome => outcome,
        };
        // Nobody may listen any more.
        drop(told.send(outcome));
    };
    if let Err(why) = thread::Builder::new().name(name.to_owned()).spawn(work) {
        return report(Outcome::Skipped { because: format!("no thread: {why}") });
    }
    match heard.recv_timeout(kit.limit) {
        Ok(outcome) => report(outcome),
        Err(_) => {
            *hangs += 1;
            report(Outcome::failed(format!("no answer within {:?}", kit.limit)))
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "without a word".to_owned())
}
