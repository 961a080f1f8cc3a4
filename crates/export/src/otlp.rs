//! Writes OpenTelemetry metrics as the protobuf that a collector accepts at `/v1/metrics`
//! (`ExportMetricsServiceRequest`, which has the same encoding as `MetricsData`).
//!
//! Each event is a monotonic sum with a point at the end of each bin of its curve; the last point
//! is its total. Times of points are those of the recording's clock after the start of the run. In
//! the emulator this clock is virtual, which an attribute of the resource states.
//!
//! [`profiles`] writes code with its counts.

mod profiles;

use std::io::Write;

use memgauge_analyze::{Summary, TimedCurve, Timeline};
use prost::{Message, Oneof};

use super::Error;
use super::curves::{bin_end, curves};
use super::places::provenance;

pub(crate) use profiles::write as write_profiles;

/// The fields that are written, with their numbers in OpenTelemetry's `metrics.proto`, version 1.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Point>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Point>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Point {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(oneof = "Number", tags = "4, 6")]
    value: Option<Number>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Number {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
enum Any {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(int64, tag = "3")]
    Int(i64),
}

/// A current value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InstrumentValue {
    /// A count.
    Count(u64),
    /// A number in the instrument's unit.
    Number(f64),
}

/// The current state of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Instrument {
    /// Name: letters, digits, `_`, `.`.
    pub name: String,
    /// Meaning, in one sentence.
    pub description: String,
    /// Unit in UCUM notation.
    pub unit: String,
    /// Whether it is a sum since the start.
    pub is_monotonic_sum: bool,
    /// Values by their attributes.
    pub readings: Vec<(Vec<(String, String)>, InstrumentValue)>,
}

/// Returns metrics of a running service in the same format: the body of a request to `/v1/metrics`.
pub fn otlp_metrics(
    resource: &[(&str, String)],
    instruments: &[Instrument],
    [start_unix_ns, now]: [u64; 2],
) -> Vec<u8> {
    let attributes = resource.iter().map(|(key, value)| text(key, value));
    let point = |(attributes, value): &(Vec<(String, String)>, InstrumentValue)| Point {
        start_time_unix_nano: start_unix_ns,
        time_unix_nano: now,
        value: Some(match *value {
            InstrumentValue::Count(count) => Number::Int(signed(count)),
            InstrumentValue::Number(number) => Number::Double(number),
        }),
        attributes: attributes.iter().map(|(k, v)| text(k, v)).collect(),
    };
    let metric = |instrument: &Instrument| {
        let data_points = instrument.readings.iter().map(point).collect();
        Metric {
            name: instrument.name.clone(),
            description: instrument.description.clone(),
            unit: instrument.unit.clone(),
            data: Some(match instrument.is_monotonic_sum {
                true => cumulative(data_points),
                false => Data::Gauge(Gauge { data_points }),
            }),
        }
    };
    let resource = Resource {
        attributes: attributes.collect(),
    };
    request(resource, instruments.iter().map(metric).collect()).encode_to_vec()
}

fn cumulative(data_points: Vec<Point>) -> Data {
    Data::Sum(Sum {
        data_points,
        aggregation_temporality: CUMULATIVE,
        is_monotonic: true,
    })
}

fn request(resource: Resource, metrics: Vec<Metric>) -> Request {
    Request {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
            }],
        }],
    }
}

