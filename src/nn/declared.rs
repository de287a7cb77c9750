//! [`Declared`]: what a module keeps in the store, learned by recording it once without a program.
//!
//! [`Context::parameter`] notes what it is asked for and answers with a value of no type, and so do all ops on such values. So
//! `forward` alone says which parameters a module has, and nobody writes their names twice.

use crate::entry::Entry;
use crate::nn::Context;
use crate::options::Options;
use crate::trace::{Trace, Types};
use std::cell::RefCell;
use std::rc::Rc;

/// What was asked for, in the order of the first requests.
#[derive(Debug, Default)]
pub(super) struct Declared {
    entries: RefCell<Vec<(Entry, Asker)>>,
    ties: RefCell<Vec<String>>,
}

/// Where the module that asks lies, while `forward` runs: one that is called twice has its parameters once, and two of one name are a
/// mistake to be seen.
pub(super) type Asker = usize;

impl Declared {
    /// What `forward` asks for when it trains, and what it asks for when it is evaluated as well.
    pub(super) fn of(forward: impl for<'t> Fn(&Context<'t>)) -> Rc<Declared> {
        let trace = Trace::new("declared", &Options::new(), Types::default());
        let trace = trace.expect("options without rules of their own have none that is wrong");
        let [training, evaluation] =
            [Context::training(&trace), Context::evaluation(&trace)].map(|cx| {
                let declared = Rc::new(Declared::default());
                forward(&cx.declaring(&declared));
                declared
            });
        for (entry, asker) in evaluation.entries.take() {
            let mut entries = training.entries.borrow_mut();
            if !entries.iter().any(|(known, _)| *known == entry) {
                entries.push((entry, asker));
            }
        }
        evaluation.ties.take().iter().for_each(|tie| training.note_tie(tie));
        training
    }

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

    /// Takes note of the full name of a parameter that belongs to another module.
    pub(super) fn note_tie(&self, name: &str) {
        let mut ties = self.ties.borrow_mut();
        if !ties.iter().any(|tie| tie == name) {
            ties.push(name.to_owned());
        }
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.borrow().iter().map(|(entry, _)| entry.clone()).collect()
    }

    pub(super) fn ties(&self) -> Vec<String> {
        self.ties.borrow().clone()
    }
}
