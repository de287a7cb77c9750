//! Who imports whom: the rooms of a crate, which are the folders and the files beside `lib.rs` or
//! `main.rs`, and the imports between them, by `use` and by paths in the midst of code. Read from
//! source text; code for tests may import what it likes.
//!
//! The root file is a room of its own where it defines something. What it declares or only hands on
//! is not: an import of such a name is one of the room that the name comes from.

use crate::source::code_without_tests;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// The room of the root file.
pub(crate) const ROOT: &str = "lib";

/// The rooms that each room imports, and from which file.
pub(crate) type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// The modules of a crate.
struct Modules {
    /// The path of each, without `crate`; the root is the empty one.
    paths: BTreeSet<Vec<String>>,
    /// What the root file hands on, under its name there: the path it comes from.
    handed_on: BTreeMap<String, Vec<String>>,
}

/// The imports between the rooms of the crate whose sources lie in `src`, such as `ir/src/`.
pub(crate) fn imports(tree: &Tree, src: &str) -> Imports {
    let files = tree.ending("rs").filter_map(|(path, text)| {
        let module = module(path.strip_prefix(src)?);
        Some((path, module, tokens(&code_without_tests(path, text))))
    });
    let files: Vec<_> = files.collect();
    let paths = files.iter().map(|(_, module, _)| module.clone()).collect();
    let mut modules = Modules { paths, handed_on: BTreeMap::new() };
    if let Some((_, _, root)) = files.iter().find(|(_, module, _)| module.is_empty()) {
        modules.handed_on = handed_on(root, &[], &modules);
    }
    let mut found = Imports::new();
    for (path, module, tokens) in &files {
        let room = module.first().map_or(ROOT, String::as_str);
        for Mention { path: named, hands_on } in mentions(tokens, module, &modules) {
            let other = modules.room(&named);
            let is_page = room == ROOT && hands_on;
            if other != room && !is_page {
                let imported = found.entry(room.to_owned()).or_default();
                imported.entry(other).or_insert_with(|| (*path).to_owned());
            }
        }
    }
    found
}

/// The files that each file of the crate imports, by the paths of their modules. A name that a
/// module only hands on is imported from where it is defined.
pub(crate) fn file_imports(tree: &Tree, src: &str) -> Imports {
    let files = tree.ending("rs").filter_map(|(path, text)| {
        let code = code_without_tests(path, text);
        let module = module(path.strip_prefix(src)?);
        (!code.trim().is_empty()).then(|| (path, module, tokens(&code)))
    });
    let files: Vec<_> = files.collect();
    let paths = files.iter().map(|(_, module, _)| module.clone()).collect();
    let modules = Modules { paths, handed_on: BTreeMap::new() };
    let handed_on: BTreeMap<_, _> =
        files.iter().map(|(_, module, code)| (module, handed_on(code, module, &modules))).collect();
    let home = |mut named: Vec<String>| {
        // Names that are handed on under themselves would go round for ever.
        for _ in 0..8 {
            let is_module = |length: &usize| modules.paths.contains(&named[..*length]);
            let length = (0..=named.len()).rev().find(is_module).unwrap_or(0);
            let name = named.get(length);
            let from = name.and_then(|name| handed_on.get(&named[..length].to_vec())?.get(name));
            match from {
                Some(from) => named = [from, &named[length + 1..]].concat(),
                None => return named[..length].to_vec(),
            }
        }
        named
    };
    let mut found = Imports::new();
    for (path, module, tokens) in &files {
        let of_file = found.entry(module.join("::")).or_default();
        let named = mentions(tokens, module, &modules).into_iter().filter(|it| !it.hands_on);
        let others = named.map(|mention| home(mention.path)).filter(|other| other != module);
        of_file.extend(others.map(|other| (other.join("::"), (*path).to_owned())));
    }
    found
}