fn scope() -> Scope {
    Scope {
        name: "memgauge".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`: each point covers the time since the start.
const CUMULATIVE: i32 = 2;

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let mut metrics: Vec<Metric> = summary.totals.keys().map(|e| event(summary, e)).collect();
    metrics.extend(run(summary));
    let request = request(resource(summary), metrics);
    out.write_all(&request.encode_to_vec())?;
    Ok(())
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(Any::String(value.to_owned()));
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value }),
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn resource(summary: &Summary) -> Resource {
    let recording = &summary.recording;
    let program = recording.command.first().map_or("", String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut attributes = vec![
        text(
            "service.name",
            if name.is_empty() { "memgauge" } else { name },
        ),
        text("process.command", program),
        text("process.command_line", &recording.command.join(" ")),
        text("host.name", &recording.host.name),
        text("host.cpu.model.name", &recording.host.cpu),
        text("os.type", "linux"),
        text("memgauge.source", recording.source.kind.name()),
        text("memgauge.clock", &recording.clock),
    ];
    if let Some(machine) = &recording.machine {
        attributes.push(text("memgauge.machine", &machine.name));
    }
    attributes.push(KeyValue {
        key: "host.cpu.logical_count".to_owned(),
        value: Some(AnyValue {
            value: Some(Any::Int(recording.host.cpus.into())),
        }),
    });
    Resource { attributes }
}

fn start_unix_ns(summary: &Summary) -> u64 {
    let recording = &summary.recording;
    match recording.started_unix_ns {
        0 => recording.started_unix_s.saturating_mul(1_000_000_000),
        started_ns => started_ns,
    }
}

/// Returns a point `at_ns` after the start of the run.
fn point(summary: &Summary, at_ns: u64, value: Number, attributes: Vec<KeyValue>) -> Point {
    let start = start_unix_ns(summary);
    Point {
        start_time_unix_nano: start,
        time_unix_nano: start.saturating_add(at_ns),
        value: Some(value),
        attributes,
    }
}

fn event(summary: &Summary, name: &str) -> Metric {
    let attributes = vec![
        text("memgauge.event", name),
        text("memgauge.provenance", provenance(summary, name)),
    ];
    let point = |at_ns, sum: u64| {
        let value = Number::Int(signed(sum));
        point(summary, at_ns, value, attributes.clone())
    };
    let total = summary.totals.get(name).copied().unwrap_or(0);
    let mut data_points = Vec::new();
    let timeline = curves(summary);
    let curve = |timeline: &&Timeline| timeline.curves.iter().position(|c| c.event == name);
    if let Some((timeline, number)) = timeline.and_then(|t| Some((t, curve(&t)?))) {
        let sums = cumulative_sums(timeline, &timeline.curves[number], total);
        data_points.extend(sums.map(|(at_ns, sum)| point(at_ns, sum)));
    }
    let end_ns = summary.run.duration_ns;
    data_points.retain(|p| p.time_unix_nano < start_unix_ns(summary).saturating_add(end_ns));
    data_points.push(point(end_ns, total));
    let def = summary.events.iter().find(|def| def.name == name);
    Metric {
        name: format!("memgauge.{}", instrument_name(name)),
        description: def.map(|def| def.description.clone()).unwrap_or_default(),
        unit: unit(summary, name).to_owned(),
        data: Some(cumulative(data_points)),
    }
}

/// Returns the sum of the curve at the end of each bin. It is limited to the total, so that the sum
/// is monotonic.
fn cumulative_sums(
    timeline: &Timeline,
    curve: &TimedCurve,
    total: u64,
) -> impl Iterator<Item = (u64, u64)> {
    let start = (timeline.start_ns, 0u64);
    curve
        .values
        .iter()
        .scan(start, move |(at, sum), &increment| {
            *at = bin_end(timeline, *at);
            *sum = sum.saturating_add(increment);
            Some((*at, (*sum).min(total)))
        })
}

/// Returns the unit of an event in UCUM notation.
fn unit(summary: &Summary, event: &str) -> &'static str {
    match super::places::unit(summary, event) {
        "bytes" => "By",
        "cycles" => "{cycle}",
        "nanoseconds" => "ns",
        _ => "{event}",
    }
}

/// Converts to a valid instrument name: letters, digits, `_`, `.`, `-`, `/`.
fn instrument_name(event: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    event.replace(|c| !is_allowed(c), "_")
}

/// Metrics of the run: its duration, miss ratios, losses.
fn run(summary: &Summary) -> Vec<Metric> {
    let end_ns = summary.run.duration_ns;
    let gauge = |name: &str, description: &str, unit: &str, data_points| Metric {
        name: name.to_owned(),
        description: description.to_owned(),
        unit: unit.to_owned(),
        data: Some(Data::Gauge(Gauge { data_points })),
    };
    let at_end = |value, attributes| point(summary, end_ns, value, attributes);
    let seconds = at_end(Number::Double(end_ns as f64 / 1e9), Vec::new());
    let ratios = summary.levels.iter().filter_map(|level| {
        let name = format!("{:?}", level.name).to_lowercase();
        let attributes = vec![text("memgauge.level", &name)];
        Some(at_end(Number::Double(level.miss_ratio?), attributes))
    });
    let losses = summary.losses.iter().map(|loss| {
        let kind = text("memgauge.loss", &loss.kind);
        let attributes = vec![kind, text("memgauge.detail", &loss.detail)];
        at_end(Number::Int(signed(loss.count)), attributes)
    });
    let length = "Length of the run, on the recording's clock";
    let mut metrics = vec![gauge("memgauge.run.duration", length, "s", vec![seconds])];
    let ratios: Vec<Point> = ratios.collect();
    if !ratios.is_empty() {
        let text = "Misses / look-ups of a level";
        metrics.push(gauge("memgauge.miss_ratio", text, "1", ratios));
    }
    let losses: Vec<Point> = losses.collect();
    if !losses.is_empty() {
        metrics.push(Metric {
            name: "memgauge.losses".to_owned(),
            description: "Data missing in the recording, by kind".to_owned(),
            unit: "{loss}".to_owned(),
            data: Some(cumulative(losses)),
        });
    }
    metrics
}
