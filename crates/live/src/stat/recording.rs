//! Writes the recording of a run of `memgauge stat`.

use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{
    Cpu, EventDef, EventId, Manifest, Pid, Provenance, SeriesRow, SourceFacts, SourceKind,
    SourceSettings, Tid, Unit, catalogue,
};

use super::open::TIMER;
use super::series::CounterRow;
use super::{StatOptions, StatOutcome};
use crate::Unwritten;
use crate::events::{Event, builtin_events};
use crate::{Result, host};

/// Time after which a part is closed (docs/format.md).
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A recording that is written as long as there is room. Counting goes on without it.
pub(super) struct RecordingWriter {
    writer: Writer,
    flushed: Instant,
    /// The first failed write.
    write_error: Option<memgauge_recording::Error>,
}

/// ID of an event: the catalogue's if it means the same, else one of the source's own.
pub(super) fn event_id(event: &Event, index: usize) -> EventId {
    match (event.name.as_str(), event.attr.flags) {
        ("instructions", 0) => catalogue::INSTRUCTIONS,
        ("cycles", 0) => catalogue::CYCLES,
        _ => EventId(catalogue::FIRST_FREE + 1 + index as u16),
    }
}

pub(super) const TIMER_ID: EventId = EventId(catalogue::FIRST_FREE);

fn definition(event: &Event, index: usize) -> EventDef {
    let named = builtin_events()
        .into_iter()
        .find(|named| named.name == event.name);
    let description = named.map_or_else(
        || format!("Event of the kernel or a PMU: {}", event.name),
        |named| named.description,
    );
    EventDef {
        id: event_id(event, index),
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
        description: "CPU time in nanoseconds".to_owned(),
    }
}

fn facts(options: &StatOptions) -> SourceFacts {
    let ring_pages = ("ring_pages".to_owned(), options.ring_pages.to_string());
    SourceFacts {
        kind: SourceKind::Pmu,
        settings: SourceSettings {
            interval_ns: options.interval_ns,
            others: [ring_pages].into(),
            ..SourceSettings::default()
        },
    }
}

/// The manifest of a run, as far as it is known at the start.
pub(super) fn manifest(options: &StatOptions, events: &[Event]) -> Manifest {
    let indexed = events.iter().enumerate();
    let own = indexed.map(|(index, event)| definition(event, index));
    let timer = options.interval_ns.map(|_| timer_definition());
    Manifest {
        events: timer.into_iter().chain(own).collect(),
        ..host::new_manifest(facts(options), options.target.description(), "monotonic")
    }
}

/// Converts rows to those of a recording.
pub(super) struct EventIds {
    /// Event of each value, by group. `None` for the timers of all groups but the first: they count
    /// the same time again.
    ids: Vec<Vec<Option<EventId>>>,
}

impl EventIds {
    pub(super) fn new(events: &[Event], groups: &[Vec<usize>]) -> EventIds {
        let timer = |group| (group == 0).then_some(TIMER_ID);
        let ids = groups.iter().enumerate().map(|(index, group)| {
            let members = group
                .iter()
                .map(|&event| Some(event_id(&events[event], event)));
            std::iter::once(timer(index)).chain(members).collect()
        });
        EventIds { ids: ids.collect() }
    }

    pub(super) fn convert(&self, rows: &[CounterRow], into: &mut Vec<SeriesRow>) {
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

impl RecordingWriter {
    pub(super) fn create(path: &Path, manifest: &Manifest) -> Result<RecordingWriter> {
        Ok(RecordingWriter {
            writer: Writer::create(path, manifest.clone())?,
            flushed: Instant::now(),
            write_error: None,
        })
    }

    /// Writes rows. The writer counts the rows that it cannot write and goes on, since the user may
    /// make room.
    pub(super) fn write(&mut self, rows: &[SeriesRow]) {
        let written = self.writer.append(rows);
        self.check(written);
        if self.flushed.elapsed() > FLUSH_INTERVAL {
            self.flushed = Instant::now();
            let flushed = self.writer.flush_due();
            self.check(flushed);
        }
    }

    fn check(&mut self, written: memgauge_recording::Result<()>) {
        if let Err(error) = written {
            self.write_error.get_or_insert(error);
        }
    }

    /// Completes the recording. Adds its size to the outcome, and what could not be written.
    pub(super) fn finish(mut self, outcome: &mut StatOutcome) {
        let flushed = self.writer.flush_so_far();
        self.check(flushed);
        // These few rows are what the report needs most, so they may use the reserved room.
        self.writer.free_reserved_space();
        let threads = self.writer.extend(outcome.threads.iter().cloned());
        self.check(threads);
        let losses = self.writer.extend(outcome.losses.iter().cloned());
        self.check(losses);
        let flushed = self.writer.flush_so_far();
        self.check(flushed);
        outcome.manifest.own_cost.recording_bytes = self.writer.bytes_written();
        let lost_rows = self.writer.lost_rows();
        let manifest = outcome.manifest.clone();
        let finished = self.writer.finish(|m| *m = manifest);
        outcome.manifest.complete = lost_rows == 0 && finished.is_ok();
        let error = self.write_error.take().or(finished.err());
        outcome.unwritten = error.map(|error| Unwritten {
            why: error.to_string(),
            lost_rows,
        });
    }
}
