//! Text into tokens, one at a time. A token borrows the text; nothing is unescaped or converted
//! here.

use crate::graph::names::in_word;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `matmul`, `f32`, `layer.0`: a letter or `_`, then letters, digits, `_` and `.`.
    Word,
    /// `%0`, `%x`, `%"any text"`.
    Value,
    /// `3`, `-0.5`, `1e-5`, `-inf`: digits and what is glued to them.
    Number,
    /// `"text"`, with quotes and escapes as written.
    Text,
    /// One of `=:,#@(){}[]+*/>`, or a `-` that begins no number.
    Mark(char),
    /// The end of the text.
    End,
    /// No token, and why.
    Bad(&'static str),
}

/// A piece of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'s> {
    /// What it is.
    pub(super) kind: Kind,
    /// As written.
    pub(super) text: &'s str,
    /// Where it begins, in bytes.
    pub(super) start: usize,
    /// The line it is on, counted from 1.
    pub(super) line: usize,
}

impl Token<'_> {
    /// Where it ends, in bytes.
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Walks over a text.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
}

impl<'s> Lexer<'s> {
    /// At the beginning.
    pub(super) fn new(source: &'s str) -> Self {
        Lexer { source, at: 0, line: 1 }
    }

    /// The next token; at the end [`Kind::End`] for ever.
    pub(super) fn next(&mut self) -> Token<'s> {
        self.skip_blank();
        let rest = &self.source[self.at..];
        let (kind, length) = scan(rest);
        let token = Token { kind, text: &rest[..length], start: self.at, line: self.line };
        self.at += length;
        token
    }

    /// What is left of the line, without comment and surrounding blanks, as a token.
    pub(super) fn rest_of_line(&mut self) -> Token<'s> {
        self.up_to(&['\n', ';'])
    }

    /// What is left of the line before a text in quotes, without comment and surrounding blanks, as
    /// a token.
    pub(super) fn rest_before_quotes(&mut self) -> Token<'s> {
        self.up_to(&['\n', ';', '"'])
    }

    fn up_to(&mut self, ends: &[char]) -> Token<'s> {
        let rest = &self.source[self.at..];
        let line = &rest[..rest.find(ends).unwrap_or(rest.len())];
        let text = line.trim();
        let start = self.at + (line.len() - line.trim_start().len()).min(line.len());
        self.at += line.len();
        Token { kind: Kind::Text, text, start, line: self.line }
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = &self.source[self.at..];
            let Some(first) = rest.chars().next() else { return };
            if first == '\n' {
                self.line += 1;
            }
            match first {
                ';' => self.at += rest.find('\n').unwrap_or(rest.len()),
                _ if first.is_whitespace() || first == '\u{feff}' => self.at += first.len_utf8(),
                _ => return,
            }
        }
    }
}

/// The kind and the length of the token at the beginning of `rest`, which does not begin with a
/// blank.
fn scan(rest: &str) -> (Kind, usize) {
    let Some(first) = rest.chars().next() else { return (Kind::End, 0) };
    match first {
        '%' => scan_value(rest),
        '"' => scan_text(rest),
        '=' | ':' | ',' | '#' | '@' | '(' | ')' | '{' | '}' | '[' | ']' | '+' | '*' | '/' | '>' => {
            (Kind::Mark(first), 1)
        }
        '-' if !rest[1..].starts_with(in_word) => (Kind::Mark('-'), 1),
        '-' | '0'..='9' => (Kind::Number, number_length(rest)),
        _ if first.is_ascii_alphabetic() || first == '_' => (Kind::Word, word_length(rest)),
        _ => (Kind::Bad("this character has no meaning here"), first.len_utf8()),
    }
}

fn word_length(rest: &str) -> usize {
    rest.find(|c: char| !in_word(c)).unwrap_or(rest.len())
}

/// A sign, then everything a word may hold; also a sign after `e`.
fn number_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        let signed = matches!(bytes[at], b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if !in_word(bytes[at] as char) && !signed {
            break;
        }
        at += 1;
    }
    at
}

fn scan_value(rest: &str) -> (Kind, usize) {
    let name = &rest[1..];
    if name.starts_with('"') {
        let (kind, length) = scan_text(name);
        return (if kind == Kind::Text { Kind::Value } else { kind }, length + 1);
    }
    match word_length(name) {
        0 => (Kind::Bad("a name is to follow `%`"), 1),
        length => (Kind::Value, length + 1),
    }
}

/// Up to the closing quote on the same line.
fn scan_text(rest: &str) -> (Kind, usize) {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            b'\n' => return (Kind::Bad("this text has no closing `\"` on its line"), at),
            b'"' if !escaped => return (Kind::Text, at + 1),
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    (Kind::Bad("this text has no closing `\"` on its line"), rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        let mut lexer = Lexer::new(text);
        std::iter::repeat_with(|| lexer.next())
            .map(|t| (t.kind, t.text))
            .take_while(|t| t.0 != Kind::End)
            .collect()
    }

    #[test]
    fn tokens() {
        assert_eq!(
            kinds("%0 = f.a %\"a \\\" b\", -1e-5x ; not = this\n@#1"),
            [
                (Kind::Value, "%0"),
                (Kind::Mark('='), "="),
                (Kind::Word, "f.a"),
                (Kind::Value, "%\"a \\\" b\""),
                (Kind::Mark(','), ","),
                (Kind::Number, "-1e-5x"),
                (Kind::Mark('@'), "@"),
                (Kind::Mark('#'), "#"),
                (Kind::Number, "1"),
            ]
        );
    }

    #[test]
    fn what_is_no_token() {
        for text in ["%", "\"abc", "%\"abc\nd\"", "é", "&", "\u{0}"] {
            assert!(matches!(kinds(text)[0].0, Kind::Bad(_)), "{text}");
        }
    }

    #[test]
    fn lines_are_counted() {
        let mut lexer = Lexer::new("a\n; b\n\n  c");
        assert_eq!([lexer.next().line, lexer.next().line, lexer.next().line], [1, 4, 4]);
    }
}
