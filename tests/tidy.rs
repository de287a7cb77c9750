//! The rules of the house, checked like any other behaviour: sizes, module docs, where `unsafe` may stand, who may depend
//! on whom, names, and generated documentation that is fresh.
//!
//! The checks read the working tree as text. `TRACECAST_BLESS=1` rewrites `docs/ops.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest a source file may be.
const LONGEST: usize = 600;

/// Where the keyword `unsafe` may stand: the owner of executable memory, the owner of the addresses that a run works on, the routines and
/// contractions written with `std::arch`, and the threads that work on what their caller lends.
const UNSAFE_FILES: [&str; 5] = [
    "codegen/src/code/link.rs",
    "codegen/src/run/memory.rs",
    "codegen/src/routines/",
    "codegen/src/contract/",
    "codegen/src/threads/",
];

/// File names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "helpers.rs", "common.rs", "types.rs", "misc.rs"];

/// Folders of filetests that are commands and not passes.
const COMMANDS: [&str; 8] =
    ["parse", "verify", "fuse", "clif", "run", "pipeline", "eval", "explain"];

/// Text that marks unfinished work or speaks of a place outside the repository. In pieces, so that this file passes.
const FORBIDDEN: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("../", "shared"),
    concat!("todo", "!("),
    concat!("#[", "ignore"),
];

/// A crate of the workspace.
struct Crate {
    name: &'static str,
    folder: &'static str,
    /// The crates of the workspace it may depend on.
    knows: &'static [&'static str],
    /// About how many lines it should have, tests excluded.
    guide: usize,
}

const CRATES: [Crate; 6] = [
    Crate { name: "tracecast-ir", folder: "ir", knows: &[], guide: 6000 },
    Crate { name: "tracecast-passes", folder: "passes", knows: &["tracecast-ir"], guide: 3500 },
    Crate {
        name: "tracecast-codegen",
        folder: "codegen",
        knows: &["tracecast-ir", "tracecast-runtime"],
        guide: 6000,
    },
    Crate { name: "tracecast-runtime", folder: "runtime", knows: &["tracecast-ir"], guide: 2000 },
    Crate {
        name: "tracecast",
        folder: "",
        knows: &["tracecast-ir", "tracecast-passes", "tracecast-runtime", "tracecast-codegen"],
        guide: 3000,
    },
    Crate {
        name: "tracecast-cli",
        folder: "cli",
        knows: &[
            "tracecast",
            "tracecast-ir",
            "tracecast-passes",
            "tracecast-runtime",
            "tracecast-codegen",
        ],
        guide: 1500,
    },
];

#[test]
fn files_are_short() {
    let long = texts(&["rs"]).into_iter().filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LONGEST).then(|| format!("{path}: {lines} lines, the limit is {LONGEST}"))
    });
    none("a file is one idea; split these by idea", long);
}

#[test]
fn files_open_with_what_they_own() {
    let undocumented = texts(&["rs"]).into_iter().filter(|(_, text)| !text.starts_with("//!"));
    none("these files do not open with `//!`", undocumented.map(|(path, _)| path));
}

#[test]
fn unsafe_stands_in_five_places() {
    let elsewhere = texts(&["rs"]).into_iter().filter(|(path, text)| {
        let excepted = UNSAFE_FILES.iter().any(|place| path.starts_with(place));
        !excepted && words(&code_of(text)).any(|word| word == "unsafe")
    });
    none(&format!("`unsafe` may stand in {UNSAFE_FILES:?} only"), elsewhere.map(|(path, _)| path));
}

#[test]
fn names_say_what_is_inside() {
    let empty = texts(&["rs"]).into_iter().filter_map(|(path, _)| {
        let name = path.rsplit('/').next().unwrap_or_default();
        EMPTY_NAMES.contains(&name).then_some(path)
    });
    none("these names are dumping grounds", empty);
}

#[test]
fn nothing_unfinished_and_no_outside_places() {
    let mut found = Vec::new();
    for (path, text) in texts(&["rs", "md", "toml", "tc", "yml"]) {
        for (number, line) in text.lines().enumerate() {
            let marks = FORBIDDEN.iter().filter(|mark| line.contains(**mark));
            found.extend(marks.map(|mark| format!("{path}:{}: {mark}", number + 1)));
        }
    }
    none("text that must not be in the repository", found.into_iter());
}

#[test]
fn crates_know_only_whom_they_may() {
    let mut wrong = Vec::new();
    for Crate { name, folder, knows, .. } in &CRATES {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        assert!(
            manifest.contains(&format!("name = \"{name}\"\n")),
            "{folder}/Cargo.toml is not that of {name}"
        );
        let ours = dependencies(&manifest)
            .into_iter()
            .filter(|dependency| dependency.starts_with("tracecast"));
        let unknown = ours.filter(|dependency| !knows.contains(&dependency.as_str()));
        wrong.extend(unknown.map(|dependency| format!("{name} -> {dependency}")));
    }
    none("edges between crates that ARCHITECTURE.md does not have", wrong.into_iter());
}

