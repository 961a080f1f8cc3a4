//! `memgauge pack`: writes a recording as one file.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::whole_file::WholeFile;
use memgauge_recording::{self as recording, Recording};

const EXAMPLES: &str = "\
Examples:
  memgauge pack run.mg                 to run.mg.tar
  memgauge report run.mg.tar           every command reads it as it is
  memgauge pack run.mg -o - | ssh host 'cat > run.mg.tar'
  mkdir run.mg && tar -xf run.mg.tar -C run.mg";

/// Write a recording as one file, for upload
///
/// The file is an uncompressed tar archive, since the tables are compressed already. Every command
/// that reads a recording reads this file, too, without unpacking it. Equal recordings give equal files.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Pack {
    /// Recording
    #[arg(value_name = "DIR", default_value = "memgauge.mg")]
    recording: PathBuf,
    /// File to write; `-` is standard output [default: the recording's name and `.tar`]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Packs the recording. Damaged parts are packed as they are.
pub(crate) fn pack(args: &Pack) -> anyhow::Result<Exit> {
    let source = Recording::open(&args.recording)?;
    if !source.manifest().complete {
        eprintln!(
            "memgauge: `{}` is still being written, or its recorder was killed: the parts written \
             so far are packed",
            args.recording.display()
        );
    }
    let mut file = match args.output.as_deref() {
        Some(path) if path == Path::new("-") => {
            if std::io::stdout().is_terminal() {
                bail!(usage(
                    "an archive is not text: name a file with -o, or use a pipe"
                ));
            }
            WholeFile::stdout().context("failed to write to the standard output")?
        }
        Some(path) => create(path)?,
        None => create(&default_output(&args.recording)?)?,
    };
    let mut out = BufWriter::new(file.file());
    let left_out = recording::pack(&args.recording, &mut out)?;
    out.flush().context("failed to write the archive")?;
    drop(out);
    file.finish().context("failed to write the archive")?;
    for problem in source.problems().iter().chain(&left_out) {
        eprintln!("memgauge: {problem}");
    }
    Ok(Exit::after_reading(source.is_damaged()))
}

fn create(path: &Path) -> anyhow::Result<WholeFile> {
    WholeFile::create(path).with_context(|| format!("failed to write `{}`", path.display()))
}

/// The recording's name and `.tar`, beside it.
fn default_output(recording: &Path) -> anyhow::Result<PathBuf> {
    let Some(name) = recording.file_name() else {
        return Err(usage(format!(
            "failed to name the archive of `{}`: the path ends without a name; name a file with -o",
            recording.display()
        )));
    };
    let mut name = name.to_owned();
    name.push(".tar");
    Ok(recording.with_file_name(name))
}
