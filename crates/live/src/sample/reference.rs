//! Memory's own counters, as the reference of a trace of overflows.

use std::path::Path;

use memgauge_recording::Writer;
use memgauge_trace::{EventDef, EventId, Provenance, SeriesRow, Unit, catalogue};

use super::mbm::Mbm;
use crate::Result;
use crate::uncore::{MemoryCounting, Term};
use memgauge_host::memory_counters::MemoryCounters;

/// Number of the event of resctrl's bytes; those of samples begin at the first free.
const MBM: EventId = EventId(u16::MAX);

/// The controllers' bytes, or resctrl's, and up to when they are written.
pub(super) struct ReferenceCounters {
    counting: MemoryCounting,
    mbm: Option<Mbm>,
    last_ns: u64,
}

impl ReferenceCounters {
    /// Opens this machine's counters, or takes those of a file.
    pub(super) fn start(file: Option<&Path>) -> Result<ReferenceCounters> {
        let counting = MemoryCounting::start(file)?;
        let alone = !counting.without().is_empty();
        Ok(ReferenceCounters {
            mbm: alone.then(Mbm::start).flatten(),
            counting,
            last_ns: 0,
        })
    }

    /// Why there is no reference; empty where there is one.
    pub(super) fn without(&self) -> &str {
        match self.mbm {
            Some(_) => "",
            None => self.counting.without(),
        }
    }

    /// Where the reference comes from.
    pub(super) fn source(&self) -> String {
        match self.mbm {
            Some(_) => "resctrl's monitoring, reads and writes together".to_owned(),
            None => self.counting.source(),
        }
    }

    /// Lets the counters count. Counts so far are dropped: they are from before the run.
    pub(super) fn begin(&mut self) {
        self.counting.begin();
        self.counting.take(0);
        if let Some(mbm) = &mut self.mbm {
            mbm.take();
        }
    }

    /// Writes what was read and written since the last time; `now_ns` since the
    /// beginning.
    pub(super) fn take(&mut self, now_ns: u64, writer: &mut Writer) -> Result<()> {
        let interval_ns = now_ns.saturating_sub(self.last_ns);
        if interval_ns == 0 || !self.without().is_empty() {
            return Ok(());
        }
        self.last_ns = now_ns;
        let mut row = |event, value| {
            writer.push(SeriesRow {
                time_ns: now_ns,
                event,
                value,
                interval_ns,
                ..SeriesRow::default()
            })
        };
        if let Some(mbm) = &mut self.mbm {
            row(MBM, mbm.take())?;
        }
        for gained in self.counting.take(now_ns) {
            let event = match gained.series.term {
                Term::MemoryRead => catalogue::DRAM_READ_BYTES,
                Term::MemoryWrite => catalogue::DRAM_WRITE_BYTES,
                _ => continue,
            };
            row(event, gained.bytes)?;
        }
        Ok(())
    }
}

/// Definitions of the reference's events for a manifest.
pub(super) fn definitions() -> impl Iterator<Item = EventDef> {
    let of = |id, name: &str, what: &str| EventDef {
        id,
        name: name.to_owned(),
        unit: Unit::Bytes,
        provenance: Provenance::Counted,
        description: format!("Bytes {what} memory, counted outside the cores; everybody's."),
    };
    let written = "dram.write_bytes";
    [
        of(catalogue::DRAM_READ_BYTES, "dram.read_bytes", "read from"),
        of(catalogue::DRAM_WRITE_BYTES, written, "written to"),
        of(MBM, "mbm.total_bytes", "read from and written to"),
    ]
    .into_iter()
}
