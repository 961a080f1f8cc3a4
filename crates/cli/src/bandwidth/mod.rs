//! `memgauge bandwidth` and `memgauge calibrate`.

mod args;
mod calibrate;
mod live;

use anyhow::{Context, bail};
use memgauge_analyze::bandwidth::{
    self, BandwidthSettings, Correction, LossModel, MAX_WINDOWS, TraceExtent,
};
use memgauge_calibration::{Calibration, recorded_delivery};
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::quantities::spoken_seconds;
use memgauge_console::terminal;
use memgauge_emulate as emulate;
use memgauge_host::sys::signals::interrupts;
use memgauge_machine::{PmuConfig, SampleSpec};
use memgauge_recording::Recording;
use memgauge_report::bandwidth::{against_text, csv, json, text};
use memgauge_symbols::Symbols;
use memgauge_trace::CommandEnd;

use crate::record;
use crate::units::EventSpec;
pub(crate) use args::{Bandwidth, Calibrate};
pub(crate) use calibrate::calibrate;

use args::{Correct, TraceSource};

/// Shows bandwidth over time.
pub(crate) fn bandwidth(args: &Bandwidth) -> anyhow::Result<Exit> {
    if let Some(input) = &args.input {
        let style = terminal::style(terminal::stdout_is_terminal());
        let recording = Recording::open(input)?;
        let other = args.against.as_deref().map(Recording::open).transpose()?;
        let shown = match &other {
            Some(other) => against(args, [&recording, other])?,
            None => shown(args, &recording, &[], style)?,
        };
        terminal::print(&shown)?;
        let is_damaged = recording.is_damaged() || other.is_some_and(|other| other.is_damaged());
        return Ok(Exit::after_reading(is_damaged));
    }
    let style = terminal::style(terminal::stderr_is_terminal());
    let mut totals = Vec::new();
    let mut end = CommandEnd::Exited(0);
    for run in 0..args.repeat {
        end = record_once(args, run > 0)?;
        let recording = Recording::open(&args.output)?;
        if run + 1 == args.repeat || interrupts() > 0 {
            eprint!("{}", shown(args, &recording, &totals, style)?);
            break;
        }
        totals.push(read(args, &recording)?.bytes);
    }
    if !args.quiet && !args.json && !args.csv {
        eprintln!("\nrecording: {}", args.output.display());
    }
    Ok(Exit::of(&end))
}

/// Records a run, in place of the previous one if there was one.
fn record_once(args: &Bandwidth, again: bool) -> anyhow::Result<CommandEnd> {
    match live::is_wanted(args) {
        true => live::run(args, again),
        false => run(args, again),
    }
}

/// Runs the program on the modelled machine.
fn run(args: &Bandwidth, again: bool) -> anyhow::Result<CommandEnd> {
    emulate::resolve(&args.command)?;
    let event = modelled(args)?;
    let options = emulate::Options {
        command: args.command.clone(),
        output: args.output.clone(),
        discards_output: false,
        machine: args.modelled.config()?,
        pmu: PmuConfig {
            samples: vec![SampleSpec {
                event: event.event,
                period: event.period.unwrap_or(args.period),
            }],
            interval_ns: Some(args.interval.ns),
            delivery: args.delivery.0,
        },
        traces: Some(args.resolution.0),
        sets: None,
        what_if: Vec::new(),
        seed: args.modelled.seed,
        stacks: false,
        data: None,
        counts_accesses: false,
        functions: Vec::new(),
        regions: Vec::new(),
    };
    let verbose = !args.quiet && !args.json && !args.csv;
    let why = "to trace this machine, use -e or --source pmu";
    let why = (args.source == TraceSource::Auto && !again).then_some(why);
    record::emulated(&options, args.force || again, verbose, why)
}

/// The event of the modelled machine.
fn modelled(args: &Bandwidth) -> anyhow::Result<EventSpec> {
    let name = args.event.as_deref().unwrap_or("llc.miss");
    let event = name.parse::<EventSpec>();
    event.map_err(|why| usage(format!("failed to read event `{name}`: {why}")))
}

fn settings(args: &Bandwidth) -> BandwidthSettings {
    BandwidthSettings {
        from_ns: args.from.unwrap_or(0),
        to_ns: args.to,
        bin_ns: args.bin.ns,
        rows: args.rows,
    }
}

