//! Looks written to a recording.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{CommandEnd, EventId, LossKind, Manifest, OwnCost, SeriesRow, SourceFacts};

use super::meter::Look;
use super::session::Loss;
use crate::{Result, host};
use memgauge_host::memory_counters::Series;
use memgauge_host::sys::process::{children_usage, own_usage};

/// Pace at which parts are looked at for closing.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Writes what a meter sees.
pub struct IoRecorder {
    writer: Writer,
    started: Instant,
    flushed: Instant,
    /// Counters of memory traffic.
    series: BTreeMap<Series, EventId>,
}

impl IoRecorder {
    /// Begins a recording; `settings` are kept by name, `series` are the counters that
    /// looks may have.
    ///
    /// # Errors
    /// The recording cannot be made.
    pub fn create(
        path: &Path,
        command: &[String],
        settings: &[(&str, String)],
        series: Vec<Series>,
    ) -> Result<IoRecorder> {
        let events: Vec<_> = series.iter().zip(0..).map(|(s, n)| s.define(n)).collect();
        let ids = events.iter().map(|event| event.id);
        let series = series.into_iter().zip(ids).collect();
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let source = SourceFacts {
            name: "io".to_owned(),
            settings: settings.collect(),
        };
        let manifest = Manifest {
            events,
            ..host::beginning(source, command.to_vec(), "monotonic")
        };
        Ok(IoRecorder {
            writer: Writer::create(path, manifest)?,
            started: Instant::now(),
            flushed: Instant::now(),
            series,
        })
    }

    /// Writes one look.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn put(&mut self, look: &Look) -> Result<()> {
        self.writer.extend(look.owners.iter().cloned())?;
        self.writer.extend(look.devices.iter().cloned())?;
        self.writer.extend(look.rows.iter().cloned())?;
        let counted = look.memory.iter().filter_map(|gained| {
            Some(SeriesRow {
                time_ns: look.time_ns,
                event: *self.series.get(&gained.series)?,
                value: gained.bytes,
                interval_ns: look.interval_ns,
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

    /// Completes the recording with what was lost or could not be told.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn finish(
        mut self,
        end: Option<CommandEnd>,
        losses: &[Loss],
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
            recording_bytes: self.writer.bytes_written(),
        };
        let missing = missing.join("; ");
        self.writer.finish(|manifest| {
            manifest.end = end;
            manifest.own_cost = own_cost;
            if !missing.is_empty() {
                manifest
                    .source
                    .settings
                    .insert("missing".to_owned(), missing);
            }
        })?;
        Ok(())
    }
}
