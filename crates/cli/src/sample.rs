//! `memgauge record -e EVENT`: samples of events that the processor or the kernel
//! counts, and what a report says of them.

use std::collections::BTreeMap;

use anyhow::Context;
use memgauge_collect::pmu::events::{self, Event, Pmus};
use memgauge_collect::pmu::sample::{self, Options, Outcome, Rate, usual_rate};
use memgauge_collect::pmu::target::Target;
use memgauge_collect::sys;
use memgauge_report::{DataFrom, SampledEvent, Style, samples_text};
use memgauge_trace::CommandEnd;
use memgauge_trace::recording::Recording;

use crate::args::{Record, Settings, Source};
use crate::outcome::usage;
use crate::record;

/// Whether the command line asks for samples of live events.
pub(crate) fn is_wanted(args: &Record) -> bool {
    match args.settings.source {
        Source::Pmu => true,
        Source::Auto => {
            let attached = !args.target.pid.is_empty() && has_events(args);
            args.target.are_wide() || is_live(&args.settings) || attached
        }
        Source::Emulate | Source::Clock => false,
    }
}

fn has_events(args: &Record) -> bool {
    !args.settings.events.is_empty()
}

/// Whether the events named are not those of the modelled machine but of this one.
pub(crate) fn is_live(settings: &Settings) -> bool {
    let text = settings.events.join(",");
    !text.is_empty()
        && record::modelled(settings).is_err()
        && events::parse(&text, &Pmus::default()).is_ok()
}

/// Samples.
pub(crate) fn run(
    settings: &Settings,
    (target, while_running): (Target, Option<Vec<String>>),
    talk: bool,
) -> anyhow::Result<CommandEnd> {
    record::refuse_unused(settings, Source::Pmu)?;
    let options = Options {
        target,
        while_running,
        events: chosen(settings)?,
        output: settings.output.clone(),
        ring_pages: settings.ring,
        registers: settings.registers,
        keep_registers: settings.registers,
        overhead: settings.overhead.map(|percent| percent.0 / 100.0),
        whole_processors: false,
        tracing: None,
        source: "pmu",
    };
    record::make_room(&settings.output, settings.force)?;
    sys::process::catch_interrupts().context("failed to catch interrupts")?;
    let outcome = sample::record(&options)?;
    if talk {
        say(&outcome);
    }
    // Of what was attached to, none is ours to report the end of.
    Ok(outcome.end.unwrap_or(CommandEnd::Exited(0)))
}

fn chosen(settings: &Settings) -> anyhow::Result<Vec<(Event, Rate)>> {
    if settings.events.is_empty() {
        return Err(usage(
            "failed to sample: name an event with -e, as in -e page-faults or -e cpu/mem-loads/P \
             (`memgauge list` has names, `memgauge doctor` says what works here)",
        ));
    }
    let groups = events::parse(&settings.events.join(","), &Pmus::default())?;
    let rate = |event: &Event| match (settings.period, settings.frequency) {
        (Some(period), _) => Rate::Period(period),
        (None, Some(hertz)) => Rate::Frequency(hertz),
        (None, None) => usual_rate(event),
    };
    let all = groups.into_iter().flat_map(|group| group.events);
    Ok(all.map(|event| (event.clone(), rate(&event))).collect())
}

/// What the user should know at once; all else is in the report.
pub(crate) fn say(outcome: &Outcome) {
    say_what_lacks(outcome);
    let Some(o) = outcome.overhead else { return };
    eprintln!(
        "memgauge: overhead {:.2} % of {:.2} s on processors ({:.2} % allowed), periods changed {} times",
        100.0 * o.taken,
        o.observed_ns as f64 / 1e9,
        100.0 * o.allowed,
        o.changes,
    );
    for event in &outcome.events {
        let Some(cost) = event.cost else { continue };
        let by = if cost.by_timer {
            " by a timer in its stead"
        } else {
            ""
        };
        eprintln!(
            "memgauge: {}: a sample takes {:.2} us here (measured before the start{by}); period {} at the end",
            event.name,
            cost.ns / 1e3,
            event.period,
        );
    }
}

