//! [`Group`]: the exchanges of one rank, on a thread of its own, over whatever carries bytes between ranks.
//!
//! A transfer begins with a header from every rank to every other one, by which a rank that is late, has left or does something else is found
//! out by name. A reduction then sends each rank its chunk of the elements, piece by piece; each combines its chunk in the order of the ranks, and
//! sends the result to all.

use super::{Answer, Collective, Done, Label, Pending, Transfer};
use crate::error::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracecast_ir::DType;
use tracecast_ir::op::Across;

/// What carries bytes between ranks. One thread has it.
pub trait Transport {
    /// Which rank this is.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Sends messages and receives others, and returns when all of that is done. Between two ranks, messages keep their order.
    ///
    /// The buffers are the transport's as long as that takes. After an error they are gone: bytes may still be on their way into them.
    ///
    /// # Errors
    /// The first rank that has not sent by then, or is known to have left.
    fn exchange(
        &mut self,
        buffers: &mut Vec<Vec<u8>>,
        send: &[Message],
        receive: &[Message],
        until: Instant,
    ) -> std::result::Result<(), Lost>;

    /// Tells all ranks that this one gives up, and why: [`Lost::Told`] is what their exchanges end with.
    fn give_up(&mut self, why: &[u8]);
}

/// Bytes for a rank, or room for bytes of one. Rooms lie apart from everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub rank: usize,
    /// Which buffer it lies in.
    pub buffer: usize,
    /// Where.
    pub range: Range<usize>,
}

/// Why bytes did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nothing came from that rank in time, or it did not take what was sent.
    Late(usize),
    /// That rank has left.
    Gone(usize),
    /// A rank has given up, with this message.
    Told(Vec<u8>),
    /// What carries the bytes has failed.
    Broken(String),
}

/// The rank that something went wrong with, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    rank: u64,
    label: Label,
    message: String,
}

/// One rank: a thread exchanges what the run starts, in that order.
pub struct Group {
    rank: usize,
    size: usize,
    todo: Mutex<Option<Sender<Todo>>>,
    thread: Option<JoinHandle<()>>,
}

enum Todo {
    Exchange(Job),
    GiveUp(Label, String),
}

struct Job {
    transfer: Transfer,
    label: Label,
    data: Vec<u8>,
    answer: Answer,
}

