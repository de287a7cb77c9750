//! The tables that come along: every file of `tables/`, by name and version.
//!
//! A table of a later version is a new file there; the build finds it. It is to be had by its
//! version, `torch-cpu@2.16.0` or [`PolicySet::of_version`](super::PolicySet::of_version), and what
//! was built before decides as it did: only [`PolicyTable::STANDARD`] says which version holds
//! where none is named.

use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

use super::{PolicyTable, strategy};

/// The text of every file.
const FILES: &[&str] = include!(concat!(env!("OUT_DIR"), "/tables.rs"));

static BUILT_IN: LazyLock<Library> = LazyLock::new(|| Library::read(FILES));

static STANDARD: LazyLock<Vec<Arc<PolicyTable>>> = LazyLock::new(|| {
    let table = |title: &&str| BUILT_IN.named(title).expect("the standard tables are built in");
    PolicyTable::STANDARD.iter().map(table).cloned().collect()
});

impl PolicyTable {
    /// The tables of the standard set, by device type: those that hold where no version is named.
    pub const STANDARD: [&'static str; 8] = [
        "torch-cpu@2.15.0",
        "torch-cuda@2.15.0",
        "torch-xpu@2.15.0",
        "torch-mps@2.15.0",
        "torch-mtia@2.15.0",
        "torch-maia@2.15.0",
        "torch-xla@41398bff",
        "privateuse1@2.15.0",
    ];

    /// The built-in tables of the standard set, in the order of [`STANDARD`](Self::STANDARD).
    pub fn standard() -> &'static [Arc<PolicyTable>] {
        &STANDARD
    }

    /// Every built-in table: by device type, name and version, oldest first.
    pub fn built_in() -> impl Iterator<Item = &'static Arc<PolicyTable>> {
        BUILT_IN.0.iter()
    }

    /// The built-in tables of a version, by device type; none if there is no such version.
    pub fn of_version(version: &str) -> impl Iterator<Item = &'static Arc<PolicyTable>> {
        BUILT_IN.of_version(version)
    }

    /// The built-in table of that name, such as `torch-cpu`: the one of the standard set, else the
    /// newest; or that of a version: `torch-cpu@2.15.0`. Strategies by dtype have names too:
    /// `bold-bf16` (see [`by_dtype`](Self::by_dtype)).
    pub fn named(name: &str) -> Option<Arc<PolicyTable>> {
        BUILT_IN.named(name).cloned().or_else(|| strategy::named(name))
    }

    /// Name and version as [`named`](Self::named) takes them: `torch-cpu@2.15.0`.
    pub fn title(&self) -> String {
        format!("{}@{}", self.name(), self.version())
    }
}

/// Tables by device type, name and version.
struct Library(Vec<Arc<PolicyTable>>);

impl Library {
    fn read(files: &[&str]) -> Library {
        let table = |text: &&str| {
            Arc::new(PolicyTable::parse(text).expect("the built-in tables are valid"))
        };
        let mut tables: Vec<_> = files.iter().map(table).collect();
        tables.sort_by(|a, b| {
            let key = |table: &PolicyTable| (table.device(), table.name().to_owned());
            key(a).cmp(&key(b)).then_with(|| by_age(a.version(), b.version()))
        });
        Library(tables)
    }

    fn of_version(&self, version: &str) -> impl Iterator<Item = &Arc<PolicyTable>> {
        self.0.iter().filter(move |table| table.version() == version)
    }

    fn named(&self, name: &str) -> Option<&Arc<PolicyTable>> {
        let standard = || {
            PolicyTable::STANDARD.into_iter().find(|title| title.split('@').next() == Some(name))
        };
        let newest = || self.0.iter().rfind(|table| table.name() == name);
        let of_title = |title: &str| self.0.iter().find(|table| table.title() == title);
        if name.contains('@') {
            return of_title(name);
        }
        standard().and_then(of_title).or_else(newest)
    }
}

/// Compares versions number by number: 2.9.1 is older than 2.15.0. What is no number is older than
/// what is one.
fn by_age(a: &str, b: &str) -> Ordering {
    let part = |part: &str| (part.parse::<u64>().ok(), part.to_owned());
    a.split('.').map(part).cmp(b.split('.').map(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, version: &str, policy: &str) -> String {
        format!(
            "name = \"{name}\"\ndevice = \"cpu\"\nversion = \"{version}\"\n[ops]\nmm = \"{policy}\"\n"
        )
    }

    #[test]
    fn a_later_version_is_a_file_and_changes_nothing_that_does_not_name_it() {
        let files = [
            file("torch-cpu", "2.16.0", "fp32"),
            file("torch-cpu", "2.15.0", "promote"),
            file("torch-cpu", "2.9.1", "lower_precision_fp"),
            file("mine", "10", "fp32"),
            file("mine", "9.5", "promote"),
        ];
        let library = Library::read(&files.each_ref().map(String::as_str));
        let titles: Vec<_> = library.0.iter().map(|table| table.title()).collect();
        assert_eq!(
            titles,
            ["mine@9.5", "mine@10", "torch-cpu@2.9.1", "torch-cpu@2.15.0", "torch-cpu@2.16.0"]
        );
        let title = |name| library.named(name).map(|table| table.title());
        assert_eq!(title("torch-cpu").as_deref(), Some("torch-cpu@2.15.0"));
        assert_eq!(title("torch-cpu@2.16.0").as_deref(), Some("torch-cpu@2.16.0"));
        assert_eq!(title("torch-cpu@2.9.1").as_deref(), Some("torch-cpu@2.9.1"));
        assert_eq!(title("mine").as_deref(), Some("mine@10"), "the newest, without a default");
        assert_eq!((title("torch-cpu@3"), title("torch")), (None, None));
        assert_eq!(library.of_version("2.16.0").count(), 1);
        assert_eq!(library.of_version("2").count(), 0);
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (older, newer) in [("2.9.1", "2.15.0"), ("2", "2.1"), ("b2d44f0d", "1"), ("9", "10")] {
            assert_eq!(
                (by_age(older, newer), by_age(newer, older)),
                (Ordering::Less, Ordering::Greater)
            );
        }
        assert_eq!(by_age("2.15.0", "2.15.0"), Ordering::Equal);
    }

    #[test]
    fn every_file_is_there_and_no_version_twice() {
        let mut titles: Vec<_> = PolicyTable::built_in().map(|table| table.title()).collect();
        assert_eq!((titles.len(), PolicyTable::standard().len()), (9, 8));
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), 9);
        assert!(PolicyTable::standard().is_sorted_by_key(|table| table.device()));
    }
}
