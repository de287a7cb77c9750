//! The directory of a zip file whose entries are not compressed, as APPNOTE 6.3.10 of PKWARE
//! describes it, with 64-bit sizes.
//!
//! The crate `zip` 9.4 refuses some archives that PyTorch 2.15 writes and Python opens. They hold
//! zip files themselves, the sample inputs, so the record at the end of the file has to decide
//! alone.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// An entry, checked to lie within the file.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Where its bytes begin in the file.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// Bytes of the record at the end, without its comment.
const END: usize = 22;

/// Reads the directory of a file of that many bytes.
///
/// # Errors
/// If it is no zip, or an entry is compressed, encrypted or beyond the end of the file.
pub(crate) fn entries(file: &mut File, length: u64) -> Result<Vec<Entry>, String> {
    let tail = length.min(END as u64 + 0xffff);
    let tail_start = length - tail;
    let tail = read(file, tail_start, tail, length)?;
    let is_end = |at: &usize| {
        let comment = u16_at(&tail, at + 20).map(usize::from);
        tail[*at..].starts_with(b"PK\x05\x06")
            && comment.is_some_and(|n| at + END + n == tail.len())
    };
    let end = (0..=tail.len().saturating_sub(END)).rev().find(is_end);
    let end = end.ok_or("is no archive: it does not end with the record of a zip file")?;
    let cut = "is no archive: its directory is cut";
    let narrow = |at: usize| u32_at(&tail, end + at).map(u64::from).ok_or(cut);
    let (mut count, mut bytes, mut start) =
        (u64::from(u16_at(&tail, end + 10).ok_or(cut)?), narrow(12)?, narrow(16)?);
    let is_wide = count == 0xffff || bytes == 0xffff_ffff || start == 0xffff_ffff;
    if is_wide && end >= 20 && tail[end - 20..].starts_with(b"PK\x06\x07") {
        let record = read(file, u64_at(&tail, end - 12).ok_or(cut)?, 56, length)?;
        if !record.starts_with(b"PK\x06\x06") {
            return Err(cut.to_owned());
        }
        let wide = |at: usize| u64_at(&record, at).ok_or(cut);
        (count, bytes, start) = (wide(32)?, wide(40)?, wide(48)?);
    }
    let directory = read(file, start, bytes, length)?;
    let mut rest = &directory[..];
    let mut entries = Vec::new();
    for _ in 0..count {
        let (entry, length_of_header) = header(rest).ok_or(cut)??;
        rest = rest.get(length_of_header..).ok_or(cut)?;
        entries.push(located(file, entry, length)?);
    }
    Ok(entries)
}

/// An entry of the directory, whose start is that of its own header, and the bytes that it takes in
/// the directory.
fn header(directory: &[u8]) -> Option<Result<(Entry, usize), String>> {
    if !directory.starts_with(b"PK\x01\x02") {
        return None;
    }
    let length = |at: usize| u16_at(directory, at).map(usize::from);
    let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
    let behind = 46 + name + extra + comment;
    let text = std::str::from_utf8(directory.get(46..46 + name)?);
    let Ok(text) = text else { return Some(Err("the name of an entry is no text".to_owned())) };
    let mut fields = directory.get(46 + name..46 + name + extra)?;
    let mut wide: &[u8] = &[];
    while let (Some(id), Some(n)) = (u16_at(fields, 0), u16_at(fields, 2)) {
        let field = fields.get(4..4 + usize::from(n)).unwrap_or_default();
        if id == 1 {
            wide = field;
        }
        fields = fields.get(4 + usize::from(n)..).unwrap_or_default();
    }
    // Numbers that do not fit into 32 bits follow each other in the field of wide ones.
    let mut number = |at: usize| match u32_at(directory, at)? {
        u32::MAX => {
            let number = u64_at(wide, 0);
            wide = wide.get(8..).unwrap_or_default();
            number
        }
        number => Some(u64::from(number)),
    };
    let (bytes, stored, start) = (number(24)?, number(20)?, number(42)?);
    let is_encrypted = u16_at(directory, 8)? & 1 != 0;
    if u16_at(directory, 10)? != 0 || is_encrypted || bytes != stored {
        return Some(Err(format!("`{text}` is packed; torch.export writes entries as they are")));
    }
    Some(Ok((Entry { name: text.to_owned(), start, bytes }, behind)))
}

/// The entry with the start of its bytes, which lie behind a header of its own.
fn located(file: &mut File, entry: Entry, length: u64) -> Result<Entry, String> {
    let wrong = || format!("`{}` goes beyond the end of the file", entry.name);
    let own = read(file, entry.start, 30, length).map_err(|_| wrong())?;
    let lengths = u16_at(&own, 26).zip(u16_at(&own, 28)).filter(|_| own.starts_with(b"PK\x03\x04"));
    let (name, extra) = lengths.ok_or_else(|| format!("`{}` has no place", entry.name))?;
    let start = entry.start + 30 + u64::from(name) + u64::from(extra);
    if start.checked_add(entry.bytes).is_none_or(|end| end > length) {
        return Err(wrong());
    }
    Ok(Entry { start, ..entry })
}

/// Bytes of a file, no more than it has.
fn read(file: &mut File, start: u64, bytes: u64, length: u64) -> Result<Vec<u8>, String> {
    if start.checked_add(bytes).is_none_or(|end| end > length) {
        return Err("is no archive: it ends too early".to_owned());
    }
    let mut read = vec![0; bytes as usize];
    let done = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut read));
    done.map(|()| read).map_err(|error| error.to_string())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
