//! The prose of the repository: the length of its pages, the width of their lines, and phrases that
//! are being replaced by the field's words.
//!
//! Every number in a table below may fall and must not rise. A change that shortens a page or
//! removes phrases lowers the number in the same commit.

use crate::source::{code_of, words};
use crate::tree::{Tree, none};
use crate::{CRATES, Crate, repository};
use std::collections::BTreeMap;

/// The longest that a page under `docs/` may be, in bytes: one question, answered in one sitting.
const PAGE_BYTES: usize = 12 * 1024;

/// Bytes of the pages that have a limit of their own.
const PAGES: &[(&str, usize)] =
    &[("README.md", 8 * 1024), ("ARCHITECTURE.md", 25 * 1024), ("BENCHMARKS.md", 15 * 1024)];

/// References that are generated from code: they may be of any length and width.
const GENERATED: [&str; 1] = ["docs/ops.md"];

/// The longest line of Markdown text, in characters. Tables, code and the targets of links are
/// exempt.
const LINE: usize = 100;

/// Phrases with a plain word of the field in their place, in pieces so that this file passes:
/// prefetched, gathered or deinterleaved, in place, rematerialised, streaming, stride, and the
/// number's name.
const PHRASES: [&str; 11] = [
    concat!("told", " apart"),
    concat!("brought", " together"),
    concat!("as it", " lies"),
    concat!("as they", " lie"),
    concat!("where it", " lies"),
    concat!("where they", " lie"),
    concat!("so", " many"),
    concat!("computed", " again"),
    concat!("past", " the caches"),
    concat!("places", " apart"),
    concat!("numbers", " apart"),
];

/// An identifier that does not say what it holds: a workspace, a pool of outputs, buffers.
const IDENTIFIER: &str = concat!("ro", "oms");

/// How often these stand in the code, comments and pages of each crate that has any. Pages, tests
/// and benches of the workspace count as those of `tracecast`.
const COUNTS: &[(&str, usize)] = &[];

#[test]
fn pages_fit_their_limits() {
    none(
        "pages too long: move a subject to its page, or leave out what code says",
        too_long(repository()),
    );
}

#[test]
fn lines_of_pages_are_short() {
    none("pages with lines beyond 100 characters: wrap them", too_wide(repository()));
}

#[test]
fn lines_of_comments_are_short() {
    none("comments with lines beyond 100 characters: wrap them", wide_comments(repository()));
}

#[test]
fn entries_of_the_changelog_are_short() {
    none("entries of more than two lines", long_entries(repository().text("CHANGELOG.md")));
}

#[test]
fn listed_phrases_only_leave() {
    for (name, files) in phrases(repository()) {
        println!("{name:18} {:4} listed phrases", files.values().sum::<usize>());
    }
    none("phrases of `PHRASES` came in: use the field's word", too_many(repository()));
}

/// The limit of a page in bytes. Pages elsewhere, such as a changelog, have none.
fn limit(page: &str) -> Option<usize> {
    let listed = PAGES.iter().find(|(path, _)| *path == page).map(|(_, bytes)| *bytes);
    let general = page.starts_with("docs/") && !GENERATED.contains(&page);
    listed.or(general.then_some(PAGE_BYTES))
}

fn too_long(tree: &Tree) -> Vec<String> {
    let pages = tree.ending("md").filter_map(|(path, text)| Some((path, text.len(), limit(path)?)));
    let long = pages.filter(|(_, bytes, limit)| bytes > limit);
    long.map(|(path, bytes, limit)| format!("{path}: {bytes} bytes, the limit is {limit}"))
        .collect()
}

fn too_wide(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in tree.ending("md").filter(|(path, _)| !GENERATED.contains(path)) {
        wrong.extend(wide_lines(text).into_iter().map(|line| format!("{path}:{line}")));
    }
    wrong
}

/// The comments of Rust files whose lines are too long.
fn wide_comments(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in tree.ending("rs") {
        let blank = |line: &str| {
            let start = line.trim_start();
            let mark = start.len() - start.trim_start_matches('/').trim_start_matches('!').len();
            let is_comment = start.starts_with("//");
            if is_comment {
                " ".repeat(line.len() - start.len() + mark) + &start[mark..]
            } else {
                String::new()
            }
        };
        let comments: Vec<_> = text.lines().map(blank).collect();
        wrong.extend(
            wide_lines(&comments.join("\n")).into_iter().map(|line| format!("{path}:{line}")),
        );
    }
    wrong
}

