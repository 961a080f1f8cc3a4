//! Metrics of the service in OpenMetrics 1.0 text format.
//!
//! Every label has few values: a source, a state, a class of status codes. Labels for profilers or
//! processes would create new series all the time; `memgauge ctl stats` shows these counts.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_host::sys::process::own_usage;
use memgauge_online::ThreadState;

use crate::bodies::{SourceName, Totals};
use crate::profilers::Profilers;

/// Content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Never decreases.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Labels of a sample: names and values.
pub type Labels = Vec<(&'static str, String)>;

/// Value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// A count.
    Count(u64),
    /// Seconds.
    Seconds(f64),
}

impl From<u64> for MetricValue {
    fn from(count: u64) -> MetricValue {
        MetricValue::Count(count)
    }
}

impl From<usize> for MetricValue {
    fn from(count: usize) -> MetricValue {
        MetricValue::Count(count as u64)
    }
}

impl From<f64> for MetricValue {
    fn from(seconds: f64) -> MetricValue {
        MetricValue::Seconds(seconds)
    }
}

/// A metric with one sample per set of labels.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name, without `_total` for a counter.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricKind,
    /// Meaning, in one sentence.
    pub help: &'static str,
    /// Labels and value of each sample.
    pub samples: Vec<(Labels, MetricValue)>,
}

impl Family {
    fn write(&self, text: &mut String) {
        let (word, suffix) = match self.kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
        };
        let name = self.name;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# TYPE {name} {word}\n# HELP {name} {}", self.help);
        for (labels, value) in &self.samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = match value {
                MetricValue::Count(count) => writeln!(text, "{name}{suffix}{labels} {count}"),
                MetricValue::Seconds(seconds) => writeln!(text, "{name}{suffix}{labels} {seconds}"),
            };
        }
    }
}

/// Definition of a metric. The name is without `_total`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricDefinition {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
}

impl MetricDefinition {
    pub(crate) const fn counter(name: &'static str, help: &'static str) -> MetricDefinition {
        let kind = MetricKind::Counter;
        MetricDefinition { name, kind, help }
    }

    pub(crate) const fn gauge(name: &'static str, help: &'static str) -> MetricDefinition {
        let kind = MetricKind::Gauge;
        MetricDefinition { name, kind, help }
    }
}

/// Metrics in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Families(pub(crate) Vec<Family>);

impl Families {
    /// Adds a metric with one sample per set of labels.
    pub(crate) fn add<V: Into<MetricValue>>(
        &mut self,
        metric: MetricDefinition,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let samples = samples.into_iter();
        self.0.push(Family {
            name: metric.name,
            kind: metric.kind,
            help: metric.help,
            samples: samples.map(|(labels, v)| (labels, v.into())).collect(),
        });
    }

    /// Adds a metric with a single sample.
    pub(crate) fn add_single(&mut self, metric: MetricDefinition, value: impl Into<MetricValue>) {
        self.add(metric, [(Vec::new(), value)]);
    }

    /// Returns all metrics in OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.0.iter().for_each(|family| family.write(&mut text));
        text.push_str("# EOF\n");
        text
    }
}

/// Escapes a label's value.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

/// Counts of connections and responses.
#[derive(Debug, Default)]
pub(crate) struct HttpTraffic {
    /// Connections that are open now.
    pub(crate) connections: AtomicU64,
    /// Connections that were refused.
    pub(crate) refused: AtomicU64,
    /// Connections that ended with an error: the client did not read, or closed them.
    pub(crate) dropped: AtomicU64,
    /// Number of responses by class of status code, see [`CLASSES`].
    answers: [AtomicU64; 3],
}

const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