/// What was given up, and lost.
pub(crate) fn say_what_lacks(outcome: &Outcome) {
    for note in &outcome.notes {
        eprintln!("memgauge: {note}");
    }
    for loss in &outcome.losses {
        eprintln!("memgauge: lost or left out: {} {}", loss.count, loss.detail);
    }
}

/// What a recording of samples says about them; nothing for others.
pub(crate) fn section(recording: &Recording, style: &Style) -> Option<String> {
    let totals = &recording.manifest().totals;
    let events = sampled(totals);
    if events.is_empty() {
        return None;
    }
    let sources = sources(totals);
    Some(samples_text(&events, &sources, &remarks(totals), style))
}

/// Totals whose names begin with `prefix`, by the part between it and the last dot.
fn grouped<'a>(
    totals: &'a BTreeMap<String, u64>,
    prefix: &str,
) -> BTreeMap<&'a str, BTreeMap<&'a str, u64>> {
    let mut all: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for (key, &value) in totals {
        let split = key
            .strip_prefix(prefix)
            .and_then(|rest| rest.rsplit_once('.'));
        if let Some((name, what)) = split {
            all.entry(name).or_default().insert(what, value);
        }
    }
    all
}

fn sampled(totals: &BTreeMap<String, u64>) -> Vec<SampledEvent> {
    let event = |(name, of): (&str, BTreeMap<&str, u64>)| {
        let get = |what| of.get(what).copied().unwrap_or(0);
        SampledEvent {
            name: name.to_owned(),
            samples: get("samples"),
            with_address: get("with_address"),
            stood_for: get("stood_for"),
            counted: get("counted"),
            lost: get("lost"),
            throttled: get("throttled"),
        }
    };
    grouped(totals, "event.").into_iter().map(event).collect()
}

fn sources(totals: &BTreeMap<String, u64>) -> Vec<DataFrom> {
    let source = |(words, of): (&str, BTreeMap<&str, u64>)| DataFrom {
        words: words.to_owned(),
        samples: of.get("samples").copied().unwrap_or(0),
        cycles: of.get("cycles").copied().unwrap_or(0),
    };
    grouped(totals, "source.").into_iter().map(source).collect()
}

/// Below so many records at once, each has had an interrupt of its own.
const BATCHED: u64 = 4;

fn remarks(totals: &BTreeMap<String, u64>) -> Vec<String> {
    let get = |name: &str| totals.get(name).copied();
    let (Some(looks), Some(records), Some(most)) = (
        get("pebs.looks"),
        get("pebs.waiting_records"),
        get("pebs.most_waiting_records"),
    ) else {
        return Vec::new();
    };
    let mean = records as f64 / (looks as f64).max(1.0);
    let waiting = format!(
        "PEBS: {mean:.1} records waited in the processor's buffer at each of {looks} looks, {most} at most"
    );
    let alone = || {
        "an interrupt for each record: another event on that processor, such as `perf top`, \
         or the settings above prevent batches"
            .to_owned()
    };
    let mut all = vec![waiting];
    all.extend((most < BATCHED).then(alone));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_a_manifest_become_events_and_sources() {
        let named = [
            ("event.page-faults.samples", 7),
            ("event.page-faults.lost", 1),
            ("event.cpu/mem-loads.x/.samples", 2),
            ("source.load, L1 hit.samples", 5),
            ("source.load, L1 hit.cycles", 20),
            ("samples.exact", 9),
        ];
        let totals = named.map(|(name, n)| (name.to_owned(), n)).into();
        let events = sampled(&totals);
        let names: Vec<&str> = events.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["cpu/mem-loads.x/", "page-faults"]);
        assert_eq!((events[1].samples, events[1].lost), (7, 1));
        assert_eq!(sources(&totals)[0].cycles, 20);
    }

    #[test]
    fn a_buffer_that_never_fills_is_told() {
        let of = |most: u64| {
            let named = [
                ("pebs.looks", 10),
                ("pebs.waiting_records", 5),
                ("pebs.most_waiting_records", most),
            ];
            remarks(&named.map(|(name, n)| (name.to_owned(), n)).into()).len()
        };
        assert_eq!((of(1), of(200)), (2, 1));
        assert!(remarks(&BTreeMap::new()).is_empty());
    }
}
