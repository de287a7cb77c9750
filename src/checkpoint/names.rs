//! [`Names`]: how the names and shapes of a file become those of a model, and back.

use super::rename::Rename;
use crate::error::{Error, Result};
use tracecast_ir::policy::matches_name;

/// What is done to names: a prefix that goes, patterns in order, matrices that lie transposed, and
/// names that are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    prefix: String,
    renames: Vec<Rename>,
    transposed: Vec<String>,
    ignored: Vec<String>,
    /// The first pattern that has no meaning.
    problem: Option<String>,
}

impl Names {
    pub(super) fn prefix(&mut self, prefix: String) {
        self.prefix = prefix;
    }

    /// With another prefix in front of what is there.
    pub(super) fn prefix_first(&mut self, prefix: &str) {
        self.prefix.insert_str(0, prefix);
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        match Rename::new(from, to) {
            Ok(rename) => self.renames.push(rename),
            Err(problem) => drop(self.problem.get_or_insert(problem)),
        }
    }

    pub(super) fn transpose(&mut self, names: &[&str]) {
        self.transposed.extend(names.iter().map(|name| (*name).to_owned()));
    }

    pub(super) fn ignore(&mut self, names: &[&str]) {
        self.ignored.extend(names.iter().map(|name| (*name).to_owned()));
    }

    /// # Errors
    /// A pattern without meaning.
    pub(super) fn checked(&self) -> Result<&Names> {
        match &self.problem {
            Some(problem) => Err(Error::Option { option: "rename", message: problem.clone() }),
            None => Ok(self),
        }
    }

    /// The name that one of the file is in the model; nothing if it has not the prefix.
    pub(super) fn of_model(&self, in_file: &str) -> Option<String> {
        let name = in_file.strip_prefix(&self.prefix)?.to_owned();
        Some(self.renames.iter().fold(name, |name, rename| rename.apply(&name).unwrap_or(name)))
    }

    /// The name that one of the model has in the file.
    pub(super) fn in_file(&self, of_model: &str) -> String {
        let back = self.renames.iter().rev().map(Rename::reversed);
        let name =
            back.fold(of_model.to_owned(), |name, rename| rename.apply(&name).unwrap_or(name));
        format!("{}{name}", self.prefix)
    }

    pub(super) fn transposes(&self, of_model: &str) -> bool {
        self.transposed.iter().any(|pattern| matches_name(pattern, of_model))
    }

    pub(super) fn ignores(&self, in_file: &str) -> bool {
        self.ignored.iter().any(|pattern| matches_name(pattern, in_file))
    }
}
