//! The walls of the house, checked like any other behaviour. Here are the crates and who may depend
//! on whom, where `unsafe` may stand, names, and texts that must not be there; `tidy/` has modules
//! and their imports, lengths, counts that may only fall, ops, and the pages that people read.
//!
//! Every wall is a function from the files of the working tree, as text, to what is wrong with
//! them, and a test shows that it falls over a broken copy. `TRACECAST_BLESS=1` rewrites
//! `docs/ops.md`.

#[path = "tidy/falling.rs"]
mod falling;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/lines.rs"]
mod lines;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/ops.rs"]
mod ops;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/tree.rs"]
mod tree;

use source::{code_of, words};
use std::collections::BTreeSet;
use std::sync::LazyLock;
use tree::{Tree, none};

/// Where the keyword `unsafe` may stand: the owner of executable memory, the owner of the addresses
/// that a run works on, the routines and contractions written with `std::arch`, the threads that
/// work on what their caller lends, the calls of MPI, the memory of PyTorch's tensors, and guard
/// pages in tests.
const UNSAFE_FILES: [&str; 8] = [
    "codegen/src/code/link.rs",
    "codegen/src/run/memory",
    "codegen/src/routines/",
    "codegen/src/contract/",
    "codegen/src/threads/",
    "mpi/src/transport.rs",
    "python/src/memory.rs",
    "tests/support/guard.rs",
];

/// File names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "helpers.rs", "common.rs", "types.rs", "misc.rs"];

/// Folders of filetests that are commands and not passes.
const COMMANDS: [&str; 9] =
    ["parse", "verify", "fuse", "plan", "clif", "run", "pipeline", "eval", "explain"];

/// Text that marks unfinished work or speaks of a place outside the repository. In pieces, so that
/// this file passes.
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
    /// How many lines its sources may have, tests excluded. A change that needs more moves it.
    budget: usize,
    /// How many files may lie directly in its `src`. What is more belongs into a folder.
    most_flat: usize,
}

const CRATES: [Crate; 14] = [
    Crate { name: "tracecast-ir", folder: "ir", knows: &[], budget: 46_122, most_flat: 10 },
    Crate {
        name: "tracecast-aten",
        folder: "aten",
        knows: &["tracecast-ir"],
        budget: 3_930,
        most_flat: 6,
    },
    Crate {
        name: "tracecast-pt2",
        folder: "pt2",
        knows: &["tracecast-aten", "tracecast-ir", "tracecast-runtime"],
        budget: 2_125,
        most_flat: 8,
    },
    Crate {
        name: "tracecast-passes",
        folder: "passes",
        knows: &["tracecast-ir"],
        budget: 11_286,
        most_flat: 9,
    },
    Crate {
        name: "tracecast-codegen",
        folder: "codegen",
        knows: &["tracecast-ir", "tracecast-runtime"],
        budget: 35_186,
        most_flat: 8,
    },
    Crate {
        name: "tracecast-runtime",
        folder: "runtime",
        knows: &["tracecast-ir"],
        budget: 12_371,
        most_flat: 16,
    },
    Crate {
        name: "tracecast",
        folder: "",
        knows: &[
            "tracecast-ir",
            "tracecast-pt2",
            "tracecast-passes",
            "tracecast-runtime",
            "tracecast-codegen",
        ],
        budget: 20_130,
        most_flat: 12,
    },
    Crate {
        name: "tracecast-conformance",
        folder: "conformance/kit",
        knows: &["tracecast", "tracecast-ir", "tracecast-runtime"],
        budget: 1_645,
        most_flat: 16,
    },
    Crate {
        name: "tracecast-cli",
        folder: "cli",
        knows: &[
            "tracecast",
            "tracecast-conformance",
            "tracecast-ir",
            "tracecast-passes",
            "tracecast-runtime",
            "tracecast-codegen",
        ],
        budget: 4_520,
        most_flat: 24,
    },
    Crate {
        name: "tracecast-fuzz",
        folder: "fuzz",
        knows: &[
            "tracecast-ir",
            "tracecast-passes",
            "tracecast-pt2",
            "tracecast-runtime",
            "tracecast-codegen",
        ],
        budget: 770,
        most_flat: 8,
    },
    Crate {
        name: "tracecast-mpi",
        folder: "mpi",
        knows: &["tracecast", "tracecast-cli", "tracecast-ir", "tracecast-runtime"],
        budget: 540,
        most_flat: 3,
    },
    Crate {
        name: "tracecast-python",
        folder: "python",
        knows: &["tracecast", "tracecast-aten", "tracecast-ir"],
        budget: 1_196,
        most_flat: 6,
    },
    Crate {
        name: "sim-npu",
        folder: "examples/sim-npu",
        // The tool for its binary alone, which is a feature.
        knows: &["tracecast-runtime", "tracecast-cli"],
        budget: 3_200,
        most_flat: 13,
    },
    Crate {
        name: "sim-npu-wheel",
        folder: "examples/sim-npu-wheel",
        knows: &["sim-npu", "tracecast-python", "tracecast-runtime"],
        budget: 30,
        most_flat: 1,
    },
];

