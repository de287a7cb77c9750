//! Sizes in text: `2*batch + 1` where an integer may stand, and the lines `size` and `guard` at the
//! head of a graph.

use super::cursor::{Cursor, Span, shorten};
use super::lexer::{Kind, Token};
use super::nearest;
use crate::size::{Claim, NamedSize, Relation, Size, SizeGuard, Sizes};
use crate::{Number, ParseError};

/// How deep parentheses may lie inside each other.
const DEEPEST: usize = 32;

/// `size batch = 32 in 1..=64 at "m.rs:7:3"`, on one line. One that does not tell its source comes
/// from its line in `file`.
pub(super) fn declaration(
    cursor: &mut Cursor<'_>,
    sizes: &mut Sizes,
    file: Option<&str>,
) -> Result<(), ParseError> {
    let number = cursor.take().line;
    let line_of_file = file.map(|file| format!("{file}:{number}")).unwrap_or_default();
    let token = cursor.take_kind(Kind::Word, "the name of a size")?;
    if !cursor.at('=') {
        return Err(cursor.unexpected("`=` and the value that the size was traced with"));
    }
    let line = cursor.take_before_quotes();
    let quoted = line.text.strip_suffix(" at").filter(|_| cursor.peek().kind == Kind::Text);
    let text = quoted.unwrap_or(line.text);
    let wrong = || {
        let text = shorten(text);
        cursor.fail(
            line,
            format!("expected a value and perhaps bounds such as `32 in 1..=64`, found `{text}`"),
        )
    };
    let (value, bounds) = match text.split_once(" in ") {
        Some((value, bounds)) => (value, bounds.trim()),
        None => (text, "0.."),
    };
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
    let (least, most) = bounds.split_once("..").ok_or_else(wrong)?;
    let most = match most.strip_prefix('=') {
        Some(most) => Some(number(most)?),
        None if most.is_empty() => None,
        None => Some(number(most)?.saturating_sub(1)),
    };
    let name = Size::named(token.text).name().expect("a name alone");
    let declared = NamedSize { name, least: number(least)?, most, hint: number(value)? };
    let source = match quoted {
        Some(_) => cursor.take_text("a source line in quotes")?,
        None => line_of_file,
    };
    sizes.declare_at(declared, source).map_err(|message| cursor.fail(token, message))
}

/// `guard length == width of "add" at "m.rs:7:3"`
pub(super) fn guard(cursor: &mut Cursor<'_>, sizes: &mut Sizes) -> Result<(), ParseError> {
    let keyword = cursor.take();
    let left = expression(cursor, sizes)?;
    let relation = if cursor.accept_word("divides") {
        Relation::Divides
    } else if cursor.accept('=') {
        cursor.expect('=', "of `==`")?;
        Relation::Equal
    } else if cursor.accept('>') {
        cursor.expect('=', "of `>=`")?;
        Relation::AtLeast
    } else {
        return Err(cursor.unexpected("`==`, `>=` or `divides`"));
    };
    let claim = Claim { left, relation, right: expression(cursor, sizes)? };
    if !cursor.accept_word("of") {
        return Err(cursor.unexpected("`of` and the op that needs this, in quotes"));
    }
    let op = cursor.take_text("the op that needs this, in quotes")?;
    let source = match cursor.accept_word("at") {
        true => cursor.take_text("a source line in quotes")?,
        false => String::new(),
    };
    if !sizes.holds_for_hints(claim) {
        let message = format!("{claim} does not hold for {}", sizes.hints());
        return Err(cursor.fail(keyword, message));
    }
    sizes.guard(SizeGuard { claim, op, source });
    Ok(())
}

/// A size: `2*batch + 1`.
pub(super) fn expression(cursor: &mut Cursor<'_>, sizes: &Sizes) -> Result<Size, ParseError> {
    let start = cursor.peek().start;
    let first = atom(cursor, sizes, 0)?;
    let size = continued(cursor, sizes, first, 0)?;
    let span = Span { start, end: cursor.last_end() };
    in_range(cursor, span, size)
}

