//! `memgauge bandwidth` on events of this machine's processor or kernel.

use std::path::Path;

use memgauge_console::outcome::usage;
use memgauge_console::terminal;
use memgauge_live::events::{self, Event, Pmus};
use memgauge_live::sampling::{self, SamplingOptions, SamplingRate, Tracing};
use memgauge_machine::Delivery;
use memgauge_trace::{CommandEnd, LINE_BYTES, SourceKind, is_page_fault};

use super::args::{Bandwidth, TraceSource};
use crate::names;
use crate::record;
use crate::units::EventSpec;

/// True if the command line requests live events.
pub(super) fn is_wanted(args: &Bandwidth) -> bool {
    let live = |text: &String| text.parse::<EventSpec>().is_err() && is_live(text);
    match args.source {
        TraceSource::Pmu => true,
        TraceSource::Emulate => false,
        TraceSource::Auto => args.target.are_any() || args.event.as_ref().is_some_and(live),
    }
}

fn is_live(text: &str) -> bool {
    events::parse(text, &Pmus::default()).is_ok()
}

/// Traces overflows.
pub(super) fn run(args: &Bandwidth, again: bool) -> anyhow::Result<CommandEnd> {
    let event = chosen(args)?;
    let (target, while_running) = args.target.with(&args.command)?;
    let options = SamplingOptions {
        target,
        while_running,
        tracing: Some(Tracing {
            resolution_ns: args.resolution.0,
            bytes_per_event: args.bytes.unwrap_or_else(|| bytes_of(&event)),
            counters: args.counters.clone(),
        }),
        events: vec![(event, SamplingRate::Period(args.period))],
        output: args.output.clone(),
        ring_pages: RING_PAGES,
        registers: false,
        keep_registers: false,
        physical: false,
        stacks: None,
        overhead: None,
        whole_processors: false,
        regions: Vec::new(),
        source: SourceKind::Pmu,
        interval: None,
    };
    let _output = record::make_room(&options.output, args.force || again)?;
    terminal::catch_interrupts()?;
    let outcome = sampling::record(&options)?;
    names::add(&options.output);
    if !args.quiet && !args.json && !args.csv {
        crate::sample::print_notes(&options.output)?;
    }
    crate::sample::ended(outcome)
}

/// Ring pages of each CPU: 512 KiB, which the kernel allows every user.
const RING_PAGES: usize = 128;

/// The requested event, or the misses of this processor, with the requested precision.
fn chosen(args: &Bandwidth) -> anyhow::Result<Event> {
    let precise = match args.delivery.0 {
        Delivery::Interrupt(_) => false,
        Delivery::Precise(_) | Delivery::Tagged(_) => true,
        Delivery::Ideal => {
            let why = "failed to trace overflows: only the modelled machine has ideal delivery: \
            use another --delivery, or --source emulate";
            return Err(usage(why));
        }
    };
    let name = match &args.event {
        Some(name) => name.clone(),
        None => misses(Path::new("/sys/bus/event_source/devices"), precise)
            .map_err(|why| anyhow::anyhow!("failed to trace overflows: {why}"))?,
    };
    let groups = events::parse(&name, &Pmus::default())?;
    let mut all = groups.into_iter().flat_map(|group| group.events);
    let (Some(mut event), None) = (all.next(), all.next()) else {
        let why = format!("failed to trace overflows of `{name}`: name one event");
        return Err(usage(why));
    };
    if precise && !event.is_software() && event.modifiers.precise == 0 {
        event.modifiers.most_precise = true;
    }
    Ok(event)
}

/// The event for this processor's misses: loads that memory served.
fn misses(devices: &Path, precise: bool) -> Result<String, String> {
    let has = |path: &str| devices.join(path).exists();
    if has("ibs_op") {
        return match has("ibs_op/format/l3missonly") {
            true => Ok("ibs_op/l3missonly=1/".to_owned()),
            false => Err(
                "this processor's IBS cannot select misses of the last-level cache (Zen 4 and \
                later can): name an event with -e"
                    .to_owned(),
            ),
        };
    }
    let pmu = ["cpu_core", "cpu"].into_iter().find(|pmu| has(pmu));
    match pmu {
        // MEM_LOAD_RETIRED.L3_MISS, since Skylake.
        Some(pmu) if has(&format!("{pmu}/format/ldlat")) => {
            let suffix = if precise { "P" } else { "" };
            Ok(format!("{pmu}/event=0xd1,umask=0x20/{suffix}"))
        }
        Some(_) => Ok("cache-misses".to_owned()),
        None => Err(
            "this machine has no PMU: name an event that the kernel counts (-e page-faults), or \
            use the modelled machine (--source emulate)"
                .to_owned(),
        ),
    }
}

/// Default number of bytes per event: a page or a line.
fn bytes_of(event: &Event) -> u64 {
    match is_page_fault(&event.name) {
        true => memgauge_live::sys::perf::page_bytes() as u64,
        // A miss moves a line.
        false => LINE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The event for a machine with these files under its devices.
    fn check(files: &[&str], precise: bool, expected: Result<&str, &str>) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::create_dir_all(dir.path().join(file)).unwrap();
        }
        match (misses(dir.path(), precise), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn each_processor_has_its_event_for_misses() {
        let skylake = ["cpu/format/ldlat"];
        check(&skylake, true, Ok("cpu/event=0xd1,umask=0x20/P"));
        check(&skylake, false, Ok("cpu/event=0xd1,umask=0x20/"));
        let hybrid = ["cpu_core/format/ldlat", "cpu_atom"];
        check(&hybrid, true, Ok("cpu_core/event=0xd1,umask=0x20/P"));
        let zen4 = ["cpu", "ibs_op/format/l3missonly"];
        check(&zen4, true, Ok("ibs_op/l3missonly=1/"));
        check(&["cpu", "ibs_op/format"], true, Err("Zen 4 and later"));
        check(&["cpu/format"], true, Ok("cache-misses"));
        check(&["software"], true, Err("no PMU"));
    }
}
