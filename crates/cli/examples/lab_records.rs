//! Compares a recording made in the lab with the emulator's own log, record by record.
//!
//! ```text
//! cargo run --workspace --example lab_records -- pmu.log RECORDING.mg...
//! ```
//!
//! Every sample has to be one of the log's records, in its order and with none left out
//! between the first and the last: instruction, address, source and latency.

use memgauge_recording::{Recording, Selection};
use memgauge_trace::{DataSource, Sample};

#[derive(Clone, Debug, PartialEq)]
struct Line {
    ip: u64,
    address: u64,
    /// Nothing where the event's records have neither.
    source_and_latency: Option<(DataSource, u32)>,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let log = arguments
        .next()
        .ok_or("usage: lab_records PMU.LOG RECORDING...")?;
    let truth = records(&std::fs::read_to_string(&log)?)?;
    for path in arguments {
        let samples = samples(&path)?;
        let found = truth
            .windows(samples.len().max(1))
            .any(|part| part == samples);
        if samples.is_empty() || !found {
            return Err(format!(
                "the {} samples of `{path}` are not a run of the {} records of `{log}`",
                samples.len(),
                truth.len()
            )
            .into());
        }
        println!(
            "{path}: {} samples, each as the emulator wrote it",
            samples.len()
        );
    }
    Ok(())
}

fn samples(path: &str) -> Result<Vec<Line>, Failure> {
    let recording = Recording::open(std::path::Path::new(path))?;
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    recording.each_sound(&Selection::all(), &mut problems, |rows: &[Sample]| {
        all.extend(rows.iter().map(|row| Line {
            ip: row.ip.0,
            address: row.addr.map_or(0, |addr| addr.0),
            source_and_latency:
                (row.latency_cycles > 0).then_some((row.source, row.latency_cycles)),
        }));
    })?;
    match problems.is_empty() {
        true => Ok(all),
        false => Err(problems.join("; ").into()),
    }
}

/// The lines `record counter N ip X address X source X latency N …`.
fn records(log: &str) -> Result<Vec<Line>, Failure> {
    let words = log.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let words = words.filter(|words| words.starts_with(&["record", "counter"]));
    words
        .map(|words| {
            let field = |name: &str| -> Result<u64, Failure> {
                let at = words
                    .iter()
                    .position(|word| *word == name)
                    .ok_or("a record lacks a field")?;
                let text = *words.get(at + 1).ok_or("a record ends in a field")?;
                Ok(match text.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16)?,
                    None => text.parse()?,
                })
            };
            let latency = u32::try_from(field("latency")?)?;
            // The manual's codes for load latency, without the bits for TLBs and locks.
            let source = match field("source")? & 0xf {
                1 => DataSource::L1d,
                3 => DataSource::L2,
                4 => DataSource::Llc,
                0xa => DataSource::Dram,
                _ => DataSource::Unknown,
            };
            Ok(Line {
                ip: field("ip")?,
                address: field("address")?,
                source_and_latency: (latency > 0).then_some((source, latency)),
            })
        })
        .collect()
}
