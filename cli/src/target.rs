//! Where programs run: the device and how it is used.

use std::path::PathBuf;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use tracecast::{CompileReport, Executable, Graph, Limits, Options, Precision, compile_reported};
#[cfg(feature = "cpu")]
use tracecast::{Vectors, measure_limits};
use tracecast_ir::policy::{DeviceType, PolicySet};
use tracecast_runtime::Device;

use crate::devices;
use crate::failure::{Failure, note};

/// The device and how it is used.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Target {
    /// The device: `cpu` runs machine code, `reference` interprets, others have names such as
    /// `npu:1`
    #[arg(long, value_name = "DEVICE", default_value = devices::FIRST, value_parser = devices::named)]
    device: String,

    /// Another device for the kernels that this one refuses, such as `reference`; without it they
    /// are an error
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    fallback: Option<String>,

    /// Threads of the CPU; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=1024))]
    threads: u16,

    /// Vector instructions: the best of the CPU (`native`), nothing beyond AVX2 (`avx2`), or what
    /// every CPU of this kind has (`portable`)
    #[cfg(feature = "cpu")]
    #[arg(long, value_name = "VECTORS", default_value_t)]
    vectors: Vectors,

    /// Short for `--vectors portable`
    #[cfg(feature = "cpu")]
    #[arg(long, conflicts_with = "vectors")]
    portable: bool,

    /// `exact` rounds wherever PyTorch does; `optimised` leaves out what would be rounded between
    /// ops of one kernel
    #[arg(long, value_name = "PRECISION", default_value_t)]
    precision: Precision,

    /// Keeps compiled kernels in this folder, and uses those that are there
    #[arg(long, value_name = "FOLDER")]
    code_cache: Option<PathBuf>,

    /// Stores every value before `fuse`, gradients included, to measure what fusion rematerialises
    #[arg(long, hide = true)]
    store_all: bool,
}

impl Target {
    /// Options for this device.
    pub(crate) fn options(&self) -> Options {
        let options = devices::options()
            .device(&self.device)
            .threads(usize::from(self.threads))
            .precision(self.precision)
            .store_all(self.store_all);
        #[cfg(feature = "cpu")]
        let options = options.vectors(self.vectors());
        let options = match &self.fallback {
            Some(fallback) => options.fallback(fallback),
            None => options,
        };
        match &self.code_cache {
            Some(folder) => options.code_cache(folder),
            None => options,
        }
    }

    /// The device type by which autocast regions name the device.
    pub(crate) fn device_type(&self) -> Result<DeviceType, Failure> {
        devices::device_type(&self.device).map_err(Failure::Input)
    }

    /// Compiles a program that was read under these policies; shows how far it is, and what is odd
    /// about it.
    pub(crate) fn compile(
        &self,
        graph: Graph,
        policies: Arc<PolicySet>,
    ) -> Result<(Executable, CompileReport), Failure> {
        if self.code_cache.is_some() && self.device == "reference" {
            note("warning", "--code-cache has no effect: the device `reference` compiles nothing");
        }
        let (executable, report) =
            compile_reported(graph, &shown(self.options().with_policies(policies), None))?;
        Ok((executable, report))
    }

    #[cfg(feature = "cpu")]
    fn vectors(&self) -> Vectors {
        if self.portable { Vectors::Portable } else { self.vectors }
    }

    /// What the machine can do at best, measured; nothing if programs run elsewhere than on the
    /// CPU.
    #[cfg(feature = "cpu")]
    pub(crate) fn limits(&self) -> Option<Limits> {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { available() } else { usize::from(self.threads) };
        (self.device == "cpu").then(|| measure_limits(threads, self.vectors()))
    }

    /// Nothing is known of what the machine can do at best.
    #[cfg(not(feature = "cpu"))]
    pub(crate) fn limits(&self) -> Option<Limits> {
        None
    }

    /// The device itself.
    pub(crate) fn open(&self) -> Result<Arc<dyn Device>, Failure> {
        Ok(self.options().target()?)
    }
}

/// Options with which a compilation shows how far it is: in this bar, or in one of its own, which
/// is gone when it is done. On a standard error that is no terminal a bar shows nothing.
pub(crate) fn shown(options: Options, bar: Option<ProgressBar>) -> Options {
    let style = ProgressStyle::with_template("{msg} {bar:20} {pos}/{len}");
    let own = ProgressBar::no_length().with_style(style.expect("the template is well formed"));
    options.progress(move |now| match &bar {
        Some(bar) if now.phase == "ready" => bar.set_message(""),
        Some(bar) => bar.set_message(format!("compiling: {}", now.phase)),
        None if now.phase == "ready" => own.finish_and_clear(),
        None => {
            own.set_length(now.total as u64);
            own.set_message(format!("@{}: {}", now.program, now.phase));
            own.set_position(now.done as u64);
        }
    })
}
