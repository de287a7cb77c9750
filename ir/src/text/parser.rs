//! The parts of a file: version, commands, its head, graphs.

use super::cursor::{Cursor, shorten};
use super::head::Head;
use super::lexer::Kind;
use super::options::{File, Reading, VERSION};
use super::record;
use crate::{Graph, ParseError};

/// Reads a whole file.
pub(super) fn file(text: &str, reading: &Reading<'_>) -> Result<File, ParseError> {
    let mut cursor = Cursor::new(text);
    let mut file = File::default();
    let mut head = Head::default();
    version(&mut cursor)?;
    while cursor.peek().kind != Kind::End {
        if cursor.at_word("test") {
            file.commands.push(cursor.take_line().text.to_owned());
        } else if cursor.at_word("graph") {
            file.graphs.push(record::graph(&mut cursor, reading, &head)?);
        } else if !head.accept(&mut cursor, reading)? {
            return Err(stray(&cursor));
        }
    }
    Ok(file)
}

/// Reads a file that has one graph.
pub(super) fn one_graph(text: &str, reading: &Reading<'_>) -> Result<Graph, ParseError> {
    let mut cursor = Cursor::new(text);
    let mut head = Head::default();
    version(&mut cursor)?;
    loop {
        if cursor.at_word("test") {
            cursor.take_line();
        } else if cursor.at_word("graph") {
            break;
        } else if !head.accept(&mut cursor, reading)? {
            return Err(stray(&cursor));
        }
    }
    let graph = record::graph(&mut cursor, reading, &head)?;
    if cursor.peek().kind == Kind::End {
        Ok(graph)
    } else {
        Err(cursor.unexpected("nothing after the graph"))
    }
}

/// `tracecast 1`, which may be left out.
fn version(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    if !cursor.accept_word("tracecast") {
        return Ok(());
    }
    let token = cursor.take_kind(Kind::Number, "the version of the text")?;
    if token.text == VERSION.to_string() {
        return Ok(());
    }
    Err(cursor.fail(
        token,
        format!(
            "this text is of version {}, and {VERSION} is the only one known",
            shorten(token.text)
        ),
    ))
}

/// What stands where a graph could.
fn stray(cursor: &Cursor<'_>) -> ParseError {
    if cursor.at_word("kernel") {
        return cursor.fail(
            cursor.peek(),
            "kernels are printed but not read: give the graph as it is before `fuse`",
        );
    }
    if cursor.at_word("tracecast") {
        return cursor.fail(cursor.peek(), "the version stands once, at the very beginning");
    }
    cursor.unexpected("`graph`, `region` or `test`")
}
