//! [`Transport`]: what carries bytes between ranks.

use std::ops::Range;
use std::time::Instant;

/// What carries bytes between ranks. One thread has it.
pub trait Transport {
    /// Which rank this is.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Sends messages and receives others, and returns when all of that is done. Between two ranks,
    /// messages keep their order.
    ///
    /// The buffers are the transport's as long as that takes. After an error they are gone: bytes
    /// may still be on their way into them.
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

    /// Tells all ranks that this one gives up, and why: [`Lost::Told`] is what their exchanges end
    /// with.
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
