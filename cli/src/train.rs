//! `tracecast train`: the example model on handwritten digits, in three precisions.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use tracecast_ir::Printer;
use tracecast_runtime::files;

use crate::dataset::{Dataset, Split};
use crate::devices;
use crate::digits;
use crate::failure::Failure;
use crate::plot::loss_curves;
use crate::program::Autocast;
use crate::ranks::{Team, World};
use crate::report::{Outcome, table};
use crate::target::Target;
use crate::training::exported::{Exported, Loss};
use crate::training::network::Network;
use crate::training::{Mode, Settings, steps_per_epoch};

/// Trains a small network on handwritten digits in f32, bf16 and f16, and compares the three
///
/// The network has one hidden layer of 128, or convolutions (--model cnn); it learns with AdamW
/// (learning rate 0.001, weight decay 0.01) from batches of 32 rows, and is tested on every fifth
/// row, which it never learns from. The step time is that of one whole call: the batch goes in, the
/// parameters change, the loss comes out.
#[derive(clap::Args)]
pub(crate) struct Train {
    /// Trains this model, which PyTorch's `torch.export.save` has written, and not the networks of
    /// the tool: by `--loss` on `--data`, in f32 or under `--autocast`
    #[arg(value_name = "FILE.pt2", requires_all = ["data", "loss"], conflicts_with_all = ["model", "plot", "load", "ranks", "emit_step"])]
    file: Option<PathBuf>,

    /// The loss of an exported model
    #[arg(long, value_name = "LOSS", value_enum, requires = "file")]
    loss: Option<Loss>,

    /// Trains an exported model under autocast, for instance `cpu:bf16`; f16 scales the loss
    #[arg(long, value_name = "DEVICE:DTYPE", requires = "file")]
    autocast: Option<Autocast>,

    /// Decides about the first parameters and the order of the rows
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// How often each row is seen
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,

    /// What is trained
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    model: Network,

    /// Trains on these arrays instead: numbers `x` of shape [rows, ...] and an integer label `y`
    /// for each row; of an exported model, the inputs by name, or `x` if there is one, and what
    /// the loss takes as `y`
    #[arg(long, value_name = "FILE.npz")]
    data: Option<PathBuf>,

    /// Draws the loss of every step
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    plot: Option<PathBuf>,

    /// Keeps the whole state of each training in FOLDER/MODE.safetensors, that of an exported model
    /// in FOLDER/model.safetensors, after every epoch
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,

    /// Goes on from the states that --save has kept in FOLDER, bit for bit, up to --epochs in all;
    /// step times are those of this run
    #[arg(long, value_name = "FOLDER")]
    load: Option<PathBuf>,

    /// Trains on N threads at once, each of which has its part of every batch, and alone on it
    /// without --threads; under `mpirun`, `tracecast-mpi` trains on its processes instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    ranks: Option<u32>,

    /// Prints one line of JSON for each precision instead of a table; `losses` has the mean of each
    /// epoch
    #[arg(long)]
    json: bool,

    /// Prints the traced training step of a precision, for `tracecast dump`, and does not train
    #[arg(long, value_name = "MODE", value_enum, conflicts_with_all = ["json", "plot", "save", "load"])]
    emit_step: Option<Mode>,

    #[command(flatten)]
    target: Target,
}

impl Train {
    /// Trains three times and writes what it came to.
    pub(crate) fn execute(
        &self,
        world: Option<World>,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        if let (Some(file), Some(data), Some(loss)) = (&self.file, &self.data, self.loss) {
            let exported = Exported {
                file,
                data,
                loss,
                autocast: self.autocast,
                epochs: self.epochs as usize,
                seed: self.seed,
                options: self.target.options().seed(self.seed),
                save: self.save.as_deref(),
                json: self.json,
            };
            if let Some(folder) = exported.save {
                probe(folder, "model")?;
            }
            return exported.train(out);
        }
        let team = Team::of(self.ranks, world)?;
        team.told_of(|| match team.speaks() {
            true => self.on(&team, out),
            false => self.on(&team, &mut io::sink()),
        })
    }