fn read(args: &Bandwidth, recording: &Recording) -> anyhow::Result<bandwidth::Bandwidth> {
    let extent = bandwidth::extent(recording)?;
    check(args, recording, &extent)?;
    let correction = correction(args, recording)?;
    let symbols = &mut Symbols::of(recording.path());
    let mut read = bandwidth::read(recording, &extent, &settings(args), &correction, symbols)?;
    if matches!(
        (args.correct, &correction),
        (Correct::Auto, Correction::Reference)
    ) && let Some(why) = read.reference.as_ref().and_then(unlike)
    {
        let none = &Correction::None;
        read = bandwidth::read(recording, &extent, &settings(args), none, symbols)?;
        eprintln!("memgauge: {why}");
    }
    for problem in &read.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(read)
}

/// Maximum difference from a reference, beyond the error of quantisation, at which both count the
/// same traffic.
const MAX_REFERENCE_ERROR: f64 = 0.5;
/// Minimum number of windows for the comparison. In fewer windows, a reference of other traffic may
/// look like one of the same traffic.
const FEWEST_WINDOWS: u64 = 4;

/// Returns the reason why a reference cannot show what records lost. Memory's own counter also sees
/// stores, the kernel and other programs.
fn unlike(reference: &bandwidth::Reference) -> Option<String> {
    let error = reference.mean_error?;
    if reference.windows < FEWEST_WINDOWS {
        return Some(format!(
            "memory's own counter was read in only {} windows of {}: too few to tell whether it saw \
             the same traffic, so nothing is corrected by it (--correct reference does it anyway)",
            reference.windows,
            spoken_seconds(reference.width_ns as f64 / 1e9)
        ));
    }
    let quantised = reference.quantised_error.unwrap_or(0.0);
    (error - quantised > MAX_REFERENCE_ERROR).then(|| {
        format!(
            "memory's own counter differs from the overflows by {:.0} % in windows: it saw other \
             traffic, too, so nothing is corrected by it (--correct N gives the events that a \
             record loses)",
            100.0 * error
        )
    })
}

/// Returns an error if there is nothing to show, or too much.
fn check(args: &Bandwidth, recording: &Recording, extent: &TraceExtent) -> anyhow::Result<()> {
    if extent.overflows.is_empty() {
        for problem in &extent.problems {
            eprintln!("memgauge: {problem}");
        }
        let manifest = recording.manifest();
        let mut is_other = false;
        let settings = &manifest.source.settings;
        let periods: Vec<String> = settings
            .periods()
            .map(|(event, period)| {
                let total = manifest.totals.get(event).copied().unwrap_or(0);
                // Then its overflows became samples.
                is_other |= total >= period;
                format!("{event} happened {total} times, the period is {period}")
            })
            .collect();
        let why = match is_other || periods.is_empty() {
            true => {
                "it holds no trace of overflows (`memgauge bandwidth -- CMD` makes one)".to_owned()
            }
            false => format!(
                "no counter overflowed ({}; choose a smaller one with -c)",
                periods.join(", ")
            ),
        };
        bail!(
            "failed to show the bandwidth of `{}`: {why}",
            recording.path().display()
        );
    }
    let from = args.from.unwrap_or(0).max(extent.start_ns);
    let to = args.to.unwrap_or(u64::MAX).min(extent.end_ns);
    if from >= to {
        return Err(usage(format!(
            "failed to show `{}`: it has no data from {from} ns to {to} ns: choose a time \
            between {} ns and {} ns",
            recording.path().display(),
            extent.start_ns,
            extent.end_ns
        )));
    }
    let windows = (to - from) / args.bin.ns;
    if windows > MAX_WINDOWS {
        return Err(usage(format!(
            "failed to show {windows} windows: the limit is {MAX_WINDOWS}: choose a wider \
            --bin, or a shorter time with --from and --to"
        )));
    }
    Ok(())
}

fn correction(args: &Bandwidth, recording: &Recording) -> anyhow::Result<Correction> {
    let manifest = recording.manifest();
    let delivery = recorded_delivery(&manifest.source.settings);
    let event = manifest.source.settings.sampled_events().next();
    let found = || match (&manifest.machine, event) {
        (Some(machine), Some(event)) => Calibration::find(machine, &delivery, event),
        _ => Ok(None),
    };
    let named = |kept: Calibration| {
        let name = format!("calibration of {} by {}", kept.machine.name, kept.delivery);
        Correction::Model(name, kept.model())
    };
    Ok(match args.correct {
        Correct::None => Correction::None,
        Correct::Lost(lost) => {
            let name = format!("{lost} events with each record, as given");
            Correction::Model(name, LossModel::constant(lost))
        }
        Correct::Reference => Correction::Reference,
        Correct::Auto if delivery == "ideal" => Correction::None,
        Correct::Auto => match found()? {
            Some(kept) => named(kept),
            None if event.is_some_and(counts_memory_reads) => Correction::Reference,
            None => Correction::None,
        },
        Correct::Calibration => named(found()?.context(
            "failed to correct lost events: there is no calibration for this recording's \
            machine, delivery and \
             event; `memgauge calibrate` makes one",
        )?),
    })
}

