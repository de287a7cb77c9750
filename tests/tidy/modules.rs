//! The modules of each crate: no import cycles between them, and few files beside `lib.rs`.

use crate::imports::{circles, imports};
use crate::tree::{Tree, none};
use crate::{CRATES, Crate, repository};
use std::collections::BTreeSet;

/// The import cycles between modules today, by crate. Crates that are not listed have none and get
/// none. A listed cycle may only shrink: a module that left it leaves this list.
const KNOTS: &[(&str, &[&str])] = &[("tracecast-ir", &["graph", "kernel", "op", "ops", "tracer"])];

#[test]
fn modules_import_each_other_in_no_circle() {
    none("import cycles between modules", wrong_knots(repository(), KNOTS));
}

#[test]
fn few_files_lie_flat() {
    none("files directly in `src` of a crate", too_flat(repository()));
}

/// The circles that differ from those that are known.
fn wrong_knots(tree: &Tree, known: &[(&str, &[&str])]) -> Vec<String> {
    let mut wrong = Vec::new();
    for listed in &CRATES {
        let imports = imports(tree, &listed.src());
        let found = circles(&imports);
        let known = known.iter().filter(|(name, _)| *name == listed.name);
        let known: Vec<BTreeSet<&str>> =
            known.map(|(_, modules)| modules.iter().copied().collect()).collect();
        for circle in found.iter().filter(|circle| !known.contains(circle)) {
            let mut told = format!("{}: a circle of {}", listed.name, list(circle));
            for (from, to) in imports.iter().filter(|(from, _)| circle.contains(from.as_str())) {
                for (to, file) in to.iter().filter(|(to, _)| circle.contains(to.as_str())) {
                    told += &format!("\n    {from} -> {to} in {file}");
                }
            }
            wrong.push(told);
        }
        for knot in known.iter().filter(|knot| !found.contains(knot)) {
            let name = listed.name;
            wrong.push(format!(
                "{name}: the knot of {} is another or gone: change KNOTS",
                list(knot)
            ));
        }
    }
    wrong
}

/// The crates with more flat files than they may have.
fn too_flat(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for listed in &CRATES {
        let Crate { name, most_flat, .. } = listed;
        let src = listed.src();
        let below = tree.ending("rs").filter_map(|(path, _)| path.strip_prefix(&*src));
        let flat: BTreeSet<&str> = below.filter(|path| !path.contains('/')).collect();
        if flat.len() > *most_flat {
            wrong.push(format!(
                "{name}: {} files, at most {most_flat}: {}",
                flat.len(),
                list(&flat)
            ));
        }
    }
    wrong
}

fn list(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

#[test]
fn a_circle_is_seen() {
    let tree = Tree::of(&[
        ("cli/src/main.rs", "mod a; mod b;"),
        ("cli/src/a.rs", "use crate::b::f;"),
        ("cli/src/b/mod.rs", "mod c;"),
        ("cli/src/b/c.rs", "use super::d;"),
    ]);
    assert_eq!(wrong_knots(&tree, &[]), [""; 0]);
    let broken = tree.clone().with("cli/src/b/c.rs", "fn f() { crate::a::g() }");
    let found = wrong_knots(&broken, &[]);
    assert!(found.len() == 1 && found[0].contains("b -> a in cli/src/b/c.rs"), "{found:?}");
    let knot: &[(&str, &[&str])] = &[("tracecast-cli", &["a", "b"])];
    assert_eq!(wrong_knots(&broken, knot), [""; 0]);
    assert!(wrong_knots(&tree, knot)[0].contains("change KNOTS"));
}

#[test]
fn a_flat_file_too_many_is_seen() {
    let (mut paths, most) = (vec!["codegen/src/lib.rs".to_owned()], CRATES[2].most_flat);
    paths.extend((1..most).map(|i| format!("codegen/src/f{i}.rs")));
    let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
    let tree = Tree::of(&files).with("codegen/src/room/more.rs", "");
    assert_eq!(too_flat(&tree), [""; 0]);
    assert_eq!(too_flat(&tree.with("codegen/src/more.rs", "")).len(), 1);
}
