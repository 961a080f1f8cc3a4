//! `memgauge record --to`: a recording every few minutes, packed and uploaded.
//!
//! Recordings follow each other in one process. While the next one is written, a thread adds names
//! of code to the last one, packs and uploads it. Between two recordings, events are closed and
//! opened again. This takes some milliseconds, which the next recording states as a loss.
//! Overlapping recordings were rejected, because two rings per processor exceed what the kernel
//! lets a user lock, and samples would count twice.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use memgauge_console::Source;
use memgauge_console::outcome::usage;
use memgauge_console::quantities::{number_of, spoken_seconds};
use memgauge_console::terminal;
use memgauge_fleet::{Collection, CollectionOptions, CollectionOutcome};
use memgauge_host::process_tree::descendants;
use memgauge_host::running_program::RunningProgram;
use memgauge_host::sys::process::effective_ids;
use memgauge_host::sys::signals::{inherit_ignored, interrupts};
use memgauge_live::sampling::{RunInterval, SamplingOutcome};
use memgauge_live::target::Target;
use memgauge_trace::{CommandEnd, Loss, LossKind};

use crate::args::{Record, RecordingSettings};
use crate::sample::SampledSource;
use crate::{names, sample};

/// Attempts to attach to processes, some of which may end while they are looked up.
const ATTACH_ATTEMPTS: usize = 3;

/// Collects until the program or the processes end, or the user interrupts.
pub(crate) fn run(args: &Record, target: &str) -> anyhow::Result<CommandEnd> {
    check(args)?;
    let verbose = !args.settings.quiet;
    let options = options(args, target);
    check_spool(&options.spool)?;
    let folder = memgauge_storage::local_path(target)?;
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        memgauge_recording::private::create_dir(&folder)
            .with_context(|| format!("failed to make folder `{target}`"))?;
    }
    let report = |message: &str| eprintln!("memgauge: {message}");
    let collection = Collection::start(&options, names::add, report)?;
    terminal::catch_interrupts()?;
    let mut program = match args.command.split_first() {
        Some((name, words)) => {
            let mut command = Command::new(name);
            memgauge_host::add_jit_names(&mut command);
            inherit_ignored(command.args(words));
            Some(RunningProgram::start(&mut command)?)
        }
        None => None,
    };
    let recorded = record_intervals(args, &collection, program.as_ref().map(RunningProgram::pid));
    let end = program.as_mut().map(RunningProgram::wait).transpose();
    let collected = collection.finish();
    if verbose {
        print_result(target, &options, &collected);
    }
    for name in &collected.dropped {
        eprintln!("memgauge: lost: recording `{name}` was dropped, and no later recording says so");
    }
    let max_gap = recorded?;
    if let Some(gap) = max_gap.filter(|_| verbose) {
        let gap = spoken_seconds(gap.as_secs_f64());
        eprintln!("memgauge: between two recordings, at most {gap} were not observed");
    }
    Ok(end?.unwrap_or(CommandEnd::Exited(0)))
}

fn check(args: &Record) -> anyhow::Result<()> {
    let source = match args.settings.source {
        Source::Emulate => Some("emulate"),
        Source::Malloc => Some("malloc"),
        Source::Auto | Source::Clock | Source::Pmu => None,
    };
    if let Some(source) = source {
        return Err(usage(format!(
            "failed to collect: source {source} records whole runs; use --source clock, or -e with \
             events of this machine"
        )));
    }
    if !args.settings.regions.is_empty() {
        return Err(usage(
            "failed to collect: --region needs recordings of whole runs; leave it out",
        ));
    }
    Ok(())
}

/// Refuses a spool that is not a folder of this user. In a folder that others can write to, such as
/// /tmp, another user may have created it.
fn check_spool(spool: &Path) -> anyhow::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(spool) else {
        return Ok(());
    };
    if !found.is_dir() || found.uid() != effective_ids().0 {
        bail!(
            "failed to use `{}` for recordings that wait: it is not a folder of this user; choose another \
             with -o",
            spool.display()
        );
    }
    Ok(())
}

