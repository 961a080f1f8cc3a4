//! Traffic between the last-level cache and memory, in total and over time.

use memgauge_trace::{EventId, catalogue};
use serde::Serialize;

use crate::counts::Counts;
use crate::time::series::{Curves, EventCurve, Peak};

const NS_PER_S: f64 = 1e9;

/// Traffic between the last-level cache and memory. `None` if the recording lacks the event or has
/// no length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Dram {
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// `read_bytes` / the run's length, bytes per second.
    pub mean_read_bytes_per_s: Option<f64>,
    /// `write_bytes` / the run's length, bytes per second.
    pub mean_write_bytes_per_s: Option<f64>,
    /// Bin with the highest read rate. `None` if there are too few bins to distinguish it from the
    /// whole run ([`BandwidthCurve::has_peaks`]).
    pub peak_read: Option<Peak>,
    /// Bin with the highest write rate.
    pub peak_write: Option<Peak>,
    /// Bin with the highest rate in both directions together.
    pub peak: Option<Peak>,
}

impl Dram {
    /// From totals by event name, the run's length and traffic over time.
    pub fn of(totals: &Counts, duration_ns: u64, curve: &BandwidthCurve) -> Self {
        let get = |id| catalogue::name(id).and_then(|name| totals.get(name).copied());
        let read_bytes = get(catalogue::DRAM_READ_BYTES);
        let write_bytes = get(catalogue::DRAM_WRITE_BYTES);
        let mean =
            |bytes: u64| (duration_ns > 0).then(|| bytes as f64 * NS_PER_S / duration_ns as f64);
        let peak = |values: Vec<u64>| {
            let values = curve.has_peaks().then_some(values)?;
            curve.curve(values).peak().filter(|p| p.per_s > 0.0)
        };
        // A direction that was not recorded adds nothing to the combined peak.
        let known = curve.read_bytes.as_ref().or(curve.write_bytes.as_ref());
        let none = vec![0; known.map_or(0, Vec::len)];
        let read = curve.read_bytes.as_ref().unwrap_or(&none);
        let write = curve.write_bytes.as_ref().unwrap_or(&none);
        let pairs = read.iter().zip(write);
        Dram {
            read_bytes,
            write_bytes,
            mean_read_bytes_per_s: read_bytes.and_then(mean),
            mean_write_bytes_per_s: write_bytes.and_then(mean),
            peak_read: peak(read.clone()),
            peak_write: peak(write.clone()),
            peak: peak(pairs.map(|(r, w)| r.saturating_add(*w)).collect()),
        }
    }

    /// Traffic of a run whose length does not match its traffic.
    pub(crate) fn without_means(self) -> Self {
        Dram {
            mean_read_bytes_per_s: None,
            mean_write_bytes_per_s: None,
            ..self
        }
    }
}

/// Memory traffic over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BandwidthCurve {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// End of the curve in nanoseconds since the start of the recording. The last bin may extend
    /// beyond it.
    pub duration_ns: u64,
    /// Bytes read in each bin. `None` if the recording lacks the event.
    pub read_bytes: Option<Vec<u64>>,
    /// Bytes written in each bin. `None` if the recording lacks the event.
    pub write_bytes: Option<Vec<u64>>,
}

/// Minimum number of bins for a meaningful peak.
const FEWEST_BINS: u64 = 4;

impl BandwidthCurve {
    /// True if the run is long enough for a peak. In a run of about one bin, the peak would be the
    /// mean, or the rate of a short remainder.
    pub fn has_peaks(&self) -> bool {
        self.duration_ns >= FEWEST_BINS.saturating_mul(self.bin_ns)
    }

    /// Selects the traffic among curves. An event with a total but no row has no known times.
    pub fn of(curves: &Curves, totals: &Counts) -> Self {
        let values = |event: EventId| {
            let name = catalogue::name(event).unwrap_or_default();
            let known = curves.has(event) || totals.contains_key(name);
            known.then(|| curves.event(event).values)
        };
        BandwidthCurve {
            bin_ns: curves.bin_ns,
            duration_ns: curves.duration_ns,
            read_bytes: values(catalogue::DRAM_READ_BYTES),
            write_bytes: values(catalogue::DRAM_WRITE_BYTES),
        }
    }

    /// Mean bytes read per second in each of `columns` equal parts of the time.
    pub fn read_rates(&self, columns: usize) -> Vec<f64> {
        self.curve(self.read_bytes.clone().unwrap_or_default())
            .rates(columns)
    }

    /// Mean bytes written per second in each of `columns` equal parts.
    pub fn write_rates(&self, columns: usize) -> Vec<f64> {
        self.curve(self.write_bytes.clone().unwrap_or_default())
            .rates(columns)
    }

    fn curve(&self, values: Vec<u64>) -> EventCurve {
        EventCurve {
            event: catalogue::DRAM_READ_BYTES,
            thread: None,
            bin_ns: self.bin_ns,
            duration_ns: self.duration_ns,
            values,
        }
    }
}