    fn on(&self, team: &Team, out: &mut impl Write) -> Result<(), Failure> {
        let split = self.dataset()?.split();
        let settings = Settings {
            network: self.model,
            seed: self.seed,
            epochs: self.epochs as usize,
            options: self.target.options().seed(self.seed),
            device_type: self.target.device_type()?,
            save: self.save.clone(),
            load: self.load.clone(),
        };
        if let Some(mode) = self.emit_step {
            let printer = Printer { sources: false, ..Printer::FULL };
            let graph = mode.graph(&split, &settings)?;
            write!(out, "{}", printer.show_with(&graph, &devices::names()))?;
            return Ok(());
        }
        // Before the work, so that a path that cannot be written is told at once.
        if let Some(path) = &self.plot {
            files::probe(path).map_err(|error| Failure::in_file(path, error))?;
        }
        if let Some(folder) = &self.load {
            let about = fs::metadata(folder).map_err(|error| Failure::in_file(folder, error))?;
            if !about.is_dir() {
                return Err(Failure::in_file(folder, "is not a folder"));
            }
        }
        if let Some(folder) = &self.save {
            probe(folder, "f32")?;
        }
        for folder in self.save.iter().chain(&self.load) {
            // A pipe would wait for somebody at its other end.
            let is_other = |file: &PathBuf| file.exists() && !file.is_file();
            if let Some(file) = Mode::ALL.map(|mode| mode.file(folder)).iter().find(|f| is_other(f))
            {
                return Err(Failure::in_file(file, "is not a file"));
            }
        }
        let outcomes = self.train(&split, &settings, team, out)?;
        if !self.json {
            write!(out, "{}", table(&outcomes))?;
        }
        if let Some(path) = self.plot.as_ref().filter(|_| team.speaks()) {
            let series: Vec<_> =
                outcomes.iter().map(|outcome| (outcome.mode, &outcome.losses[..])).collect();
            files::replace(path, loss_curves(&series).as_bytes())
                .map_err(|error| Failure::in_file(path, error))?;
        }
        Ok(())
    }

    fn train(
        &self,
        split: &Split,
        settings: &Settings,
        team: &Team,
        out: &mut impl Write,
    ) -> Result<Vec<Outcome>, Failure> {
        let mut outcomes = Vec::new();
        for mode in Mode::ALL {
            let progress = match team.speaks() {
                true => bar(mode, settings.epochs * steps_per_epoch(&split.train)),
                false => ProgressBar::hidden(),
            };
            let outcome = team.train(mode, split, settings, &progress)?;
            progress.finish_and_clear();
            if self.json {
                writeln!(out, "{}", outcome.json())?;
                out.flush()?;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    fn dataset(&self) -> Result<Dataset, Failure> {
        match &self.data {
            Some(path) => Dataset::from_npz(path).map_err(|error| Failure::in_file(path, error)),
            None => digits::load().map_err(|error| Failure::Input(error.to_string())),
        }
    }
}

/// A path for a picture: SVG is what is drawn. What has no ending, as a pipe, takes it.
fn svg(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.extension() {
        Some(other) if !other.eq_ignore_ascii_case("svg") => {
            let other = other.display();
            Err(format!(
                "the picture is SVG, expected a name that ends in `.svg`, found `.{other}`"
            ))
        }
        _ => Ok(path),
    }
}

/// Fails unless files can be written into a folder, which is made if it is not there.
fn probe(folder: &Path, name: &str) -> Result<(), Failure> {
    let probed = fs::create_dir_all(folder).and_then(|()| files::probe(folder.join(name)));
    probed.map_err(|error| Failure::in_file(folder, error))
}

/// A bar on standard error, which shows nothing if that is no terminal.
fn bar(mode: Mode, steps: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{prefix:4} {bar:40} {pos:>5}/{len} steps {elapsed} {msg}")
            .expect("the template is well formed");
    ProgressBar::new(steps as u64).with_style(style).with_prefix(mode.name())
}
