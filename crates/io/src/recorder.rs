//! Writes intervals of I/O accounting to a recording.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{
    CommandEnd, EventId, LossKind, Manifest, OwnCost, SeriesRow, SourceFacts, SourceKind,
};

use super::meter::IoInterval;
use super::session::AccountingLoss;
use crate::{Result, host};
use memgauge_host::memory_counters::TrafficSeries;
use memgauge_host::sys::process::{children_usage, own_usage};

/// Interval at which the writer closes parts that are due.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Writes [`IoInterval`]s to a recording.
pub struct IoRecorder {
    writer: Writer,
    started: Instant,
    flushed: Instant,
    /// Events of the memory traffic counters.
    series: BTreeMap<TrafficSeries, EventId>,
}

impl IoRecorder {
    /// Creates a recording. `series` are the memory traffic counters that intervals can contain.
    ///
    /// # Errors
    /// The recording cannot be created.
    pub fn create(
        path: &Path,
        command: &[String],
        settings: &[(&str, String)],
        series: Vec<TrafficSeries>,
    ) -> Result<IoRecorder> {
        let events: Vec<_> = series.iter().zip(0..).map(|(s, n)| s.define(n)).collect();
        let ids = events.iter().map(|event| event.id);
        let series = series.into_iter().zip(ids).collect();
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let source = SourceFacts {
            kind: SourceKind::Io,
            settings: settings.collect::<BTreeMap<_, _>>().into(),
        };
        let manifest = Manifest {
            events,
            ..host::new_manifest(source, command.to_vec(), "monotonic")
        };
        Ok(IoRecorder {
            writer: Writer::create(path, manifest)?,
            started: Instant::now(),
            flushed: Instant::now(),
            series,
        })
    }

    /// Writes one interval.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn put(&mut self, interval: &IoInterval) -> Result<()> {
        self.writer.extend(interval.owners.iter().cloned())?;
        self.writer.extend(interval.devices.iter().cloned())?;
        self.writer.extend(interval.rows.iter().cloned())?;
        let counted = interval.memory.iter().filter_map(|gained| {
            Some(SeriesRow {
                time_ns: interval.time_ns,
                event: *self.series.get(&gained.series)?,
                value: gained.bytes,
                interval_ns: interval.interval_ns,
                ..SeriesRow::default()
            })
        });
        self.writer.extend(counted)?;
        if self.flushed.elapsed() > FLUSH_EVERY {
            self.flushed = Instant::now();
            self.writer.flush_due()?;
        }
        Ok(())
    }

    /// Completes the recording with losses and limits of the accounting.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn finish(
        mut self,
        end: Option<CommandEnd>,
        losses: &[AccountingLoss],
        missing: &[String],
    ) -> Result<()> {
        let time_ns = self.started.elapsed().as_nanos() as u64;
        let row = |detail: &str, count| memgauge_trace::Loss {
            time_ns,
            kind: LossKind::IoNotAttributed,
            count,
            detail: detail.to_owned(),
            ..memgauge_trace::Loss::default()
        };
        self.writer
            .extend(losses.iter().map(|loss| row(loss.meaning, loss.count)))?;
        self.writer.flush_so_far()?;
        let own = own_usage();
        let own_cost = OwnCost {
            wall_s: self.started.elapsed().as_secs_f64(),
            cpu_s: own.cpu.as_secs_f64(),
            peak_memory_bytes: own.peak_memory_bytes,
            program_cpu_s: children_usage().cpu.as_secs_f64(),
            program_page_faults: children_usage().minor_faults,
            recording_bytes: self.writer.bytes_written(),
            ..OwnCost::default()
        };
        let missing = missing.join("; ");
        self.writer.finish(|manifest| {
            manifest.end = end;
            manifest.own_cost = own_cost;
            if !missing.is_empty() {
                manifest.source.settings.missing = Some(missing);
            }
        })?;
        Ok(())
    }
}