impl Group {
    /// A rank whose transport `make` gives, on the thread that will use it. Each exchange has `deadline` from the moment at which this rank is ready
    /// for it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new<T: Transport + 'static>(
        make: impl FnOnce() -> std::result::Result<T, String> + Send + 'static,
        deadline: Duration,
    ) -> Result<Self> {
        let (sender, todo) = channel();
        let (ready, made) = channel();
        let body = move || match make() {
            Ok(transport) => {
                let _ = ready.send(Ok((transport.rank(), transport.size())));
                Exchanging { transport, deadline, failed: None, given: Vec::new() }.work(&todo);
            }
            Err(message) => {
                let _ = ready.send(Err(message));
            }
        };
        let thread = std::thread::Builder::new().name("ranks".to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::Parallel(format!("no thread for ranks: {e}")))?;
        let made = made.recv().unwrap_or_else(|_| Err("the transport has panicked".to_owned()));
        let (rank, size) = made.map_err(Error::Parallel)?;
        Ok(Group { rank, size, todo: Mutex::new(Some(sender)), thread: Some(thread) })
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
        match self.send(Todo::Exchange(Job { transfer, label, data, answer })) {
            true => Ok(pending),
            false => Err(Error::Parallel("this rank has left".to_owned())),
        }
    }

    fn give_up(&self, label: Label, why: &str) {
        // Who has left has told them.
        let _ = self.send(Todo::GiveUp(label, why.to_owned()));
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

/// The thread's side.
struct Exchanging<T> {
    transport: T,
    deadline: Duration,
    failed: Option<Failure>,
    /// Memory of earlier reductions, for what the others give.
    given: Vec<u8>,
}

/// How much longer a rank waits in the last round of a reduction than in the first: one that others wait for in vain, in the round before, is theirs
/// to name.
const LONGER: Duration = Duration::from_millis(750);

/// A deadline that no clock has is this one: a year.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The bytes of a header.
const HEADER: usize = 48;

impl<T: Transport> Exchanging<T> {
    fn work(&mut self, todo: &Receiver<Todo>) {
        while let Ok(next) = todo.recv() {
            let Job { transfer, label, data, answer } = match next {
                Todo::Exchange(job) => job,
                Todo::GiveUp(label, why) => {
                    self.give_up(label, format!("has failed: {why}"));
                    continue;
                }
            };
            if self.failed.is_none() {
                let began = Instant::now();
                match self.exchange(transfer, label, data) {
                    Ok(data) => {
                        answer.give(Ok(Done { data, began, ended: Instant::now() }));
                        continue;
                    }
                    Err(failure) => {
                        self.transport.give_up(&failure.to_bytes());
                        self.failed = Some(failure);
                    }
                }
            }
            if let Some(failure) = &self.failed {
                answer.give(Err(failure.clone().into()));
            }
        }
    }

    fn give_up(&mut self, label: Label, message: String) {
        if self.failed.is_none() {
            let failure = Failure { rank: self.transport.rank() as u64, label, message };
            self.transport.give_up(&failure.to_bytes());
            self.failed = Some(failure);
        }
    }

    fn exchange(
        &mut self,
        transfer: Transfer,
        label: Label,
        data: Vec<u8>,
    ) -> std::result::Result<Vec<u8>, Failure> {
        let greeted = self.greet(transfer, label, data.len(), self.until());
        // All are ready now: what a rank has waited for others is not taken from the time for its bytes.
        let until = self.until();
        let done = greeted.and_then(|()| match transfer {
            Transfer::Reduce { across, dtype } => self.reduce(across, dtype, data, until),
            Transfer::Broadcast { root } => self.broadcast(root, data, until),
            Transfer::Gather => self.gather(data, until),
        });
        done.map_err(|problem| self.failure(problem, label))
    }

    /// The deadline of what begins now.
    fn until(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.deadline).unwrap_or(now + FOR_EVER)
    }

    /// Every rank tells every other one what it is about to do.
    fn greet(
        &mut self,
        transfer: Transfer,
        label: Label,
        len: usize,
        until: Instant,
    ) -> std::result::Result<(), Problem> {
        let own = header(transfer, label, len);
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let mut buffers = vec![own.to_vec(), vec![0; HEADER * size]];
        let send = messages(rank, size, 0, |_| 0..HEADER);
        let receive = messages(rank, size, 1, |r| r * HEADER..(r + 1) * HEADER);
        self.transport.exchange(&mut buffers, &send, &receive, until)?;
        let headers = buffers[1].as_chunks::<HEADER>().0;
        let differs = |r: &usize| *r != rank && headers[*r] != own;
        match (0..headers.len()).find(differs) {
            Some(other) => Err(Problem::Differs(other, disagreement(&own, &headers[other]))),
            None => Ok(()),
        }
    }

    /// In rounds, so that a piece is combined and sent on while it is in the caches: in each, ranks give one piece and get another one combined.
    fn reduce(
        &mut self,
        across: Across,
        dtype: DType,
        data: Vec<u8>,
        until: Instant,
    ) -> std::result::Result<Vec<u8>, Problem> {
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let cuts = Cuts::of(data.len() / dtype.bytes(), dtype.bytes(), size);
        let longest = (0..cuts.pieces).map(|at| cuts.piece(rank, at).len()).max().unwrap_or(0);
        let room = |r: usize, len: usize| r * longest..r * longest + len;
        let mut given = std::mem::take(&mut self.given);
        given.resize(size * longest, 0);
        let mut buffers = vec![data, given];
        for round in 0..=cuts.pieces {
            let (mut send, mut receive) = (Vec::new(), Vec::new());
            for r in (0..size).filter(|r| *r != rank) {
                if round < cuts.pieces {
                    let len = cuts.piece(rank, round).len();
                    send.push(Message { rank: r, buffer: 0, range: cuts.piece(r, round) });
                    receive.push(Message { rank: r, buffer: 1, range: room(r, len) });
                }
                if let Some(last) = round.checked_sub(1) {
                    send.push(Message { rank: r, buffer: 0, range: cuts.piece(rank, last) });
                    receive.push(Message { rank: r, buffer: 0, range: cuts.piece(r, last) });
                }
            }
            let longer = LONGER * round as u32 / cuts.pieces as u32;
            self.transport.exchange(&mut buffers, &send, &receive, until + longer)?;
            if round < cuts.pieces {
                let own = cuts.piece(rank, round);
                let (data, given) = buffers.split_at_mut(1);
                let of = |r: usize| &given[0][room(r, own.len())];
                let before: Vec<&[u8]> = (0..rank).map(of).collect();
                let after: Vec<&[u8]> = (rank + 1..size).map(of).collect();
                across.combine_in_place(dtype, &before, &mut data[0][own.clone()], &after);
            }
        }
        self.given = buffers.pop().unwrap_or_default();
        Ok(buffers.pop().unwrap_or_default())
    }

    fn broadcast(
        &mut self,
        root: usize,
        data: Vec<u8>,
        until: Instant,
    ) -> std::result::Result<Vec<u8>, Problem> {
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let all = 0..data.len();
        let mut buffers = vec![data];
        let (send, receive) = match rank == root {
            true => (messages(rank, size, 0, |_| all.clone()), Vec::new()),
            false => (Vec::new(), vec![Message { rank: root, buffer: 0, range: all }]),
        };
        self.transport.exchange(&mut buffers, &send, &receive, until)?;
        Ok(buffers.pop().unwrap_or_default())
    }

    fn gather(&mut self, data: Vec<u8>, until: Instant) -> std::result::Result<Vec<u8>, Problem> {
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let len = data.len();
        let room = |r: usize| r * len..(r + 1) * len;
        let mut all = vec![0; len * size];
        all[room(rank)].copy_from_slice(&data);
        let mut buffers = vec![data, all];
        let (send, receive) = (messages(rank, size, 0, |_| 0..len), messages(rank, size, 1, room));
        self.transport.exchange(&mut buffers, &send, &receive, until)?;
        Ok(buffers.pop().unwrap_or_default())
    }

    fn failure(&self, problem: Problem, label: Label) -> Failure {
        let own = self.transport.rank();
        let failure = |rank: usize, message: String| Failure { rank: rank as u64, label, message };
        match problem {
            Problem::Differs(rank, message) => failure(rank, message),
            Problem::Lost(Lost::Late(rank)) => failure(
                rank,
                format!("has not answered rank {own} for {:.1} s", self.deadline.as_secs_f64()),
            ),
            Problem::Lost(Lost::Gone(rank)) => failure(rank, "has left".to_owned()),
            Problem::Lost(Lost::Broken(message)) => failure(own, message),
            Problem::Lost(Lost::Told(bytes)) => Failure::from_bytes(&bytes)
                .unwrap_or_else(|| failure(own, "another rank has given up".to_owned())),
        }
    }
}

