//! Programs from files: reading the text, and recording it again under autocast.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use tracecast_ir::policy::{Accepted, DeviceType, PolicyFile, PolicySet, Region, Site};
use tracecast_ir::text::{ParseOptions, parse_under};
use tracecast_ir::{DType, Graph};
use tracecast_passes::explain::warnings::of_choices;

use crate::devices;
use crate::excerpt::excerpt;
use crate::failure::{Failure, note};

/// The longest text that is read, in bytes.
const LONGEST: u64 = 256 << 20;

/// The file of a program, and the autocast state it is recorded under.
#[derive(clap::Args)]
pub(crate) struct ProgramFile {
    /// The program in its textual form; `-` reads standard input
    #[arg(value_name = "FILE")]
    path: PathBuf,

    /// Records what is in no region of its own under autocast, for instance `cpu:bf16`
    #[arg(long, value_name = "DEVICE:DTYPE")]
    autocast: Option<Autocast>,

    /// Decides about precision by this file, as `tracecast policy check` reads it: a policy set, or a table, which takes the place of
    /// its device type's among PyTorch's. Without it PyTorch's tables decide
    #[arg(long, value_name = "FILE.toml")]
    policy: Option<PathBuf>,

    /// What that file says, once it is read.
    #[arg(skip)]
    policies: OnceLock<Arc<PolicySet>>,
}

/// A device type and its low dtype, written `cpu:bf16`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Autocast {
    device: DeviceType,
    dtype: DType,
}

impl FromStr for Autocast {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, dtype) =
            text.rsplit_once(':').ok_or("expected DEVICE:DTYPE, such as cpu:bf16")?;
        let device = devices::device_type(device)?;
        let dtype: DType = dtype.parse()?;
        if !dtype.is_float() {
            return Err(format!("autocast casts to a float, {dtype} is none"));
        }
        Ok(Autocast { device, dtype })
    }
}

impl ProgramFile {
    /// The graphs of the file, in order.
    pub(crate) fn read(&self) -> Result<Vec<Graph>, Failure> {
        self.read_for(Site::default())
    }

    /// The graphs of the file, in order, whose ports live on such a device if they do not say where.
    pub(crate) fn read_for(&self, device: Site) -> Result<Vec<Graph>, Failure> {
        let name =
            if self.is_stdin() { "<stdin>".to_owned() } else { self.path.display().to_string() };
        let text = self.text().map_err(|error| Failure::Input(format!("{name}: {error}")))?;
        let options = ParseOptions {
            file: Some(name.clone()),
            policies: self.policies()?,
            device,
            devices: devices::names(),
            ..ParseOptions::default()
        };
        let graphs = parse_under(&text, &options, &self.ambient()?)
            .map_err(|error| Failure::Input(excerpt(&name, &text, &error)))?
            .graphs;
        if graphs.is_empty() {
            return Err(Failure::Input(format!("{name}: there is no graph in this file")));
        }
        Ok(graphs)
    }

    /// The only graph of the file.
    pub(crate) fn read_one(&self) -> Result<Graph, Failure> {
        let mut graphs = self.read()?;
        match graphs.len() {
            1 => Ok(graphs.remove(0)),
            count => {
                Err(Failure::in_file(&self.path, format!("expected one graph, found {count}")))
            }
        }
    }

    /// What decides about precision. A file is read once.
    pub(crate) fn policies(&self) -> Result<Arc<PolicySet>, Failure> {
        if let Some(known) = self.policies.get() {
            return Ok(known.clone());
        }
        let read = self.read_policies()?;
        Ok(self.policies.get_or_init(|| read).clone())
    }

    fn read_policies(&self) -> Result<Arc<PolicySet>, Failure> {
        let Some(path) = &self.policy else { return Ok(devices::options().policies()) };
        let text = fs::read_to_string(path).map_err(|error| Failure::in_file(path, error))?;
        let file = PolicyFile::parse(&text).map_err(|error| Failure::in_file(path, error))?;
        let set = file.into_set().ok_or_else(|| {
            let message =
                "these are the lists of a TorchScript pass, which decide about no traced program";
            Failure::in_file(path, message)
        })?;
        Ok(set.into())
    }

    /// Warns of an `--autocast` and of rules that have no effect on the programs.
    pub(crate) fn warn_of_idle_choices(&self, graphs: &[Graph]) -> Result<(), Failure> {
        let policies = self.policies()?;
        for graph in graphs {
            for warning in of_choices(graph, &policies) {
                note("warning", format!("@{}: {warning}", graph.name()));
            }
        }
        Ok(())
    }

    /// Where the program comes from, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn is_stdin(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    fn text(&self) -> io::Result<String> {
        if self.is_stdin() { limited(io::stdin().lock()) } else { limited(File::open(&self.path)?) }
    }

    /// The region of what is in no region of its own.
    fn ambient(&self) -> Result<Region, Failure> {
        let Some(Autocast { device, dtype }) = self.autocast else {
            return Ok(Region::default());
        };
        let kinds = devices::registry().kinds();
        let amp = kinds.iter().find(|kind| kind.device_type == device).and_then(|k| k.amp.as_ref());
        let accepted = amp.map_or_else(|| device.accepted(), |amp| Accepted::Only(&amp.dtypes));
        let (region, warning) = Region::default()
            .enter_accepting(accepted, device, Some(dtype), true, None)
            .map_err(|error| Failure::Usage(error.to_string()))?;
        if let Some(warning) = warning {
            note("warning", warning);
        }
        Ok(region)
    }
}

/// All of a text, unless it goes on for ever.
fn limited(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        let message = format!("this is longer than {LONGEST} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autocast_is_a_device_and_a_dtype() {
        let expected = Autocast { device: DeviceType::Cpu, dtype: DType::BF16 };
        assert_eq!("cpu:bf16".parse(), Ok(expected));
        let wrong = [
            ("cpu", "DEVICE:DTYPE"),
            ("cpu:b16", "`b16`"),
            ("gpu:f16", "`gpu`"),
            ("cpu:i64", "i64 is none"),
        ];
        for (text, says) in wrong {
            let error = text.parse::<Autocast>().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
