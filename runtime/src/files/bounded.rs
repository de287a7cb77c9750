//! [`Bounded`]: a file that refuses what the process may not write, where the system would end the
//! process.

use std::io::{self, Write};

/// Hands bytes on as long as the file stays within the process's limit on the size of files:
/// whoever writes beyond it is sent a signal, and has no time left to put things in order.
pub(super) struct Bounded<W> {
    to: W,
    left: u64,
}

impl<W> Bounded<W> {
    pub(super) fn new(to: W) -> Self {
        Bounded { to, left: limit().unwrap_or(u64::MAX) }
    }

    pub(super) fn into_inner(self) -> W {
        self.to
    }
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            let message = "the file would be larger than this process may make one (see ulimit -f)";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let taken = self.to.write(bytes)?;
        self.left -= taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The largest file that the process may make, in bytes, as far as Linux tells.
fn limit() -> Option<u64> {
    of_table(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// The first number behind the name is the limit that holds.
fn of_table(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_read_from_the_table_of_the_system() {
        let table = "Limit           Soft Limit   Hard Limit   Units\n\
            Max cpu time    unlimited    unlimited    seconds\n\
            Max file size   51200        unlimited    bytes\n";
        assert_eq!(of_table(table), Some(51200));
        assert_eq!(of_table(&table.replace("51200", "unlimited")), None);
        assert_eq!(of_table(""), None);
    }

    #[test]
    fn what_is_beyond_the_limit_is_refused_and_not_cut() {
        let mut to = Bounded { to: Vec::new(), left: 5 };
        to.write_all(b"abc").unwrap();
        assert_eq!(to.write_all(b"def").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        to.write_all(b"de").unwrap();
        assert_eq!(to.into_inner(), b"abcde");
    }
}
