//! Writes a Perfetto trace: a counter track with the rate of each event over time, and a slice
//! track for each region of interest of each thread.

use std::collections::BTreeMap;
use std::io::Write;

use memgauge_analyze::{Summary, TimedSpan, Timeline};
use memgauge_trace::Pid;
use prost::Message;

use super::Error;
use super::curves::{bin_end, curves};
use super::places::{provenance, unit};

/// The fields that are written, with their numbers in Perfetto's `trace.proto` and the files it
/// includes.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, tag = "5")]
    parent_uuid: u64,
    #[prost(message, optional, tag = "8")]
    counter: Option<Counter>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(string, tag = "6")]
    process_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Counter {
    #[prost(string, tag = "6")]
    unit_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    /// Optional, so that a zero is written too.
    #[prost(double, optional, tag = "44")]
    double_counter_value: Option<f64>,
}

/// Values of `TrackEvent.Type`.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const COUNTER: i32 = 4;

/// All packets are one sequence, since there is only one writer.
const SEQUENCE: u32 = 1;

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let timeline = curves(summary).ok_or(Error::NoCurves)?;
    let mut trace = Trace::default();
    for (track_uuid, curve) in (1..).zip(&timeline.curves) {
        let descriptor = TrackDescriptor {
            uuid: track_uuid,
            name: format!("{} ({})", curve.event, provenance(summary, &curve.event)),
            counter: Some(Counter {
                unit_name: format!("{}/s", unit(summary, &curve.event)),
            }),
            ..TrackDescriptor::default()
        };
        trace.packet.push(descriptor_packet(descriptor));
        let mut at = timeline.start_ns;
        let mut push = |at, rate| {
            let event = TrackEvent {
                kind: COUNTER,
                track_uuid,
                double_counter_value: Some(rate),
                ..TrackEvent::default()
            };
            trace.packet.push(event_packet(at, event));
        };
        for &value in &curve.values {
            let end = bin_end(timeline, at);
            push(at, value as f64 / ((end - at) as f64 / 1e9));
            at = end;
        }
        // A counter keeps its last value, so end the curve with 0.
        push(at, 0.0);
    }
    let first = timeline.curves.len() as u64 + 1;
    regions(summary, timeline, first, &mut trace);
    out.write_all(&trace.encode_to_vec())?;
    Ok(())
}

fn descriptor_packet(descriptor: TrackDescriptor) -> Packet {
    Packet {
        trusted_packet_sequence_id: SEQUENCE,
        track_descriptor: Some(descriptor),
        ..Packet::default()
    }
}

fn event_packet(at_ns: u64, event: TrackEvent) -> Packet {
    Packet {
        timestamp: Some(at_ns),
        trusted_packet_sequence_id: SEQUENCE,
        track_event: Some(event),
        ..Packet::default()
    }
}

/// Appends regions of interest. They can overlap without nesting, which slices of one track cannot.
/// Each region of a thread therefore has its own track below its process.
fn regions(summary: &Summary, timeline: &Timeline, first: u64, trace: &mut Trace) {
    let mut processes: BTreeMap<Pid, u64> = BTreeMap::new();
    let mut next = first;
    let mut number = || {
        next += 1;
        next - 1
    };
    for region in &timeline.code_regions {
        for of_thread in region.spans.chunk_by(|a, b| (a.4, a.5) == (b.4, b.5)) {
            let &TimedSpan(.., pid, tid) = &of_thread[0];
            let process = *processes.entry(pid).or_insert_with(|| {
                let uuid = number();
                trace
                    .packet
                    .push(descriptor_packet(process(summary, pid, uuid)));
                uuid
            });
            let uuid = number();
            trace.packet.push(descriptor_packet(TrackDescriptor {
                uuid,
                name: format!("{} (thread {})", region.name, tid.0),
                parent_uuid: process,
                ..TrackDescriptor::default()
            }));
            let mut event = |at_ns, kind, name| {
                let event = TrackEvent {
                    kind,
                    track_uuid: uuid,
                    name,
                    ..TrackEvent::default()
                };
                trace.packet.push(event_packet(at_ns, event));
            };
            for span in of_thread {
                event(span.0, SLICE_BEGIN, Some(span.label(&region.name)));
                event(span.0.saturating_add(span.1), SLICE_END, None);
            }
        }
    }
}

fn process(summary: &Summary, pid: Pid, uuid: u64) -> TrackDescriptor {
    let known = summary.processes.iter().find(|row| row.pid == pid);
    TrackDescriptor {
        uuid,
        process: Some(ProcessDescriptor {
            pid: pid.0 as i32,
            process_name: known.map(|row| row.program.clone()).unwrap_or_default(),
        }),
        ..TrackDescriptor::default()
    }
}
