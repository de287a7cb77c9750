//! `tracecast policy`: shows a policy table, compares two tables or two policy sets, checks a file
//! of either.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracecast_ir::ops;
use tracecast_ir::policy::{
    Change, DeviceType, Policy, PolicyFile, PolicySet, PolicyTable, ScriptClass, ScriptTable,
    review,
};
use tracecast_ir::text::did_you_mean;

use crate::failure::{Failure, note};

/// The name of the lists of the TorchScript pass.
const SCRIPT: &str = "torchscript";

/// Shows, compares and checks what decides about precision
#[derive(clap::Args)]
pub(crate) struct PolicyCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Writes a policy table by policy, or as a file
    Show {
        /// A device type such as `cuda`, a built-in table such as `torchax` or `torch-cpu@2.15.0`,
        /// `torchscript` for the lists of the TorchScript pass, `standard` for PyTorch's set, or a
        /// file
        #[arg(value_name = "WHAT")]
        what: String,
        /// Writes it as a file that can be changed and read again
        #[arg(long)]
        toml: bool,
    },
    /// Writes what is different in B; the exit code is 0 also then
    ///
    /// A table compared with a set stands for PyTorch's set with this table in the place of its
    /// device type's. The lists of a TorchScript pass have classes in the place of policies: they
    /// are compared with such lists alone.
    Diff {
        /// A device type, a built-in table, `torchscript`, `standard` for PyTorch's set, or a file
        a: String,
        /// What it is compared with
        b: String,
    },
    /// Reads a policy set or a policy table and says what is wrong with it
    ///
    /// An error is a file that does not read. Warnings are of ops that nobody knows, of rules that
    /// are said twice, that match nothing or that never decide because a stronger one covers them,
    /// and of policies that an op cannot follow.
    Check {
        /// The file; `-` reads standard input
        file: PathBuf,
        /// Fails, with exit code 1, if there is a warning
        #[arg(long)]
        deny_warnings: bool,
    },
}

impl PolicyCommand {
    /// Does what is asked.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        match &self.action {
            Action::Show { what, toml } => show(out, what, *toml),
            Action::Diff { a, b } => diff(out, a, b),
            Action::Check { file, deny_warnings } => check(out, file, *deny_warnings),
        }
    }
}

/// The table or set of that name, or in that file.
fn find(name: &str) -> Result<PolicyFile, Failure> {
    if name == "standard" {
        return Ok(PolicyFile::Set(Box::new(PolicySet::standard())));
    }
    if name == SCRIPT {
        return Ok(PolicyFile::Script(Box::new(ScriptTable::built_in().clone())));
    }
    if let Some(table) = PolicyTable::named(name) {
        return Ok(PolicyFile::Table(table));
    }
    if let Ok(device) = name.parse::<DeviceType>() {
        let set = PolicySet::standard();
        let table = set.table(device).cloned();
        let empty = || Arc::new(PolicyTable::empty(device.name(), device, "none"));
        return Ok(PolicyFile::Table(table.unwrap_or_else(empty)));
    }
    let path = Path::new(name);
    if path.exists() {
        let text = text(path)?;
        return PolicyFile::parse(&text).map_err(|error| Failure::in_file(path, error));
    }
    let titles: Vec<_> = PolicyTable::built_in().map(|table| table.title()).collect();
    let tables = PolicyTable::built_in().map(|table| table.name());
    let names = DeviceType::ALL.iter().map(|device| device.name());
    let known = names.chain(tables).chain([SCRIPT, "standard"]);
    Err(Failure::Usage(format!(
        "there is no device type, table or file `{name}`{}; device types are {}, tables are {}, {SCRIPT}; the set of PyTorch's tables \
         is `standard`",
        did_you_mean(name, known),
        DeviceType::names(),
        titles.join(", ")
    )))
}

