//! Programs from files: reading the text, and recording it again under autocast.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use tracecast::{Options, Store, amp, pt2};
use tracecast_ir::policy::{Accepted, DeviceType, PolicyFile, PolicySet, Region};
use tracecast_ir::text::{ParseOptions, parse_under};
use tracecast_ir::{DType, Graph, Role};
use tracecast_passes::explain::warnings::of_choices;
use tracecast_runtime::safetensors;

use crate::devices;
use crate::excerpt::excerpt;
use crate::failure::{Failure, note};

/// The longest text that is read, in bytes.
const LONGEST: u64 = 256 << 20;

/// The file of a program, and the autocast state it is recorded under.
#[derive(clap::Args)]
pub(crate) struct ProgramFile {
    /// The program in its textual form, or a model that PyTorch's `torch.export.save` has written,
    /// whose name ends with `.pt2`; `-` reads standard input
    #[arg(value_name = "FILE")]
    path: PathBuf,

    /// Records what is in no region of its own under autocast, for instance `cpu:bf16`
    #[arg(long, value_name = "DEVICE:DTYPE")]
    autocast: Option<Autocast>,

    /// Decides about precision by this file, as `tracecast policy check` reads it: a policy set, or
    /// a table, which takes the place of its device type's among PyTorch's; or by a strategy by
    /// dtype and risk: `strict-bf16`, `standard-f16`, `bold-bf16`. Without it PyTorch's tables
    /// decide
    #[arg(long, value_name = "FILE.toml|STRATEGY")]
    policy: Option<PathBuf>,

    /// Has values of the program's parameters and state
    #[arg(long, value_name = "FILE.safetensors")]
    weights: Option<PathBuf>,

    /// What that file says, once it is read.
    #[arg(skip)]
    policies: OnceLock<Arc<PolicySet>>,
}

/// A device type and its low dtype, written `cpu:bf16`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Autocast {
    pub(crate) device: DeviceType,
    pub(crate) dtype: DType,
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
        self.read_for(None)
    }

    /// The graphs of the file, in order, whose ports live on such a device if they do not say
    /// where.
    pub(crate) fn read_for(&self, device: Option<&str>) -> Result<Vec<Graph>, Failure> {
        if is_archive(&self.path) {
            let model = pt2::open(&self.path)?;
            return Ok(vec![model.graph(&self.options(device)?, self.around().as_ref())?]);
        }
        let device = device.map(devices::site).transpose().map_err(Failure::Usage)?;
        let name =
            if self.is_stdin() { "<stdin>".to_owned() } else { self.path.display().to_string() };
        let text = self.text().map_err(|error| Failure::Input(format!("{name}: {error}")))?;
        let options = ParseOptions {
            file: Some(name.clone()),
            policies: self.policies()?,
            device: device.unwrap_or_default(),
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

    /// The only graph of the file, and the values that are known of its parameters and state: those
    /// of the archive, and of `--weights`.
    pub(crate) fn read_with_values(&self) -> Result<(Graph, Store), Failure> {
        let (graph, mut store) = match is_archive(&self.path) {
            true => pt2::open(&self.path)?.program(&self.options(None)?, self.around().as_ref())?,
            false => (self.read_one()?, Store::new()),
        };
        if let Some(path) = &self.weights {
            let mut file = safetensors::Archive::open(path)?;
            for port in graph.ports().iter().filter(|port| port.role != Role::Input) {
                let Some(found) = file.ty(&port.name) else { continue };
                if found != port.ty {
                    let message = format!("`{}`: expected {}, found {found}", port.name, port.ty);
                    return Err(Failure::in_file(path, message));
                }
                store.insert(&port.name, file.read(&port.name)?);
            }
        }
        Ok((graph, store))
    }

    /// Options under which an archive is recorded.
    fn options(&self, device: Option<&str>) -> Result<Options, Failure> {
        let options = devices::options().with_policies(self.policies()?);
        Ok(device.into_iter().fold(options, |options, device| options.device(device)))
    }

    /// The region around all of an archive.
    fn around(&self) -> Option<amp::Autocast> {
        self.autocast
            .map(|Autocast { device, dtype }| amp::Autocast::new(device.to_string()).dtype(dtype))
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
        if let Some(set) = path.to_str().and_then(PolicySet::strategy) {
            return Ok(set.into());
        }
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

/// Whether a file is one of `torch.export`, by its name.
pub(crate) fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "pt2")
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
