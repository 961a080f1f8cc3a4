//! Feeds references of all kinds of inputs to curves.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memgauge_analyze::{no_references, references, sentence};
use memgauge_console::outcome::usage;
use memgauge_console::terminal;
use memgauge_emulate::{PartsBy, ReferenceBatch, StreamOptions, Streamed, stream};
use memgauge_import::addresses::{self, AddressBatch, AddressFormat};
use memgauge_recording::{Recording, is_recording};
use memgauge_trace::LossKind;

use super::args::{CurveOptions, Mrc, PartKind};
use super::engine::Engines;
use super::input_curves::InputCurves;
use super::parts::PartEngines;
use super::relay::Relay;

/// Returns the curves of a file of addresses, of standard input, or of a recording.
pub(super) fn curves(input: &Path, making: &CurveOptions) -> anyhow::Result<InputCurves> {
    let mut relay = Relay::new(making);
    let format = making.format.as_ref();
    let read = references_of(input, format, &mut |a, sizes| relay.feed(a, sizes))?;
    let mut curves = relay.finish()?;
    curves.iter_mut().for_each(|curve| curve.scale(read.weight));
    Ok(InputCurves {
        curves,
        note: read.note,
        weight: read.weight,
        instructions: None,
        is_damaged: read.is_damaged,
    })
}

/// A curve for each block size of several inputs, each of which has a memory of its own.
pub(super) fn curves_together(
    inputs: &[PathBuf],
    making: &CurveOptions,
) -> anyhow::Result<InputCurves> {
    let mut all: Option<InputCurves> = None;
    for input in inputs {
        let mut made = curves(input, making)?;
        if inputs.len() > 1 {
            let of = |note| format!("{}: {note}", input.display());
            made.note = made.note.map(of);
        }
        match &mut all {
            Some(all) => all.merge(made),
            None => all = Some(made),
        }
    }
    all.context(
        "failed to read addresses: no input is given: name a file, a recording, `-`, or \
    a command after `--`",
    )
}

/// Receives references: their addresses, and the sizes of those of more than one byte.
type Take<'a> = &'a mut dyn FnMut(&[u64], &[(usize, u32)]) -> anyhow::Result<()>;

/// Result of reading an input.
pub(super) struct InputFacts {
    /// Note about the references, if any.
    pub(super) note: Option<String>,
    /// Number of references that each one stands for.
    pub(super) weight: f64,
    /// True if a part of the recording could not be read.
    pub(super) is_damaged: bool,
}

/// Reads all references of an input.
pub(super) fn references_of(
    input: &Path,
    format: Option<&AddressFormat>,
    take: Take<'_>,
) -> anyhow::Result<InputFacts> {
    let mut references = 0;
    let mut counted = |addresses: &[u64], sizes: &[(usize, u32)]| {
        references += addresses.len();
        take(addresses, sizes)
    };
    let read = if is_recording(input) {
        feed_recording(input, &mut counted)?
    } else {
        InputFacts {
            note: feed_file(input, format, &mut counted)?,
            weight: 1.0,
            is_damaged: false,
        }
    };
    if references == 0 {
        let why = read.note.map_or_else(
            || "it is empty".to_owned(),
            |note| {
                let hint = match format {
                    None => {
                        "; for a table, name the column of addresses, as in --format csv:2, or the \
                         columns of a cache trace, as in --format csv:time=1,key=2,size=3"
                    }
                    Some(_) => "",
                };
                format!("it has no addresses; {note}{hint}")
            },
        );
        bail!("failed to read addresses from `{}`: {why}", input.display());
    }
    Ok(read)
}

/// Curves of a command by part of the run (empty for all of it), and the run's end.
pub(super) struct CommandCurves {
    pub(super) made: Vec<(String, InputCurves)>,
    pub(super) run: Streamed,
}

/// Parts of a run that have curves of their own, in addition to the curve of the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CurveScope {
    Nothing,
    Threads,
    Modules,
    Regions,
    CodeRegions,
}

impl CurveScope {
    pub(super) fn of(args: &Mrc) -> anyhow::Result<CurveScope> {
        let scope = match args.by {
            Some(PartKind::Interest) => CurveScope::CodeRegions,
            None if !args.functions.is_empty() => CurveScope::CodeRegions,
            Some(PartKind::Module) => CurveScope::Modules,
            Some(PartKind::Region) => CurveScope::Regions,
            Some(PartKind::Tenant) => {
                return Err(usage(
                    "failed to make curves of tenants: a program has none: name a cache trace",
                ));
            }
            None if args.per_thread => CurveScope::Threads,
            None => CurveScope::Nothing,
        };
        if !args.functions.is_empty() && scope != CurveScope::CodeRegions {
            let why = "failed to make curves of functions: they are regions of interest: leave out \
                       --by, or write `--by interest`";
            return Err(usage(why));
        }
        Ok(scope)
    }

    fn parts(self) -> Option<PartsBy> {
        match self {
            CurveScope::Modules => Some(PartsBy::Module),
            CurveScope::Regions => Some(PartsBy::Region),
            CurveScope::CodeRegions => Some(PartsBy::CodeRegion),
            CurveScope::Nothing | CurveScope::Threads => None,
        }
    }

