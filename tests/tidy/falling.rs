//! Counts that may only fall: circles of files inside `codegen`, and what is unsafe in its
//! contractions. Tests are not counted.

use crate::imports::{circles, file_imports, tokens};
use crate::repository;
use crate::source::code_without_tests;
use crate::tree::{Tree, none};

/// Whose files are counted.
const CODEGEN: &str = "codegen/src/";
/// Where what is unsafe is counted.
const CONTRACT: &str = "codegen/src/contract/";

/// The most of each. A change that makes one smaller lowers it here.
const MOST: [(&str, usize); 4] = [
    ("circles of files in codegen", 12),
    ("files in these circles", 95),
    ("unsafe blocks in codegen/src/contract", 909),
    ("`unsafe fn` in codegen/src/contract", 451),
];

#[test]
fn counts_only_fall() {
    let counted = counts(repository());
    for ((what, most), count) in MOST.iter().zip(counted) {
        println!("{what:40} {count:5}, at most {most}");
    }
    none("counts that may only fall, and are to be lowered where they did", changed(counted));
}

/// The counts that [`MOST`] lists, of a working tree.
fn counts(tree: &Tree) -> [usize; 4] {
    let imports = file_imports(tree, CODEGEN);
    let circles = circles(&imports);
    let files = circles.iter().map(|circle| circle.len()).sum();
    let (mut blocks, mut functions) = (0, 0);
    for (path, text) in tree.ending("rs").filter(|(path, _)| path.starts_with(CONTRACT)) {
        let code = tokens(&code_without_tests(path, text));
        for (at, _) in code.iter().enumerate().filter(|(_, token)| *token == "unsafe") {
            match code.get(at + 1).map(String::as_str) {
                Some("{") => blocks += 1,
                Some("fn") => functions += 1,
                _ => {}
            }
        }
    }
    [circles.len(), files, blocks, functions]
}

/// What [`MOST`] says otherwise.
fn changed(counted: [usize; 4]) -> Vec<String> {
    let differs = MOST.iter().zip(counted).filter(|((_, most), count)| count != most);
    differs.map(|((what, most), count)| format!("{what}: {count}, listed are {most}")).collect()
}

#[test]
fn what_is_unsafe_is_counted() {
    let tree = Tree::of(&[
        ("codegen/src/lib.rs", "mod contract; mod run;"),
        ("codegen/src/contract/mod.rs", "mod a; unsafe fn f() { unsafe { g() } } // unsafe {"),
        ("codegen/src/contract/a.rs", "use super::f; unsafe impl Send for A {}"),
        ("codegen/src/contract/tests.rs", "fn t() { unsafe { f() } }"),
        ("codegen/src/run.rs", "fn r() { unsafe { f() } }"),
    ]);
    assert_eq!(counts(&tree), [0, 0, 1, 1]);
    let circle = tree.with("codegen/src/contract/mod.rs", "mod a; use a::A; fn f() {}");
    assert_eq!(counts(&circle), [1, 2, 0, 0]);
    assert_eq!(changed(MOST.map(|(_, most)| most)), [""; 0]);
    assert_eq!(changed(MOST.map(|(_, most)| most + 1)).len(), MOST.len());
}
