//! What came of the calls of a family, as a table and as text.

use crate::cases::{Case, Wanted};
use crate::compare::{Difference, differences};
use crate::known::{Known, Part, at_the_end, known};
use crate::run::Ran;
use crate::ties::{self, Differs};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;
use tracecast_ir::eval::Value;

/// What came of the calls of a family.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) name: String,
    ops: BTreeMap<String, Counts>,
    /// Lines, below the row of the page that names them.
    different: BTreeMap<&'static str, Vec<String>>,
    /// Calls that have no form here, and those that are refused: by operator, with how many there
    /// are and the first reason.
    absent: BTreeMap<String, (usize, String)>,
    refused: BTreeMap<String, (usize, String)>,
    /// Differences that no row names.
    pub(crate) unnamed: Vec<String>,
    pub(crate) programs: usize,
}

/// How many calls came to what.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    calls: usize,
    /// As PyTorch: values, dtypes, shapes, gradients, or the refusal.
    agree: usize,
    /// Where PyTorch promises nothing, or Python alone refuses: checked by rule.
    ruled: usize,
    /// Refused here only.
    refused: usize,
    /// There is no such call.
    no_form: usize,
    /// Another answer.
    differ: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.calls += other.calls;
        self.agree += other.agree;
        self.ruled += other.ruled;
        self.refused += other.refused;
        self.no_form += other.no_form;
        self.differ += other.differ;
    }
}

/// The cells of a row of the table.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { calls, agree, ruled, refused, no_form, differ } = self;
        write!(f, "{calls} | {agree} | {ruled} | {refused} | {no_form} | {differ}")
    }
}

/// The head of the table.
pub(crate) const HEAD: &str =
    "| | calls | agree | by rule | refused | no form | differ |\n|---|---|---|---|---|---|---|";

/// What a call came to, beside the text that says it.
enum Verdict {
    Agrees,
    Ruled,
    Differs,
}

impl Report {
    pub(crate) fn new(name: String) -> Self {
        Report { name, ..Report::default() }
    }

    /// Takes note of what came of a call.
    pub(crate) fn note(&mut self, case: &Case, ran: Ran) {
        let mut counts = Counts { calls: 1, ..Counts::default() };
        let is_refused = case.refusal.is_some();
        let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
        match ran {
            // What Python's signature refuses, the compiler of Rust does.
            Ran::NoCall(why) if is_type_error(case) && !why.starts_with("no op") => {
                counts.ruled = 1
            }
            Ran::NoCall(why) => {
                counts.no_form = 1;
                self.absent.entry(case.op.clone()).or_insert((0, why)).0 += 1;
            }
            Ran::Refused(message) if is_refused || message.contains(DEPENDS) => counts.agree = 1,
            Ran::Refused(message) => {
                let message = first(message);
                match known(case, Part::Refused, None) {
                    Some(Known { row, .. }) => {
                        let line = format!("{}: {message}", case.id);
                        self.different.entry(row).or_default().push(line);
                    }
                    None => {
                        let line = format!("{} ({})", message, case.id);
                        self.refused.entry(case.op.clone()).or_insert((0, line)).0 += 1;
                    }
                }
                counts.refused = 1;
            }
            Ran::Broken(what) => {
                self.unnamed.push(format!("{}: {}", case.id, first(what)));
                counts.differ = 1;
            }
            // PyTorch only has no kernel, or no signature.
            Ran::Answered { .. } if lacks_kernel(case) || is_type_error(case) => {
                counts.ruled = 1;
            }
            Ran::Answered { .. } if is_refused => {
                match self.differs(case, Part::Taken, None, "PyTorch refuses it") {
                    Verdict::Ruled => counts.ruled = 1,
                    _ => counts.differ = 1,
                }
            }
            Ran::Answered { out, grads } => match self.answered(case, &out, &grads) {
                Verdict::Agrees => counts.agree = 1,
                Verdict::Ruled => counts.ruled = 1,
                Verdict::Differs => counts.differ = 1,
            },
        }
        *self.ops.entry(case.op.clone()).or_default() += counts;
    }