/// The circles of imports: sets of rooms in which each is reached from each other.
pub(crate) fn circles(imports: &Imports) -> Vec<BTreeSet<&str>> {
    let reached = |start: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start.to_owned()];
        while let Some(room) = open.pop() {
            for (next, _) in imports.get(&room).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<String>> =
        imports.keys().map(|room| (room.as_str(), reached(room))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (room, from) in all.iter().filter(|(room, from)| from.contains(**room)) {
        let back = |other: &&str| from.contains(*other) && all[other].contains(*room);
        let circle: BTreeSet<&str> = all.keys().copied().filter(back).collect();
        if !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// The module of a file, by its path below `src`.
fn module(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    let last = parts.last().map_or("", String::as_str);
    if last == "mod" || (parts.len() == 1 && matches!(last, "lib" | "main")) {
        parts.pop();
    }
    parts
}

impl Modules {
    /// The room that a path from the root leads to.
    fn room(&self, path: &[String]) -> String {
        let mut path = path;
        // Names that are handed on under themselves would go round for ever.
        for _ in 0..4 {
            let Some(first) = path.first() else { break };
            if self.is_room(first) {
                return first.clone();
            }
            match self.handed_on.get(first) {
                Some(from) => path = from,
                None => break,
            }
        }
        ROOT.to_owned()
    }

    fn is_room(&self, name: &str) -> bool {
        self.paths.iter().any(|path| path.first().is_some_and(|first| first == name))
    }

    fn has(&self, module: &[String], child: &str) -> bool {
        let mut path = module.to_vec();
        path.push(child.to_owned());
        self.paths.range(path.clone()..).next().is_some_and(|found| found.starts_with(&path))
    }

    /// A path as it is written in a module, from the root; `None` if it leads into another crate or
    /// is no import.
    fn absolute(&self, module: &[String], written: &[String]) -> Option<Vec<String>> {
        let (first, rest) = written.split_first()?;
        let mut path = match first.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => module.to_vec(),
            child if self.has(module, child) => {
                module.iter().cloned().chain([first.clone()]).collect()
            }
            _ => return None,
        };
        if first == "super" {
            path.pop();
        }
        for part in rest {
            match part.as_str() {
                "super" => drop(path.pop()),
                "self" => {}
                _ => path.push(part.clone()),
            }
        }
        Some(path)
    }
}

/// A path of the crate that is named in a file.
struct Mention {
    path: Vec<String>,
    /// Whether it only hands a name on: `pub use`.
    hands_on: bool,
}

/// The names that the file of a module hands on or imports, each with the path it comes from.
fn handed_on(
    file: &[String],
    module: &[String],
    modules: &Modules,
) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for (at, _) in file.iter().enumerate().filter(|(_, token)| *token == "use") {
        for (path, name) in use_tree(file, at + 1) {
            found.extend(modules.absolute(module, &path).map(|path| (name, path)));
        }
    }
    found
}

/// The paths of the crate that a file names, from the root.
fn mentions(tokens: &[String], module: &[String], modules: &Modules) -> Vec<Mention> {
    let mut found = Vec::new();
    // Modules within the file, with the depth of their braces.
    let (mut within, mut inline, mut depth) = (module.to_vec(), Vec::new(), 0_usize);
    let mut at = 0;
    while at < tokens.len() {
        let token = |offset: usize| tokens.get(at + offset).map_or("", String::as_str);
        match token(0) {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                    within.pop();
                }
            }
            "mod" if token(2) == "{" => {
                within.push(token(1).to_owned());
                inline.push(depth);
            }
            "use" => {
                let hands_on = is_public(&tokens[..at]);
                let paths = use_tree(tokens, at + 1).into_iter();
                let paths = paths.filter_map(|(path, _)| modules.absolute(&within, &path));
                found.extend(paths.map(|path| Mention { path, hands_on }));
                while at < tokens.len() && tokens[at] != ";" {
                    at += 1;
                }
            }
            _ if begins_path(tokens, at) => {
                let mut path = vec![token(0).to_owned()];
                while tokens.get(at + 1).is_some_and(|t| t == "::") && is_word(tokens.get(at + 2)) {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                let path = modules.absolute(&within, &path).filter(|_| path.len() > 1);
                found.extend(path.map(|path| Mention { path, hands_on: false }));
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Whether a path begins at this token: a word that is not behind `::`, and not that of a
/// visibility.
fn begins_path(tokens: &[String], at: usize) -> bool {
    let before = at.checked_sub(1).map_or("", |before| tokens[before].as_str());
    let follows = tokens.get(at + 1).is_some_and(|next| next == "::");
    follows && is_word(tokens.get(at)) && !matches!(before, "::" | "in" | ".")
        || follows && before == "in" && tokens.get(at.wrapping_sub(2)).is_none_or(|t| t != "(")
}

/// Whether the tokens end in a visibility.
fn is_public(tokens: &[String]) -> bool {
    match tokens.last().map(String::as_str) {
        Some("pub") => true,
        Some(")") => {
            let open = tokens.iter().rposition(|token| token == "(");
            open.is_some_and(|open| open > 0 && tokens[open - 1] == "pub")
        }
        _ => false,
    }
}

/// The paths of the tree behind `use`, each with the name it gets. A glob has the name `*`.
fn use_tree(tokens: &[String], start: usize) -> Vec<(Vec<String>, String)> {
    let (mut found, mut path) = (Vec::new(), Vec::<String>::new());
    // The lengths of the path at the open braces.
    let mut open: Vec<usize> = Vec::new();
    let mut name: Option<String> = None;
    let mut ends = |path: &mut Vec<String>, name: &mut Option<String>, base: usize| {
        if path.len() > base {
            let last = path.iter().rev().find(|part| *part != "self").cloned();
            found.push((path.clone(), name.take().or(last).unwrap_or_default()));
        }
        path.truncate(base);
    };
    let mut tokens = tokens[start..].iter();
    while let Some(token) = tokens.next() {
        let base = open.last().copied().unwrap_or(0);
        match token.as_str() {
            "::" => {}
            "{" => open.push(path.len()),
            "," => ends(&mut path, &mut name, base),
            "}" => {
                ends(&mut path, &mut name, base);
                open.pop();
                // What stood before the brace is no path of its own.
                path.truncate(open.last().copied().unwrap_or(0));
            }
            ";" => {
                ends(&mut path, &mut name, base);
                break;
            }
            "as" => name = tokens.next().cloned(),
            word => path.push(word.to_owned()),
        }
    }
    found
}

fn is_word(token: Option<&String>) -> bool {
    token.is_some_and(|t| t.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// Words, `::`, and all other characters one by one.
pub(crate) fn tokens(code: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut characters = code.char_indices().peekable();
    while let Some((start, character)) = characters.next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let mut end = start + character.len_utf8();
        if is_part(character) {
            while let Some((at, next)) = characters.next_if(|(_, next)| is_part(*next)) {
                end = at + next.len_utf8();
            }
        } else if code[start..].starts_with("::") {
            characters.next();
            end += 1;
        }
        if !character.is_whitespace() {
            found.push(code[start..end].to_owned());
        }
    }
    found
}

/// The rooms that the room `a` of a small crate imports, with this text in one of its files.
fn imported(path: &str, text: &str) -> Vec<String> {
    let lib =
        "mod a; mod b; mod c; mod d;\npub use b::{Thing, other::Deep as Named};\npub struct Own;";
    let tree = Tree::of(&[("x/src/lib.rs", lib), ("x/src/b/mod.rs", ""), ("x/src/b/other.rs", "")]);
    let tree = tree.with("x/src/c.rs", "").with("x/src/d.rs", "").with("x/src/a/mod.rs", "mod e;");
    let mut found = imports(&tree.with(&format!("x/src/{path}"), text), "x/src/");
    assert!(!found.contains_key(ROOT), "what the root file hands on is no import");
    found.remove("a").unwrap_or_default().into_keys().collect()
}

#[test]
fn paths_are_resolved() {
    let cases: [(&str, &str, &[&str]); 16] = [
        ("a/e.rs", "use crate::b::Thing;", &["b"]),
        ("a/e.rs", "use crate::{b::{self, Thing as T}, c, d::*};", &["b", "c", "d"]),
        ("a/e.rs", "use super::super::c::{X, Y};", &["c"]),
        ("a/e.rs", "use super::X; use self::Y; use crate::a::Z;", &[]),
        ("a/mod.rs", "use super::{c, b::other::{Deep, More}};", &["b", "c"]),
        ("a/mod.rs", "use e::X; use std::{fmt, io::{self, Read}}; use ::other::b;", &[]),
        ("a/e.rs", "use crate::Thing;", &["b"]),
        ("a/e.rs", "fn f() -> crate::Named { crate::Named }", &["b"]),
        ("a/e.rs", "use crate::Own;", &["lib"]),
        ("a/e.rs", "fn f() { crate::c::f(super::super::d::X) }", &["c", "d"]),
        ("a/e.rs", "for x in crate::c::all() {}", &["c"]),
        ("a/e.rs", "pub(in crate::c) fn f() {} pub(crate) fn g() {} pub(super) mod h {}", &[]),
        (
            "a/e.rs",
            "mod inner { use super::super::super::c::X; } use super::super::d;",
            &["c", "d"],
        ),
        ("a/e.rs", "mod inner { use super::X; mod more { fn f() { super::super::g() } } }", &[]),
        ("a/e.rs", "// crate::c\nconst T: &str = \"crate::d\"; /* use crate::b; */", &[]),
        ("a/e.rs", "#[cfg(test)]\nmod tests { use crate::c; }\n#[cfg(test)]\nuse crate::d;", &[]),
    ];
    for (path, text, expected) in cases {
        assert_eq!(imported(path, text), expected, "{path}: {text}");
    }
}

#[test]
fn files_import_where_names_are_defined() {
    let tree = Tree::of(&[
        ("x/src/lib.rs", "mod a; mod b;"),
        ("x/src/a/mod.rs", "mod e; mod f; pub use e::Deep; use f::Private; struct Own;"),
        ("x/src/a/e.rs", "use super::{Own, Private};"),
        ("x/src/a/f.rs", "fn f() {}"),
        ("x/src/a/tests.rs", "use crate::b::g;"),
        ("x/src/b.rs", "use crate::a::{Deep, f};"),
    ]);
    let found = file_imports(&tree, "x/src/");
    let of = |file: &str| found[file].keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("a"), ["a::f"], "what is handed on is no import");
    assert_eq!(of("a::e"), ["a", "a::f"]);
    assert_eq!(of("b"), ["a::e", "a::f"]);
    assert!(!found.contains_key("a::tests"));
}

#[test]
fn circles_are_found() {
    let of = |edges: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (from, to) in edges {
            let imported = imports.entry((*from).to_owned()).or_default();
            imported.insert((*to).to_owned(), "a.rs".to_owned());
        }
        let found = circles(&imports).into_iter();
        found.map(|circle| circle.into_iter().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert!(of(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
    let two = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")];
    assert_eq!(of(&two), ["a b c", "d e"]);
}
