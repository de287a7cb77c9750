//! How long things may be: a file, and the sources of a crate without its tests.

use crate::source::lines_without_tests;
use crate::tree::{Tree, none};
use crate::{CRATES, Crate, repository};

/// The longest a source file may be.
const LONGEST: usize = 600;

#[test]
fn files_are_short() {
    none("a file is one idea; split these by idea", too_long(repository()));
}

#[test]
fn crates_keep_to_their_budgets() {
    for listed in &CRATES {
        let (lines, budget) = (lines_of(repository(), listed), listed.budget);
        println!("{:18} {lines:6} lines without tests, at most {budget}", listed.name);
    }
    let over = over_budget(repository());
    none("a crate grew: leave something out, or move its budget in this change", over);
}

fn too_long(tree: &Tree) -> Vec<String> {
    let lines = tree.ending("rs").map(|(path, text)| (path, text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines > LONGEST);
    long.map(|(path, lines)| format!("{path}: {lines} lines, the limit is {LONGEST}")).collect()
}

fn lines_of(tree: &Tree, listed: &Crate) -> usize {
    let src = listed.src();
    let of_crate = tree.ending("rs").filter(|(path, _)| path.starts_with(&src));
    of_crate.map(|(path, text)| lines_without_tests(path, text)).sum()
}

fn over_budget(tree: &Tree) -> Vec<String> {
    let mut over = Vec::new();
    for listed in &CRATES {
        let Crate { name, budget, .. } = listed;
        let lines = lines_of(tree, listed);
        if lines == 0 {
            over.push(format!("{name}: nothing found under {}", listed.src()));
        }
        if lines > *budget {
            over.push(format!("{name}: {lines} lines without tests, the budget is {budget}"));
        }
    }
    over
}

#[test]
fn a_long_file_is_seen() {
    let lines = |count: usize| "x\n".repeat(count);
    let tree = Tree::of(&[("ir/src/a.rs", &lines(LONGEST)), ("docs/a.md", &lines(LONGEST + 1))]);
    assert_eq!(too_long(&tree), [""; 0]);
    assert_eq!(too_long(&tree.with("ir/src/a.rs", &lines(LONGEST + 1))).len(), 1);
}

#[test]
fn a_crate_that_grows_is_seen() {
    let sources = CRATES.iter().map(|listed| format!("{}lib.rs", listed.src()));
    let tree = sources.fold(Tree::default(), |tree, path| tree.with(&path, "mod a;\n"));
    assert_eq!(over_budget(&tree), [""; 0]);
    let lines = "x();\n".repeat(CRATES[0].budget);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{lines}}}\n");
    let tree = tree.with("ir/src/a.rs", &tests).with("ir/src/tests.rs", &lines);
    assert_eq!(over_budget(&tree), [""; 0], "tests do not count");
    let found = over_budget(&tree.with("ir/src/a.rs", &format!("{tests}{lines}")));
    assert!(found.len() == 1 && found[0].contains("tracecast-ir"), "{found:?}");
}
