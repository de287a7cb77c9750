//! [`Command`]: what a step of a run does, tied to its places.

use super::away::AwayCall;
use super::exchange::{Begin, Finish};
use crate::device::{Arg, Bound, Device, Queue};
use crate::error::{Error, Result};
use crate::memory::Span;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// What a step of a run does, tied to its places.
pub(super) enum Command {
    /// It runs this.
    Run(Arc<dyn Bound>),
    /// It is a copy on the queue of the device.
    Copy(Span, Span),
    /// Ranks begin to exchange values.
    Begin(Begin),
    /// It waits for what they make of them.
    Finish(Finish),
}

impl Command {
    /// A copy from the first of two places to the second.
    pub(super) fn copy(device: &Arc<dyn Device>, args: Vec<Arg>) -> Result<Self> {
        let [from, to] = <[Arg; 2]>::try_from(args)
            .map_err(|args| Error::Plan(format!("a copy of {} operands", args.len())))?;
        if device.queue().is_some() {
            return Ok(Command::Copy(span(from), span(to)));
        }
        Ok(Command::Run(match device.bind_copy(&from, &to)? {
            Some(bound) => bound.into(),
            None => {
                let room = Mutex::new(vec![0; from.len]);
                Arc::new(ThroughHost {
                    device: device.clone(),
                    from: span(from),
                    to: span(to),
                    room,
                })
            }
        }))
    }

    /// What runs, if that is no copy on a queue.
    pub(super) fn bound(&self) -> Option<&dyn Bound> {
        match self {
            Command::Run(bound) => Some(&**bound),
            Command::Begin(begin) => Some(begin),
            Command::Finish(finish) => Some(finish),
            Command::Copy(..) => None,
        }
    }

    /// Runs it on a device without a queue.
    pub(super) fn run(&self) -> Result<()> {
        self.bound().map_or_else(
            || Err(Error::Device("a copy for a queue, and there is none".to_owned())),
            |bound| bound.run(),
        )
    }

    /// Gives it to a queue.
    pub(super) fn give(&self, step: &Arc<str>, queue: &mut dyn Queue) -> Result<()> {
        match self {
            Command::Run(bound) => match (&**bound as &dyn Any).downcast_ref::<AwayCall>() {
                Some(away) => away.give(queue).map_err(|error| named(error, step)),
                None => queue.launch(step, bound),
            },
            Command::Copy(from, to) => queue.copy(from, to),
            Command::Begin(begin) => begin.give(queue),
            Command::Finish(finish) => finish.give(queue),
        }
    }
}

fn span(arg: Arg) -> Span {
    Span { memory: arg.memory, at: arg.offset, len: arg.len }
}

/// A copy through memory of the host.
struct ThroughHost {
    device: Arc<dyn Device>,
    from: Span,
    to: Span,
    room: Mutex<Vec<u8>>,
}

impl Bound for ThroughHost {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.download(&self.from.memory, self.from.at, &mut room)?;
        self.device.upload(&room, &self.to.memory, self.to.at)
    }
}

/// Equal kernels are compiled once, under the name of the first: the error is to name the one that
/// ran.
pub(super) fn named(error: Error, step: &str) -> Error {
    match error {
        Error::Data { op, message, source_line, .. } => {
            Error::Data { op, message, source_line, kernel: step.to_owned() }
        }
        other => other,
    }
}
