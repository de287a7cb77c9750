//! `tracecast completions` and `tracecast man`: what a shell completes, and manual pages, both from
//! the definition of the commands.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use tracecast_ir::text::did_you_mean;

use crate::failure::Failure;

/// Prints a script by which a shell completes commands and options
///
/// For bash: `tracecast completions bash > ~/.local/share/bash-completion/completions/tracecast`
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell that reads the script
    shell: Shell,
}

impl Completions {
    /// Writes the script for the tool, whose commands are given.
    pub(crate) fn execute(&self, mut tool: Command, out: &mut impl Write) -> Result<(), Failure> {
        // Into memory first: the generator panics where it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut tool, "tracecast", &mut script);
        Ok(out.write_all(&script)?)
    }
}

/// Prints a manual page, for `man -l -`
#[derive(Args)]
pub(crate) struct Manual {
    /// The command that the page is about; the tool itself if none is named
    command: Option<String>,
}

impl Manual {
    /// Writes the page of the tool, whose commands are given, or of one of them.
    pub(crate) fn execute(&self, mut tool: Command, out: &mut impl Write) -> Result<(), Failure> {
        tool.build();
        let page = match &self.command {
            None => &tool,
            Some(name) => tool.find_subcommand(name).ok_or_else(|| {
                let known = did_you_mean(name, tool.get_subcommands().map(Command::get_name));
                Failure::Usage(format!("there is no command `{name}`{known}"))
            })?,
        };
        Ok(Man::new(page.clone()).render(out)?)
    }
}
