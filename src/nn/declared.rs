//! [`Declared`]: what a module keeps in the store, learned by recording it once without a program.
//!
//! [`Context::parameter`] notes what it is asked for and answers with a value of its type. The
//! input of the module has no type, and so has what is made of it, unless the module
//! [says one](crate::nn::Module::for_input). So `forward` alone says which parameters a module has,
//! and nobody writes their names twice.

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::nn::Context;
use crate::options::Options;
use crate::trace::{Trace, Types};
use std::cell::RefCell;
use std::rc::Rc;
use tracecast_ir::TraceError;
use tracecast_ir::unknown::{Ended, guarded};

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
    /// What `forward` asks for when it trains, and what it asks for when it is evaluated as well.
    ///
    /// # Errors
    /// If `forward` decides by the type of a value that has none, or panics.
    pub(super) fn of(forward: impl for<'t> Fn(&Context<'t>)) -> Result<Rc<Declared>> {
        let trace = Trace::new("declared", &Options::new(), Types::default())?;
        let noted = |cx: Context<'_>| {
            let declared = Rc::new(Declared::default());
            match guarded(|| forward(&cx.declaring(&declared))) {
                Ok(()) => Ok(declared),
                Err(ended) => Err(trace.error().map_or_else(|| refusal(ended), Error::from)),
            }
        };
        let training = noted(Context::training(&trace))?;
        let evaluation = noted(Context::evaluation(&trace))?;
        for (entry, asker) in evaluation.entries.take() {
            let mut entries = training.entries.borrow_mut();
            if !entries.iter().any(|(known, _)| *known == entry) {
                entries.push((entry, asker));
            }
        }
        evaluation.ties.take().into_iter().for_each(|tie| training.note_tie(tie));
        Ok(training)
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

    /// Takes note of a parameter that belongs to another module.
    pub(super) fn note_tie(&self, tie: Tie) {
        let mut ties = self.ties.borrow_mut();
        if !ties.contains(&tie) {
            ties.push(tie);
        }
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.borrow().iter().map(|(entry, _)| entry.clone()).collect()
    }

    pub(super) fn ties(&self) -> Vec<Tie> {
        self.ties.borrow().clone()
    }
}

/// Why the parameters of a module are not known.
fn refusal(ended: Ended) -> Error {
    match ended {
        Ended::Asked(at) => Error::Trace(TraceError {
            op: "module".to_owned(),
            message: "`forward` decides by the type of a value, and without a run the input has none: give it one, as in \
                      `module.for_input(TensorType::new(DType::F32, [1, 4]))`"
                .to_owned(),
            source_line: at.to_string(),
            scope: String::new(),
        }),
        Ended::Panicked(panic) => Error::Closure {
            name: "forward".to_owned(),
            message: format!("panicked when it was called without a run: {}", panicked(&*panic)),
        },
    }
}

/// What a panic said.
fn panicked(panic: &dyn std::any::Any) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}
