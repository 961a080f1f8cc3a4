//! Counters of the memory controllers, which are the reference for a trace of overflows.

use std::path::Path;

use memgauge_recording::Writer;
use memgauge_trace::{EventDef, EventId, Provenance, SeriesRow, Unit, catalogue};

use super::resctrl::ResctrlBandwidth;
use crate::Result;
use crate::uncore::{MemoryCounting, TrafficKind};
use memgauge_host::memory_counters::MemoryCounters;

/// Event of resctrl's bytes. The sampled events use IDs from the first free one upwards, so the
/// last ID is unused.
const RESCTRL_BYTES: EventId = EventId(u16::MAX);

/// Counters of the memory controllers, or of resctrl if the machine has none.
pub(super) struct ReferenceCounters {
    controllers: MemoryCounting,
    resctrl: Option<ResctrlBandwidth>,
    last_ns: u64,
}

impl ReferenceCounters {
    /// Opens this machine's counters, or reads those of a file.
    pub(super) fn open(file: Option<&Path>) -> Result<ReferenceCounters> {
        let controllers = MemoryCounting::start(file)?;
        let resctrl = match controllers.missing_reason().is_empty() {
            true => None,
            false => ResctrlBandwidth::open(),
        };
        Ok(ReferenceCounters {
            controllers,
            resctrl,
            last_ns: 0,
        })
    }

    /// Reason why there is no reference. Empty if there is one.
    pub(super) fn reason_for_absence(&self) -> &str {
        match self.resctrl {
            Some(_) => "",
            None => self.controllers.missing_reason(),
        }
    }

    /// Origin of the reference.
    pub(super) fn source(&self) -> String {
        match self.resctrl {
            Some(_) => "resctrl's monitoring, reads and writes together".to_owned(),
            None => self.controllers.source(),
        }
    }

    /// Starts counting. Drops the counts so far, which are from before the run.
    pub(super) fn start(&mut self) {
        self.controllers.begin();
        self.controllers.read_increments(0);
        if let Some(resctrl) = &mut self.resctrl {
            resctrl.read_increment();
        }
    }

    /// Writes the bytes since the previous call. `now_ns` is relative to the start of the run.
    pub(super) fn write_increments(&mut self, now_ns: u64, writer: &mut Writer) -> Result<()> {
        let interval_ns = now_ns.saturating_sub(self.last_ns);
        if interval_ns == 0 || !self.reason_for_absence().is_empty() {
            return Ok(());
        }
        self.last_ns = now_ns;
        let mut write_row = |event, value| {
            writer.push(SeriesRow {
                time_ns: now_ns,
                event,
                value,
                interval_ns,
                ..SeriesRow::default()
            })
        };
        if let Some(resctrl) = &mut self.resctrl {
            write_row(RESCTRL_BYTES, resctrl.read_increment())?;
        }
        for increment in self.controllers.read_increments(now_ns) {
            let event = match increment.series.kind {
                TrafficKind::MemoryRead => catalogue::DRAM_READ_BYTES,
                TrafficKind::MemoryWrite => catalogue::DRAM_WRITE_BYTES,
                _ => continue,
            };
            write_row(event, increment.bytes)?;
        }
        Ok(())
    }
}

/// Definitions of the reference's events for a manifest.
pub(super) fn definitions() -> impl Iterator<Item = EventDef> {
    let definition = |id, name: &str, direction: &str| EventDef {
        id,
        name: name.to_owned(),
        unit: Unit::Bytes,
        provenance: Provenance::Counted,
        description: format!(
            "Bytes {direction} memory by the whole machine, counted outside the cores."
        ),
    };
    [
        definition(catalogue::DRAM_READ_BYTES, "dram.read_bytes", "read from"),
        definition(
            catalogue::DRAM_WRITE_BYTES,
            "dram.write_bytes",
            "written to",
        ),
        definition(RESCTRL_BYTES, "mbm.total_bytes", "read from and written to"),
    ]
    .into_iter()
}
