//! [`Exchanging`]: what ranks do in an exchange, over whatever carries bytes between them.
//!
//! A transfer begins with a header from every rank to every other one, by which a rank that is
//! late, has left or does something else is found out by name. A reduction then sends each rank its
//! chunk of the elements, piece by piece; each combines its chunk in the order of the ranks, and
//! sends the result to all. Ranks that see each other's memory do that without sending, in
//! `together.rs`.

use super::transport::{Lost, Message, Transport};
use super::{Label, Transfer};
use crate::error::Error;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracecast_ir::DType;
use tracecast_ir::op::Across;

/// The exchanges of one rank.
pub(super) struct Exchanging<T> {
    pub(super) transport: T,
    deadline: Duration,
    failed: Failed,
    /// True once the other ranks know of a failure from here.
    has_told: bool,
    /// Memory of earlier reductions, for what the others give.
    given: Vec<u8>,
}

/// How much longer a rank waits in the last round of a reduction than in the first: one that others
/// wait for in vain, in the round before, is theirs to name.
pub(super) const LONGER: Duration = Duration::from_millis(750);

/// A deadline that no clock has is this one: a year.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The bytes of a header, and those of it that are the same on all ranks: the way comes last.
const HEADER: usize = 56;
const WAY: usize = 48;

/// How ranks come by each other's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// They send them.
    Bytes,
    /// They read and write them in place.
    Memory,
}

impl<T: Transport> Exchanging<T> {
    /// The ranks that this transport reaches.
    pub(super) fn new(transport: T, deadline: Duration, failed: Failed) -> Self {
        Exchanging { transport, deadline, failed, has_told: false, given: Vec::new() }
    }

    /// Why no exchange can follow.
    pub(super) fn failed(&self) -> Option<Failure> {
        self.failed.get()
    }

    /// Lets no exchange of this rank follow, and tells the other ranks why, unless that has
    /// happened. Returns the failure that counts: the first.
    pub(super) fn fail(&mut self, failure: Failure) -> Failure {
        let first = self.failed.set(failure);
        if !self.has_told {
            self.transport.give_up(&first.to_bytes());
            self.has_told = true;
        }
        first
    }

    /// Exchanges bytes with all other ranks.
    pub(super) fn exchange(
        &mut self,
        transfer: Transfer,
        label: Label,
        data: Vec<u8>,
    ) -> std::result::Result<Vec<u8>, Failure> {
        let greeted = self.greet(transfer, label, data.len(), Way::Bytes);
        let done = greeted.and_then(|(_, until)| match transfer {
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

    /// Every rank tells every other one what it is about to do. Returns the way in which all can do
    /// it, and the deadline from then on.
    pub(super) fn greet(
        &mut self,
        transfer: Transfer,
        label: Label,
        len: usize,
        way: Way,
    ) -> std::result::Result<(Way, Instant), Problem> {
        let (own, until) = (header(transfer, label, len, way), self.until());
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let mut buffers = vec![own.to_vec(), vec![0; HEADER * size]];
        let send = messages(rank, size, 0, |_| 0..HEADER);
        let receive = messages(rank, size, 1, |r| r * HEADER..(r + 1) * HEADER);
        self.transport.exchange(&mut buffers, &send, &receive, until)?;
        let headers = buffers[1].as_chunks::<HEADER>().0;
        let others = || (0..headers.len()).filter(|r| *r != rank);
        if let Some(other) = others().find(|r| headers[*r][..WAY] != own[..WAY]) {
            return Err(Problem::Differs(other, disagreement(&own, &headers[other])));
        }
        let all_alike = others().all(|r| headers[r] == own);
        // All are ready now: what a rank has waited for others is not taken from the time for its
        // bytes.
        Ok((if all_alike { way } else { Way::Bytes }, self.until()))
    }

    /// Waits until all ranks have come here.
    pub(super) fn meet(&mut self, until: Instant) -> std::result::Result<(), Problem> {
        let (rank, size) = (self.transport.rank(), self.transport.size());
        let nothing = messages(rank, size, 0, |_| 0..0);
        Ok(self.transport.exchange(&mut vec![Vec::new()], &nothing, &nothing, until)?)
    }

    /// In rounds, so that a piece is combined and sent on while it is in the caches: in each, ranks
    /// give one piece and get another one combined.
    pub(super) fn reduce(
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

    /// What stops this rank, and whose fault it is.
    pub(super) fn failure(&self, problem: Problem, label: Label) -> Failure {
        let own = self.transport.rank();
        let failure = |rank: usize, message: String| Failure { rank: rank as u64, label, message };
        match problem {
            Problem::Differs(rank, message) => failure(rank, message),
            Problem::Failed(failure) => failure,
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
pub(super) enum Problem {
    /// Bytes did not come.
    Lost(Lost),
    /// A rank does something else.
    Differs(usize, String),
    /// A rank has failed before.
    Failed(Failure),
}

impl From<Lost> for Problem {
    fn from(lost: Lost) -> Self {
        Problem::Lost(lost)
    }
}

/// How the elements of a reduction are divided: a chunk for each rank, and each chunk into as many
/// pieces.
struct Cuts {
    elements: usize,
    /// Bytes of an element.
    bytes: usize,
    size: usize,
    pieces: usize,
}

/// Bytes of each rank's chunk that are combined at once, and the most pieces that makes: the pieces
/// of two ranks stay in a cache.
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

/// Program, step, bucket, length, what is done, which version of this exchange, and in which way.
fn header(transfer: Transfer, label: Label, len: usize, way: Way) -> [u8; HEADER] {
    let what = match transfer {
        Transfer::Reduce { across, dtype } => (across as u64) << 8 | dtype as u64,
        Transfer::Broadcast { root } => 1 << 32 | root as u64,
        Transfer::Gather => 2 << 32,
    };
    let mut header = [0; HEADER];
    let words = [label.program, label.step, label.bucket, len as u64, what, VERSION, way as u64];
    header
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(words)
        .for_each(|(to, word)| *to = word.to_le_bytes());
    header
}

const VERSION: u64 = 2;

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

/// The rank that something went wrong with, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    rank: u64,
    label: Label,
    message: String,
}

/// Why a rank takes part in nothing any more, once that is so. All clones are the same: whatever
/// way the rank takes, it finds its first failure.
#[derive(Clone, Default)]
pub(super) struct Failed(Arc<Mutex<Option<Failure>>>);

impl Failed {
    fn first(&self) -> MutexGuard<'_, Option<Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Option<Failure> {
        self.first().clone()
    }

    /// Keeps a failure if it is the first. Returns the first.
    pub(super) fn set(&self, failure: Failure) -> Failure {
        self.first().get_or_insert(failure).clone()
    }
}

impl Failure {
    /// What a rank has done by itself.
    pub(super) fn own(rank: usize, label: Label, message: String) -> Self {
        Failure { rank: rank as u64, label, message }
    }

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
