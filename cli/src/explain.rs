//! `tracecast explain`: why every op has its precision, and what became of every cast.

use std::io::Write;
use std::path::PathBuf;

use tracecast::Precision;
use tracecast::explain::{Explanation, explain_with, html, json};
use tracecast_passes::PassOptions;
use tracecast_runtime::files;

use crate::devices;
use crate::failure::Failure;
use crate::program::ProgramFile;

/// Tells why every op of a program has its precision, and what became of every cast
///
/// For each op: 16 bits or wide, the policy rule that decided or the reason why none did, its line
/// and region. For each cast: why it is there, and its home: the load, the store, the packing or
/// the epilogue of a contraction or the register that fusion made it a part of, or a kernel of its
/// own. Behind them what is odd about the numbers.
#[derive(clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    program: ProgramFile,

    /// Tells about one node only: a value such as `%3`, 3 or `%hidden`, a parameter such as `%w`,
    /// or a name such as `encoder.0/linear#0`
    #[arg(value_name = "NODE")]
    node: Option<String>,

    /// Prints JSON: an object for each program, each on its line
    #[arg(long)]
    json: bool,

    /// Writes a page to look at: one file, no scripts, no network
    #[arg(long, value_name = "OUT.html", conflicts_with = "node")]
    html: Option<PathBuf>,

    /// Unscales and checks each gradient in one sweep of its own, not in the kernels around it
    #[arg(long)]
    no_fold: bool,

    /// Explains it for this device: ports that do not say where they live are there. Devices from
    /// outside have names such as `npu:1`
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    device: Option<String>,

    /// Also lists what runs on this device because `--device` refuses it
    #[arg(long, value_name = "DEVICE", value_parser = devices::named, requires = "device")]
    fallback: Option<String>,

    /// `exact` rounds wherever PyTorch does; `optimised` leaves out what would be rounded between
    /// ops of one kernel
    #[arg(long, value_name = "PRECISION", default_value_t)]
    precision: Precision,
}

impl Explain {
    /// Explains each program of the file.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        let on = devices::options();
        let on = self.device.iter().fold(on, |on, device| on.device(device));
        let on = self.fallback.iter().fold(on, |on, device| on.fallback(device));
        let options = PassOptions {
            policies: Some(self.program.policies()?),
            fold: !self.no_fold,
            precision: self.precision,
            ..on.passes()
        };
        let graphs = self.program.read_for(self.device.as_deref())?;
        let explained: Vec<Explanation> = graphs
            .iter()
            .map(|graph| explain_with(graph, &on, &options))
            .collect::<Result<_, _>>()?;
        if let Some(path) = &self.html {
            files::replace(path, html(&explained).as_bytes())
                .map_err(|error| Failure::in_file(path, error))?;
        }
        let shown = self.shown(explained)?;
        for (number, explained) in shown.iter().enumerate() {
            if self.json {
                writeln!(out, "{}", json(explained))?;
            } else if self.html.is_none() {
                write!(out, "{}{explained}", if number > 0 { "\n" } else { "" })?;
            }
        }
        Ok(())
    }

    /// What is asked about: everything, or the programs that have the node.
    fn shown(&self, explained: Vec<Explanation>) -> Result<Vec<Explanation>, Failure> {
        let Some(node) = &self.node else { return Ok(explained) };
        let answers: Vec<_> = explained.iter().map(|explained| explained.about(node)).collect();
        if answers.iter().any(Result::is_ok) {
            return Ok(answers.into_iter().flatten().collect());
        }
        let unknown: Vec<_> =
            answers.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
        Err(Failure::Usage(unknown.join("\n")))
    }
}
