//! [`Collective`]: what the ranks of a parallel run do together, as a run sees it: bytes that are
//! started on their way, and waited for.
//!
//! [`Group`] is the one implementation of the exchanges themselves, over a [`Transport`] that
//! carries bytes from rank to rank: [`threads()`] within a process, MPI in a crate of its own. So
//! sums have the same bits whatever carries them. Ranks of one process see each other's memory, and
//! [`reduce`](Collective::reduce) values in place.

mod agree;
mod exchanging;
mod group;
mod mailbox;
mod one;
mod threads;
mod together;
mod transport;

pub use agree::{agree, gather_texts};
pub use group::Group;
pub use one::OneRank;
pub use threads::threads;
pub use transport::{Lost, Message, Transport};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::Span;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use tracecast_ir::DType;
use tracecast_ir::op::Across;

/// How the ranks of a parallel run exchange bytes. All ranks start the same transfers in the same
/// order.
///
/// ```
/// use std::time::Duration;
/// use tracecast_runtime::collective::{Collective, Label, Transfer, threads};
/// use tracecast_ir::{DType, op::Across};
///
/// let sum = Transfer::Reduce { across: Across::Sum, dtype: DType::F32 };
/// let ranks = threads(2, Duration::from_secs(10));
/// std::thread::scope(|scope| {
///     for rank in &ranks {
///         scope.spawn(move || {
///             let own = [rank.rank() as f32, 1.0].map(f32::to_le_bytes).concat();
///             let pending = rank.start(sum, Label::default(), own)?;
///             let done = rank.wait(pending)?;
///             assert_eq!(done.data, [1.0f32, 2.0].map(f32::to_le_bytes).concat());
///             Ok::<(), tracecast_runtime::Error>(())
///         });
///     }
/// });
/// ```
pub trait Collective: fmt::Debug + Send + Sync {
    /// Which rank this is, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Starts a transfer and returns at once. `data` has as many bytes on every rank.
    ///
    /// # Errors
    /// If an earlier transfer has failed: none follows it.
    fn start(&self, transfer: Transfer, label: Label, data: Vec<u8>) -> Result<Pending>;

    /// Tells the other ranks that this one cannot take part any more, and why: their transfers end
    /// with that, and none follows. A rank that has failed by itself would have them wait, and what
    /// it gives next may not be what they wait for.
    fn give_up(&self, label: Label, why: &str);

    /// Waits until a transfer is done, for as long as the deadline of the ranks says.
    ///
    /// # Errors
    /// [`Error::Rank`] if a rank is late, has left, or does something else; it names the rank, the
    /// step and the bucket.
    fn wait(&self, pending: Pending) -> Result<Done> {
        pending.wait()
    }

    /// True if ranks see each other's memory, as those of one process do: they can then
    /// [`reduce`](Collective::reduce) values in place.
    fn sees_memory(&self) -> bool {
        false
    }

    /// Reduces values in place, together with all ranks: on the calling thread, which gets the
    /// results without a copy. What was started before comes first. A rank may have started the
    /// same as a [transfer](Transfer::Reduce) of bytes: then all exchange bytes, with the same
    /// result.
    ///
    /// When this returns, even with an error, no other rank uses the places any more.
    ///
    /// # Errors
    /// As [`wait`](Collective::wait); if ranks do not see each other's memory.
    fn reduce(&self, _reduction: &Reduction<'_>) -> Result<Flight> {
        Err(Error::Parallel("the ranks do not see each other's memory".to_owned()))
    }
}

/// A rank that several take in turn, as programs do that train one after another.
impl<C: Collective + ?Sized> Collective for Arc<C> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn size(&self) -> usize {
        (**self).size()
    }

    fn start(&self, transfer: Transfer, label: Label, data: Vec<u8>) -> Result<Pending> {
        (**self).start(transfer, label, data)
    }

    fn give_up(&self, label: Label, why: &str) {
        (**self).give_up(label, why);
    }

    fn wait(&self, pending: Pending) -> Result<Done> {
        (**self).wait(pending)
    }

    fn sees_memory(&self) -> bool {
        (**self).sees_memory()
    }

    fn reduce(&self, reduction: &Reduction<'_>) -> Result<Flight> {
        (**self).reduce(reduction)
    }
}

/// What becomes of the bytes that all ranks give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// Elements of that dtype are combined: everybody gets the result, of as many bytes.
    Reduce {
        /// How.
        across: Across,
        /// What the bytes are.
        dtype: DType,
    },
    /// Everybody gets those of that rank.
    Broadcast {
        /// Whose.
        root: usize,
    },
    /// Everybody gets those of all ranks, one after another.
    Gather,
}

/// Values of a rank that are [reduced](Collective::reduce) in place.
#[derive(Clone, Copy, Debug)]
pub struct Reduction<'a> {
    /// How they are combined.
    pub across: Across,
    /// What they are.
    pub dtype: DType,
    /// What the reduction belongs to.
    pub label: Label,
    /// Since when the operands are there.
    pub ready: Instant,
    /// Where they are, and where the results go.
    pub places: &'a Arc<Places>,
    /// The device whose memory that is, which [merges](Device::merges).
    pub device: &'a dyn Device,
}

/// Where a rank has what ranks reduce, and where it wants the results: as many bytes of both, in
/// their order. A result may take the place of its operand; otherwise no two of them overlap.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The operands.
    pub operands: Vec<Span>,
    /// The results.
    pub results: Vec<Span>,
}

impl Places {
    /// The bytes of all operands.
    pub fn bytes(&self) -> usize {
        self.operands.iter().map(|span| span.len).sum()
    }
}

/// When an exchange took place.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// When it began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// What a transfer belongs to. Ranks whose labels differ do not do the same, which is an error that
/// says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// A number that stands for the program.
    pub program: u64,
    /// The number of the step.
    pub step: u64,
    /// The number of the bucket within the step.
    pub bucket: u64,
}

/// A transfer that is on its way.
#[derive(Debug)]
pub struct Pending(Receiver<Result<Done>>);

/// Where a [`Pending`] gets its answer from.
#[derive(Debug)]
pub struct Answer(Sender<Result<Done>>);

impl Pending {
    /// A transfer, and where its result is to be put.
    pub fn new() -> (Answer, Pending) {
        let (sender, receiver) = channel();
        (Answer(sender), Pending(receiver))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Those of the transfer.
    pub fn wait(self) -> Result<Done> {
        let lost =
            || Error::Parallel("the thread that exchanges with other ranks has ended".into());
        self.0.recv().map_err(|_| lost())?
    }
}

impl Answer {
    /// Gives it. Nobody may be waiting any more, which is as well.
    pub fn give(self, result: Result<Done>) {
        let _ = self.0.send(result);
    }
}

/// A transfer that is done.
#[derive(Clone, Debug)]
pub struct Done {
    /// What this rank gets.
    pub data: Vec<u8>,
    /// When its exchange began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
}
