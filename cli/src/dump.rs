//! `tracecast dump`: a program after any pass, as text, as a picture, or as the plans or the code
//! of its kernels.

use std::io::Write;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use tracecast_ir::{Attr, Graph, Printer, Verified};
use tracecast_passes::Pipeline;

use crate::asm::{Listing, RawBytes};
use crate::devices;
use crate::dot::AsDot;
use crate::failure::Failure;
use crate::program::ProgramFile;
use crate::target::Target;

/// Prints a program after a pass
///
/// Without --after the program is read, checked and printed as it is. Kernels are printed behind a
/// program that has been fused.
#[derive(clap::Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    program: ProgramFile,

    /// Prints the program after this pass and all before it
    #[arg(long, value_name = "PASS", value_parser = stages())]
    after: Option<String>,

    /// Prints the program as it was read and after every pass, each under a line that names the
    /// pass
    #[arg(long, conflicts_with = "after")]
    after_all: bool,

    /// Unscales and checks each gradient in one sweep of its own, not in the kernels around it
    #[arg(long)]
    no_fold: bool,

    /// What is printed: the textual form, a picture for Graphviz, or the plan or code of each
    /// kernel
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Emit::Text)]
    emit: Emit,

    /// With --emit plan, prints the plans behind this transformation of plans and all before it,
    /// without phases
    #[arg(long, value_name = "TRANSFORMATION")]
    until: Option<String>,

    /// Prints the source line of each op too
    #[arg(long)]
    at: bool,

    #[command(flatten)]
    target: Target,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// The textual form
    Text,
    /// A picture for Graphviz
    Dot,
    /// The plan of each kernel: the loops and stages that become its functions, and the phases they
    /// are cut into
    Plan,
    /// Cranelift's intermediate form of each kernel
    Clif,
    /// The machine code of each kernel, vector loops included
    Asm,
    /// The bytes of that code, without a name in them: two versions of the compiler can be compared
    /// by it
    Bytes,
}

fn stages() -> PossibleValuesParser {
    PossibleValuesParser::new([Pipeline::TRACED].into_iter().chain(tracecast_passes::names()))
}

impl Dump {
    /// Writes what was asked for, graph after graph.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        let of_kernels = matches!(self.emit, Emit::Plan | Emit::Clif | Emit::Asm | Emit::Bytes);
        let last = tracecast_passes::names().last().copied();
        let early = self.after_all || (self.after.is_some() && self.after.as_deref() != last);
        if of_kernels && early {
            let message = "--emit clif, asm, bytes and plan show kernels, which exist after the last pass only: leave out --after";
            return Err(Failure::Usage(message.to_owned()));
        }
        if self.until.is_some() && self.emit != Emit::Plan {
            return Err(Failure::Usage("--until goes with --emit plan".to_owned()));
        }
        let graphs = self.program.read()?;
        self.program.warn_of_idle_choices(&graphs)?;
        if self.emit == Emit::Text {
            writeln!(out, "tracecast {}", tracecast_ir::text::VERSION)?;
        }
        for graph in graphs {
            match self.emit {
                Emit::Plan | Emit::Clif | Emit::Asm | Emit::Bytes => self.code(out, graph)?,
                Emit::Text | Emit::Dot if self.after_all => self.every_stage(out, graph)?,
                Emit::Text | Emit::Dot => self.one_stage(out, graph)?,
            }
        }
        Ok(())
    }

    fn every_stage(&self, out: &mut impl Write, graph: Graph) -> Result<(), Failure> {
        // Written before the pipeline ends, so that a pass that fails leaves what it was given in
        // sight.
        let mut written = Ok(());
        let name = graph.name().to_owned();
        let result = self.pipeline().run(graph, |pass, graph, _| {
            if written.is_ok() {
                written = self.header(out, pass, &name).and_then(|()| self.show(out, graph));
            }
        });
        written?;
        result?;
        Ok(())
    }

    fn one_stage(&self, out: &mut impl Write, graph: Graph) -> Result<(), Failure> {
        let pipeline = match self.after.as_deref() {
            None | Some(Pipeline::TRACED) => Pipeline::new(),
            Some(pass) => self
                .pipeline()
                .up_to(pass)
                .ok_or_else(|| Failure::Usage(format!("there is no pass `{pass}`")))?,
        };
        let verified = pipeline.run(graph, |_, _, _| {})?;
        self.show(out, &verified)
    }

    fn header(&self, out: &mut impl Write, pass: &str, graph: &str) -> Result<(), Failure> {
        let comment = if self.emit == Emit::Dot { "//" } else { ";" };
        let gap = if self.emit == Emit::Dot { "" } else { "\n" };
        writeln!(out, "{gap}{comment} @{} after {pass}", graph.escape_debug())?;
        Ok(())
    }

    fn show(&self, out: &mut impl Write, graph: &Verified) -> Result<(), Failure> {
        match self.emit {
            Emit::Dot => write!(out, "{}", AsDot(graph))?,
            Emit::Text | Emit::Plan | Emit::Clif | Emit::Asm | Emit::Bytes => {
                let printer = Printer { header: false, sources: self.at, ..Printer::FULL };
                write!(out, "\n{}", printer.show_with(graph, &devices::names()))?;
            }
        }
        Ok(())
    }

    /// The plan or code of each kernel, equal kernels once.
    fn code(&self, out: &mut impl Write, graph: Graph) -> Result<(), Failure> {
        let fused = self.pipeline().run(graph, |_, _, _| {})?;
        let device = self.target.open()?;
        let mut seen = Vec::new();
        for id in fused.nodes() {
            let Some(Attr::Kernel(kernel)) = fused.node(id).attrs.get("kernel") else { continue };
            if seen.contains(&kernel) {
                continue;
            }
            seen.push(kernel);
            let launch = device.load(kernel)?;
            if self.emit == Emit::Bytes {
                write!(out, "kernel {}\n{}", seen.len() - 1, RawBytes(&launch.machine_code()))?;
                continue;
            }
            let code = match self.emit {
                Emit::Plan => launch.plan(self.until.as_deref())?.unwrap_or_default(),
                Emit::Asm => launch.machine_code().iter().map(|c| Listing(c).to_string()).collect(),
                _ => launch.text().unwrap_or_default(),
            };
            let code = if code.is_empty() { "no code can be shown\n".to_owned() } else { code };
            writeln!(out, "; kernel @{} on {}\n{code}", kernel.name, device.name())?;
        }
        Ok(())
    }

    fn pipeline(&self) -> Pipeline {
        tracecast_passes::standard(&tracecast_passes::PassOptions {
            policies: None,
            fold: !self.no_fold,
            ..self.target.options().passes()
        })
    }
}
