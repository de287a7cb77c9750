//! [`threads`]: ranks within one process, for tests and for one machine.

use super::group::{Group, Lost, Message, Transport};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The ranks of a run within this process: one for each of `size` threads that take a step together. Each exchange has `deadline` from the moment at
/// which a rank is ready for it.
///
/// A rank that is dropped has left: the others end with an error if they still expect something from it.
///
/// # Panics
/// If `size` is 0, or the system has no thread left.
pub fn threads(size: usize, deadline: Duration) -> Vec<Group> {
    assert!(size > 0, "there is at least one rank");
    let post = Arc::new(Post {
        size,
        boxes: Mutex::new(Boxes {
            messages: (0..size * size).map(|_| VecDeque::new()).collect(),
            left: vec![false; size],
            told: None,
        }),
        changed: (0..size).map(|_| Condvar::new()).collect(),
    });
    let rank = |rank| {
        let post = post.clone();
        let make = move || Ok(Mailbox { rank, post, spare: Vec::new() });
        Group::new(make, deadline).expect("a thread for each rank")
    };
    (0..size).map(rank).collect()
}

/// Messages on their way.
struct Post {
    size: usize,
    boxes: Mutex<Boxes>,
    /// For each rank: a message for it has come, or somebody has left.
    changed: Vec<Condvar>,
}

struct Boxes {
    /// Those from `a` to `b` at `a * size + b`.
    messages: Vec<VecDeque<Vec<u8>>>,
    left: Vec<bool>,
    /// What the first rank that gave up has told.
    told: Option<Vec<u8>>,
}

/// The side of one rank.
struct Mailbox {
    rank: usize,
    post: Arc<Post>,
    /// Memory of messages that have come, for some that go.
    spare: Vec<Vec<u8>>,
}

/// So many of them are kept for each rank.
const SPARE: usize = 4;

impl Mailbox {
    fn boxes(&self) -> MutexGuard<'_, Boxes> {
        self.post.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message from a rank.
    fn next(&self, from: usize, until: Instant) -> Result<Vec<u8>, Lost> {
        let mut boxes = self.boxes();
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
        for Message { rank, buffer, range } in send {
            let mut message = self.spare.pop().unwrap_or_default();
            message.clear();
            message.extend_from_slice(&buffers[*buffer][range.clone()]);
            self.boxes().messages[self.rank * self.post.size + rank].push_back(message);
            self.post.changed[*rank].notify_one();
        }
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
        self.post.changed.iter().for_each(Condvar::notify_all);
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.boxes().left[self.rank] = true;
        self.post.changed.iter().for_each(Condvar::notify_all);
    }
}