#[test]
fn every_crate_is_listed_here() {
    let manifests = files(&["toml"]).into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let folders: BTreeSet<String> =
        manifests.map(|path| path.trim_end_matches("Cargo.toml").to_owned()).collect();
    let listed = CRATES.iter().map(|listed| listed.folder);
    let listed = listed
        .map(|folder| if folder.is_empty() { String::new() } else { format!("{folder}/") })
        .collect();
    assert_eq!(folders, listed);
}

#[test]
fn growth_is_seen() {
    let sources = texts(&["rs"]);
    for Crate { name, folder, guide, .. } in &CRATES {
        let src = if folder.is_empty() { "src/".to_owned() } else { format!("{folder}/src/") };
        let of_crate = sources
            .iter()
            .filter(|(path, _)| path.starts_with(&src) && !path.ends_with("/tests.rs"));
        let lines: usize = of_crate.map(|(_, text)| lines_before_tests(text)).sum();
        println!("{name:18} {lines:6} lines without tests, about {guide} wanted");
        assert!(lines > 0, "nothing found under {src}");
    }
}

#[test]
fn the_op_page_is_fresh() {
    let path = root().join("docs/ops.md");
    let expected = tracecast_ir::ops::docs();
    if std::env::var_os("TRACECAST_BLESS").is_some() {
        fs::create_dir_all(root().join("docs")).expect("docs/ can be made");
        fs::write(&path, &expected).expect("docs/ops.md can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    let differs =
        expected.lines().zip(found.lines()).position(|(expected, found)| expected != found);
    let line = differs.unwrap_or_else(|| expected.lines().count().min(found.lines().count())) + 1;
    assert!(
        found == expected,
        "docs/ops.md is stale from line {line} on; run the tests with TRACECAST_BLESS=1"
    );
}

#[test]
fn every_pass_has_filetests() {
    let passes: BTreeSet<String> =
        tracecast_passes::names().into_iter().map(str::to_owned).collect();
    let tests = files(&["tc"]).into_iter();
    let folders: BTreeSet<String> = tests
        .filter_map(|path| {
            Some(path.strip_prefix("tests/filetests/")?.split_once('/')?.0.to_owned())
        })
        .collect();
    none("passes without a folder in tests/filetests", passes.difference(&folders).cloned());
    let known = |folder: &String| passes.contains(folder) || COMMANDS.contains(&folder.as_str());
    none(
        "folders in tests/filetests that are no pass and no command",
        folders.into_iter().filter(|f| !known(f)),
    );
}

/// Fails with one line for each thing found.
fn none(what: &str, found: impl Iterator<Item = String>) {
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .replace("\r\n", "\n")
}

/// The files with one of these endings, each by its path from the root with `/` between the parts, and its text.
fn texts(endings: &[&str]) -> Vec<(String, String)> {
    files(endings)
        .into_iter()
        .map(|path| {
            let text = read(&root().join(&path));
            (path, text)
        })
        .collect()
}

/// The paths of [`texts`], sorted. Build folders and hidden folders are left out, apart from the workflows.
fn files(endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let entry = entry.expect("an entry of a folder can be read");
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().expect("an entry of a folder has a kind");
            if kind.is_dir() {
                let hidden = name.starts_with('.') && name != ".github";
                let built = name == "target" || path.join("CACHEDIR.TAG").exists();
                if !hidden && !built {
                    folders.push(path);
                }
            } else if kind.is_file()
                && path.extension().is_some_and(|end| endings.iter().any(|e| end == *e))
            {
                found.push(from_root(&path));
            }
        }
    }
    found.sort();
    found
}

fn from_root(path: &Path) -> String {
    let path: PathBuf =
        path.strip_prefix(root()).expect("the walk began at the root").to_path_buf();
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// The lines up to the tests at the end of a file.
fn lines_before_tests(text: &str) -> usize {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().lines().count()
}

/// The packages a manifest depends on when it is built; what only its tests and benches need is left out.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut listing = false;
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (table, package) = match header.rsplit_once("dependencies.") {
                Some((table, package)) => (format!("{table}dependencies"), Some(package)),
                None => (header.to_owned(), None),
            };
            listing = table.ends_with("dependencies") && !table.ends_with("dev-dependencies");
            listing &= !table.starts_with("workspace");
            found.extend(package.filter(|_| listing).map(str::to_owned));
            listing &= package.is_none();
        } else if let Some((key, value)) = line.split_once('=').filter(|_| listing) {
            let renamed = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
            let name = key.split('.').next().unwrap_or_default().trim().trim_matches('"');
            found.push(renamed.unwrap_or(name).to_owned());
        }
    }
    found
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !character.is_alphanumeric() && character != '_')
}

/// Source text with its comments, strings and characters replaced by spaces.
fn code_of(source: &str) -> String {
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
        let step = if skipped > 0 { skipped } else { first.len_utf8() };
        code.push(if skipped > 0 { ' ' } else { first });
        rest = &rest[step..];
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
fn manifests_are_read() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = { path = \"b\" }\n# c = \"1\"\n\
        [dependencies.d]\nversion = \"1\"\n[dev-dependencies]\ne = \"1\"\n[target.'cfg(unix)'.dependencies]\n\
        f = { package = \"g\", version = \"1\" }\n[workspace.dependencies]\nh = \"1\"\n[build-dependencies]\ni = \"1\"\n";
    assert_eq!(dependencies(manifest), ["a", "b", "d", "g", "i"]);
}
