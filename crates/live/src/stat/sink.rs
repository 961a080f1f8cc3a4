//! The recording of a run of `memgauge stat`.

use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{
    Cpu, EventDef, EventId, Manifest, Pid, Provenance, SeriesRow, SourceFacts, Thread, Tid, Unit,
    catalogue,
};

use super::open::TIMER;
use super::series::Row;
use super::{Options, Outcome, SeenThread};
use crate::events::{Event, builtin_events};
use crate::{Result, host};

/// Parts are closed at this pace (docs/format.md).
const FLUSH_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Sink {
    writer: Writer,
    /// Event of each value, by group; `None` for the timers of later groups, which
    /// count the same time again.
    ids: Vec<Vec<Option<EventId>>>,
    flushed: Instant,
}

/// The id of an event: that of the catalogue where it means the same, else one of
/// the source's own.
fn id(event: &Event, number: usize) -> EventId {
    match (event.name.as_str(), event.attr.flags) {
        ("instructions", 0) => catalogue::INSTRUCTIONS,
        ("cycles", 0) => catalogue::CYCLES,
        _ => EventId(catalogue::FIRST_FREE + 1 + number as u16),
    }
}

const TIMER_ID: EventId = EventId(catalogue::FIRST_FREE);

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

impl Sink {
    pub(super) fn create(
        path: &Path,
        options: &Options,
        events: &[Event],
        groups: &[Vec<usize>],
    ) -> Result<Sink> {
        let numbered = events.iter().enumerate();
        let own = numbered.map(|(number, event)| definition(event, number));
        let manifest = Manifest {
            recorder: concat!("memgauge ", env!("CARGO_PKG_VERSION")).to_owned(),
            command: options.target.words(),
            clock: "monotonic".to_owned(),
            source: facts(options),
            host: host::facts(),
            events: std::iter::once(timer_definition()).chain(own).collect(),
            ..Manifest::starting_now()
        };
        let timer = |group| (group == 0).then_some(TIMER_ID);
        let ids = groups.iter().enumerate().map(|(number, group)| {
            let members = group.iter().map(|&event| Some(id(&events[event], event)));
            std::iter::once(timer(number)).chain(members).collect()
        });
        Ok(Sink {
            writer: Writer::create(path, manifest)?,
            ids: ids.collect(),
            flushed: Instant::now(),
        })
    }

    pub(super) fn write(&mut self, rows: &[Row]) -> Result<()> {
        for row in rows {
            for (value, id) in row.values.iter().zip(&self.ids[row.group]) {
                let Some(event) = *id else { continue };
                self.writer.push(SeriesRow {
                    time_ns: row.time_ns,
                    cpu: row.cpu.map(Cpu),
                    pid: Pid(row.pid),
                    tid: Tid(row.tid),
                    event,
                    value: *value,
                    interval_ns: row.interval_ns,
                })?;
            }
        }
        if self.flushed.elapsed() > FLUSH_EVERY {
            self.flushed = Instant::now();
            self.writer.flush_due()?;
        }
        Ok(())
    }

    /// Completes the recording; returns its size.
    pub(super) fn finish(mut self, outcome: &Outcome, threads: &[SeenThread]) -> Result<u64> {
        self.writer.extend(threads.iter().map(|seen| Thread {
            pid: Pid(seen.pid),
            tid: Tid(seen.tid),
            parent_pid: Pid(seen.parent_pid),
            program: seen.program.clone(),
            start_ns: seen.start_ns,
            end_ns: seen.end_ns,
        }))?;
        self.writer.extend(outcome.losses.iter().cloned())?;
        self.writer.flush()?;
        let bytes = self.writer.bytes_written();
        let cpu_clock = outcome
            .ticks
            .as_ref()
            .map(|t| (TIMER.to_owned(), t.running_ns));
        let counted = outcome.totals.iter().map(|t| (t.name.clone(), t.value));
        self.writer.finish(|manifest| {
            manifest.end.clone_from(&outcome.end);
            manifest.totals = counted.chain(cpu_clock).collect();
            manifest.own_cost = outcome.cost.clone();
            manifest.own_cost.recording_bytes = bytes;
        })?;
        Ok(bytes)
    }
}