    fn title(self, name: &str) -> String {
        match self {
            CurveScope::Modules => format!(", code of {name}"),
            CurveScope::CodeRegions => format!(", inside {name}"),
            _ => format!(", data in {name}"),
        }
    }
}

/// Returns the curves of a command that runs under the emulator.
pub(super) fn curves_of_command(args: &Mrc, scope: CurveScope) -> anyhow::Result<CommandCurves> {
    let making = &args.making;
    let mut all = Relay::new(making);
    let mut threads = ThreadEngines::default();
    let mut parts = PartEngines::new(making);
    let wanted = StreamOptions {
        granule: making.block.iter().copied().min().unwrap_or(1),
        parts: scope.parts(),
        ips: false,
        functions: args.functions.clone(),
        seed: args.seed,
    };
    terminal::catch_interrupts()?;
    let run = stream(&args.command, wanted, &mut |batch| {
        all.feed(batch.addresses, batch.crossing)?;
        match scope {
            CurveScope::Nothing => Ok(()),
            CurveScope::Threads => threads.feed(batch, making),
            _ => parts.feed(batch),
        }
    })?;
    let note = lost(&run);
    let whole = InputCurves {
        curves: all.finish()?,
        note: note.clone(),
        weight: 1.0,
        instructions: Some(run.instructions),
        is_damaged: false,
    };
    let mut made = vec![(String::new(), whole)];
    made.extend(threads.finish()?);
    let parts = parts.finish(run.instructions)?.into_iter();
    made.extend(parts.map(|(name, part)| (scope.title(&name), part)));
    for (_, made) in &mut made {
        made.note.clone_from(&note);
    }
    Ok(CommandCurves { made, run })
}

/// Curve engines and instructions by process and thread.
#[derive(Default)]
struct ThreadEngines(BTreeMap<(u32, u32), (Engines, u64)>);

impl ThreadEngines {
    fn feed(&mut self, batch: &ReferenceBatch<'_>, making: &CurveOptions) -> anyhow::Result<()> {
        let thread = self.0.entry((batch.pid, batch.tid));
        let thread = thread.or_insert_with(|| (Engines::new(making), 0));
        thread.1 += batch.instructions;
        thread.0.feed(batch.addresses, batch.crossing)
    }

    fn finish(self) -> anyhow::Result<Vec<(String, InputCurves)>> {
        let made = |((pid, tid), (engines, instructions)): ((u32, u32), (Engines, u64))| {
            let made = InputCurves {
                curves: engines.finish()?,
                note: None,
                weight: 1.0,
                instructions: Some(instructions),
                is_damaged: false,
            };
            Ok((format!(", thread {tid} of process {pid}"), made))
        };
        self.0.into_iter().map(made).collect()
    }
}

/// Describes the losses of a run.
pub(super) fn lost(run: &Streamed) -> Option<String> {
    let in_words = |(kind, count, detail): &(LossKind, u64, String)| match detail.as_str() {
        "" => format!("{count} {}", sentence(*kind).1),
        detail => format!("{count} {} ({detail})", sentence(*kind).1),
    };
    let lost: Vec<String> = run.losses.iter().map(in_words).collect();
    (!lost.is_empty()).then(|| format!("lost: {}", lost.join("; ")))
}

fn feed_file(
    input: &Path,
    format: Option<&AddressFormat>,
    take: Take<'_>,
) -> anyhow::Result<Option<String>> {
    let mut take = |accesses: &AddressBatch| take(&accesses.addresses, &accesses.sizes);
    let failed = || format!("failed to read addresses from `{}`", input.display());
    let junk = match format {
        _ if input == Path::new("-") => {
            addresses::read(std::io::stdin().lock(), format, &mut take)?
        }
        Some(AddressFormat::Parquet(column)) => addresses::read_parquet(input, column, &mut take)?,
        _ => {
            let file = File::open(input).with_context(failed)?;
            addresses::read(file, format, &mut take).with_context(failed)?
        }
    };
    // Records of an unknown format look like addresses if their numbers are small.
    let is_doubtful = junk.is_guessed_raw && input.extension().is_none_or(|e| e != "raw");
    let guess = is_doubtful.then(|| {
        "read as 64-bit addresses, because the content shows no other format; --format names it"
            .to_owned()
    });
    let notes: Vec<String> = guess.into_iter().chain(junk.description()).collect();
    Ok((!notes.is_empty()).then(|| notes.join("; ")))
}

/// Feeds the addresses of a recording's samples. The note describes the samples.
fn feed_recording(input: &Path, take: Take<'_>) -> anyhow::Result<InputFacts> {
    let recording = Recording::open(input)?;
    let mut problems = recording.problems();
    let read = references(&recording, &mut problems, take)?;
    for problem in &problems {
        eprintln!("memgauge: {problem}");
    }
    match read {
        Some(read) => Ok(InputFacts {
            note: read.note,
            weight: read.weight,
            is_damaged: recording.is_damaged(),
        }),
        None => bail!(no_references(&recording, &problems)),
    }
}
