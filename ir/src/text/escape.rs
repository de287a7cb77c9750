//! Escapes in quoted text.

/// The text that `inside`, what stands between quotes, means.
pub(super) fn unescape(inside: &str) -> Result<String, String> {
    let mut out = String::with_capacity(inside.len());
    let mut rest = inside.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match rest.next() {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('0') => '\0',
            Some(c @ ('"' | '\'' | '\\')) => c,
            Some('u') => unicode(&mut rest)?,
            other => {
                return Err(format!(
                    "unknown escape `\\{}`",
                    other.map(String::from).unwrap_or_default()
                ));
            }
        });
    }
    Ok(out)
}

/// The character of `{1f600}`.
fn unicode(rest: &mut std::str::Chars<'_>) -> Result<char, String> {
    let wrong = || "expected a character's number such as `\\u{e9}`".to_owned();
    let (digits, behind) =
        rest.as_str().strip_prefix('{').and_then(|r| r.split_once('}')).ok_or_else(wrong)?;
    let number = if digits.len() <= 6 { u32::from_str_radix(digits, 16).ok() } else { None };
    *rest = behind.chars();
    number.and_then(char::from_u32).ok_or_else(wrong)
}
