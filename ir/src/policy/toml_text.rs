//! Positions in TOML text, and strings as TOML writes them.

/// The line and the column of a place in a text, counted from 1.
pub(super) fn place(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    (line, 1 + String::from_utf8_lossy(&before[start..]).chars().count())
}

/// A text as a TOML string on one line: what stands for a key must not go over several, and what
/// follows it is found by its line.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_letters() {
        assert_eq!(
            (place("aé\nüx", 3), place("aé\nüx", 6), place("", 9)),
            ((1, 3), (2, 2), (1, 1))
        );
    }
}
