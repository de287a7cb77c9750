//! `tracecast policy`: shows a policy table, compares two tables or two policy sets, checks a file of either.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracecast_ir::ops;
use tracecast_ir::policy::{
    Change, DeviceType, Policy, PolicySet, PolicyTable, ScriptClass, ScriptTable, review,
};
use tracecast_ir::text::did_you_mean;

use crate::failure::{Failure, note};

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
        /// A device type such as `cuda`, a built-in table such as `torchax` or `torch-cpu@2.15.0`, or a file
        #[arg(value_name = "DEVICE")]
        what: String,
        /// Writes it as a file that can be changed and read again
        #[arg(long)]
        toml: bool,
    },
    /// Writes what is different in B; the exit code is 0 also then
    Diff {
        /// A device type, a built-in table, `standard` for PyTorch's set, or a file
        a: String,
        /// What it is compared with
        b: String,
    },
    /// Reads a policy set or a policy table and says what is wrong with it
    ///
    /// An error is a file that does not read. Warnings are of ops that nobody knows, of rules that are said twice and of rules that
    /// never decide because a stronger one covers them.
    Check {
        /// The file
        file: PathBuf,
    },
}

/// A table or a whole set.
enum Source {
    Table(Arc<PolicyTable>),
    Set(Box<PolicySet>),
}

impl PolicyCommand {
    /// Does what is asked.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        match &self.action {
            Action::Show { what, toml } => show(out, what, *toml),
            Action::Diff { a, b } => diff(out, a, b),
            Action::Check { file } => check(out, file),
        }
    }
}

/// The table or set of that name, or in that file.
fn find(name: &str) -> Result<Source, Failure> {
    if name == "standard" {
        return Ok(Source::Set(Box::new(PolicySet::standard())));
    }
    if let Some(table) = PolicyTable::named(name) {
        return Ok(Source::Table(table));
    }
    if let Ok(device) = name.parse::<DeviceType>() {
        let set = PolicySet::standard();
        let table = set.table(device).cloned();
        let empty = || Arc::new(PolicyTable::empty(device.name(), device, "none"));
        return Ok(Source::Table(table.unwrap_or_else(empty)));
    }
    let path = Path::new(name);
    if !path.exists() {
        let tables: Vec<_> = PolicyTable::built_in().map(|table| table.name()).collect();
        return Err(Failure::Usage(format!(
            "there is no device type, table or file `{name}`{}; device types are {}, tables are {}",
            did_you_mean(
                name,
                DeviceType::ALL.iter().map(|d| d.name()).chain(tables.iter().copied())
            ),
            DeviceType::names(),
            tables.join(", ")
        )));
    }
    read(path)
}

/// Reads a file: a table if it has a `device` at the top, else a set.
fn read(path: &Path) -> Result<Source, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::in_file(path, error))?;
    let top = text.lines().map(str::trim_start).take_while(|line| !line.starts_with('['));
    let mut keys = top.filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim());
    let is_table = keys.any(|key| key == "device" || key == "name");
    let source = if is_table {
        PolicyTable::parse(&text).map(|table| Source::Table(Arc::new(table)))
    } else {
        PolicySet::parse(&text).map(|set| Source::Set(Box::new(set)))
    };
    source.map_err(|error| Failure::in_file(path, error))
}

fn show(out: &mut impl Write, what: &str, toml: bool) -> Result<(), Failure> {
    if what == "torchscript" {
        return show_script(out);
    }
    match (find(what)?, toml) {
        (Source::Table(table), true) => write!(out, "{table}")?,
        (Source::Set(set), true) => write!(out, "{}", set.to_toml())?,
        (Source::Set(set), false) => write!(out, "{set}")?,
        (Source::Table(table), false) => {
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

fn show_script(out: &mut impl Write) -> Result<(), Failure> {
    let table = ScriptTable::built_in();
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
    let (changes, of_tables) = match (find(a)?, find(b)?) {
        (Source::Table(a), Source::Table(b)) => (a.diff(&b), true),
        (Source::Set(a), Source::Set(b)) => (a.diff(&b), false),
        (Source::Table(_), Source::Set(_)) | (Source::Set(_), Source::Table(_)) => {
            return Err(Failure::Usage("a table and a policy set cannot be compared".to_owned()));
        }
    };
    if changes.is_empty() {
        writeln!(out, "no difference")?;
    }
    let name = |policy: &Option<Policy>| policy.as_ref().map_or("not listed", Policy::name);
    for change in &changes {
        match change {
            // The tables may be of two device types.
            Change::Op { op, before, after, .. } if of_tables => {
                writeln!(out, "{op}: {} -> {}", name(before), name(after))?;
            }
            change => writeln!(out, "{change}")?,
        }
    }
    Ok(())
}

fn check(out: &mut impl Write, file: &Path) -> Result<(), Failure> {
    match read(file)? {
        Source::Table(table) => {
            writeln!(
                out,
                "{}: table {} {} for {}, {} ops",
                file.display(),
                table.name(),
                table.version(),
                table.device(),
                table.len()
            )?;
        }
        Source::Set(set) => {
            writeln!(out, "{}: a policy set of {} rules", file.display(), set.rules().count())?;
            write!(out, "{set}")?;
        }
    }
    let text = fs::read_to_string(file).map_err(|error| Failure::in_file(file, error))?;
    let ops: Vec<&str> = ops::all().map(|op| op.name).collect();
    let hint = |name: &str, known: &mut dyn Iterator<Item = &str>| did_you_mean(name, known);
    let findings = review(&text, &ops, &hint).map_err(|error| Failure::in_file(file, error))?;
    for finding in findings {
        note("warning", format!("{}: {finding}", file.display()));
    }
    Ok(())
}
