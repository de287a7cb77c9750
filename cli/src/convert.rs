//! `tracecast convert`: the program of an archive of `torch.export` as text, and its weights as
//! safetensors.

use std::io::Write;
use std::path::PathBuf;

use tracecast::Tensor;
use tracecast_ir::Printer;
use tracecast_runtime::{files, safetensors};

use crate::devices;
use crate::failure::Failure;
use crate::program::ProgramFile;

/// Writes a model that PyTorch has exported as a program in textual form, and its weights beside it
///
/// The text keeps regions, Python lines and module paths. The weights are in a file of the same
/// name that ends with `.safetensors`, for `--weights` of other commands.
#[derive(clap::Args)]
pub(crate) struct Convert {
    #[command(flatten)]
    program: ProgramFile,

    /// Where the text goes
    #[arg(long, short, value_name = "FILE.tc")]
    output: PathBuf,
}

impl Convert {
    /// Writes both files, and says what is in them.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        let (graph, store) = self.program.read_with_values()?;
        let text = Printer::FULL.show_with(&graph, &devices::names()).to_string();
        let weights = self.output.with_extension("safetensors");
        let values = store.iter().collect::<Result<Vec<(&str, Tensor)>, _>>()?;
        let values: Vec<(&str, &Tensor)> =
            values.iter().map(|(name, value)| (*name, value)).collect();
        safetensors::write(&weights, values.iter().copied(), &safetensors::Metadata::default())?;
        files::replace(&self.output, text.as_bytes())
            .map_err(|error| Failure::in_file(&self.output, error))?;
        writeln!(out, "{}: {} ops", self.output.display(), graph.nodes().count())?;
        writeln!(out, "{}: {} tensors", weights.display(), values.len())?;
        Ok(())
    }
}
