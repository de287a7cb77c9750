//! `tracecast conformance`: holds a device to what programs mean.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracecast_conformance::{Kit, Level, difference};
use tracecast_ir::policy::{PolicySet, PolicyTable};

use crate::devices;
use crate::failure::Failure;

/// Holds a device to what programs mean, by small programs whose results are known
///
/// Lists the cases that do not pass, each with the smallest program of it that fails. Exits with 1
/// if one fails. What the device refuses is listed as unsupported, and is no failure.
#[derive(clap::Args)]
pub(crate) struct Conformance {
    /// The device, such as `npu:0`
    #[arg(long, value_name = "DEVICE", value_parser = devices::named, required_unless_present = "diff")]
    device: Option<String>,

    /// What it is held to: `maps`, `mlp`, `attention` or `everything`
    #[arg(long, value_name = "LEVEL", default_value = "everything")]
    level: Level,

    /// The autocast lists that it is meant to have: a device type such as `cuda`, or a file
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,

    /// The seconds that a case may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    limit: u64,

    /// Prints the report as JSON
    #[arg(long)]
    json: bool,

    /// Compares two reports in JSON instead
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "device")]
    diff: Option<Vec<PathBuf>>,
}

impl Conformance {
    /// Checks the device, or compares two reports.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        if let Some([old, new]) = self.diff.as_deref() {
            let told = difference(&read(old)?, &read(new)?).map_err(Failure::Input)?;
            return Ok(write!(out, "{told}")?);
        }
        let kit = Kit::new(self.level).limit(Duration::from_secs(self.limit));
        let kit = match &self.table {
            Some(name) => kit.table(table(name)?),
            None => kit,
        };
        let device = self.device.as_deref().unwrap_or(devices::FIRST);
        let report = kit.check(devices::registry(), device);
        match self.json {
            true => writeln!(out, "{}", report.json())?,
            false => write!(out, "{report}")?,
        }
        match report.count("fail") {
            0 => Ok(()),
            count => Err(Failure::Input(format!("{device}: {count} cases fail"))),
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::in_file(path, error))
}

/// That of a device type, or of a file.
fn table(name: &str) -> Result<Arc<PolicyTable>, Failure> {
    let standard = PolicySet::standard();
    if let Some(known) = name.parse().ok().and_then(|device| standard.table(device)) {
        return Ok(known.clone());
    }
    let path = Path::new(name);
    let table = PolicyTable::parse(&read(path)?).map_err(|why| Failure::in_file(path, why))?;
    Ok(Arc::new(table))
}
