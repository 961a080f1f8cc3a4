//! Corrects kept recordings again and compares them with memory's own counter. So the
//! correction can be worked on without running programs again.
//!
//! ```text
//! cargo run --release --manifest-path bench/Cargo.toml --bin loss_replay -- CALIBRATION.json *.mg
//! ```
//!
//! Recordings are those of `memgauge bandwidth --machine NAME -o FILE` (`bench/losses`
//! makes a set), the calibration is that of their machine and delivery. A line for each:
//! records, memory's bytes, per cent of them recorded and corrected, the interval's half
//! width, and whether it holds the truth. Then the same of all.

use memgauge_analyze::NoSymbols;
use memgauge_analyze::bandwidth::{
    BandwidthSettings, Correction, LossModel, LossPoint, extent, read,
};
use memgauge_recording::Recording;

#[derive(serde::Deserialize)]
struct Calibration {
    points: Vec<LossPoint>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: loss_replay CALIBRATION.json RECORDING...")?;
    let calibration: Calibration = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let correction = Correction::Model("kept".to_owned(), LossModel::new(calibration.points));
    let settings = BandwidthSettings {
        bin_ns: 100_000,
        rows: 8,
        ..BandwidthSettings::default()
    };
    let (mut all, mut held, mut near) = (0u32, 0u32, 0u32);
    for path in arguments {
        let recording = Recording::open(std::path::Path::new(&path))?;
        let extent = extent(&recording)?;
        if extent.overflows.is_empty() {
            continue;
        }
        let found = read(&recording, &extent, &settings, &correction, &mut NoSymbols)?;
        let truth = found.reference.as_ref().map_or(0.0, |r| r.bytes);
        let of = |bytes: f64| 100.0 * bytes / truth;
        let off = (found.bytes - truth).abs();
        let holds = off <= found.error_bytes + 64.0;
        all += 1;
        held += u32::from(holds);
        near += u32::from(off <= 0.03 * truth);
        println!(
            "{:<40} {:>7} {:>8.2} MB  raw {:>6.2}  {:>7.2} +- {:>5.2}  {}",
            path.rsplit('/').next().unwrap_or(&path),
            found.overflows,
            truth / 1e6,
            of(found.raw_bytes),
            of(found.bytes),
            of(found.error_bytes),
            if holds { "" } else { "outside" },
        );
    }
    println!("{all} recordings, {near} within 3 %, {held} within their interval");
    Ok(())
}
