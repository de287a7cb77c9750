//! [`Tree`]: the files of the working tree as paths and texts, so that every wall is a function
//! over a value and can be tried on a broken copy. What the walls are is left to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The endings of the files that a tree holds with their texts; of all others it knows the path
/// only.
const READ: [&str; 5] = ["rs", "md", "toml", "tc", "yml"];

/// Files by their path from the root, with `/` between the parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(BTreeMap<String, String>);

impl Tree {
    /// The working tree. Build folders and hidden folders are left out, apart from those of
    /// continuous integration.
    pub(crate) fn of_repository() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut tree = Tree::default();
        tree.gather(root, root);
        tree
    }

    /// A tree of these paths and texts.
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    /// The same with another text in a file.
    pub(crate) fn with(mut self, path: &str, text: &str) -> Tree {
        self.0.insert(path.to_owned(), text.to_owned());
        self
    }

    /// Paths and texts of the files with this ending, sorted by path.
    pub(crate) fn ending(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        let ending = format!(".{ending}");
        let files = self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        files.filter(move |(path, _)| path.ends_with(&ending))
    }

    /// The text of a file; empty if there is none.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.0.get(path).map_or("", String::as_str)
    }

    /// Whether there is a file, or a folder with files, of this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let mut below = self.0.range(folder.clone()..);
        self.0.contains_key(path) || below.next().is_some_and(|(path, _)| path.starts_with(&folder))
    }

    fn gather(&mut self, root: &Path, folder: &Path) {
        let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let entry = entry.expect("an entry of a folder can be read");
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().expect("an entry of a folder has a kind");
            if kind.is_dir() {
                let hidden = name.starts_with('.') && name != ".github" && name != ".ci";
                let built = name == "target" || path.join("CACHEDIR.TAG").exists();
                if !hidden && !built {
                    self.gather(root, &path);
                }
            } else if kind.is_file() {
                let text = match READ.iter().any(|end| path.extension().is_some_and(|e| e == *end))
                {
                    true => fs::read_to_string(&path)
                        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
                        .replace("\r\n", "\n"),
                    false => String::new(),
                };
                let below = path.strip_prefix(root).expect("the walk began at the root");
                let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
                self.0.insert(parts.join("/"), text);
            }
        }
    }
}

/// Fails with one line for each thing found.
pub(crate) fn none(what: &str, found: impl IntoIterator<Item = String>) {
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}
