//! Where programs run: the device and how it is used.

use std::path::PathBuf;
use std::sync::Arc;

use tracecast::{CompileReport, Executable, Graph, Options, Precision, Vectors, compile_reported};
use tracecast_ir::policy::PolicySet;
use tracecast_runtime::Device;

use crate::failure::{Failure, note};

/// The device and how it is used.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Target {
    /// The device: `cpu` runs machine code, `reference` interprets
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = ["cpu", "reference"])]
    device: String,

    /// Threads of the CPU; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=1024))]
    threads: u16,

    /// Vector instructions: the best of the CPU (`native`), nothing beyond AVX2 (`avx2`), or what every CPU of this kind has (`portable`)
    #[arg(long, value_name = "VECTORS", default_value_t)]
    vectors: Vectors,

    /// Short for `--vectors portable`
    #[arg(long, conflicts_with = "vectors")]
    portable: bool,

    /// `exact` rounds wherever PyTorch does; `optimised` leaves out what would be rounded between ops of one kernel
    #[arg(long, value_name = "PRECISION", default_value_t)]
    precision: Precision,

    /// Keeps compiled kernels in this folder, and uses those that are there
    #[arg(long, value_name = "FOLDER")]
    code_cache: Option<PathBuf>,
}

impl Target {
    /// Options for this device.
    pub(crate) fn options(&self) -> Options {
        let options = Options::new()
            .device(&self.device)
            .threads(usize::from(self.threads))
            .vectors(self.vectors())
            .precision(self.precision);
        match &self.code_cache {
            Some(folder) => options.code_cache(folder),
            None => options,
        }
    }

    /// Which roundings are kept.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Compiles a program that was read under these policies, with a word about files of the code cache that cannot be used.
    pub(crate) fn compile(
        &self,
        graph: Graph,
        policies: Arc<PolicySet>,
    ) -> Result<(Executable, CompileReport), Failure> {
        if self.code_cache.is_some() && self.device == "reference" {
            note("warning", "--code-cache has no effect: the device `reference` compiles nothing");
        }
        let (executable, report) =
            compile_reported(graph, &self.options().with_policies(policies))?;
        report.warnings_of_cache().for_each(|why| note("warning", why));
        Ok((executable, report))
    }

    fn vectors(&self) -> Vectors {
        if self.portable { Vectors::Portable } else { self.vectors }
    }

    /// The threads of the CPU, and its vectors; nothing if programs run elsewhere.
    pub(crate) fn cpu(&self) -> Option<(usize, Vectors)> {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { available() } else { usize::from(self.threads) };
        (self.device == "cpu").then_some((threads, self.vectors()))
    }

    /// The device itself.
    pub(crate) fn open(&self) -> Result<Arc<dyn Device>, Failure> {
        Ok(self.options().target()?)
    }
}