/// What stops an exchange.
enum Problem {
    Lost(Lost),
    /// A rank does something else.
    Differs(usize, String),
}

impl From<Lost> for Problem {
    fn from(lost: Lost) -> Self {
        Problem::Lost(lost)
    }
}

/// How the elements of a reduction are divided: a chunk for each rank, and each chunk into as many pieces.
struct Cuts {
    elements: usize,
    /// Bytes of an element.
    bytes: usize,
    size: usize,
    pieces: usize,
}

/// So many bytes of each rank's chunk are combined at once, if that is no more than so many pieces: the pieces of two ranks stay in a cache.
const PIECE: usize = 256 << 10;
const MOST_PIECES: usize = 64;

impl Cuts {
    fn of(elements: usize, bytes: usize, size: usize) -> Self {
        let chunk = elements.div_ceil(size).saturating_mul(bytes);
        let pieces = chunk.div_ceil(PIECE).clamp(1, MOST_PIECES);
        Cuts { elements, bytes, size, pieces }
    }

    /// The bytes of a piece of a rank's chunk.
    fn piece(&self, rank: usize, piece: usize) -> Range<usize> {
        let part =
            |all: usize, at: usize, of: usize| (all as u128 * at as u128 / of as u128) as usize;
        let (from, to) =
            (part(self.elements, rank, self.size), part(self.elements, rank + 1, self.size));
        let cut = |at: usize| (from + part(to - from, at, self.pieces)) * self.bytes;
        cut(piece)..cut(piece + 1)
    }
}

/// One message with every other rank, each at its place of a buffer.
fn messages(
    rank: usize,
    size: usize,
    buffer: usize,
    range: impl Fn(usize) -> Range<usize>,
) -> Vec<Message> {
    let others = (0..size).filter(|r| *r != rank);
    others.map(|r| Message { rank: r, buffer, range: range(r) }).collect()
}

/// Program, step, bucket, length, what is done, and which version of this exchange.
fn header(transfer: Transfer, label: Label, len: usize) -> [u8; HEADER] {
    let what = match transfer {
        Transfer::Reduce { across, dtype } => (across as u64) << 8 | dtype as u64,
        Transfer::Broadcast { root } => 1 << 32 | root as u64,
        Transfer::Gather => 2 << 32,
    };
    let mut header = [0; HEADER];
    let words = [label.program, label.step, label.bucket, len as u64, what, VERSION];
    header
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(words)
        .for_each(|(to, word)| *to = word.to_le_bytes());
    header
}

const VERSION: u64 = 1;

/// In words, what two headers differ in.
fn disagreement(own: &[u8; HEADER], other: &[u8; HEADER]) -> String {
    let words = |header: &[u8; HEADER]| -> Vec<u64> {
        header.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    };
    let (own, other) = (words(own), words(other));
    let names = ["program", "step", "bucket", "number of bytes", "kind of exchange", "version"];
    let at = (0..names.len()).find(|i| own[*i] != other[*i]).unwrap_or(0);
    match at {
        0 => "runs another program here: its inputs, shapes or settings differ".to_owned(),
        4 => "does another kind of exchange here".to_owned(),
        _ => format!("has another {} here: expected {}, found {}", names[at], own[at], other[at]),
    }
}

impl Failure {
    fn to_bytes(&self) -> Vec<u8> {
        let Label { program, step, bucket } = self.label;
        let words = [self.rank, program, step, bucket].map(u64::to_le_bytes).concat();
        [words, self.message.as_bytes().to_vec()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, message) = bytes.split_at_checked(32)?;
        let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut word = || words.next();
        let (rank, program, step, bucket) = (word()?, word()?, word()?, word()?);
        let message = String::from_utf8_lossy(message).into_owned();
        Some(Failure { rank, label: Label { program, step, bucket }, message })
    }
}

impl From<Failure> for Error {
    fn from(Failure { rank, label, message }: Failure) -> Self {
        Error::Rank { rank: rank as usize, step: label.step, bucket: label.bucket, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
