//! Machine code: compiled (`object`), put into memory (`link`), shared within the process
//! (`cache`), kept on disk (`disk`), and listed for people (`listing`).

pub(crate) mod cache;
pub(crate) mod disk;
mod key;
pub(crate) mod link;
pub(crate) mod listing;
mod object;