impl HttpTraffic {
    pub(crate) fn answered(&self, status: u16) {
        let class = match status {
            0..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the metrics of sampling, of responses, and of the service itself.
pub(crate) fn families(profilers: &Profilers, traffic: &HttpTraffic) -> Families {
    let mut families = Families::default();
    sampling(&mut families, profilers);
    answers(&mut families, traffic);
    process(&mut families);
    families
}

/// A counter of [`Totals`].
struct TotalsCounter {
    metric: MetricDefinition,
    value: fn(&Totals) -> u64,
}

const fn totals_counter(
    name: &'static str,
    help: &'static str,
    value: fn(&Totals) -> u64,
) -> TotalsCounter {
    let metric = MetricDefinition::counter(name, help);
    TotalsCounter { metric, value }
}

const TOTALS_COUNTERS: [TotalsCounter; 10] = [
    totals_counter("memgauge_samples", "Samples taken and decoded.", |t| {
        t.samples
    }),
    totals_counter(
        "memgauge_kernel_samples",
        "Samples taken in the kernel.",
        |t| t.kernel_samples,
    ),
    totals_counter(
        "memgauge_memory_samples",
        "Samples with a data address.",
        |t| t.memory_samples,
    ),
    totals_counter(
        "memgauge_delivered_samples",
        "Samples that a batch or a stream has read.",
        |t| t.delivered,
    ),
    totals_counter(
        "memgauge_lost_samples",
        "Samples lost because the kernel's ring was full.",
        |t| t.lost,
    ),
    totals_counter(
        "memgauge_overwritten_samples",
        "Samples overwritten before any reader had read them.",
        |t| t.overwritten,
    ),
    totals_counter(
        "memgauge_refused_samples",
        "Samples refused by a full buffer.",
        |t| t.refused,
    ),
    totals_counter(
        "memgauge_discarded_samples",
        "Unread samples of threads that were forgotten.",
        |t| t.discarded,
    ),
    totals_counter(
        "memgauge_throttlings",
        "Number of times the kernel throttled sampling.",
        |t| t.throttled,
    ),
    totals_counter(
        "memgauge_missed_threads",
        "Threads of followed processes that were not sampled.",
        |t| t.missed,
    ),
];

const SOURCES: [SourceName; 3] = [SourceName::Clock, SourceName::Pmu, SourceName::Emulate];

fn sampling(families: &mut Families, profilers: &Profilers) {
    let totals = profilers.totals();
    let of = |source| totals.get(&source).copied().unwrap_or_default();
    let label = |source: SourceName| vec![("source", source.name().to_owned())];
    for counter in &TOTALS_COUNTERS {
        let samples = SOURCES.map(|source| (label(source), (counter.value)(&of(source))));
        families.add(counter.metric, samples);
    }
    let seconds = SOURCES.map(|source| (label(source), of(source).own_ns as f64 / 1e9));
    let help = "CPU time of the service for reading samples.";
    families.add(
        MetricDefinition::counter("memgauge_sampling_seconds", help),
        seconds,
    );
    let observed = SOURCES.map(|source| (label(source), of(source).processor_ns as f64 / 1e9));
    let help = "CPU time of sampled threads; virtual time for emulate.";
    families.add(
        MetricDefinition::counter("memgauge_observed_seconds", help),
        observed,
    );
    let all = profilers.all();
    let count = |source| all.iter().filter(|entry| entry.source() == source).count();
    let counts = SOURCES.map(|source| (label(source), count(source)));
    families.add(
        MetricDefinition::gauge("memgauge_profilers", "Profilers."),
        counts,
    );
    let threads: Vec<_> = all.iter().flat_map(|entry| entry.totals().1).collect();
    let states = [
        ("started", ThreadState::Started),
        ("stopped", ThreadState::Stopped),
        ("ended", ThreadState::Ended),
    ];
    let counts = states.map(|(name, state)| {
        let count = threads.iter().filter(|t| t.state == state).count();
        (vec![("state", name.to_owned())], count)
    });
    let help = "Threads of all profilers. State ended: unread samples remain.";
    families.add(MetricDefinition::gauge("memgauge_threads", help), counts);
    let attached = threads
        .iter()
        .filter(|t| matches!(t.state, ThreadState::Started | ThreadState::Stopped));
    let processes: BTreeSet<u32> = attached.map(|t| t.pid).collect();
    let help = "Processes with sampled threads.";
    families.add_single(
        MetricDefinition::gauge("memgauge_processes", help),
        processes.len(),
    );
}

fn answers(families: &mut Families, traffic: &HttpTraffic) {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let classes = CLASSES.iter().zip(&traffic.answers);
    let classes = classes.map(|(class, count)| (vec![("class", (*class).to_owned())], of(count)));
    let help = "Responses by class of status code.";
    families.add(MetricDefinition::counter("memgauge_answers", help), classes);
    let help = "Open connections.";
    families.add_single(
        MetricDefinition::gauge("memgauge_connections", help),
        of(&traffic.connections),
    );
    let help = "Connections refused because of a limit.";
    families.add_single(
        MetricDefinition::counter("memgauge_refused_connections", help),
        of(&traffic.refused),
    );
    let help = "Connections ended by an error: the client did not read, or disconnected.";
    families.add_single(
        MetricDefinition::counter("memgauge_dropped_connections", help),
        of(&traffic.dropped),
    );
}

/// Metrics of the service's process, under the names that are common to all programs.
fn process(families: &mut Families) {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let help = "Version of memgauge.";
    families.add(
        MetricDefinition::gauge("memgauge_build", help),
        [(version, 1u64)],
    );
    let seconds = own_usage().cpu.as_secs_f64();
    let help = "CPU time of the service.";
    families.add_single(
        MetricDefinition::counter("process_cpu_seconds", help),
        seconds,
    );
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    let help = "Memory of the service.";
    if let Some(pages) = pages {
        let bytes = pages * rustix::param::page_size() as u64;
        families.add_single(
            MetricDefinition::gauge("process_resident_memory_bytes", help),
            bytes,
        );
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        let help = "Open file descriptors of the service.";
        // Do not count the descriptor of the directory itself.
        let open = open.count().saturating_sub(1);
        families.add_single(MetricDefinition::gauge("process_open_fds", help), open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_escaped_labels_and_standard_counter_names() {
        let mut families = Families::default();
        let labels = vec![("a", "x\"y\\z\nw".to_owned()), ("b", "plain".to_owned())];
        families.add(MetricDefinition::counter("m", "Help."), [(labels, 3u64)]);
        families.add_single(MetricDefinition::gauge("g", "Help."), 0.5);
        let expected = "# TYPE m counter\n# HELP m Help.\n\
                        m_total{a=\"x\\\"y\\\\z\\nw\",b=\"plain\"} 3\n\
                        # TYPE g gauge\n# HELP g Help.\ng 0.5\n# EOF\n";
        assert_eq!(families.text(), expected);
    }
}