fn options(args: &Record, target: &str) -> CollectionOptions {
    let label = |name: &str| {
        let labels = args.settings.labels.iter().rev();
        let mut named = labels.filter(|label| label.name == name);
        named.next().map(|label| label.value.clone())
    };
    let program = || {
        let program = args.command.first()?;
        let name = Path::new(program).file_name()?;
        Some(name.to_string_lossy().into_owned())
    };
    let collect = &args.collect;
    CollectionOptions {
        target: target.to_owned(),
        keep: collect.keep,
        spool: args.settings.output.with_extension("spool"),
        max_spool_bytes: collect.spool,
        service: label("service")
            .or_else(program)
            .unwrap_or_else(|| "unknown".to_owned()),
        host: label("host").unwrap_or_else(|| memgauge_host::facts().name),
    }
}

/// Records until the end. Returns the longest time between two recordings.
fn record_intervals(
    args: &Record,
    collection: &Collection,
    program: Option<u32>,
) -> anyhow::Result<Option<Duration>> {
    let mut previous_end_ns = None;
    let mut max_gap = None;
    loop {
        let interval = RunInterval {
            length: args.collect.every,
            previous_end_ns,
            ends_with: program,
            losses: dropped(collection),
        };
        let begun = Instant::now();
        let output = collection.next_recording();
        let outcome = match record_interval(args, &output, program, &interval) {
            Ok(outcome) => outcome,
            // The processes ended between two recordings.
            Err(_) if previous_end_ns.is_some() && is_over(args, program) => return Ok(max_gap),
            Err(why) => return Err(why),
        };
        let gap = outcome
            .losses
            .iter()
            .find(|loss| loss.kind == LossKind::NotObserved);
        max_gap = max_gap.max(gap.map(|gap| Duration::from_nanos(gap.count)));
        previous_end_ns = Some(outcome.end_ns);
        let unwritten = outcome.unwritten.is_some();
        collection.push(output);
        if unwritten {
            sample::ended(outcome)?;
        }
        if interrupts() > 0 || begun.elapsed() < args.collect.every {
            return Ok(max_gap);
        }
    }
}

/// Losses of earlier recordings, which the next one states.
fn dropped(collection: &Collection) -> Vec<Loss> {
    let names = collection.take_dropped().into_iter();
    let loss = |name| Loss {
        kind: LossKind::RecordingDropped,
        count: 1,
        detail: name,
        ..Loss::default()
    };
    names.map(loss).collect()
}

fn record_interval(
    args: &Record,
    output: &Path,
    program: Option<u32>,
    interval: &RunInterval,
) -> anyhow::Result<SamplingOutcome> {
    let settings = RecordingSettings {
        output: output.to_owned(),
        ..args.settings.clone()
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let target = target(args, program)?;
        let source = match sample::is_wanted(args) {
            true => SampledSource::Events,
            false => SampledSource::Clock,
        };
        let recorded = source.record_interval(&settings, target, interval.clone());
        match recorded {
            Err(_) if attempts < ATTACH_ATTEMPTS && !is_over(args, program) => {
                let _ = std::fs::remove_dir_all(output);
            }
            recorded => return recorded,
        }
    }
}

/// Returns the target that the options name. Descendants of processes are included, because only
/// processes that start later inherit an event.
fn target(args: &Record, program: Option<u32>) -> anyhow::Result<Target> {
    let named = match args.target.are_any() {
        true => args.target.with(&[])?.0,
        false => Target::Processes(program.into_iter().collect()),
    };
    Ok(match named {
        Target::Processes(pids) => {
            let mut all = descendants(&pids);
            all.extend(pids);
            Target::Processes(all.into_iter().collect())
        }
        other => other,
    })
}

/// Returns true if nothing that is observed still runs.
fn is_over(args: &Record, program: Option<u32>) -> bool {
    let runs = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        // The state follows the name, which may contain anything.
        stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
    };
    match program {
        Some(pid) => !runs(&pid),
        None => !args.target.pid.is_empty() && !args.target.pid.iter().any(runs),
    }
}

fn print_result(target: &str, options: &CollectionOptions, collected: &CollectionOutcome) {
    let recordings = number_of(collected.uploaded as u64, "recording", "s");
    eprintln!(
        "memgauge: put {recordings} into {target}; index them with `memgauge fleet index {target} --to DATASET`"
    );
    if collected.removed > 0 {
        eprintln!(
            "memgauge: removed {} that are older than --keep",
            collected.removed
        );
    }
    if collected.waiting > 0 {
        let waiting = number_of(collected.waiting as u64, "recording", "s");
        eprintln!(
            "memgauge: {waiting} could not be uploaded and wait in `{}`; the next `memgauge record --to` \
             with this -o uploads them",
            options.spool.display()
        );
    }
}
