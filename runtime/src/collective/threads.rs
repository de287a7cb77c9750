//! [`threads`]: ranks within one process, for tests and for one machine.

use super::exchanging::Exchanging;
use super::group::Group;
use super::mailbox::{Mailbox, Post};
use super::together::{Table, Together};
use std::sync::Arc;
use std::time::Duration;

/// The ranks of a run within this process: one for each of `size` threads that take a step
/// together. Each exchange has `deadline` from the moment at which a rank is ready for it.
///
/// A rank that is dropped has left: the others end with an error if they still expect something
/// from it.
///
/// # Panics
/// If `size` is 0, or the system has no thread left.
pub fn threads(size: usize, deadline: Duration) -> Vec<Group> {
    assert!(size > 0, "there is at least one rank");
    let post = Arc::new(Post::new(size));
    let table = Arc::new(Table::new(size));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let linger = if size <= processors { LINGER } else { Duration::ZERO };
    let rank = |rank| {
        let mailbox = |linger| Mailbox::new(post.clone(), rank, linger);
        // The thread of a rank has no processor to itself.
        let own = mailbox(Duration::ZERO);
        let group = Group::new(move || Ok(own), deadline).expect("a thread for each rank");
        let together = Exchanging::new(mailbox(linger), deadline, group.failed.clone());
        group.with(Together::new(table.clone(), together))
    };
    (0..size).map(rank).collect()
}

/// How long a rank that reduces looks for what others send before it sleeps, if each has a
/// processor: waking it takes as much as a tenth of a millisecond, and ranks with as much work come
/// at nearly the same time.
const LINGER: Duration = Duration::from_millis(1);
