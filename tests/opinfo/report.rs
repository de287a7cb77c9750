//! What came of the calls, as text.

use crate::cases::Case;
use crate::compare::{Difference, differences};
use crate::known::{ALL, Known, Part, known};
use crate::run::Ran;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tracecast_ir::eval::Value;

/// What came of the calls of a file.
#[derive(Default)]
pub(crate) struct Report {
    /// The entries that answer as PyTorch does, and for which dtypes.
    same: BTreeMap<String, BTreeSet<String>>,
    /// Lines, below the row of the page that names them.
    different: BTreeMap<&'static str, Vec<String>>,
    /// Calls that are not here: why, and of which entries.
    absent: BTreeMap<String, BTreeSet<String>>,
    /// Differences that no row names.
    pub(crate) unnamed: Vec<String>,
    compared: usize,
    calls: usize,
}

impl Report {
    /// Takes note of what came of a call.
    pub(crate) fn note(&mut self, case: &Case, ran: Ran) {
        self.calls += 1;
        let (entry, dtype) = case.entry();
        let (out, grads) = match ran {
            Ran::NoCall(why) => {
                self.absent.entry(why).or_default().insert(entry.to_owned());
                return;
            }
            Ran::Refused(message) => {
                self.compared += 1;
                if case.is_refused {
                    return self.is_same(entry, dtype);
                }
                let message = message.lines().next().unwrap_or_default();
                return self.differs(case, Part::Refused, None, message);
            }
            Ran::Answered { out, grads } => (out, grads),
        };
        self.compared += 1;
        if case.is_refused {
            return self.differs(case, Part::Taken, None, "PyTorch refuses it");
        }
        let mut is_same = true;
        if out.len() != case.out.len() {
            self.differs(case, Part::Out, None, &format!("{} results", out.len()));
            is_same = false;
        }
        for (i, (found, wanted)) in out.iter().zip(&case.out).enumerate() {
            is_same &= self.compare(case, Part::Out, i, found, Some(wanted));
        }
        for (i, (found, (_, wanted))) in grads.iter().zip(&case.grads).enumerate() {
            is_same &= self.compare(case, Part::Grad, i, found, wanted.as_ref());
        }
        if is_same {
            self.is_same(entry, dtype);
        }
    }

    fn is_same(&mut self, entry: &str, dtype: &str) {
        self.same.entry(entry.to_owned()).or_default().insert(dtype.to_owned());
    }

    /// Compares one tensor; true if it is PyTorch's. A gradient that PyTorch does not give is zero.
    fn compare(
        &mut self,
        case: &Case,
        part: Part,
        i: usize,
        found: &Value,
        wanted: Option<&Value>,
    ) -> bool {
        let zeros;
        let wanted = match wanted {
            Some(wanted) => wanted,
            None => {
                zeros = Value::zeros(found.ty.clone()).unwrap();
                &zeros
            }
        };
        let error = if part == Part::Out { case.error.0 } else { case.error.1 };
        match differences(case, found, wanted, error) {
            Err(types) => self.differs(case, part, None, &types),
            Ok(all) if all.is_empty() => return true,
            Ok(all) => {
                for difference in all {
                    let text = format!("{part} {i}, {difference}");
                    self.differs(case, part, Some(&difference), &text);
                }
            }
        }
        false
    }

    fn differs(&mut self, case: &Case, part: Part, difference: Option<&Difference>, text: &str) {
        let line = format!("{}: {text}", case.id);
        match known(case, part, difference) {
            Some(Known { row, .. }) => self.different.entry(row).or_default().push(line),
            None => self.unnamed.push(line),
        }
    }

    /// Fails if a row of the page names differences that there are not.
    pub(crate) fn every_row_is_needed(&self) {
        for known in ALL {
            assert!(self.different.contains_key(known.row), "nothing differs by {:?}", known.row);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} calls were compared.", self.compared, self.calls)?;
        writeln!(f, "\n# As PyTorch\n")?;
        for (entry, dtypes) in &self.same {
            writeln!(f, "{entry}: {}", joined(dtypes))?;
        }
        for (row, lines) in &self.different {
            writeln!(f, "\n# Different: {row}\n")?;
            lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        }
        writeln!(f, "\n# Not here\n")?;
        self.absent.iter().try_for_each(|(why, entries)| writeln!(f, "{why}: {}", joined(entries)))
    }
}

fn joined(words: &BTreeSet<String>) -> String {
    words.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}
