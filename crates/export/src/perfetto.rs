//! A trace of Perfetto: a counter track for each event, its rate over time.

use std::io::Write;

use memgauge_analyze::Summary;
use prost::Message;

use super::Error;
use super::curves::{bin_end, curves};
use super::places::{provenance, unit};

/// Fields that are written, by their numbers in Perfetto's `trace.proto` and what it
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
    #[prost(message, optional, tag = "8")]
    counter: Option<Counter>,
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
    /// One of several kinds of value: a zero must be written, too.
    #[prost(double, optional, tag = "44")]
    double_counter_value: Option<f64>,
}

/// `TrackEvent.Type.TYPE_COUNTER`.
const COUNTER: i32 = 4;

/// One writer, one sequence.
const SEQUENCE: u32 = 1;

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let timeline = curves(summary).ok_or(Error::NoCurves)?;
    let packet = |timestamp, track_event, track_descriptor| Packet {
        timestamp,
        trusted_packet_sequence_id: SEQUENCE,
        track_event,
        track_descriptor,
    };
    let mut trace = Trace::default();
    for (track_uuid, curve) in (1..).zip(&timeline.curves) {
        let descriptor = TrackDescriptor {
            uuid: track_uuid,
            name: format!("{} ({})", curve.event, provenance(summary, &curve.event)),
            counter: Some(Counter {
                unit_name: format!("{}/s", unit(summary, &curve.event)),
            }),
        };
        trace.packet.push(packet(None, None, Some(descriptor)));
        let mut at = timeline.start_ns;
        let mut push = |at, rate| {
            let event = TrackEvent {
                kind: COUNTER,
                track_uuid,
                double_counter_value: Some(rate),
            };
            trace.packet.push(packet(Some(at), Some(event), None));
        };
        for &value in &curve.values {
            let end = bin_end(timeline, at);
            push(at, value as f64 / ((end - at) as f64 / 1e9));
            at = end;
        }
        // Nothing ends the curve: a counter holds until its next value.
        push(at, 0.0);
    }
    out.write_all(&trace.encode_to_vec())?;
    Ok(())
}
