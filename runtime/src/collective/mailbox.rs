//! [`Mailbox`]: messages between the ranks of one process.

use super::transport::{Lost, Message, Transport};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it looks before it looks at the clock.
const LOOKS: usize = 64;

/// Messages on their way.
pub(super) struct Post {
    size: usize,
    boxes: Mutex<Boxes>,
    /// For each rank: a message for it has come, or somebody has left.
    changed: Vec<Condvar>,
    /// For each rank, how often that was so.
    changes: Vec<Line>,
}

impl Post {
    /// Of that many ranks.
    pub(super) fn new(size: usize) -> Self {
        Post {
            size,
            boxes: Mutex::new(Boxes {
                messages: (0..size * size).map(|_| VecDeque::new()).collect(),
                left: vec![false; size],
                told: None,
            }),
            changed: (0..size).map(|_| Condvar::new()).collect(),
            changes: (0..size).map(|_| Line::default()).collect(),
        }
    }
}

/// A number on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

struct Boxes {
    /// Those from `a` to `b` at `a * size + b`.
    messages: Vec<VecDeque<Vec<u8>>>,
    left: Vec<bool>,
    /// What the first rank that gave up has told.
    told: Option<Vec<u8>>,
}

/// The side of one rank.
pub(super) struct Mailbox {
    rank: usize,
    post: Arc<Post>,
    /// Memory of messages that have come, for some that go.
    spare: Vec<Vec<u8>>,
    /// How long it looks for messages before it sleeps.
    linger: Duration,
}

/// How many of them are kept for each rank.
const SPARE: usize = 4;

impl Mailbox {
    /// The side of a rank, which looks for messages that long before it sleeps.
    pub(super) fn new(post: Arc<Post>, rank: usize, linger: Duration) -> Self {
        Mailbox { rank, post, spare: Vec::new(), linger }
    }

    fn boxes(&self) -> MutexGuard<'_, Boxes> {
        self.post.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that something has changed for a rank.
    fn call(&self, rank: usize) {
        self.post.changes[rank].0.fetch_add(1, Ordering::Release);
        self.post.changed[rank].notify_all();
    }

    fn call_all(&self) {
        (0..self.post.size).for_each(|rank| self.call(rank));
    }

    /// Looks for a change for a while: whether there is one.
    fn look(&self, seen: u64) -> bool {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.post.changes[self.rank].0.load(Ordering::Acquire) != seen {
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= self.linger {
                return false;
            }
        }
    }

    /// The next message from a rank.
    fn next(&self, from: usize, until: Instant) -> Result<Vec<u8>, Lost> {
        let mut boxes = self.boxes();
        let mut looks = !self.linger.is_zero();
        loop {
            if let Some(message) = boxes.messages[from * self.post.size + self.rank].pop_front() {
                return Ok(message);
            }
            if let Some(told) = &boxes.told {
                return Err(Lost::Told(told.clone()));
            }
            if boxes.left[from] {
                return Err(Lost::Gone(from));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Lost::Late(from));
            }
            if looks {
                let seen = self.post.changes[self.rank].0.load(Ordering::Acquire);
                drop(boxes);
                looks = self.look(seen);
                boxes = self.boxes();
                continue;
            }
            let changed = self.post.changed[self.rank].wait_timeout(boxes, left);
            boxes = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Transport for Mailbox {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.post.size
    }

    fn exchange(
        &mut self,
        buffers: &mut Vec<Vec<u8>>,
        send: &[Message],
        receive: &[Message],
        until: Instant,
    ) -> Result<(), Lost> {
        let copied = send.iter().map(|Message { rank, buffer, range }| {
            let mut message = self.spare.pop().unwrap_or_default();
            message.clear();
            message.extend_from_slice(&buffers[*buffer][range.clone()]);
            (*rank, message)
        });
        let copied: Vec<(usize, Vec<u8>)> = copied.collect();
        {
            // All at once: if one rank has what it waits for, and fails at what follows, the others
            // have it as well.
            let mut boxes = self.boxes();
            for (rank, message) in copied {
                boxes.messages[self.rank * self.post.size + rank].push_back(message);
            }
        }
        send.iter().for_each(|message| self.call(message.rank));
        for Message { rank, buffer, range } in receive {
            let message = self.next(*rank, until)?;
            let room = &mut buffers[*buffer][range.clone()];
            if message.len() != room.len() {
                let (found, expected) = (message.len(), room.len());
                return Err(Lost::Broken(format!("{found} bytes came, expected {expected}")));
            }
            room.copy_from_slice(&message);
            if self.spare.len() < SPARE * self.post.size {
                self.spare.push(message);
            }
        }
        Ok(())
    }

    fn give_up(&mut self, why: &[u8]) {
        self.boxes().told.get_or_insert_with(|| why.to_vec());
        self.call_all();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.boxes().left[self.rank] = true;
        self.call_all();
    }
}