/// The text of a file, or standard input for `-`.
fn text(path: &Path) -> Result<String, Failure> {
    let text = if is_stdin(path) {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    text.map_err(|error| Failure::Input(format!("{}: {error}", shown(path))))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The name of a file in messages.
fn shown(path: &Path) -> String {
    if is_stdin(path) { "<stdin>".to_owned() } else { path.display().to_string() }
}

fn show(out: &mut impl Write, what: &str, toml: bool) -> Result<(), Failure> {
    match (find(what)?, toml) {
        (PolicyFile::Table(table), true) => write!(out, "{table}")?,
        (PolicyFile::Set(set), true) => write!(out, "{}", set.to_toml())?,
        (PolicyFile::Script(script), true) => write!(out, "{script}")?,
        (PolicyFile::Set(set), false) => write!(out, "{set}")?,
        (PolicyFile::Script(script), false) => show_script(out, &script)?,
        (PolicyFile::Table(table), false) => {
            writeln!(
                out,
                "{} {} for {}, low dtype {} by default: {} ops",
                table.name(),
                table.version(),
                table.device(),
                table.device().default_low(),
                table.len()
            )?;
            if table.casts_f64() {
                writeln!(out, "f64 is cast too")?;
            }
            for policy in Policy::NAMES {
                let ops = table.iter().filter(|(_, listed)| listed.name() == policy);
                group(out, policy, &ops.map(|(op, _)| op).collect::<Vec<_>>())?;
            }
        }
    }
    Ok(())
}

fn show_script(out: &mut impl Write, table: &ScriptTable) -> Result<(), Failure> {
    writeln!(out, "{} {}: {} ops", table.name(), table.version(), table.iter().count())?;
    for (name, class) in ScriptClass::NAMED {
        let ops = table.iter().filter(|(_, listed)| *listed == class);
        group(out, name, &ops.map(|(op, _)| op).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A heading and one op a line; nothing if there are none.
fn group(out: &mut impl Write, heading: &str, ops: &[&str]) -> Result<(), Failure> {
    if !ops.is_empty() {
        writeln!(out, "\n{heading}, {} ops", ops.len())?;
    }
    for op in ops {
        writeln!(out, "  {op}")?;
    }
    Ok(())
}

fn diff(out: &mut impl Write, a: &str, b: &str) -> Result<(), Failure> {
    let lines = match (find(a)?, find(b)?) {
        (PolicyFile::Table(a), PolicyFile::Table(b)) => {
            a.diff(&b).iter().map(change_of_tables).collect()
        }
        (PolicyFile::Script(a), PolicyFile::Script(b)) => changes_of_lists(&a, &b),
        (a, b) => match (a.into_set(), b.into_set()) {
            (Some(a), Some(b)) => a.diff(&b).iter().map(Change::to_string).collect(),
            _ => {
                let message = "the lists of a TorchScript pass are in classes, not in policies: they cannot be compared with a table \
                     or a policy set";
                return Err(Failure::Usage(message.to_owned()));
            }
        },
    };
    if lines.is_empty() {
        writeln!(out, "no difference")?;
    }
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// A difference between two tables, which may be of two device types.
fn change_of_tables(change: &Change) -> String {
    let name = |policy: &Option<Policy>| policy.as_ref().map_or("not listed", Policy::name);
    match change {
        Change::Op { op, before, after, .. } => {
            format!("{op}: {} -> {}", name(before), name(after))
        }
        change => change.to_string(),
    }
}

/// The differences between two lists of a TorchScript pass.
fn changes_of_lists(a: &ScriptTable, b: &ScriptTable) -> Vec<String> {
    let mut ops: Vec<&str> = a.iter().chain(b.iter()).map(|(op, _)| op).collect();
    ops.sort_unstable();
    ops.dedup();
    let name =
        |class: Option<ScriptClass>| class.map_or("not listed".to_owned(), |c| c.to_string());
    ops.retain(|op| a.class(op) != b.class(op));
    ops.into_iter()
        .map(|op| format!("{op}: {} -> {}", name(a.class(op)), name(b.class(op))))
        .collect()
}

fn check(out: &mut impl Write, path: &Path, deny_warnings: bool) -> Result<(), Failure> {
    let (text, file) = (text(path)?, shown(path));
    let wrong = |error| Failure::Input(format!("{file}: {error}"));
    match PolicyFile::parse(&text).map_err(wrong)? {
        PolicyFile::Table(table) => {
            writeln!(
                out,
                "{file}: table {} {} for {}, {} ops",
                table.name(),
                table.version(),
                table.device(),
                table.len()
            )?;
        }
        PolicyFile::Set(set) => {
            let rules = set.rules().count();
            let plural = if rules == 1 { "" } else { "s" };
            writeln!(out, "{file}: a policy set of {rules} rule{plural}")?;
            write!(out, "{set}")?;
        }
        PolicyFile::Script(script) => {
            let ops = script.iter().count();
            writeln!(
                out,
                "{file}: TorchScript lists {} {}, {ops} ops",
                script.name(),
                script.version()
            )?;
        }
    }
    let hint = |name: &str, known: &mut dyn Iterator<Item = &str>| did_you_mean(name, known);
    let findings = review(&text, &ops::known(), &hint).map_err(wrong)?;
    for finding in &findings {
        note("warning", format!("{file}: {finding}"));
    }
    match findings.len() {
        count if deny_warnings && count > 0 => {
            let plural = if count == 1 { "" } else { "s" };
            Err(Failure::Input(format!(
                "{file}: {count} warning{plural}, and --deny-warnings is given"
            )))
        }
        _ => Ok(()),
    }
}
