//! [`Report`]: what each case came to, as text and as JSON, and how two reports differ.

use crate::level::Level;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use tracecast_runtime::Error;

/// What a case came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The device does what is expected.
    Pass,
    /// It does something else.
    Fail {
        /// What was expected, and what was found.
        why: String,
        /// The smallest program that fails alone, if the case is a program.
        program: Option<String>,
    },
    /// It refuses a kernel of the case.
    Unsupported {
        /// In its own words.
        why: String,
    },
    /// It was not tried.
    Skipped {
        /// Why not.
        because: String,
    },
}

impl Outcome {
    /// A failure that is no program.
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Outcome::Fail { why: why.into(), program: None }
    }

    /// The name in texts.
    pub const fn name(&self) -> &'static str {
        match self {
            Outcome::Pass => "pass",
            Outcome::Fail { .. } => "fail",
            Outcome::Unsupported { .. } => "unsupported",
            Outcome::Skipped { .. } => "skipped",
        }
    }

    /// What there is to say about it.
    fn why(&self) -> &str {
        match self {
            Outcome::Pass => "",
            Outcome::Fail { why, .. } | Outcome::Unsupported { why } => why,
            Outcome::Skipped { because } => because,
        }
    }
}

/// An error of a compilation, as an outcome: that the device has no code is no failure.
pub(crate) fn refused(error: &Error) -> Outcome {
    match error {
        Error::Device(why) => Outcome::Unsupported { why: why.clone() },
        other => Outcome::failed(format!("it does not compile: {other}")),
    }
}

/// A case, and what it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseReport {
    /// Its section and name.
    pub name: String,
    /// What it came to.
    pub outcome: Outcome,
}

/// What all cases came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The device.
    pub device: String,
    /// What it was held to.
    pub level: Level,
    /// In the order in which they ran.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// True if no case fails. Unsupported and skipped cases do not fail; they are
    /// [counted](Report::count).
    pub fn passes(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The cases that fail.
    pub fn failures(&self) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(|case| matches!(case.outcome, Outcome::Fail { .. }))
    }

    /// How many cases came to that: `pass`, `fail`, `unsupported` or `skipped`.
    pub fn count(&self, outcome: &str) -> usize {
        self.cases.iter().filter(|case| case.outcome.name() == outcome).count()
    }

    /// The cases by section, which is what names begin with.
    fn sections(&self) -> Vec<(&str, Vec<&CaseReport>)> {
        let mut sections: Vec<(&str, Vec<&CaseReport>)> = Vec::new();
        for case in &self.cases {
            let name = case.name.split('/').next().unwrap_or_default();
            match sections.iter_mut().find(|(section, _)| *section == name) {
                Some((_, cases)) => cases.push(case),
                None => sections.push((name, vec![case])),
            }
        }
        sections
    }

    /// As one object of JSON, with the version of the kit.
    pub fn json(&self) -> String {
        let case = |case: &CaseReport| {
            let mut object = json!({"case": case.name, "outcome": case.outcome.name()});
            if !case.outcome.why().is_empty() {
                object["why"] = case.outcome.why().into();
            }
            if let Outcome::Fail { program: Some(program), .. } = &case.outcome {
                object["program"] = program.as_str().into();
            }
            object
        };
        let cases: Vec<Value> = self.cases.iter().map(case).collect();
        let kit = env!("CARGO_PKG_VERSION");
        let level = self.level.name();
        json!({"kit": kit, "device": self.device, "level": level, "cases": cases}).to_string()
    }
}

/// The cases that fail or were skipped, what is unsupported, and the counts of each section.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut skipped: Vec<(&String, Vec<&String>)> = Vec::new();
        for CaseReport { name, outcome } in &self.cases {
            match outcome {
                Outcome::Fail { why, program } => {
                    writeln!(f, "FAIL {name}: {why}")?;
                    let lines = program.iter().flat_map(|program| program.lines());
                    lines.into_iter().try_for_each(|line| writeln!(f, "    {line}"))?;
                }
                Outcome::Skipped { because } => match skipped.iter_mut().find(|s| s.0 == because) {
                    Some((_, names)) => names.push(name),
                    None => skipped.push((because, vec![name])),
                },
                Outcome::Pass | Outcome::Unsupported { .. } => {}
            }
        }
        for (because, names) in skipped {
            let more = match names.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            writeln!(f, "SKIPPED {}{more}: {because}", names[0])?;
        }
        let sections = self.sections();
        for (section, cases) in &sections {
            unsupported(f, section, cases)?;
        }
        let widest = sections.iter().map(|(section, _)| section.len()).max().unwrap_or(0);
        for (section, cases) in &sections {
            writeln!(f, "{section:widest$}  {}", counts(cases.iter().copied()))?;
        }
        writeln!(f, "{} at the level {}: {}", self.device, self.level, counts(&self.cases))
    }
}

