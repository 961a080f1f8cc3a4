//! Metrics of the service as text of OpenMetrics 1.0.
//!
//! Every label has few values: a source, a state, a class of answers. Counts by profiler or
//! by process would be new series without end; `memgauge ctl stats` has them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_host::sys::process::own_usage;
use memgauge_online::State;

use crate::bodies::{SourceName, Totals};
use crate::profilers::Profilers;

/// Type of the text.
pub(crate) const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Labels of a sample, by name.
pub type Labels = Vec<(&'static str, String)>;

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// Seconds.
    Seconds(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Count(count)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Value {
        Value::Count(count as u64)
    }
}

impl From<f64> for Value {
    fn from(seconds: f64) -> Value {
        Value::Seconds(seconds)
    }
}

/// A metric with a sample for each set of labels.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name; of a counter without `_total`.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
    /// Meaning, a sentence.
    pub help: &'static str,
    /// Labels and values.
    pub samples: Vec<(Labels, Value)>,
}

impl Family {
    fn write(&self, text: &mut String) {
        let (word, suffix) = match self.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let name = self.name;
        // SANITY of each write: text takes what is written to it.
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
                Value::Count(count) => writeln!(text, "{name}{suffix}{labels} {count}"),
                Value::Seconds(seconds) => writeln!(text, "{name}{suffix}{labels} {seconds}"),
            };
        }
    }
}

/// Metrics in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Families(pub(crate) Vec<Family>);

impl Families {
    /// A metric with a sample for each set of labels. `name` is without `_total`.
    pub(crate) fn add<V: Into<Value>>(
        &mut self,
        (name, kind): (&'static str, Kind),
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let samples = samples.into_iter();
        self.0.push(Family {
            name,
            kind,
            help,
            samples: samples.map(|(labels, v)| (labels, v.into())).collect(),
        });
    }

    /// A metric of one sample.
    pub(crate) fn one(
        &mut self,
        metric: (&'static str, Kind),
        help: &'static str,
        value: impl Into<Value>,
    ) {
        self.add(metric, help, [(Vec::new(), value)]);
    }

    /// All as text of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.0.iter().for_each(|family| family.write(&mut text));
        text.push_str("# EOF\n");
        text
    }
}

/// A label's value, without what would end it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

/// Connections and answers.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Open now.
    pub(crate) connections: AtomicU64,
    /// Connections that were not taken.
    pub(crate) refused: AtomicU64,
    /// Connections that ended by an error: a client that does not read, or went away.
    pub(crate) dropped: AtomicU64,
    /// Answers by the first digit of their status: 2, 4, 5.
    answers: [AtomicU64; 3],
}

const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

