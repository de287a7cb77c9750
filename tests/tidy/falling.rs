//! Counts that may only fall: circles of files inside each crate, and what is unsafe in the
//! contractions of `codegen`, with contracts that point elsewhere. Tests are not counted.

use crate::imports::{circles, file_imports, tokens};
use crate::source::code_without_tests;
use crate::tree::{Tree, none};
use crate::{CRATES, repository};

/// Where what is unsafe is counted.
const CONTRACT: &str = "codegen/src/contract/";

/// The circles of files of each crate that has some, and the files in them, by the imports of
/// files. A change that makes one smaller lowers it here; other crates get none.
const CIRCLES: &[(&str, [usize; 2])] = &[("tracecast-ir", [2, 76])];

/// The most of what is unsafe. A change that makes one smaller lowers it here.
const MOST: [(&str, usize); 3] = [
    ("unsafe blocks in codegen/src/contract", 404),
    ("`unsafe fn` in codegen/src/contract", 166),
    ("`# Safety` there that begins by pointing elsewhere", 0),
];

#[test]
fn circles_of_files_only_fall() {
    let found = circles_of_files(repository());
    for (name, [circles, files]) in &found {
        println!("{name:20} {circles:3} circles of {files:4} files");
    }
    println!("{:20} {:3} circles", "in all", found.iter().map(|(_, [n, _])| n).sum::<usize>());
    none("circles of files, and `CIRCLES` says otherwise", unlike(&found, CIRCLES));
}

/// The crates with circles of files: how many, and how many files there are in them.
fn circles_of_files(tree: &Tree) -> Vec<(&'static str, [usize; 2])> {
    let of_crate = CRATES.iter().map(|listed| {
        let imports = file_imports(tree, &listed.src());
        let circles = circles(&imports);
        (listed.name, [circles.len(), circles.iter().map(|circle| circle.len()).sum()])
    });
    of_crate.filter(|(_, [circles, _])| *circles > 0).collect()
}

/// What differs between the circles that were found and those that are listed.
fn unlike(found: &[(&str, [usize; 2])], listed: &[(&str, [usize; 2])]) -> Vec<String> {
    let only = |some: &[(&str, [usize; 2])], others: &[(&str, [usize; 2])], what: &str| {
        let some = some.iter().filter(|one| !others.contains(one));
        some.map(|(name, [n, files])| format!("{name}: {what} {n} of {files} files"))
            .collect::<Vec<_>>()
    };
    [only(found, listed, "found"), only(listed, found, "listed")].concat()
}

#[test]
fn what_is_unsafe_only_falls() {
    let counted = counts(repository());
    for ((what, most), count) in MOST.iter().zip(counted) {
        println!("{what:40} {count:5}, at most {most}");
    }
    none("counts that may only fall, and are to be lowered where they did", changed(counted));
}

/// The counts that [`MOST`] lists, of a working tree.
fn counts(tree: &Tree) -> [usize; 3] {
    let (mut blocks, mut functions, mut pointing) = (0, 0, 0);
    for (path, text) in tree.ending("rs").filter(|(path, _)| path.starts_with(CONTRACT)) {
        let code = tokens(&code_without_tests(path, text));
        pointing += if code.is_empty() { 0 } else { contracts_elsewhere(text) };
        for (at, _) in code.iter().enumerate().filter(|(_, token)| *token == "unsafe") {
            match code.get(at + 1).map(String::as_str) {
                Some("{") => blocks += 1,
                Some("fn") => functions += 1,
                _ => {}
            }
        }
    }
    [blocks, functions, pointing]
}

/// The `# Safety` sections that begin with "As", and so with what another item says.
fn contracts_elsewhere(text: &str) -> usize {
    let contracts = text.split("/// # Safety\n").skip(1);
    let first = contracts.filter_map(|contract| contract.lines().nth(1));
    first.filter(|line| line.trim_start().starts_with("/// As ")).count()
}

/// What [`MOST`] says otherwise.
fn changed(counted: [usize; 3]) -> Vec<String> {
    let differs = MOST.iter().zip(counted).filter(|((_, most), count)| count != most);
    differs.map(|((what, most), count)| format!("{what}: {count}, listed are {most}")).collect()
}

#[test]
fn what_is_unsafe_is_counted() {
    let tree = Tree::of(&[
        ("codegen/src/lib.rs", "mod contract; mod run;"),
        ("codegen/src/contract/mod.rs", "mod a; unsafe fn f() { unsafe { g() } } // unsafe {"),
        (
            "codegen/src/contract/a.rs",
            "use super::f; unsafe impl Send for A {}\n/// # Safety\n///\n/// As there.",
        ),
        ("codegen/src/contract/tests.rs", "fn t() { unsafe { f() } }"),
        ("codegen/src/run.rs", "fn r() { unsafe { f() } }"),
    ]);
    assert_eq!((counts(&tree), circles_of_files(&tree)), ([1, 1, 1], vec![]));
    let circle = tree.with("codegen/src/contract/mod.rs", "mod a; use a::A; fn f() {}");
    let found = circles_of_files(&circle);
    assert_eq!((counts(&circle), &*found), ([0, 0, 1], &[("tracecast-codegen", [1, 2])][..]));
    assert_eq!(unlike(&found, &[("tracecast-codegen", [2, 4])]).len(), 2);
    assert_eq!(unlike(&found, &found), [""; 0]);
    assert_eq!(changed(MOST.map(|(_, most)| most)), [""; 0]);
    assert_eq!(changed(MOST.map(|(_, most)| most + 1)).len(), MOST.len());
}