/// Names the cases of a section that the device has no code for, with the first reason. Those of an
/// op stand together: `exp.f16,f64`.
fn unsupported(f: &mut fmt::Formatter<'_>, section: &str, cases: &[&CaseReport]) -> fmt::Result {
    let refused = |case: &&&CaseReport| matches!(case.outcome, Outcome::Unsupported { .. });
    let cases: Vec<&&CaseReport> = cases.iter().filter(refused).collect();
    let Some(first) = cases.first() else { return Ok(()) };
    writeln!(f, "UNSUPPORTED {}: {}", first.name, first.outcome.why())?;
    let mut ops: Vec<(&str, Vec<&str>)> = Vec::new();
    for case in &cases {
        let name = case.name.strip_prefix(section).unwrap_or(&case.name).trim_start_matches('/');
        let mut parts = name.split('.');
        let (op, dtype) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match ops.last_mut() {
            Some((last, dtypes)) if *last == op && !dtypes.contains(&dtype) => dtypes.push(dtype),
            Some((last, _)) if *last == op => {}
            _ => ops.push((op, vec![dtype])),
        }
    }
    let mut line = String::new();
    for (op, dtypes) in ops {
        let dot = if dtypes[0].is_empty() { "" } else { "." };
        let name = format!("{op}{dot}{}", dtypes.join(","));
        if line.len() + name.len() > WIDTH {
            writeln!(f, "   {line}")?;
            line.clear();
        }
        line = line + " " + &name;
    }
    writeln!(f, "   {line}")
}

/// The width of a list of cases.
const WIDTH: usize = 92;

/// `3 pass, 1 fail`
fn counts<'a>(cases: impl IntoIterator<Item = &'a CaseReport> + Clone) -> String {
    let count = |name: &str| {
        let cases = cases.clone().into_iter();
        let count = cases.filter(|case| case.outcome.name() == name).count();
        (count > 0).then(|| format!("{count} {name}"))
    };
    let counts = ["pass", "fail", "unsupported", "skipped"].into_iter().filter_map(count);
    counts.collect::<Vec<_>>().join(", ")
}

/// The cases whose outcome differs between two reports in JSON, one a line.
///
/// # Errors
/// If a text is no report.
pub fn difference(old: &str, new: &str) -> Result<String, String> {
    let read = |which: &str, text| {
        outcomes(text).map_err(|why| format!("the {which} file is no report: {why}"))
    };
    let (old, new) = (read("old", old)?, read("new", new)?);
    let mut told = String::new();
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        let of = |all: &BTreeMap<String, String>| {
            all.get(name).cloned().unwrap_or_else(|| "not there".to_owned())
        };
        let (before, after) = (of(&old), of(&new));
        if before != after {
            told += &format!("{name}: {before}, now {after}\n");
        }
    }
    Ok(told)
}

fn outcomes(text: &str) -> Result<BTreeMap<String, String>, String> {
    let report: Value = serde_json::from_str(text).map_err(|why| why.to_string())?;
    let cases = report["cases"].as_array().ok_or("there are no `cases`")?;
    let outcome = |case: &Value| {
        let text = |key: &str| case[key].as_str().map(str::to_owned);
        Some((text("case")?, text("outcome")?))
    };
    cases.iter().map(outcome).collect::<Option<_>>().ok_or_else(|| "a case has no name".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_differ_by_case() {
        let report = |outcome| Report {
            device: "npu:0".to_owned(),
            level: Level::Maps,
            cases: vec![CaseReport { name: "a/b".to_owned(), outcome }],
        };
        let (pass, fail) = (report(Outcome::Pass), report(Outcome::failed("it is wrong")));
        assert!(pass.passes() && !fail.passes());
        assert_eq!(difference(&pass.json(), &pass.json()).as_deref(), Ok(""));
        let found = difference(&pass.json(), &fail.json()).unwrap_or_default();
        assert_eq!(found, "a/b: pass, now fail\n");
        assert!(difference("{}", &pass.json()).is_err());
        assert!(fail.to_string().starts_with("FAIL a/b: it is wrong\n"));
    }
}