/// Returns true if an event counts lines that memory delivered, as memory's own counters do. Page
/// faults and misses of the first level are different quantities, even if their totals are equal,
/// and the kernel loses none of its own events.
fn counts_memory_reads(event: &str) -> bool {
    const NAMES: [&str; 4] = [
        "llc.miss",
        "dram.read_bytes",
        "cache-misses",
        "llc-load-misses",
    ];
    let event = event.to_ascii_lowercase();
    let name = event.split(':').next().unwrap_or_default();
    // MEM_LOAD_RETIRED.L3_MISS by number, IBS of misses, and vendors' names.
    let raw = event.contains("event=0xd1") && event.contains("umask=0x20");
    raw || event.contains("l3missonly=1") || event.contains("l3_miss") || NAMES.contains(&name)
}

fn shown(
    args: &Bandwidth,
    recording: &Recording,
    before: &[f64],
    style: memgauge_report::Style,
) -> anyhow::Result<String> {
    let mut result = read(args, recording)?;
    result.runs = bandwidth::RepeatedRuns::of(before, result.bytes);
    Ok(match (args.json, args.csv) {
        (true, _) => json(&result),
        (_, true) => csv(&result),
        _ => text(&result, recording.manifest(), &style),
    })
}

/// Two recordings over each other, by work done.
fn against(args: &Bandwidth, recordings: [&Recording; 2]) -> anyhow::Result<String> {
    let style = terminal::style(terminal::stdout_is_terminal());
    let both = recordings.map(|recording| -> anyhow::Result<_> {
        let path = recording.path();
        let result = read(args, recording)?;
        let curve = result
            .curve
            .as_ref()
            .context("SANITY: a read result has a curve")?;
        let work = bandwidth::work(recording, curve)?;
        if work.total() <= 0.0 {
            bail!(
                "failed to compare `{}` by work: it has no series of instructions",
                path.display()
            );
        }
        Ok((path.display().to_string(), result, work))
    });
    let [one, other] = both;
    Ok(against_text(&[one?, other?], args.json, &style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_of_few_windows_tells_nothing() {
        let of = |windows| bandwidth::Reference {
            mean_error: Some(0.0),
            windows,
            width_ns: 741_000_000,
            ..bandwidth::Reference::default()
        };
        assert!(unlike(&of(FEWEST_WINDOWS)).is_none());
        let why = unlike(&of(FEWEST_WINDOWS - 1)).expect("too few");
        assert!(why.contains("3 windows of 741.0 ms"), "{why}");
    }

    #[test]
    fn only_events_of_memory_are_corrected_by_memorys_counter() {
        for event in [
            "llc.miss",
            "dram.read_bytes",
            "cache-misses:u",
            "LLC-load-misses",
            "cpu/event=0xd1,umask=0x20/P",
            "cpu_core/event=0xd1,umask=0x20/",
            "ibs_op/l3missonly=1/",
            "mem_load_retired.l3_miss:pp",
        ] {
            assert!(counts_memory_reads(event), "{event}");
        }
        for event in [
            "page-faults",
            "page-faults:u",
            "l1d.miss",
            "dtlb.walk",
            "instructions",
            "sched:sched_switch",
            "cpu/event=0xd1,umask=0x01/",
        ] {
            assert!(!counts_memory_reads(event), "{event}");
        }
    }

    /// Returns true if a reference with these errors in windows is rejected.
    fn is_unlike(mean_error: Option<f64>, quantised_error: Option<f64>) -> bool {
        let reference = bandwidth::Reference {
            mean_error,
            quantised_error,
            windows: 100,
            ..bandwidth::Reference::default()
        };
        unlike(&reference).is_some()
    }

    #[test]
    fn a_reference_that_saw_other_traffic_corrects_nothing() {
        // The first error is that of a program that clears pages besides its loads, as measured in
        // the lab. The second one is what calibration leaves.
        assert!(is_unlike(Some(0.87), Some(0.0)));
        assert!(!is_unlike(Some(0.1), Some(0.02)));
        // A difference can come from few overflows per window. Without windows there is none.
        assert!(!is_unlike(Some(0.9), Some(0.6)));
        assert!(!is_unlike(None, None));
    }
}
