//! The pages that people read: the paths they name and the links between them exist, the book lists
//! each, the plans they show are those of tests, and the page that is generated is fresh.

use crate::repository;
use crate::tree::{Tree, none};
use std::fs;
use std::path::Path;

/// The pages whose paths are checked.
const PAGES: [&str; 9] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/contractions.md",
    "docs/decisions.md",
    "docs/kernels.md",
    "docs/runtime.md",
    CONSTANTS,
    PLANS[0],
    PLANS[1],
];

/// The page that lists constants of the code with their values.
const CONSTANTS: &str = "docs/tuned-constants.md";

/// The pages that show plans.
const PLANS: [&str; 2] = ["docs/codegen.md", "docs/plans.md"];

/// Endings by which a name in backticks is that of a file.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".tc", ".py", ".yml"];

#[test]
fn pages_name_paths_that_exist() {
    none("paths that do not exist", missing_paths(repository()));
}

/// The paths in backticks that do not exist. A path is one from the root, or one from a folder of
/// sources on the way to a path that the same paragraph named before.
fn missing_paths(tree: &Tree) -> Vec<String> {
    let mut missing = Vec::new();
    for page in PAGES {
        let mut folders: Vec<String> = Vec::new();
        for (number, line) in tree.text(page).lines().enumerate() {
            let begins = line.trim().is_empty() || line.starts_with(['*', '-', '|', '#']);
            if begins {
                folders.clear();
            }
            for path in line.split('`').skip(1).step_by(2).filter(|quoted| is_path(quoted)) {
                // What follows a name to be filled in is not known.
                let known = path.split(['<', '*']).next().unwrap_or_default();
                let from = |folder: &String| format!("{folder}{known}");
                let root = [String::new()];
                let found = root.iter().chain(&folders).map(from).find(|path| tree.has(path));
                match found {
                    Some(path) => {
                        let ends = path.match_indices('/').map(|(at, _)| path[..=at].to_owned());
                        folders.extend(ends.filter(|folder| folder.contains("src/")));
                    }
                    None => missing.push(format!("{page}:{}: `{path}`", number + 1)),
                }
            }
        }
    }
    missing
}

#[test]
fn constants_have_the_values_that_their_page_gives() {
    none("constants that the page and the code give differently", other_values(repository()));
}

/// The rows of the page, a name in a file and its value, that the code does not have.
fn other_values(tree: &Tree) -> Vec<String> {
    let rows = tree.text(CONSTANTS).lines().filter(|line| line.starts_with("| `"));
    let differs = |line: &&str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let quoted: Vec<&str> = cells[1].split('`').collect();
        let declared = format!("const {}: ", quoted[1]);
        let code = tree.text(quoted[3]);
        let value = code.split_once(&declared).and_then(|(_, rest)| rest.split_once(" = "));
        value.is_none_or(|(_, rest)| rest.split(';').next() != Some(cells[2]))
    };
    rows.filter(differs).map(str::to_owned).collect()
}

#[test]
fn another_value_is_seen() {
    let page = "| `A` in `a.rs` | 1 << 20 | bytes |\n| `B` in `a.rs` | 2 | rows |\n| `C` in `a.rs` | 2 |\n";
    let code = "pub(super) const A: usize = 1 << 20;\nconst B: usize = 3;\n";
    let found = other_values(&Tree::of(&[(CONSTANTS, page), ("a.rs", code)]));
    assert_eq!(found, page.lines().skip(1).collect::<Vec<_>>());
}

/// Whether a text in backticks is a path: one word with `/` in it or the ending of a file.
fn is_path(quoted: &str) -> bool {
    let in_path = |c: char| c.is_alphanumeric() || "_-./<>*".contains(c);
    let named = ENDINGS.iter().any(|end| quoted.ends_with(end) && quoted != *end);
    let below =
        quoted.contains('/') && quoted.starts_with(|c: char| c.is_alphanumeric() || c == '.');
    quoted.chars().all(in_path) && (named || below)
}

