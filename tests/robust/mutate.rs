//! Programs that are almost right: mutations of the text of valid ones.

use crate::support::dice::Dice;
use tracecast_ir::text::{self, ParseOptions};
use tracecast_ir::{DType, Graph, ParseError};

/// Numbers at which arithmetic about shapes and attributes goes wrong.
const NUMBERS: [&str; 30] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "64",
    "65536",
    "2147483648",
    "-2147483649",
    "4294967296",
    "9007199254740993",
    "4611686018427387904",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "0.0",
    "-0.0",
    "0.5",
    "1e-45",
    "1e39",
    "1e308",
    "-1e400",
    "inf",
    "-inf",
    "nan",
    "true",
    "[]",
];

/// Words and signs of the grammar, and some that are none.
const WORDS: [&str; 30] = [
    "none", "param", "state", "grad", "on", "cuda", "return", "update", "graph", "region", "in",
    "at", "=", ":", ",", "(", ")", "{", "}", "[", "]", "@#1", "\"", "\"sum\"", "\"none\"",
    "\"tanh\"", "\"max\"", "%", ";", "é",
];

/// A text as words, signs and the blanks between them; together they are the text.
pub(crate) fn tokens(text: &str) -> Vec<&str> {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let head = first.len_utf8();
        let length = match first {
            '"' => rest[1..].find(['"', '\n']).map_or(rest.len(), |n| n + 2),
            '%' | '-' => head + rest[head..].find(|c| !in_word(c)).unwrap_or(rest.len() - head),
            c if in_word(c) => rest.find(|c| !in_word(c)).unwrap_or(rest.len()),
            _ => head,
        };
        let (token, after) = rest.split_at(length);
        out.push(token);
        rest = after;
    }
    out
}

/// Changes a few tokens, or takes lines from another text.
pub(crate) fn mutate(dice: &mut Dice, text: &str, other: &str) -> String {
    let mut text = text.to_owned();
    if dice.chance(25) {
        text = spliced(dice, &text, other);
    }
    for _ in 0..1 + dice.below(3) {
        text = changed(dice, &text);
    }
    text
}

/// One change; most of them keep the kind of the token.
fn changed(dice: &mut Dice, text: &str) -> String {
    let mut tokens: Vec<String> = tokens(text).into_iter().map(str::to_owned).collect();
    let solid: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].trim().is_empty()).collect();
    if solid.is_empty() {
        return text.to_owned();
    }
    // The first line has most of what no mutant survives.
    let at = solid[dice.below(solid.len()).max(dice.below(solid.len()))];
    let kind = |t: &str| match t.as_bytes()[0] {
        b'%' => 0,
        b'0'..=b'9' | b'-' => 1,
        _ if t.parse::<DType>().is_ok() => 2,
        _ if tracecast_ir::ops::find(t).is_some() => 3,
        _ => 4,
    };
    let alike: Vec<usize> =
        solid.iter().copied().filter(|&i| kind(&tokens[i]) == kind(&tokens[at])).collect();
    match dice.below(16) {
        0 => tokens[at] = String::new(),
        1 => tokens[at] = tokens[at].repeat(2),
        2 => tokens[at] = dice.pick(&WORDS).to_owned(),
        3 => tokens.swap(at, alike[dice.below(alike.len())]),
        4 => {
            let list: Vec<&str> = (0..dice.below(4)).map(|_| dice.pick(&NUMBERS[..17])).collect();
            tokens[at] = format!("[{}]", list.join(", "));
        }
        _ => match kind(&tokens[at]) {
            0 => tokens[at] = tokens[alike[dice.below(alike.len())]].clone(),
            1 => tokens[at] = dice.pick(&NUMBERS).to_owned(),
            2 => tokens[at] = dice.pick(&DType::ALL).to_string(),
            3 => {
                let ops: Vec<&str> = tracecast_ir::ops::all().map(|op| op.name.text()).collect();
                tokens[at] = dice.pick(&ops).to_owned();
            }
            _ => tokens[at] = tokens[alike[dice.below(alike.len())]].clone(),
        },
    }
    tokens.concat()
}

/// Some lines of another text between the lines of this one.
fn spliced(dice: &mut Dice, text: &str, other: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let others: Vec<&str> = other.lines().filter(|l| l.contains(" = ")).collect();
    if lines.len() > 2 && !others.is_empty() {
        for _ in 0..1 + dice.below(4) {
            let at = 1 + dice.below(lines.len() - 1);
            lines.insert(at, others[dice.below(others.len())]);
        }
    }
    lines.join("\n")
}

/// Follows the parser's errors until the text is a program: writes the type that an op gives,
/// defines names that are missing, leaves lines out that are beyond repair.
pub(crate) fn repaired(
    dice: &mut Dice,
    mut text: String,
) -> Result<(String, Graph), (String, ParseError)> {
    let options = ParseOptions { file: Some("text".to_owned()), ..ParseOptions::default() };
    let mut last = None;
    for _ in 0..40 {
        let error = match text::parse_with(&text, &options) {
            Ok(graph) => return Ok((text, graph)),
            Err(error) => error,
        };
        let Some(next) = repair(dice, &text, &error) else { return Err((text, error)) };
        text = next;
        last = Some(error);
    }
    Err((text, last.expect("at least one error")))
}

fn repair(dice: &mut Dice, text: &str, error: &ParseError) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = lines.get_mut(error.line - 1)?;
    let cut = |line: &str, column: usize| {
        line.char_indices().nth(column).map_or(line.len(), |(at, _)| at)
    };
    let (from, to) = (cut(line, error.column - 1), cut(line, error.column - 1 + error.length));
    if let Some((ty, _)) =
        error.message.strip_prefix("expected ").and_then(|m| m.split_once(", the type that `"))
    {
        line.replace_range(from..to, ty);
    } else if error.message.contains("is not defined before") {
        let known: Vec<&str> = tokens(text).into_iter().filter(|t| t.starts_with('%')).collect();
        line.replace_range(from..to, known[..known.len().min(8)][dice.below(known.len().min(8))]);
    } else if line.starts_with("graph") || !line.contains('%') {
        return None;
    } else {
        line.clear();
    }
    Some(lines.join("\n"))
}
