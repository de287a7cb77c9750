//! [`Summary`]: what a model is made of, module by module: parameters, their shapes and bytes, and
//! the types of results.

use crate::amp::Autocast;
use crate::entry::{Entry, Start};
use crate::error::Result;
use crate::nn::{Context, Module};
use crate::options::Options;
use crate::trace::{Trace, Types};
use std::fmt;
use tracecast_ir::{Role, TensorType};

/// What a model is made of. Printing gives a table; made by [`Module::summary`] and
/// [`Module::summary_of`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The modules, in the order in which they are called; the model itself, whose path is empty,
    /// is the last one.
    pub modules: Vec<ModuleNote>,
}

/// A module of a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModuleNote {
    /// Its path, such as `encoder.0`; empty for the model.
    pub path: String,
    /// The type of its result, if the summary is of a run: under autocast it says in which dtype
    /// the module computes.
    pub result: Option<TensorType>,
    /// What it keeps itself, without the modules inside of it: parameters and buffers by their own
    /// names.
    pub entries: Vec<EntryNote>,
}

/// A parameter or a buffer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EntryNote {
    /// Its name within the module.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Whether it is trained.
    pub trained: bool,
}

impl EntryNote {
    /// How many numbers it has.
    pub fn count(&self) -> usize {
        self.ty.shape.checked_numel().unwrap_or(usize::MAX)
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.count().saturating_mul(self.ty.dtype.bytes())
    }
}

impl Summary {
    pub(super) fn of(module: &(impl Module + ?Sized)) -> Result<Self> {
        let entries = module.entries()?;
        let mut modules: Vec<ModuleNote> = Vec::new();
        for entry in &entries {
            let (path, _) = split(&entry.name);
            if !modules.iter().any(|known| known.path == path) {
                modules.push(ModuleNote {
                    path: path.to_owned(),
                    result: None,
                    entries: Vec::new(),
                });
            }
        }
        Ok(Summary::filled(modules, &entries))
    }

    pub(super) fn of_run(
        module: &(impl Module + ?Sized),
        x: TensorType,
        region: Option<&Autocast>,
    ) -> Result<Self> {
        let trace = Trace::new("summary", &Options::new(), Types::default())?;
        let seen = std::rc::Rc::default();
        trace.run(|t| {
            let cx = Context::evaluation(t).seeing(&seen);
            let x = t.input_of("x", x);
            let forward = || module.forward(&cx, x);
            let result = match region {
                Some(region) => region.run(t, forward),
                None => forward(),
            };
            if !result.is_poison() {
                seen.borrow_mut().push((String::new(), result.ty()));
            }
        })?;
        trace.finish()?;
        let seen: Vec<(String, TensorType)> = seen.take();
        let note = |(path, ty)| ModuleNote { path, result: Some(ty), entries: Vec::new() };
        Ok(Summary::filled(seen.into_iter().map(note).collect(), &module.entries()?))
    }

    /// Puts the entries into their modules; a module that is called twice has them once.
    fn filled(mut modules: Vec<ModuleNote>, entries: &[Entry]) -> Self {
        if !modules.iter().any(|module| module.path.is_empty()) {
            modules.push(ModuleNote { path: String::new(), result: None, entries: Vec::new() });
        }
        for entry in entries.iter().filter(|entry| entry.start != Start::Seed) {
            let (mut path, _) = split(&entry.name);
            // What is called by no module of that path belongs to the one around it.
            while !modules.iter().any(|module| module.path == path) {
                path = split(path).0;
            }
            let name = entry.name[path.len()..].trim_start_matches('.').to_owned();
            let (ty, trained) = (entry.ty.clone(), entry.role == Role::Param);
            let note = EntryNote { name, ty, trained };
            let module = modules.iter_mut().find(|module| module.path == path);
            if let Some(module) = module.filter(|module| !module.entries.contains(&note)) {
                module.entries.push(note);
            }
        }
        Summary { modules }
    }

    fn entries(&self) -> impl Iterator<Item = &EntryNote> {
        self.modules.iter().flat_map(|module| &module.entries)
    }

    /// How many numbers are trained.
    pub fn trained(&self) -> usize {
        self.entries().filter(|entry| entry.trained).map(EntryNote::count).sum()
    }

    /// How many numbers there are, buffers included.
    pub fn count(&self) -> usize {
        self.entries().map(EntryNote::count).sum()
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.entries().map(EntryNote::bytes).sum()
    }
}

/// The module path and the name of an entry, `("encoder.0", "weight")`.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// A row for each module, and what all of it comes to.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows =
            vec![["module", "result", "numbers", "bytes", "parameters"].map(str::to_owned)];
        for module in &self.modules {
            let path = if module.path.is_empty() { "(model)" } else { &module.path };
            let own = |entry: &EntryNote| {
                let frozen = if entry.trained { "" } else { " (not trained)" };
                format!("{} {}{frozen}", entry.name, entry.ty)
            };
            let sum = |of: fn(&EntryNote) -> usize| module.entries.iter().map(of).sum::<usize>();
            rows.push([
                path.to_owned(),
                module.result.as_ref().map_or_else(String::new, ToString::to_string),
                sum(EntryNote::count).to_string(),
                sum(EntryNote::bytes).to_string(),
                module.entries.iter().map(own).collect::<Vec<_>>().join(", "),
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..4).map(|column| width(column).unwrap_or(0)).collect();
        for [path, result, numbers, bytes, entries] in &rows {
            let line = format!(
                "{path:<0$}  {result:<1$}  {numbers:>2$}  {bytes:>3$}  {entries}",
                widths[0], widths[1], widths[2], widths[3]
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let (all, trained) = (self.count(), self.trained());
        write!(f, "{all} numbers, {trained} of them trained, {} bytes", self.bytes())
    }
}
