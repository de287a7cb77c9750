//! Rust source as the walls read it: what of a file is code and not text, and what of it is there
//! for tests only.

use crate::tree::none;

/// The attribute of what is compiled for tests only.
const FOR_TESTS: &str = "#[cfg(test)]";

/// The lines of a file that are not for tests only. Files that hold nothing but tests have none.
pub(crate) fn lines_without_tests(path: &str, source: &str) -> usize {
    if is_test_file(path) {
        return 0;
    }
    let tests = items_for_tests(&code_of(source));
    let lines = |part: &str| part.matches('\n').count();
    let of_tests: usize = tests.iter().map(|item| lines(&source[item.clone()]) + 1).sum();
    source.lines().count() - of_tests
}

/// The code of a file, with what is for tests only replaced by spaces as well.
pub(crate) fn code_without_tests(path: &str, source: &str) -> String {
    let mut code = code_of(source);
    if is_test_file(path) {
        return String::new();
    }
    for item in items_for_tests(&code) {
        let blank = code[item.clone()].replace(|c: char| c != '\n', " ");
        code.replace_range(item, &blank);
    }
    code
}

/// Whether a file is a module of tests, by its place: in a folder `tests`, or called so.
fn is_test_file(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    name == "tests.rs" || name.ends_with("_tests.rs") || parts.any(|folder| folder == "tests")
}

/// Where the items for tests only stand in code: from the attribute to the closing brace, or to the
/// semicolon.
fn items_for_tests(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (start, _) in code.match_indices(FOR_TESTS) {
        if found.last().is_some_and(|last| start < last.end) {
            continue;
        }
        let mut depth = 0_usize;
        let behind = start + FOR_TESTS.len();
        let end = code[behind..].char_indices().find_map(|(at, character)| {
            match character {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            let closed = character == '}' || character == ';';
            (closed && depth == 0).then_some(behind + at + 1)
        });
        found.push(start..end.unwrap_or(code.len()));
    }
    found
}

/// The words of code.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !character.is_alphanumeric() && character != '_')
}

/// Source text with its comments, strings and characters replaced by spaces: lines, and places
/// within lines, stay what they are.
pub(crate) fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let in_word = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment_length(rest),
            '"' => string_length(rest),
            '\'' => character_length(rest),
            'r' | 'b' | 'c' if !in_word => raw_string_length(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (text, behind) = rest.split_at(skipped);
        code.extend(text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        rest = behind;
    }
    code
}

/// The length of a block comment; they nest.
fn comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let bytes = &text.as_bytes()[at..];
        if bytes.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// The length of a character such as `'a'` or `'\''`, or zero at a lifetime.
fn character_length(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((_, escaped))) => {
            let start = 2 + escaped.len_utf8();
            text[start..].find('\'').map_or(text.len(), |end| start + end + 1)
        }
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 0,
    }
}

/// The length of a string such as `r#"…"#` or `br"…"`, or zero where there is none.
fn raw_string_length(text: &str) -> usize {
    let quoted = text.trim_start_matches(['b', 'c']);
    let prefix = text.len() - quoted.len();
    let Some(marked) = quoted.strip_prefix('r').filter(|_| prefix <= 1) else { return 0 };
    let opened = marked.trim_start_matches('#');
    let Some(inside) = opened.strip_prefix('"') else { return 0 };
    let close = format!("\"{}", "#".repeat(marked.len() - opened.len()));
    let end = inside.find(&close).map_or(inside.len(), |end| end + close.len());
    text.len() - inside.len() + end
}

#[test]
fn only_code_is_searched() {
    let has = |source: &str| words(&code_of(source)).any(|word| word == "unsafe");
    let code = [
        "unsafe { f() }",
        "#[unsafe(no_mangle)]",
        "/* a /* b */ c */ unsafe fn f() {}",
        "let c = '\"'; unsafe { f(c) }",
        "let c = '\\''; unsafe { f(c) }",
        "fn f<'a>(x: &'a str) { unsafe { g(x) } }",
        "let s = r#\"\"#; unsafe { f(s) }",
        "let s = \"\\\\\"; unsafe { f(s) }",
        "let r#type = r\"\\\"; unsafe { f(r#type) }",
    ];
    let text = [
        "#![allow(unsafe_code)]",
        "// unsafe",
        "/* unsafe /* unsafe */ unsafe */",
        "let s = \"unsafe \\\" unsafe\";",
        "let s = r##\"unsafe \"# unsafe\"##;",
        "let s = br\"unsafe\";",
        "let s = b\"unsafe\";",
    ];
    none("code not seen", code.into_iter().filter(|code| !has(code)).map(str::to_owned));
    none("text taken for code", text.into_iter().filter(|text| has(text)).map(str::to_owned));
}

#[test]
fn places_in_code_are_those_in_the_source() {
    let source = "let a = \"ü\n\"; /* x\ny */ b('é') // c\nd";
    let code = code_of(source);
    assert_eq!((code.len(), code.lines().count()), (source.len(), source.lines().count()));
    assert_eq!(code.find("b("), source.find("b("));
}

#[test]
fn tests_are_no_lines_of_a_crate() {
    let source = "fn f() {}\n#[cfg(test)]\nuse a::{b, c};\nfn g() { \"#[cfg(test)]\" }\n\n\
        #[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn h() {}\n}\nfn i() {}\n#[cfg(test)]\nmod other;\n";
    assert_eq!(lines_without_tests("ir/src/a.rs", source), 4);
    for path in ["ir/src/tests.rs", "ir/src/a/b_tests.rs", "ir/src/tests/a.rs"] {
        assert_eq!(lines_without_tests(path, source), 0, "{path}");
    }
    let code = code_without_tests("ir/src/latests.rs", source);
    assert!(words(&code).any(|word| word == "i") && !words(&code).any(|w| w == "b" || w == "h"));
}
