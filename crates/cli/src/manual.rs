//! The verbs `completions` and `man`, generated from the definition of the command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use memgauge_console::outcome::Exit;
use memgauge_console::terminal;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Directory to write `memgauge.1` and a page of each verb to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints a completion script for a shell.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn completions(args: &Completions, mut command: Command) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "memgauge", &mut text);
    terminal::print(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Success)
}

/// Writes a page of the manual for memgauge and for each verb.
///
/// # Errors
/// The directory or a page cannot be written.
pub(crate) fn man(args: &Man, command: Command) -> anyhow::Result<Exit> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("failed to create the directory `{}`", directory.display()))?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), directory).with_context(
        || {
            format!(
                "failed to write the manual's pages to `{}`",
                directory.display()
            )
        },
    )?;
    Ok(Exit::Success)
}