impl Traffic {
    pub(crate) fn answered(&self, status: u16) {
        let class = match status {
            0..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// Metrics of sampling, of answers, and of the service itself.
pub(crate) fn families(profilers: &Profilers, traffic: &Traffic) -> Families {
    let mut families = Families::default();
    sampling(&mut families, profilers);
    answers(&mut families, traffic);
    process(&mut families);
    families
}

/// A count of the sums, its name and definition.
type Count = (&'static str, &'static str, fn(&Totals) -> u64);

const COUNTS: [Count; 10] = [
    ("memgauge_samples", "Samples taken and decoded.", |t| {
        t.samples
    }),
    (
        "memgauge_kernel_samples",
        "Of the samples, those in the kernel.",
        |t| t.kernel_samples,
    ),
    (
        "memgauge_memory_samples",
        "Of the samples, those with a data address.",
        |t| t.memory_samples,
    ),
    (
        "memgauge_delivered_samples",
        "Samples that somebody has read: a batch or a stream.",
        |t| t.delivered,
    ),
    (
        "memgauge_lost_samples",
        "Samples that the kernel's ring had no room for.",
        |t| t.lost,
    ),
    (
        "memgauge_overwritten_samples",
        "Samples overwritten before anybody had read them.",
        |t| t.overwritten,
    ),
    (
        "memgauge_refused_samples",
        "Samples that a full buffer refused.",
        |t| t.refused,
    ),
    (
        "memgauge_discarded_samples",
        "Samples that nobody had read when their thread was forgotten.",
        |t| t.discarded,
    ),
    (
        "memgauge_throttlings",
        "Times the kernel stopped sampling for a moment.",
        |t| t.throttled,
    ),
    (
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
    for (name, help, count) in COUNTS {
        let samples = SOURCES.map(|source| (label(source), count(&of(source))));
        families.add((name, Kind::Counter), help, samples);
    }
    let seconds = SOURCES.map(|source| (label(source), of(source).own_ns as f64 / 1e9));
    let help = "Processor time of the service for reading samples.";
    families.add(("memgauge_sampling_seconds", Kind::Counter), help, seconds);
    let observed = SOURCES.map(|source| (label(source), of(source).processor_ns as f64 / 1e9));
    let help = "Processor time of threads while they were attached to; of emulate virtual time.";
    families.add(("memgauge_observed_seconds", Kind::Counter), help, observed);
    let all = profilers.all();
    let count = |source| all.iter().filter(|entry| entry.source() == source).count();
    let counts = SOURCES.map(|source| (label(source), count(source)));
    families.add(("memgauge_profilers", Kind::Gauge), "Profilers.", counts);
    let threads: Vec<_> = all.iter().flat_map(|entry| entry.totals().1).collect();
    let states = [
        ("started", State::Started),
        ("stopped", State::Stopped),
        ("ended", State::Ended),
    ];
    let counts = states.map(|(name, state)| {
        let count = threads.iter().filter(|t| t.state == state).count();
        (vec![("state", name.to_owned())], count)
    });
    let help = "Threads, summed over profilers; ended: their samples wait to be read.";
    families.add(("memgauge_threads", Kind::Gauge), help, counts);
    let attached = threads
        .iter()
        .filter(|t| matches!(t.state, State::Started | State::Stopped));
    let processes: BTreeSet<u32> = attached.map(|t| t.pid).collect();
    let help = "Processes that are attached to.";
    families.one(("memgauge_processes", Kind::Gauge), help, processes.len());
}

fn answers(families: &mut Families, traffic: &Traffic) {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let classes = CLASSES.iter().zip(&traffic.answers);
    let classes = classes.map(|(class, count)| (vec![("class", (*class).to_owned())], of(count)));
    let help = "Answers by the class of their status.";
    families.add(("memgauge_answers", Kind::Counter), help, classes);
    let help = "Open connections.";
    families.one(
        ("memgauge_connections", Kind::Gauge),
        help,
        of(&traffic.connections),
    );
    let help = "Connections that were not taken: a limit was reached.";
    families.one(
        ("memgauge_refused_connections", Kind::Counter),
        help,
        of(&traffic.refused),
    );
    let help = "Connections ended by an error: the client did not read, or went away.";
    families.one(
        ("memgauge_dropped_connections", Kind::Counter),
        help,
        of(&traffic.dropped),
    );
}

/// What the service itself takes, by the names that all programs use.
fn process(families: &mut Families) {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let help = "Version of memgauge.";
    families.add(("memgauge_build", Kind::Gauge), help, [(version, 1u64)]);
    let seconds = own_usage().cpu.as_secs_f64();
    let help = "Processor time of the service.";
    families.one(("process_cpu_seconds", Kind::Counter), help, seconds);
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    let help = "Memory of the service.";
    if let Some(pages) = pages {
        let bytes = pages * rustix::param::page_size() as u64;
        families.one(("process_resident_memory_bytes", Kind::Gauge), help, bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        let help = "Open file descriptors of the service.";
        // Less that of the folder itself.
        let open = open.count().saturating_sub(1);
        families.one(("process_open_fds", Kind::Gauge), help, open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_counters_named_as_the_format_says() {
        let mut families = Families::default();
        let labels = vec![("a", "x\"y\\z\nw".to_owned()), ("b", "plain".to_owned())];
        families.add(("m", Kind::Counter), "Help.", [(labels, 3u64)]);
        families.one(("g", Kind::Gauge), "Help.", 0.5);
        let expected = "# TYPE m counter\n# HELP m Help.\n\
                        m_total{a=\"x\\\"y\\\\z\\nw\",b=\"plain\"} 3\n\
                        # TYPE g gauge\n# HELP g Help.\ng 0.5\n# EOF\n";
        assert_eq!(families.text(), expected);
    }
}
