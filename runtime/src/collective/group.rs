//! [`Group`]: the exchanges of one rank, on a thread of its own, over whatever carries bytes between ranks.
//!
//! A transfer begins with a header from every rank to every other one, by which a rank that is late, has left or does something else is found
//! out by name. A reduction then sends each rank its chunk of the elements; each combines its chunk in the order of the ranks, and sends the
//! result to all.

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

    /// Sends messages and receives others, at most one of each with each rank, and returns when all of that is done. Between two ranks, messages
    /// keep their order.
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
                let (given, sum) = (Vec::new(), Vec::new());
                Exchanging { transport, deadline, failed: None, given, sum }.work(&todo);
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
    /// Memory of earlier reductions: what the others gave, and what became of it.
    given: Vec<u8>,
    sum: Vec<u8>,
}

/// How much longer a rank waits for what others have combined than for what they give: a rank that they wait for in vain is theirs to name.
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
        let now = Instant::now();
        let until = now.checked_add(self.deadline).unwrap_or(now + FOR_EVER);
        let done = self.greet(transfer, label, data.len(), until).and_then(|()| match transfer {
            Transfer::Reduce { across, dtype } => self.reduce(across, dtype, data, until),
            Transfer::Broadcast { root } => self.broadcast(root, data, until),
            Transfer::Gather => self.gather(data, until),
        });
        done.map_err(|problem| self.failure(problem, label))
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

    fn reduce(
        &mut self,
        across: Across,
        dtype: DType,
        mut data: Vec<u8>,
        until: Instant,
    ) -> std::result::Result<Vec<u8>, Problem> {
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let elements = data.len() / dtype.bytes();
        let cut = |r: usize| (elements as u128 * r as u128 / size as u128) as usize * dtype.bytes();
        let chunk = |r: usize| cut(r)..cut(r + 1);
        let len = chunk(rank).len();
        let room = |r: usize| r * len..(r + 1) * len;
        let mut given = std::mem::take(&mut self.given);
        given.resize(size * len, 0);
        let mut buffers = vec![data, given];
        let send = messages(rank, size, 0, chunk);
        let receive = messages(rank, size, 1, room);
        self.transport.exchange(&mut buffers, &send, &receive, until)?;
        let mut sum = std::mem::take(&mut self.sum);
        sum.resize(len, 0);
        let of = |r: usize| if r == rank { &buffers[0][chunk(r)] } else { &buffers[1][room(r)] };
        across.combine(dtype, &(0..size).map(of).collect::<Vec<_>>(), &mut sum);
        buffers.push(sum);
        let send = messages(rank, size, 2, |_| 0..len);
        let receive = messages(rank, size, 0, chunk);
        self.transport.exchange(&mut buffers, &send, &receive, until + LONGER)?;
        let mut done = buffers.into_iter();
        let mut next = || done.next().unwrap_or_default();
        (data, self.given, self.sum) = (next(), next(), next());
        data[chunk(rank)].copy_from_slice(&self.sum);
        Ok(data)
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
