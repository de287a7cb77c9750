//! Attribute values, types and escapes: the leaves of the grammar.

use super::cursor::{Cursor, Span, shorten};
use super::lexer::{Kind, Token};
use super::{nearest, size};
use crate::{Attr, DType, Number, ParseError, Shape, Size, Sizes, TensorType};

/// A type such as `f32[8, 4]`, and where it is written.
pub(super) fn tensor_type(
    cursor: &mut Cursor<'_>,
    sizes: &Sizes,
) -> Result<(TensorType, Span), ParseError> {
    let first = cursor.take_kind(Kind::Word, "a type such as `f32[2, 3]`")?;
    let dtype = dtype(first).ok_or_else(|| cursor.fail(first, unknown_dtype(first.text)))?;
    cursor.expect('[', "and the sizes after the dtype")?;
    let mut shape = Vec::new();
    while !cursor.accept(']') {
        let token = cursor.peek();
        shape.push(match token.kind {
            Kind::Word | Kind::Mark('(') => size::expression(cursor, sizes)?,
            _ => {
                let number = Size::from(cursor.take_number::<usize>("a size")?);
                size::behind(cursor, sizes, number, token.into())?
            }
        });
        if !cursor.accept(',') && !cursor.at(']') {
            return Err(cursor.unexpected("`,` or `]` after a size"));
        }
    }
    let span = Span { start: first.start, end: cursor.last_end() };
    let ty = TensorType { dtype, shape: Shape::new(&shape) };
    ty.check_size().map_err(|message| cursor.fail(span, message))?;
    Ok((ty, span))
}

fn dtype(token: Token<'_>) -> Option<DType> {
    token.text.parse().ok()
}

fn unknown_dtype(text: &str) -> String {
    let names = DType::ALL.map(|dtype| dtype.name());
    let hint = match nearest::did_you_mean(text, names.iter().copied()) {
        none if none.is_empty() => format!(": expected one of {}", names.join(", ")),
        some => some,
    };
    format!("unknown dtype `{}`{hint}", shorten(text))
}

/// A value behind `name =` among the attributes.
pub(super) fn attr(cursor: &mut Cursor<'_>, sizes: &Sizes) -> Result<Attr, ParseError> {
    const WANTED: &str = "a number, a dtype, a list of numbers, `true`, `false` or text in quotes";
    let token = cursor.peek();
    match token.kind {
        Kind::Mark('-') => number(cursor),
        Kind::Number | Kind::Mark('(') => number_or_size(cursor, sizes),
        Kind::Text => Ok(Attr::Str(cursor.take_text("text")?.into())),
        Kind::Mark('[') => list(cursor, sizes),
        Kind::Mark('@') => Err(cursor.fail(
            token,
            "kernels are printed but not read: give the graph as it is before `fuse`",
        )),
        Kind::Word => match token.text {
            "true" | "false" => Ok(Attr::Bool(cursor.take().text == "true")),
            "inf" | "nan" => number(cursor),
            name if sizes.get(name).is_some() => number_or_size(cursor, sizes),
            _ => match dtype(token) {
                Some(dtype) => {
                    cursor.take();
                    Ok(Attr::DType(dtype))
                }
                None => Err(cursor
                    .fail(token, format!("expected {WANTED}, found `{}`", shorten(token.text)))),
            },
        },
        _ => Err(cursor.unexpected(WANTED)),
    }
}

/// Integers, or numbers if one of them is not an integer.
fn list(cursor: &mut Cursor<'_>, sizes: &Sizes) -> Result<Attr, ParseError> {
    let open = cursor.peek();
    cursor.expect('[', "before a list")?;
    let mut numbers = Vec::new();
    while !cursor.accept(']') {
        let token = cursor.peek();
        let number = number_or_size(cursor, sizes)?;
        if matches!(number, Attr::Number(_)) {
            return Err(cursor.fail(token, "a list takes sizes and numbers, no quotients of both"));
        }
        numbers.push(number);
        if !cursor.accept(',') && !cursor.at(']') {
            return Err(cursor.unexpected("`,` or `]` after a number"));
        }
    }
    if numbers.iter().any(|n| matches!(n, Attr::Size(_))) {
        let sizes = numbers.iter().map(|n| match n {
            Attr::Int(i) => Some(Size::from(*i)),
            Attr::Size(size) => Some(*size),
            _ => None,
        });
        let sizes = sizes.collect::<Option<Vec<_>>>();
        let sizes = sizes.ok_or_else(|| cursor.fail(open, "a list takes integers beside sizes"))?;
        return Ok(Attr::from(&sizes[..]));
    }
    let ints = numbers.iter().map(|n| if let Attr::Int(i) = n { Some(*i) } else { None });
    Ok(match ints.collect::<Option<_>>() {
        Some(ints) => Attr::Ints(ints),
        None => Attr::Floats(
            numbers
                .iter()
                .map(|n| match n {
                    Attr::Int(i) => *i as f64,
                    Attr::Float(v) => *v,
                    _ => f64::NAN,
                })
                .collect(),
        ),
    })
}

/// A number, or an expression of sizes that begins with one, a name or a parenthesis.
fn number_or_size(cursor: &mut Cursor<'_>, sizes: &Sizes) -> Result<Attr, ParseError> {
    let token = cursor.peek();
    if matches!(token.kind, Kind::Mark('(')) || sizes.get(token.text).is_some() {
        return size::expression(cursor, sizes).map(Attr::from);
    }
    match number(cursor)? {
        Attr::Int(first) if size::goes_on(cursor) => {
            size::behind(cursor, sizes, Size::from(first), token.into()).map(Attr::from)
        }
        Attr::Float(of) if cursor.at('/') => {
            size::ratio(cursor, sizes, of).map(|ratio: Number| ratio.into())
        }
        number => Ok(number),
    }
}

/// An integer, or a float if it has a point, an exponent or a name.
fn number(cursor: &mut Cursor<'_>) -> Result<Attr, ParseError> {
    let token = cursor.peek();
    if !matches!(token.kind, Kind::Number | Kind::Word) {
        return Err(cursor.unexpected("a number"));
    }
    cursor.take();
    let plain =
        token.text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let whole = token.text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'-'));
    let bad = || cursor.fail(token, format!("expected a number, found `{}`", shorten(token.text)));
    match token.text {
        "inf" => return Ok(Attr::Float(f64::INFINITY)),
        "-inf" => return Ok(Attr::Float(f64::NEG_INFINITY)),
        "nan" => return Ok(Attr::Float(f64::NAN)),
        _ if !plain || token.kind == Kind::Word => return Err(bad()),
        _ => {}
    }
    if whole {
        let too_large = |_| {
            let digits = token.text.trim_start_matches('-');
            let is_number = !digits.is_empty() && !digits.contains('-');
            if is_number {
                cursor.fail(token, format!("{} does not fit in 64 bits", shorten(token.text)))
            } else {
                bad()
            }
        };
        return token.text.parse().map(Attr::Int).map_err(too_large);
    }
    match token.text.parse::<f64>() {
        Ok(v) if v.is_finite() => Ok(Attr::Float(v)),
        Ok(_) => Err(cursor.fail(
            token,
            format!(
                "{} is too large for 64 bits: write `inf` if that is meant",
                shorten(token.text)
            ),
        )),
        Err(_) => Err(bad()),
    }
}