    fn answered(&mut self, case: &Case, out: &[Value], grads: &[Value]) -> Verdict {
        let mut all = Vec::new();
        if out.len() != case.out.len() {
            let text = format!("{} results, PyTorch {}", out.len(), case.out.len());
            all.push(self.differs(case, Part::Out, None, &text));
        }
        for (i, (found, wanted)) in out.iter().zip(&case.out).enumerate() {
            all.push(match wanted {
                Wanted::Type(ty) if found.ty == *ty => Verdict::Agrees,
                Wanted::Type(ty) => {
                    let text = format!("{}, PyTorch {ty}", found.ty);
                    self.differs(case, Part::Out, None, &text)
                }
                Wanted::Value(wanted) => self.compare(case, Part::Out, i, found, Some(wanted)),
            });
        }
        for (i, (found, (_, wanted))) in grads.iter().zip(&case.grads).enumerate() {
            all.push(self.compare(case, Part::Grad, i, found, wanted.as_ref()));
        }
        if all.iter().any(|verdict| matches!(verdict, Verdict::Differs)) {
            Verdict::Differs
        } else if all.iter().any(|verdict| matches!(verdict, Verdict::Ruled)) {
            Verdict::Ruled
        } else {
            Verdict::Agrees
        }
    }

    /// Compares one tensor. A gradient that PyTorch does not give is zero.
    fn compare(
        &mut self,
        case: &Case,
        part: Part,
        i: usize,
        found: &Value,
        wanted: Option<&Value>,
    ) -> Verdict {
        let zeros;
        let wanted = match wanted {
            Some(wanted) => wanted,
            None => {
                zeros = Value::zeros(found.ty.clone()).unwrap();
                &zeros
            }
        };
        let error = if part == Part::Out { case.error.0 } else { case.error.1 };
        let all = match differences(case, found, wanted, error, part) {
            Err(types) => return self.differs(case, part, None, &format!("{part} {i}, {types}")),
            Ok(all) => all,
        };
        let differs = Differs { part, at: i, found, wanted, all: &all };
        if !all.is_empty() && ties::explain(case, &differs) {
            return Verdict::Ruled;
        }
        let mut verdict = Verdict::Agrees;
        for difference in all {
            let text = format!("{part} {i}, {difference}");
            verdict = match (self.differs(case, part, Some(&difference), &text), verdict) {
                (Verdict::Ruled, Verdict::Agrees | Verdict::Ruled) => Verdict::Ruled,
                _ => Verdict::Differs,
            };
        }
        verdict
    }

    fn differs(
        &mut self,
        case: &Case,
        part: Part,
        difference: Option<&Difference>,
        text: &str,
    ) -> Verdict {
        let line = format!("{}: {text}", case.id);
        match known(case, part, difference) {
            Some(Known { row, is_free, .. }) => {
                self.different.entry(row).or_default().push(line);
                if *is_free { Verdict::Ruled } else { Verdict::Differs }
            }
            None => {
                match at_the_end(case, part, difference) {
                    Some(row) => self.different.entry(row).or_default().push(line),
                    None => self.unnamed.push(line),
                }
                Verdict::Differs
            }
        }
    }

    /// Whether what came of the calls is not worse than in another report of the same calls.
    pub(crate) fn is_as_good_as(&self, other: &Report) -> bool {
        let rank = |counts: Counts| {
            let Counts { agree, ruled, differ, refused, .. } = counts;
            (agree + ruled, std::cmp::Reverse(differ), refused)
        };
        rank(self.total()) >= rank(other.total())
    }

    /// All operators together.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.ops.values().for_each(|counts| total += *counts);
        total
    }

    /// The rows of the page that differences of this family have.
    pub(crate) fn rows(&self) -> BTreeSet<&'static str> {
        self.different.keys().copied().collect()
    }
}

/// What a refusal says where the shape of a result would depend on data.
const DEPENDS: &str = "depends on the data";

fn lacks_kernel(case: &Case) -> bool {
    case.refusal.as_deref() == Some("NotImplementedError")
}

fn is_type_error(case: &Case) -> bool {
    case.refusal.as_deref() == Some("TypeError")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        writeln!(f, "| {} | {} |", self.name, self.total())?;
        self.ops.iter().try_for_each(|(op, counts)| writeln!(f, "| {op} | {counts} |"))?;
        for (row, lines) in &self.different {
            writeln!(f, "\n# Different: {row}\n")?;
            lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        }
        for (title, list) in [("Refused here", &self.refused), ("No such form", &self.absent)] {
            if !list.is_empty() {
                writeln!(f, "\n# {title}\n")?;
            }
            list.iter().try_for_each(|(op, (count, why))| writeln!(f, "{op}: {count}: {why}"))?;
        }
        Ok(())
    }
}
