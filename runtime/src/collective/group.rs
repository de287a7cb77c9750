//! [`Group`]: one rank, whose exchanges go on on a thread of its own, over whatever carries bytes
//! between ranks ([`Transport`]). What they do in an exchange is in `exchanging.rs`.

use super::exchanging::{Exchanging, Failed, Failure};
use super::together::Together;
use super::transport::Transport;
use super::{Answer, Collective, Done, Flight, Label, Pending, Reduction, Transfer};
use crate::error::{Error, Result};
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One rank: a thread exchanges what the run starts, in that order.
pub struct Group {
    rank: usize,
    size: usize,
    todo: Mutex<Option<Sender<Todo>>>,
    thread: Option<JoinHandle<()>>,
    ahead: Arc<Ahead>,
    /// Why it takes part in nothing any more: its thread and `together` know the same.
    pub(super) failed: Failed,
    /// What reduces values in place, if ranks see each other's memory.
    together: Option<Together>,
}

/// How many exchanges are started and not done.
#[derive(Default)]
struct Ahead {
    count: Mutex<usize>,
    none: Condvar,
}

/// One of them, until it is dropped.
struct Counted(Arc<Ahead>);

enum Todo {
    Exchange(Job),
    GiveUp(Failure),
}

struct Job {
    transfer: Transfer,
    label: Label,
    data: Vec<u8>,
    answer: Answer,
    counted: Counted,
}

impl Group {
    /// A rank whose transport `make` gives, on the thread that will use it. Each exchange has
    /// `deadline` from the moment at which this rank is ready for it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new<T: Transport + 'static>(
        make: impl FnOnce() -> std::result::Result<T, String> + Send + 'static,
        deadline: Duration,
    ) -> Result<Self> {
        let (sender, todo) = channel();
        let (ready, made) = channel();
        let failed = Failed::default();
        let known = failed.clone();
        let body = move || match make() {
            Ok(transport) => {
                let _ = ready.send(Ok((transport.rank(), transport.size())));
                work(&mut Exchanging::new(transport, deadline, known), &todo);
            }
            Err(message) => {
                let _ = ready.send(Err(message));
            }
        };
        let thread = std::thread::Builder::new().name("ranks".to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::Parallel(format!("no thread for ranks: {e}")))?;
        let made = made.recv().unwrap_or_else(|_| Err("the transport has panicked".to_owned()));
        let (rank, size) = made.map_err(Error::Parallel)?;
        let todo = Mutex::new(Some(sender));
        let (thread, ahead) = (Some(thread), Arc::default());
        Ok(Group { rank, size, todo, thread, ahead, failed, together: None })
    }

    /// The same rank, which sees the memory of the others.
    pub(super) fn with(mut self, together: Together) -> Self {
        self.together = Some(together);
        self
    }

    /// False if the thread has ended.
    fn send(&self, todo: Todo) -> bool {
        let sender = self.todo.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().is_some_and(|sender| sender.send(todo).is_ok())
    }
}

impl Collective for Group {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn start(&self, transfer: Transfer, label: Label, data: Vec<u8>) -> Result<Pending> {
        let (answer, pending) = Pending::new();
        let counted = Counted::one_more(&self.ahead);
        match self.send(Todo::Exchange(Job { transfer, label, data, answer, counted })) {
            true => Ok(pending),
            false => Err(Error::Parallel("this rank has left".to_owned())),
        }
    }

    fn sees_memory(&self) -> bool {
        self.together.is_some()
    }

    fn reduce(&self, reduction: &Reduction<'_>) -> Result<Flight> {
        let none = || Error::Parallel("the ranks do not see each other's memory".to_owned());
        let together = self.together.as_ref().ok_or_else(none)?;
        // After a failure, what is on its way may take as long as a deadline, and what comes of it
        // does not matter.
        if let Some(failure) = self.failed.get() {
            return Err(failure.into());
        }
        self.ahead.wait();
        together.reduce(reduction)
    }

    fn give_up(&self, label: Label, why: &str) {
        let failure = Failure::own(self.rank, label, format!("has failed: {why}"));
        // From here on this rank takes part in nothing, whatever its thread has still to do.
        let failure = self.failed.set(failure);
        if let Some(together) = &self.together {
            together.give_up(&failure);
        }
        // Who has left has told them.
        let _ = self.send(Todo::GiveUp(failure));
    }
}

/// Leaves the other ranks, which end if they still expect something.
impl Drop for Group {
    fn drop(&mut self) {
        *self.todo.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(thread) = self.thread.take() {
            // It has panicked if this fails, and whoever waited for it was told.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank, self.size)
    }
}

impl Ahead {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is none, for as long as their deadlines say.
    fn wait(&self) {
        let mut count = self.count();
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Counted {
    fn one_more(ahead: &Arc<Ahead>) -> Self {
        *ahead.count() += 1;
        Counted(ahead.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.none.notify_all();
    }
}

/// The thread's side.
fn work<T: Transport>(exchanging: &mut Exchanging<T>, todo: &Receiver<Todo>) {
    while let Ok(next) = todo.recv() {
        let Job { transfer, label, data, answer, counted } = match next {
            Todo::Exchange(job) => job,
            Todo::GiveUp(failure) => {
                exchanging.fail(failure);
                continue;
            }
        };
        let began = Instant::now();
        let done = match exchanging.failed() {
            Some(failure) => Err(failure),
            None => exchanging.exchange(transfer, label, data),
        };
        let done = done.map(|data| Done { data, began, ended: Instant::now() });
        let done = done.map_err(|failure| exchanging.fail(failure).into());
        drop(counted);
        answer.give(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Lost, Message};
    use tracecast_ir::DType;
    use tracecast_ir::op::Across;

    const DEADLINE: Duration = Duration::from_millis(400);

    /// The other rank says the same as this one, just in time; its bytes come at once.
    struct Tardy {
        exchanges: usize,
    }

    impl Transport for Tardy {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            2
        }

        fn exchange(
            &mut self,
            buffers: &mut Vec<Vec<u8>>,
            _: &[Message],
            receive: &[Message],
            until: Instant,
        ) -> std::result::Result<(), Lost> {
            self.exchanges += 1;
            if self.exchanges == 1 {
                std::thread::sleep(DEADLINE / 2);
                let own = buffers[0].clone();
                let Message { buffer, range, .. } = &receive[0];
                buffers[*buffer][range.clone()].copy_from_slice(&own);
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left > DEADLINE * 3 / 4 { Ok(()) } else { Err(Lost::Late(1)) }
        }

        fn give_up(&mut self, _: &[u8]) {}
    }

    #[test]
    fn who_has_waited_for_others_has_the_whole_deadline_for_bytes() {
        let rank = Group::new(|| Ok(Tardy { exchanges: 0 }), DEADLINE).unwrap();
        let sum = Transfer::Reduce { across: Across::Sum, dtype: DType::F32 };
        let pending = rank.start(sum, Label::default(), vec![0; 8]).unwrap();
        assert!(rank.wait(pending).is_ok());
    }
}