/// What follows an atom that has been read. The atom alone if nothing does.
pub(super) fn behind(
    cursor: &mut Cursor<'_>,
    sizes: &Sizes,
    first: Size,
    at: Span,
) -> Result<Size, ParseError> {
    let size = continued(cursor, sizes, first, 0)?;
    let span = Span { start: at.start, end: cursor.last_end() };
    in_range(cursor, span, size)
}

/// `/batch` behind a float.
pub(super) fn ratio(cursor: &mut Cursor<'_>, sizes: &Sizes, of: f64) -> Result<Number, ParseError> {
    cursor.expect('/', "and a size")?;
    Ok(Number::Ratio(of, atom(cursor, sizes, 0)?))
}

/// True if the next token goes on with an expression.
pub(super) fn goes_on(cursor: &Cursor<'_>) -> bool {
    ['+', '-', '*', '/'].into_iter().any(|mark| cursor.at(mark)) || is_subtracted(cursor.peek())
}

/// `-1` behind something, which reads as one token.
fn is_subtracted(token: Token<'_>) -> bool {
    token.kind == Kind::Number && token.text.starts_with('-')
}

fn in_range(cursor: &Cursor<'_>, at: Span, size: Size) -> Result<Size, ParseError> {
    if size.is_out_of_range() {
        return Err(cursor.fail(at, "this size is too large, too long, or divides by zero"));
    }
    Ok(size)
}

/// Terms and factors behind the first atom.
fn continued(
    cursor: &mut Cursor<'_>,
    sizes: &Sizes,
    first: Size,
    depth: usize,
) -> Result<Size, ParseError> {
    let mut sum = factors(cursor, sizes, first, depth)?;
    loop {
        if cursor.accept('+') {
            let next = atom(cursor, sizes, depth)?;
            sum += factors(cursor, sizes, next, depth)?;
        } else if cursor.accept('-') {
            let next = atom(cursor, sizes, depth)?;
            sum -= factors(cursor, sizes, next, depth)?;
        } else if is_subtracted(cursor.peek()) {
            let next = atom(cursor, sizes, depth)?;
            sum += factors(cursor, sizes, next, depth)?;
        } else {
            return Ok(sum);
        }
    }
}

fn factors(
    cursor: &mut Cursor<'_>,
    sizes: &Sizes,
    first: Size,
    depth: usize,
) -> Result<Size, ParseError> {
    let mut product = first;
    loop {
        if cursor.accept('*') {
            product *= atom(cursor, sizes, depth)?;
        } else if cursor.accept('/') {
            product = product / atom(cursor, sizes, depth)?;
        } else {
            return Ok(product);
        }
    }
}

/// A number, a name, or an expression in parentheses.
fn atom(cursor: &mut Cursor<'_>, sizes: &Sizes, depth: usize) -> Result<Size, ParseError> {
    let token = cursor.peek();
    match token.kind {
        Kind::Number => cursor.take_number::<i64>("a size").map(Size::from),
        Kind::Word => name(cursor, sizes),
        Kind::Mark('(') if depth < DEEPEST => {
            cursor.take();
            let first = atom(cursor, sizes, depth + 1)?;
            let size = continued(cursor, sizes, first, depth + 1)?;
            cursor.expect(')', "after the size in parentheses")?;
            Ok(size)
        }
        Kind::Mark('(') => Err(cursor.fail(token, "these parentheses lie too deep")),
        _ => Err(cursor.unexpected("a size")),
    }
}

/// A name that has a line.
fn name(cursor: &mut Cursor<'_>, sizes: &Sizes) -> Result<Size, ParseError> {
    let token = cursor.take();
    if sizes.get(token.text).is_some() {
        return Ok(Size::named(token.text));
    }
    let known = sizes.names().iter().map(|known| known.name);
    let hint = nearest::did_you_mean(token.text, known);
    let message =
        format!("`{}` has no line `size {} = …`{hint}", shorten(token.text), shorten(token.text));
    Err(cursor.fail(token, message))
}