impl Crate {
    /// Its folder: empty at the root, otherwise with `/` at the end.
    fn place(&self) -> String {
        if self.folder.is_empty() { String::new() } else { format!("{}/", self.folder) }
    }

    /// Where its sources lie, with `/` at the end.
    fn src(&self) -> String {
        self.place() + "src/"
    }
}

/// The working tree, read once.
fn repository() -> &'static Tree {
    static TREE: LazyLock<Tree> = LazyLock::new(Tree::of_repository);
    &TREE
}

#[test]
fn files_open_with_what_they_own() {
    none("these files do not open with `//!`", unopened(repository()));
}

fn unopened(tree: &Tree) -> Vec<String> {
    let wrong = tree.ending("rs").filter(|(_, text)| !text.starts_with("//!"));
    wrong.map(|(path, _)| path.to_owned()).collect()
}

#[test]
fn unsafe_stands_in_few_places() {
    none(&format!("`unsafe` may stand in {UNSAFE_FILES:?} only"), unsafe_elsewhere(repository()));
}

fn unsafe_elsewhere(tree: &Tree) -> Vec<String> {
    let elsewhere = tree.ending("rs").filter(|(path, text)| {
        let excepted = UNSAFE_FILES.iter().any(|place| path.starts_with(place));
        !excepted && words(&code_of(text)).any(|word| word == "unsafe")
    });
    elsewhere.map(|(path, _)| path.to_owned()).collect()
}

#[test]
fn one_room_writes_files() {
    none("files are written whole, by `tracecast_runtime::files`", writers(repository()));
}

/// Sources that open a file to write to it, where it could be found half written.
fn writers(tree: &Tree) -> Vec<String> {
    let ways = ["fs::write(", "File::create(", ".create_new(", ".create(true)"];
    // The room itself, the file by which the code cache finds out who it is, and the files that
    // fuzz targets have read.
    let excepted = ["runtime/src/files/", "codegen/src/code/disk/mod.rs", "fuzz/src/"];
    let sources = CRATES.iter().flat_map(|listed| {
        let src = listed.src();
        tree.ending("rs").filter(move |(path, _)| path.starts_with(&src))
    });
    let writing = sources.filter(|(path, text)| {
        let code = source::code_without_tests(path, text);
        !excepted.iter().any(|place| path.starts_with(place))
            && ways.iter().any(|way| code.contains(way))
    });
    writing.map(|(path, _)| path.to_owned()).collect()
}

#[test]
fn names_say_what_is_inside() {
    none("these names are dumping grounds", empty_names(repository()));
}

fn empty_names(tree: &Tree) -> Vec<String> {
    let empty = tree.ending("rs").map(|(path, _)| path).filter(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        EMPTY_NAMES.contains(&name)
    });
    empty.map(str::to_owned).collect()
}

#[test]
fn nothing_unfinished_and_no_outside_places() {
    none("text that must not be in the repository", forbidden(repository()));
}

fn forbidden(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in ["rs", "md", "toml", "tc", "yml"].iter().flat_map(|end| tree.ending(end)) {
        for (number, line) in text.lines().enumerate() {
            let marks = FORBIDDEN.iter().filter(|mark| line.contains(**mark));
            found.extend(marks.map(|mark| format!("{path}:{}: {mark}", number + 1)));
        }
    }
    found
}

#[test]
fn crates_know_only_whom_they_may() {
    none("edges between crates that ARCHITECTURE.md does not have", unknown_edges(repository()));
}

