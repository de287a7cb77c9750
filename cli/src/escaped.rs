//! [`Escaped`]: text for people, without what a terminal would obey.
//!
//! Names, module paths and source lines come from files, and a file can say anything. Control
//! characters other than line ends and tabs, and those that turn the direction of writing, are
//! printed as `\\u{1b}`, which is how the textual form of programs reads them too.

use std::io::{self, Write};

/// A writer that escapes control characters. What is no UTF-8 goes through as it is but for the
/// escape character.
pub(crate) struct Escaped<W>(pub(crate) W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A character may be cut in two where the bytes end; its first part waits for the next
        // call.
        let whole = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) if error.valid_up_to() > 0 => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => {
                let end = bytes.iter().position(u8::is_ascii).unwrap_or(bytes.len());
                self.0.write_all(&bytes[..end.max(1)])?;
                return Ok(end.max(1));
            }
        };
        let mut plain = 0;
        for (at, c) in whole.char_indices().filter(|(_, c)| is_obeyed(*c)) {
            self.0.write_all(&bytes[plain..at])?;
            write!(self.0, "{}", c.escape_unicode())?;
            plain = at + c.len_utf8();
        }
        self.0.write_all(&bytes[plain..whole.len()])?;
        Ok(whole.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// True for what a terminal acts upon in the place of showing it.
fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Escaped(Vec::new());
        for piece in pieces {
            out.write_all(piece).unwrap();
        }
        out.0
    }

    #[test]
    fn what_terminals_obey_is_shown() {
        let text = "a\tb\n\u{1b}[31mred\u{9b}é\u{7f}\u{202e}\r";
        let shown = "a\tb\n\\u{1b}[31mred\\u{9b}é\\u{7f}\\u{202e}\\u{d}";
        assert_eq!(escaped(&[text.as_bytes()]), shown.as_bytes());
        assert_eq!(escaped(&[]), b"");
    }

    #[test]
    fn every_byte_arrives() {
        assert_eq!(escaped(&[b"a\xffb\xc3", b"c\x1b"]), b"a\xffb\xc3c\\u{1b}");
    }
}