#[test]
fn a_missing_path_is_seen() {
    let page = "* `ir/src/op/mod.rs` and `text.rs`, from `a.rs`,\n  and `op/b.rs` `x::y` `x / y` `.tc` `//!`\n\
        * `tests/filetests/<command>/*.tc`, `docs/`\n";
    let tree = Tree::of(&[
        ("ARCHITECTURE.md", page),
        ("ir/src/op/mod.rs", ""),
        ("ir/src/op/text.rs", ""),
        ("ir/src/op/b.rs", ""),
        ("ir/src/a.rs", ""),
        ("tests/filetests/parse/x.tc", ""),
        ("docs/ir.md", ""),
    ]);
    assert_eq!(missing_paths(&tree), [""; 0]);
    let elsewhere =
        tree.clone().with("CONTRIBUTING.md", "`ir/src/op/`\n\n`text.rs`, `ir/src/opera`");
    let missing = ["CONTRIBUTING.md:3: `text.rs`", "CONTRIBUTING.md:3: `ir/src/opera`"];
    assert_eq!(missing_paths(&elsewhere), missing);
}

#[test]
fn links_of_pages_lead_somewhere() {
    none("links to files that do not exist", broken_links(repository()));
}

/// The links between files, on any page, that lead to none. Templates of pages link from where
/// their page is, which is looked at.
fn broken_links(tree: &Tree) -> Vec<String> {
    let mut broken = Vec::new();
    for (page, text) in tree.ending("md").filter(|(page, _)| !page.starts_with("benches/results/"))
    {
        let prose = text.split("```").step_by(2);
        let links = prose.flat_map(|part| part.split("](").skip(1));
        for link in links.filter_map(|rest| Some(rest.split_once(')')?.0)) {
            let file = link.split('#').next().unwrap_or_default();
            let elsewhere = file.is_empty() || file.contains("://");
            if !elsewhere && !tree.has(&beside(page, file)) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    broken
}

/// The path from the root of a file that a page names from its own folder.
fn beside(page: &str, file: &str) -> String {
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in file.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

#[test]
fn the_book_has_every_page() {
    none("pages that docs/SUMMARY.md does not list once", unlisted(repository()));
}

/// The pages of `docs` that the contents of the book do not list, or list twice.
fn unlisted(tree: &Tree) -> Vec<String> {
    let summary = tree.text("docs/SUMMARY.md");
    let pages = tree.ending("md").filter_map(|(path, _)| path.strip_prefix("docs/"));
    let pages = pages.filter(|page| *page != "SUMMARY.md");
    let listed = |page: &str| summary.matches(&format!("]({page})")).count();
    pages.filter(|page| listed(page) != 1).map(str::to_owned).collect()
}

#[test]
fn code_of_pages_runs() {
    none("pages with code that `run_pages!` in src/lib.rs does not run", idle_code(repository()));
}

/// The pages with Rust code that no doctest runs.
fn idle_code(tree: &Tree) -> Vec<String> {
    let root = tree.text("src/lib.rs");
    let pages =
        tree.ending("md").filter(|(path, _)| *path == "README.md" || path.starts_with("docs/"));
    let idle = pages.filter(|(path, text)| {
        text.contains("```rust\n") && !root.contains(&format!("\"../{path}\""))
    });
    idle.map(|(path, _)| path.to_owned()).collect()
}

#[test]
fn commands_of_pages_name_targets_that_exist() {
    none("targets that do not exist", missing_targets(repository()));
}

/// What a command of a page calls by `--bench`, `--test` or `--example`, without a file.
fn missing_targets(tree: &Tree) -> Vec<String> {
    let mut missing = Vec::new();
    for (page, text) in tree.ending("md").filter(|(path, _)| !path.contains("data/")) {
        let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c == '`').collect();
        for pair in words.windows(2).filter(|pair| !["", "NAME"].contains(&pair[1])) {
            let folder = match pair[0] {
                "--bench" => "benches",
                "--test" => "tests",
                "--example" => "examples",
                _ => continue,
            };
            let target = format!("{folder}/{}", pair[1]);
            if ![".rs", "/main.rs"].iter().any(|ending| tree.has(&format!("{target}{ending}"))) {
                missing.push(format!("{page}: {target}"));
            }
        }
    }
    missing
}

#[test]
fn a_broken_link_and_an_unlisted_page_are_seen() {
    let tree = Tree::of(&[
        ("docs/SUMMARY.md", "[A](a.md) [B](guide/b.md)"),
        ("docs/a.md", "[b](guide/b.md#part) [c](https://c) [here](#a)\n```rust\nx[0](1)\n```\n"),
        ("docs/guide/b.md", "[src](../../src), [a](../a.md)"),
        ("src/lib.rs", "run_pages! { A: \"../docs/a.md\" }"),
    ]);
    assert_eq!((broken_links(&tree), unlisted(&tree)), (vec![], vec![]));
    assert_eq!(idle_code(&tree), [""; 0]);
    assert_eq!(idle_code(&tree.clone().with("src/lib.rs", "")), ["docs/a.md"]);
    let tree = tree.with("docs/guide/c.md", "[a](a.md)");
    assert_eq!(broken_links(&tree), ["docs/guide/c.md: a.md"]);
    assert_eq!(unlisted(&tree), ["guide/c.md"]);
    let tree = tree.with("docs/guide/c.md", "`cargo bench --bench a` and `cargo test --test b`");
    let tree = tree.with("benches/a/main.rs", "");
    assert_eq!(missing_targets(&tree), ["docs/guide/c.md: tests/b"]);
}

#[test]
fn plans_on_the_page_are_those_of_filetests() {
    none("plans that no file of tests/filetests/plan has", unknown_plans(repository()));
}

/// The blocks of the pages about plans whose lines are not, one after another, what some filetest
/// expects.
fn unknown_plans(tree: &Tree) -> Vec<String> {
    let expected: Vec<String> = tree
        .ending("tc")
        .filter(|(path, _)| path.starts_with("tests/filetests/plan/"))
        .map(|(_, text)| {
            let lines = text.lines().map(|line| line.strip_prefix(";; ").unwrap_or_default());
            lines.map(|line| line.to_owned() + "\n").collect()
        })
        .collect();
    let blocks = PLANS.iter().flat_map(|page| tree.text(page).split("```plan\n").skip(1));
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
    let unknown = |block: &&str| {
        let begins = format!("\n{block}");
        !expected.iter().any(|text| text.starts_with(block) || text.contains(&begins))
    };
    blocks.filter(unknown).map(str::to_owned).collect()
}

#[test]
fn a_plan_that_no_test_has_is_seen() {
    let page = "Text\n```plan\n  once\n    s0 = g0 : f32\n```\n";
    let test = ("tests/filetests/plan/a.tc", "test plan\n;;   once\n;;     s0 = g0 : f32\n");
    let tree = Tree::of(&[("docs/codegen.md", page), test]);
    assert_eq!(unknown_plans(&tree), [""; 0]);
    let stale =
        tree.with(PLANS[0], "```plan\n  once\n    s0 = g1 : f32\n```\n```plan\n  once\n```\n");
    assert_eq!(unknown_plans(&stale), ["  once\n    s0 = g1 : f32\n"]);
}

#[test]
fn the_op_page_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("docs/ops.md");
    let expected = tracecast_ir::ops::docs() + &functions_page(repository());
    if std::env::var_os("TRACECAST_BLESS").is_some() {
        fs::create_dir_all(root.join("docs")).expect("docs/ can be made");
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

const FUNCTIONS: &str = "
## Functions

Methods and functions that record several ops, or one under another name; those of several tensors are in `tracecast::ir::functions`. Policies are asked about the ops that they
record. `x` is a `Var`, `t` a `Tracer`; arguments are described in the documentation of the crate.

| function | in PyTorch | what it gives |
|---|---|---|
";

/// The table of functions: what is public in `ir/src/functions`, in the order of the sources.
fn functions_page(tree: &Tree) -> String {
    let files = tree.ending("rs").filter(|(path, _)| path.starts_with("ir/src/functions/"));
    let rows = files.flat_map(|(_, text)| functions_of(text));
    FUNCTIONS.to_owned() + &rows.collect::<Vec<_>>().concat()
}

/// A row for each public function of a file.
fn functions_of(text: &str) -> Vec<String> {
    let (mut rows, mut doc, mut of) = (Vec::new(), Vec::new(), "");
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        if line.starts_with("impl") {
            of = line;
        }
        let line = line.trim();
        if let Some(said) = line.strip_prefix("///") {
            doc.push(said.trim());
        } else if let Some(name) = line.strip_prefix("pub fn ") {
            let end = name.find(['(', '<']).expect("a function has arguments");
            let call = called(&name[..end], &lines[i..].join(" "), of);
            rows.extend(call.map(|call| row(&call, &doc)));
            doc.clear();
        } else if !line.starts_with('#') {
            doc.clear();
        }
    }
    rows
}

/// `x.name(arguments)` by the function's signature; nothing for what makes something else than
/// values.
fn called(name: &str, signature: &str, of: &str) -> Option<String> {
    let inside = &signature
        [signature.find(&format!("{name}(")).or_else(|| signature.find(&format!("{name}<")))?..];
    let start = inside.find('(')? + 1;
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inside[start..].chars() {
        match c {
            ')' if depth == 0 => break,
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let names = parts.iter().map(|part| part.split(':').next().unwrap_or_default().trim());
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    match (names.split_first(), of) {
        (Some((&"self", rest)), "impl<'t> Var<'t> {") => {
            Some(format!("x.{name}({})", rest.join(", ")))
        }
        (Some((&"&self", rest)), "impl Tracer {") => Some(format!("t.{name}({})", rest.join(", "))),
        _ if of.is_empty() || !of.contains('{') => Some(format!("{name}({})", names.join(", "))),
        (_, of) if of.contains("Var<") || of.contains("Tracer") => {
            Some(format!("{name}({})", names.join(", ")))
        }
        _ => None,
    }
}

/// The call, the name of PyTorch that its documentation links to, and its first sentence.
fn row(call: &str, doc: &[&str]) -> String {
    let text = doc.join(" ");
    let links = text.split("[`").skip(1).filter_map(|link| link.split_once("`]"));
    let names: Vec<&str> =
        links.map(|(name, _)| name).filter(|name| name.starts_with("torch")).collect();
    let plain = text
        .split('`')
        .skip(1)
        .step_by(2)
        .find(|word| word.starts_with("torch.") || word.starts_with("Tensor."));
    let there =
        names.first().copied().or(plain).map_or("–".to_owned(), |name| format!("`{name}`"));
    let mut said = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('[') {
        said += before;
        match after
            .split_once("](")
            .and_then(|(inside, tail)| Some((inside, tail.split_once(')')?.1)))
        {
            Some((inside, tail)) if inside.starts_with('`') => {
                said += inside;
                rest = tail;
            }
            _ => {
                said.push('[');
                rest = after;
            }
        }
    }
    said += rest;
    let end = said.find(". ").map_or(said.len(), |at| at + 1);
    let sentence = said[..end].trim_end_matches('.').replace('|', "\\|");
    let named = there.trim_matches('`');
    let sentence = sentence.trim_end_matches(&format!(": `{named}`"));
    format!("| `{call}` | {there} | {sentence} |\n")
}

#[test]
fn every_public_function_has_a_row() {
    let page = functions_page(repository());
    let files = repository().ending("rs").filter(|(path, _)| path.starts_with("ir/src/functions/"));
    let mut count = 0;
    for (path, text) in files {
        let mut of = "";
        for line in text.lines() {
            if line.starts_with("impl") {
                of = line;
            }
            let Some(rest) = line.trim().strip_prefix("pub fn ") else { continue };
            let name = &rest[..rest.find(['(', '<']).unwrap()];
            // A constructor of options, and the steps of layers, which users call by the layers.
            let of_types =
                ["impl<'t> MultiHead", "impl Cell", "impl Carried<", "impl<'t> Recurrent"];
            if of_types.iter().any(|start| of.starts_with(start)) {
                continue;
            }
            let is_there =
                page.contains(&format!(".{name}(")) || page.contains(&format!("`{name}("));
            assert!(is_there, "{name} of {path}");
            count += 1;
        }
    }
    assert!(count > 150, "{count}");
    let row = functions_of(
        "impl<'t> Var<'t> {\n    /// Twice: [`torch.twice`](https://x). More.\n    pub fn twice(self, by: &[i64], of: Option<f64>) -> Var<'t> {",
    );
    assert_eq!(row, ["| `x.twice(by, of)` | `torch.twice` | Twice |\n"]);
}
