//! A [`Cursor`]: the next token, what the grammar may ask of it, and errors that know their place.

use super::escape;
use super::lexer::{Kind, Lexer, Token};
use crate::ParseError;

/// Reads a text token by token, with one token seen ahead.
pub(super) struct Cursor<'s> {
    source: &'s str,
    lexer: Lexer<'s>,
    next: Token<'s>,
    last_end: usize,
}

/// A range of bytes of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The first byte.
    pub(super) start: usize,
    /// Behind the last byte.
    pub(super) end: usize,
}

impl From<Token<'_>> for Span {
    fn from(token: Token<'_>) -> Self {
        Span { start: token.start, end: token.end() }
    }
}

impl<'s> Cursor<'s> {
    /// At the first token.
    pub(super) fn new(source: &'s str) -> Self {
        let mut lexer = Lexer::new(source);
        let next = lexer.next();
        Cursor { source, lexer, next, last_end: 0 }
    }

    /// The next token, which stays.
    pub(super) fn peek(&self) -> Token<'s> {
        self.next
    }

    /// Where the token taken last ends.
    pub(super) fn last_end(&self) -> usize {
        self.last_end
    }

    /// Takes the next token.
    pub(super) fn take(&mut self) -> Token<'s> {
        let token = self.next;
        self.last_end = token.end();
        self.next = self.lexer.next();
        token
    }

    /// Takes the next token and with it the rest of its line, and returns the latter.
    pub(super) fn take_line(&mut self) -> Token<'s> {
        let line = self.lexer.rest_of_line();
        self.behind(line)
    }

    /// Takes the next token and with it the rest of its line up to a text in quotes, and returns
    /// the latter.
    pub(super) fn take_before_quotes(&mut self) -> Token<'s> {
        let line = self.lexer.rest_before_quotes();
        self.behind(line)
    }

    fn behind(&mut self, taken: Token<'s>) -> Token<'s> {
        self.last_end = taken.end();
        self.next = self.lexer.next();
        taken
    }

    /// True if that mark is next.
    pub(super) fn at(&self, mark: char) -> bool {
        self.next.kind == Kind::Mark(mark)
    }

    /// Takes the mark if it is next.
    pub(super) fn accept(&mut self, mark: char) -> bool {
        let found = self.at(mark);
        if found {
            self.take();
        }
        found
    }

    /// Takes the word if it is next.
    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.take();
        }
        found
    }

    /// True if that word is next.
    pub(super) fn at_word(&self, word: &str) -> bool {
        self.next.kind == Kind::Word && self.next.text == word
    }

    /// Takes the mark.
    pub(super) fn expect(&mut self, mark: char, purpose: &str) -> Result<(), ParseError> {
        if self.accept(mark) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{mark}` {purpose}")))
        }
    }

    /// Takes a token of a kind.
    pub(super) fn take_kind(&mut self, kind: Kind, what: &str) -> Result<Token<'s>, ParseError> {
        if self.next.kind == kind { Ok(self.take()) } else { Err(self.unexpected(what)) }
    }

    /// Takes a word, or any text in quotes.
    pub(super) fn take_name(&mut self, what: &str) -> Result<(String, Span), ParseError> {
        match self.next.kind {
            Kind::Word => {
                let token = self.take();
                Ok((token.text.to_owned(), token.into()))
            }
            Kind::Text => {
                let token = self.take();
                Ok((self.unescape(token)?, token.into()))
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Takes text in quotes.
    pub(super) fn take_text(&mut self, what: &str) -> Result<String, ParseError> {
        let token = self.take_kind(Kind::Text, what)?;
        self.unescape(token)
    }

    /// Takes a whole number of type `T`.
    pub(super) fn take_number<T: std::str::FromStr>(
        &mut self,
        what: &str,
    ) -> Result<T, ParseError> {
        let token = self.take_kind(Kind::Number, what)?;
        let digits = token.text.bytes().all(|b| b.is_ascii_digit());
        token.text.parse().map_err(|_| {
            let text = shorten(token.text);
            let why = if digits {
                format!("{text} is too large")
            } else {
                format!("expected {what}, found `{text}`")
            };
            self.fail(token, why)
        })
    }

    /// The text that a token in quotes stands for; the quotes may follow a `%`.
    pub(super) fn unescape(&self, token: Token<'s>) -> Result<String, ParseError> {
        let inside = token.text.trim_start_matches('%');
        escape::unescape(&inside[1..inside.len() - 1]).map_err(|message| self.fail(token, message))
    }

    /// The error that the next token is not what it should be.
    pub(super) fn unexpected(&self, wanted: &str) -> ParseError {
        match self.next.kind {
            Kind::Bad(why) => self.fail(self.next, why.to_owned()),
            Kind::End => {
                self.fail(self.next, format!("expected {wanted}, found the end of the text"))
            }
            _ => self
                .fail(self.next, format!("expected {wanted}, found `{}`", shorten(self.next.text))),
        }
    }

    /// An error at a place.
    pub(super) fn fail(&self, at: impl Into<Span>, message: impl Into<String>) -> ParseError {
        let Span { start, end } = at.into();
        let before = &self.source[..start];
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        let covered = self.source[start..end].lines().next().unwrap_or("");
        ParseError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            length: covered.chars().count().max(1),
            message: message.into(),
        }
    }
}

/// The text, cut to what fits into a message.
pub(super) fn shorten(text: &str) -> String {
    const LONGEST: usize = 40;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
