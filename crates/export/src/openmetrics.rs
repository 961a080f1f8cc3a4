//! Writes totals, cache and TLB levels, and losses as OpenMetrics 1.0 text, or in Prometheus' older
//! text format (0.0.4).
//!
//! The formats differ in the name in a counter's `# TYPE` line: without `_total` in OpenMetrics,
//! with it in the older format. A reader of the wrong format treats counters as untyped. Only
//! OpenMetrics has an end mark.

use std::io::Write;

use memgauge_analyze::Summary;

use super::Error;
use super::places::{provenance, unit};

/// The text format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    Openmetrics,
    Prometheus,
}

/// Totals that are amounts and not counts of events.
const HEAP_BYTES: [(&str, &str); 2] = [
    ("heap.peak_bytes", "peak"),
    ("heap.unfreed_bytes", "unfreed"),
];

pub(crate) fn write(
    summary: &Summary,
    format: MetricsFormat,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<String>| {
        if samples.is_empty() {
            return Ok(());
        }
        let has_suffix = format == MetricsFormat::Prometheus && kind == "counter";
        let name = format!("{name}{}", if has_suffix { "_total" } else { "" });
        writeln!(
            out,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{}",
            samples.join("\n")
        )
    };
    let bytes_in_use = HEAP_BYTES.iter().filter_map(|(event, state)| {
        let bytes = summary.totals.get(*event)?;
        Some(format!("memgauge_heap_bytes{{state=\"{state}\"}} {bytes}"))
    });
    let help = "Bytes of allocations in use: the most, and those not freed at the end.";
    family("memgauge_heap_bytes", "gauge", help, bytes_in_use.collect())?;
    let counted = summary.totals.iter();
    let counted = counted.filter(|(event, _)| HEAP_BYTES.iter().all(|(name, _)| name != event));
    let totals = counted.map(|(event, count)| {
        let (unit, provenance) = (unit(summary, event), provenance(summary, event));
        let event = label(event);
        format!(
            "memgauge_events_total{{event=\"{event}\",unit=\"{unit}\",provenance=\"{provenance}\"}} {count}"
        )
    });
    let help = "Events of the whole run, in the event's unit.";
    family("memgauge_events", "counter", help, totals.collect())?;
    let duration = summary.run.duration_ns as f64 / 1e9;
    let clock = label(&summary.recording.clock);
    let duration = format!("memgauge_duration_seconds{{clock=\"{clock}\"}} {duration}");
    let help = "Length of the run on the recording's clock.";
    family("memgauge_duration_seconds", "gauge", help, vec![duration])?;
    let ratio = |level: &memgauge_analyze::Level| {
        let name = format!("{:?}", level.name).to_lowercase();
        Some(format!(
            "memgauge_miss_ratio{{level=\"{name}\"}} {}",
            level.miss_ratio?
        ))
    };
    let ratios = summary.levels.iter().filter_map(ratio).collect();
    let help = "Misses of a level / its look-ups.";
    family("memgauge_miss_ratio", "gauge", help, ratios)?;
    let losses = summary.losses.iter().map(|loss| {
        let (kind, detail) = (label(&loss.kind), label(&loss.detail));
        format!(
            "memgauge_losses_total{{kind=\"{kind}\",detail=\"{detail}\"}} {}",
            loss.count
        )
    });
    let help = "Data that is not in the recording.";
    family("memgauge_losses", "counter", help, losses.collect())?;
    if format == MetricsFormat::Openmetrics {
        writeln!(out, "# EOF")?;
    }
    Ok(())
}

/// Escapes a label's value.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
