//! The files of recorded cases: those of `tests/data`, or of a folder that `TRACECAST_CASES` names.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// A file of that name in `TRACECAST_CASES`, if that names a folder which has one, or our own.
pub(crate) fn file(name: &str) -> Value {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).join(name);
    let given = std::env::var_os("TRACECAST_CASES").map(|folder| PathBuf::from(folder).join(name));
    let path = given.filter(|path| path.exists()).unwrap_or(own);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&strict(&text))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// True if the cases are the repository's own.
pub(crate) fn are_own() -> bool {
    std::env::var_os("TRACECAST_CASES").is_none()
}

/// The file with `Infinity` and `NaN`, which JSON has no words for, written as null.
fn strict(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find('"') {
        let (numbers, string) = rest.split_at(start);
        let mut escaped = false;
        let ends = |(_, byte): &(usize, u8)| {
            let end = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            end
        };
        let end =
            string.bytes().enumerate().skip(1).find(ends).map_or(string.len(), |(at, _)| at + 1);
        out += &numbers
            .replace("-Infinity", "null")
            .replace("Infinity", "null")
            .replace("NaN", "null");
        out += &string[..end];
        rest = &string[end..];
    }
    out + rest
}