/// The entries of a changelog that take more than two lines.
fn long_entries(changelog: &str) -> Vec<String> {
    let entries = changelog.split("\n- ").skip(1);
    let entries = entries.map(|entry| entry.split("\n\n").next().unwrap_or_default().trim_end());
    entries.filter(|entry| entry.lines().count() > 2).map(str::to_owned).collect()
}

/// The numbers of the lines of text that are too long.
fn wide_lines(text: &str) -> Vec<usize> {
    let (mut wide, mut in_code) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        if !in_code && !fence && !line.trim_start().starts_with('|') && shown(line) > LINE {
            wide.push(number + 1);
        }
    }
    wide
}

/// The characters of a line without the targets of its links.
fn shown(line: &str) -> usize {
    let mut parts = line.split("](");
    let first = parts.next().unwrap_or_default().chars().count();
    let rest = parts.map(|part| part.split_once(')').map_or(part, |(_, behind)| behind));
    first + rest.map(|part| part.chars().count()).sum::<usize>()
}

fn too_many(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, files) in phrases(tree) {
        let found: usize = files.values().sum();
        let listed =
            COUNTS.iter().find(|(listed, _)| *listed == name).map_or(0, |(_, count)| *count);
        if found > listed {
            wrong.push(format!("{name}: {found}, at most {listed}: {files:?}"));
        }
    }
    wrong
}

/// By crate and file: how often a listed phrase stands there.
fn phrases(tree: &Tree) -> BTreeMap<&'static str, BTreeMap<&str, usize>> {
    let mut found: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
    for (path, text) in tree.ending("rs").chain(tree.ending("md")) {
        let inside = CRATES.iter().filter(|listed| path.starts_with(&listed.place()));
        let name =
            inside.max_by_key(|listed| listed.folder.len()).map_or("", |Crate { name, .. }| name);
        let text = unwrapped(text);
        let said: usize = PHRASES.iter().map(|phrase| whole_words(&text, phrase)).sum();
        let code = if path.ends_with(".rs") { code_of(tree.text(path)) } else { String::new() };
        let called = words(&code).filter(|word| *word == IDENTIFIER).count();
        if said + called > 0 {
            found.entry(name).or_default().insert(path, said + called);
        }
    }
    found
}

/// A text in lower case as one line, without what marks comments, so that phrases may go across
/// lines.
fn unwrapped(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!']).trim());
    lines.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// How often a phrase stands in a text with no letter before and behind it.
fn whole_words(text: &str, phrase: &str) -> usize {
    let letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let found = text.match_indices(phrase).filter(|(at, _)| {
        let (before, behind) = (&text[..*at], &text[at + phrase.len()..]);
        !letter(before.chars().next_back()) && !letter(behind.chars().next())
    });
    found.count()
}

#[test]
fn bad_prose_is_seen() {
    let (long, wide) = ("x\n".repeat(PAGE_BYTES / 2), "é".repeat(LINE));
    let table = format!("| {wide} |\n```text\n {wide}\n```\n[{}]({wide}).\n{wide}\n", &wide[8..]);
    let good = Tree::of(&[
        ("docs/a.md", &long),
        ("docs/b.md", &table),
        ("docs/ops.md", &format!("{long}é")),
    ]);
    assert_eq!(too_long(&good), [""; 0]);
    assert_eq!(too_wide(&good), [""; 0]);
    assert_eq!(too_long(&good.clone().with("docs/new/a.md", &format!("{long}é"))).len(), 1);
    assert_eq!(too_wide(&good.clone().with("new.md", &format!("a\n{wide}é\n"))).len(), 1);

    let comment = format!("    /// {wide}\n    /// ```\n    /// {wide}\n    /// ```\n");
    assert_eq!(wide_comments(&Tree::of(&[("a.rs", &comment)])), ["a.rs:1"]);

    assert_eq!(long_entries("# New\n\n- a\n  b\n- c\n\n- d\n\nText\nof\nthree\n"), [""; 0]);
    assert_eq!(long_entries("- a\n- b\n  c\n  d\n\n- e\n"), ["b\n  c\n  d"]);

    let phrase = format!("//! {}", PHRASES[6].replace(' ', "\n/// ").to_uppercase());
    let code = format!(
        "{phrase}\n/// {IDENTIFIER} are no identifier, {}sy neither\nlet {IDENTIFIER} = 1;\n",
        PHRASES[6]
    );
    let tree = Tree::of(&[("mpi/src/a.rs", &code), ("src/a.rs", "//! Few.\n")]);
    let expected = BTreeMap::from([("mpi/src/a.rs", 2)]);
    assert_eq!(phrases(&tree), BTreeMap::from([("tracecast-mpi", expected)]));
}
