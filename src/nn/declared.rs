//! [`Declared`]: what a module keeps in the store, learned by recording it once without a program.
//!
//! [`Context::parameter`](crate::nn::Context::parameter) notes the entry and returns a value of its
//! type. The input of the module has no type, and so has what is made of it, unless the module
//! [states one](crate::nn::Module::for_input). So `forward` alone defines which parameters a module
//! has, and nobody writes their names twice.

use crate::entry::Entry;
use std::cell::RefCell;

/// What was asked for, in the order of the first requests.
#[derive(Debug, Default)]
pub(super) struct Declared {
    entries: RefCell<Vec<(Entry, Asker)>>,
    ties: RefCell<Vec<Tie>>,
}

/// A parameter of another module in the place of one's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The full name of the parameter.
    pub of: String,
    /// The full name that it would have where it is used, if that is known: PyTorch's `state_dict`
    /// has both.
    pub own: Option<String>,
}

/// Where the module that asks lies, while `forward` runs: one that is called twice has its
/// parameters once, and two of one name are a mistake to be seen.
pub(super) type Asker = usize;

impl Declared {
    /// Takes note of an entry that the module at `asker` asks for.
    pub(super) fn note(&self, entry: Entry, asker: Asker) {
        let mut entries = self.entries.borrow_mut();
        let is_known = |(known, by): &(Entry, Asker)| {
            known.is_one_with(&entry) || *by == asker && *known == entry
        };
        if !entries.iter().any(is_known) {
            entries.push((entry, asker));
        }
    }

    /// Takes note of a parameter that belongs to another module.
    pub(super) fn note_tie(&self, tie: Tie) {
        let mut ties = self.ties.borrow_mut();
        if !ties.contains(&tie) {
            ties.push(tie);
        }
    }

    /// Takes note of what another has noted besides.
    pub(super) fn add(&self, other: &Declared) {
        for (entry, asker) in other.entries.take() {
            let mut entries = self.entries.borrow_mut();
            if !entries.iter().any(|(known, _)| *known == entry) {
                entries.push((entry, asker));
            }
        }
        other.ties.take().into_iter().for_each(|tie| self.note_tie(tie));
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.borrow().iter().map(|(entry, _)| entry.clone()).collect()
    }

    pub(super) fn ties(&self) -> Vec<Tie> {
        self.ties.borrow().clone()
    }
}
