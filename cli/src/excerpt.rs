//! Errors of the parser, with the place and the line they speak of.
//!
//! ```text
//! unknown op `negg`: did you mean `neg`?
//!   --> step.tc:3:8
//!    |
//!  3 |   %0 = negg %x : f32[2, 3]
//!    |        ^^^^
//! ```

use std::fmt::Write;

use tracecast_ir::ParseError;

/// How much of a long line is shown, in characters.
const WIDTH: usize = 100;

/// How much of a long line is shown before the place, in characters.
const BEFORE: usize = 40;

/// The message with the line of the text it speaks of.
pub(crate) fn excerpt(file: &str, text: &str, error: &ParseError) -> String {
    let ParseError { line, column, length, message } = error;
    let mut shown = format!("{message}\n  --> {file}:{line}:{column}");
    let Some(source) = text.lines().nth(line.saturating_sub(1)) else { return shown };
    let place = column.saturating_sub(1);
    let skipped = if source.chars().count() <= WIDTH { 0 } else { place.saturating_sub(BEFORE) };
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let mut visible: String = source.chars().skip(skipped).take(WIDTH).map(printable).collect();
    let room = visible.chars().count();
    if skipped > 0 {
        visible.replace_range(..visible.chars().next().map_or(0, char::len_utf8), "…");
    }
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let indent = " ".repeat(place - skipped);
    let carets = "^".repeat((*length).clamp(1, (room + 1).saturating_sub(place - skipped).max(1)));
    write!(shown, "\n {margin} |\n {number} | {visible}\n {margin} | {indent}{carets}")
        .expect("writing to a string cannot fail");
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, line: usize, column: usize, length: usize) -> String {
        let error = ParseError { line, column, length, message: "wrong".to_owned() };
        excerpt("a.tc", text, &error)
    }

    #[test]
    fn the_place_is_underlined() {
        let text = "graph @g() {\n\té = negg %x\n}";
        let expected = "wrong\n  --> a.tc:2:6\n   |\n 2 |  é = negg %x\n   |      ^^^^";
        assert_eq!(shown(text, 2, 6, 4), expected);
    }

    #[test]
    fn the_end_of_a_text_is_a_place_too() {
        assert!(shown("graph", 1, 6, 1).ends_with(" 1 | graph\n   |      ^"));
        assert_eq!(shown("graph\n", 2, 1, 1), "wrong\n  --> a.tc:2:1");
        assert_eq!(shown("", 0, 0, 0), "wrong\n  --> a.tc:0:0");
    }

    #[test]
    fn long_lines_are_shown_around_the_place() {
        let text = format!("{}bad{}", "é".repeat(5000), "x".repeat(5000));
        let shown = shown(&text, 1, 5001, 3);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[3].starts_with(" 1 | …éé") && lines[3].chars().count() == 105, "{shown}");
        let at = lines[4].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[3].chars().skip(at).take(3).collect::<String>(), "bad");
        assert!(lines[4].ends_with(" ^^^"));
    }
}