fn unknown_edges(tree: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for listed in &CRATES {
        let Crate { name, knows, .. } = listed;
        let path = listed.place() + "Cargo.toml";
        let manifest = tree.text(&path);
        if !manifest.contains(&format!("name = \"{name}\"\n")) {
            wrong.push(format!("{path} is not that of {name}"));
        }
        let ours = dependencies(manifest).into_iter().filter(|d| d.starts_with("tracecast"));
        let unknown = ours.filter(|dependency| !knows.contains(&dependency.as_str()));
        wrong.extend(unknown.map(|dependency| format!("{name} -> {dependency}")));
    }
    wrong
}

#[test]
fn every_crate_is_listed_here() {
    none("crates that `CRATES` does not list, or lists in vain", unlisted(repository()));
}

fn unlisted(tree: &Tree) -> Vec<String> {
    let manifests = tree.ending("toml").map(|(path, _)| path);
    let found: BTreeSet<String> =
        manifests.filter_map(|path| path.strip_suffix("Cargo.toml")).map(str::to_owned).collect();
    let listed: BTreeSet<String> = CRATES.iter().map(Crate::place).collect();
    found.symmetric_difference(&listed).map(|place| format!("{place}Cargo.toml")).collect()
}

#[test]
fn every_pass_has_filetests() {
    none("passes and folders in tests/filetests that lack each other", unpaired(repository()));
}

fn unpaired(tree: &Tree) -> Vec<String> {
    let passes: BTreeSet<&str> = tracecast_passes::names().into_iter().collect();
    let folders: BTreeSet<&str> = tree
        .ending("tc")
        .filter_map(|(path, _)| Some(path.strip_prefix("tests/filetests/")?.split_once('/')?.0))
        .collect();
    let untested = passes.difference(&folders).map(|pass| format!("{pass} has no filetests"));
    let known = |folder: &&str| passes.contains(folder) || COMMANDS.contains(folder);
    let unknown = folders.iter().filter(|folder| !known(folder));
    untested.chain(unknown.map(|folder| format!("{folder} is no pass and no command"))).collect()
}

/// The packages a manifest depends on when it is built; what only its tests and benches need is
/// left out.
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

#[test]
fn manifests_are_read() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = { path = \"b\" }\n# c = \"1\"\n\
        [dependencies.d]\nversion = \"1\"\n[dev-dependencies]\ne = \"1\"\n[target.'cfg(unix)'.dependencies]\n\
        f = { package = \"g\", version = \"1\" }\n[workspace.dependencies]\nh = \"1\"\n[build-dependencies]\ni = \"1\"\n";
    assert_eq!(dependencies(manifest), ["a", "b", "d", "g", "i"]);
}

#[test]
fn broken_copies_are_seen() {
    let good = repository();
    let broken = |path: &str, text: &str| good.clone().with(path, text);
    let manifest = good.text("passes/Cargo.toml");
    let edge = manifest.replace("[dependencies]\n", "[dependencies]\ntracecast-codegen = \"1\"\n");
    assert_eq!(unopened(&broken("ir/src/new.rs", "use a::b;\n")), ["ir/src/new.rs"]);
    assert_eq!(
        unsafe_elsewhere(&broken("src/new.rs", "fn f() { unsafe { g() } }")),
        ["src/new.rs"]
    );
    let plot = "fn f() { std::fs::write(p, b).unwrap() }\n#[cfg(test)]\nmod tests {}\n";
    assert_eq!(writers(&broken("cli/src/plot.rs", plot)), ["cli/src/plot.rs"]);
    assert_eq!(empty_names(&broken("src/nn/utils.rs", "//! What.")), ["src/nn/utils.rs"]);
    assert_eq!(forbidden(&broken("docs/new.md", FORBIDDEN[1])).len(), 1);
    assert_eq!(unlisted(&broken("onnx/Cargo.toml", "")), ["onnx/Cargo.toml"]);
    let unknown = unpaired(&broken("tests/filetests/inline/a.tc", ""));
    assert_eq!(unknown, ["inline is no pass and no command"]);
    assert_eq!(unpaired(&Tree::default()).len(), tracecast_passes::names().len());
    assert_eq!(
        unknown_edges(&broken("passes/Cargo.toml", &edge)),
        ["tracecast-passes -> tracecast-codegen"]
    );
}
