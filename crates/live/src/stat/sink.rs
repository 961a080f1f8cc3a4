//! The recording of a run of `memgauge stat`.

use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{
    Cpu, EventDef, EventId, Manifest, Pid, Provenance, SeriesRow, SourceFacts, Tid, Unit, catalogue,
};

use super::open::TIMER;
use super::series::Row;
use super::{Options, Outcome};
use crate::Unwritten;
use crate::events::{Event, builtin_events};
use crate::{Result, host};

/// Parts are closed at this pace (docs/format.md).
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// A recording that is written while there is room for it; counting goes on without.
pub(super) struct Sink {
    writer: Writer,
    flushed: Instant,
    /// Why rows could not be written, the first time.
    failure: Option<memgauge_recording::Error>,
}

/// The id of an event: that of the catalogue where it means the same, else one of
/// the source's own.
pub(super) fn id(event: &Event, number: usize) -> EventId {
    match (event.name.as_str(), event.attr.flags) {
        ("instructions", 0) => catalogue::INSTRUCTIONS,
        ("cycles", 0) => catalogue::CYCLES,
        _ => EventId(catalogue::FIRST_FREE + 1 + number as u16),
    }
}

pub(super) const TIMER_ID: EventId = EventId(catalogue::FIRST_FREE);

fn definition(event: &Event, number: usize) -> EventDef {
    let named = builtin_events()
        .into_iter()
        .find(|named| named.name == event.name);
    let description = named.map_or_else(
        || format!("Event of the kernel or a PMU: {}", event.name),
        |named| named.description,
    );
    EventDef {
        id: id(event, number),
        name: event.name.clone(),
        unit: if event.name == "cycles" {
            Unit::Cycles
        } else {
            Unit::Count
        },
        provenance: Provenance::Counted,
        description,
    }
}

fn timer_definition() -> EventDef {
    EventDef {
        id: TIMER_ID,
        name: TIMER.to_owned(),
        unit: Unit::Count,
        provenance: Provenance::Counted,
        description: "Nanoseconds on a processor".to_owned(),
    }
}

fn facts(options: &Options) -> SourceFacts {
    let mut settings = std::collections::BTreeMap::new();
    if let Some(interval_ns) = options.interval_ns {
        settings.insert("interval_ns".to_owned(), interval_ns.to_string());
    }
    settings.insert("ring_pages".to_owned(), options.ring_pages.to_string());
    SourceFacts {
        name: "pmu".to_owned(),
        settings,
    }
}

/// The manifest of a run, as far as it is known at its start.
pub(super) fn manifest(options: &Options, events: &[Event]) -> Manifest {
    let numbered = events.iter().enumerate();
    let own = numbered.map(|(number, event)| definition(event, number));
    let timer = options.interval_ns.map(|_| timer_definition());
    Manifest {
        events: timer.into_iter().chain(own).collect(),
        ..host::beginning(facts(options), options.target.words(), "monotonic")
    }
}

/// Rows of a stat as rows of a recording's series.
pub(super) struct Ids {
    /// Event of each value, by group; `None` for the timers of later groups, which
    /// count the same time again.
    ids: Vec<Vec<Option<EventId>>>,
}

impl Ids {
    pub(super) fn of(events: &[Event], groups: &[Vec<usize>]) -> Ids {
        let timer = |group| (group == 0).then_some(TIMER_ID);
        let ids = groups.iter().enumerate().map(|(number, group)| {
            let members = group.iter().map(|&event| Some(id(&events[event], event)));
            std::iter::once(timer(number)).chain(members).collect()
        });
        Ids { ids: ids.collect() }
    }

    pub(super) fn series(&self, rows: &[Row], into: &mut Vec<SeriesRow>) {
        into.clear();
        for row in rows {
            for (&value, id) in row.values.iter().zip(&self.ids[row.group]) {
                let Some(event) = *id else { continue };
                into.push(SeriesRow {
                    time_ns: row.time_ns,
                    cpu: row.cpu.map(Cpu),
                    pid: Pid(row.pid),
                    tid: Tid(row.tid),
                    event,
                    value,
                    interval_ns: row.interval_ns,
                });
            }
        }
    }
}

impl Sink {
    pub(super) fn create(path: &Path, manifest: &Manifest) -> Result<Sink> {
        Ok(Sink {
            writer: Writer::create(path, manifest.clone())?,
            flushed: Instant::now(),
            failure: None,
        })
    }

    /// Writes rows. The writer counts those that it cannot write, and tries again with
    /// the next: somebody may have made room.
    pub(super) fn write(&mut self, rows: &[SeriesRow]) {
        let written = self.writer.append(rows);
        self.note(written);
        if self.flushed.elapsed() > FLUSH_EVERY {
            self.flushed = Instant::now();
            let flushed = self.writer.flush_due();
            self.note(flushed);
        }
    }

    fn note(&mut self, written: memgauge_recording::Result<()>) {
        if let Err(error) = written {
            self.failure.get_or_insert(error);
        }
    }

    /// Completes the recording with the outcome, in which its size is noted, and what
    /// could not be written.
    pub(super) fn finish(mut self, outcome: &mut Outcome) {
        let flushed = self.writer.flush_so_far();
        self.note(flushed);
        // Few rows, and what the report needs most: they have the room that was kept.
        self.writer.free_reserved_space();
        let threads = self.writer.extend(outcome.threads.iter().cloned());
        self.note(threads);
        let losses = self.writer.extend(outcome.losses.iter().cloned());
        self.note(losses);
        let flushed = self.writer.flush_so_far();
        self.note(flushed);
        outcome.manifest.own_cost.recording_bytes = self.writer.bytes_written();
        let lost_rows = self.writer.lost_rows();
        let manifest = outcome.manifest.clone();
        let finished = self.writer.finish(|m| *m = manifest);
        outcome.manifest.complete = lost_rows == 0 && finished.is_ok();
        let failure = self.failure.take().or(finished.err());
        outcome.unwritten = failure.map(|error| Unwritten {
            why: error.to_string(),
            lost_rows,
        });
    }
}
