//! Counters of memory traffic by devices, as an interface between sources.
//!
//! A source that needs them takes a [`MemoryCounters`]. Another source implements it with hardware
//! or a file. [`NoMemoryCounters`] states why there are none.

use std::fmt::Debug;

use memgauge_trace::{EventDef, EventId, Provenance, Unit, catalogue};

/// Counters of memory traffic.
pub trait MemoryCounters: Debug + Send {
    /// Origin of the counts, or empty.
    fn source(&self) -> String;

    /// Why there are no counters, or empty.
    fn missing_reason(&self) -> &str {
        ""
    }

    /// Limits of the counters, in sentences.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// Starts the first interval.
    fn begin(&mut self) {}

    /// Increments since the previous call, up to this time.
    fn read_increments(&mut self, time_ns: u64) -> Vec<TrafficIncrement>;

    /// All series that can occur.
    fn series(&self) -> Vec<TrafficSeries>;
}

/// No counters, and why.
#[derive(Clone, Debug)]
pub struct NoMemoryCounters(pub String);

impl MemoryCounters for NoMemoryCounters {
    fn source(&self) -> String {
        String::new()
    }

    fn missing_reason(&self) -> &str {
        &self.0
    }

    fn read_increments(&mut self, _time_ns: u64) -> Vec<TrafficIncrement> {
        Vec::new()
    }

    fn series(&self) -> Vec<TrafficSeries> {
        Vec::new()
    }
}

/// Quantity that a counter measures, the same on all processors. Always in bytes: cache lines and
/// fabric beats count as 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficKind {
    /// Lines that devices read and that missed the cache.
    IoReadMiss,
    /// Lines that devices wrote and that missed the cache.
    IoWriteMiss,
    /// Lines that any agent read or wrote and that missed the cache.
    Miss,
    /// Modified lines that the last-level cache evicted.
    Writeback,
    /// Read from memory, counted by the memory controllers.
    MemoryRead,
    /// Written to memory, counted by the memory controllers.
    MemoryWrite,
    /// Read by devices, counted by the data fabric.
    DeviceRead,
    /// Written by devices, counted by the data fabric.
    DeviceWrite,
    /// Written to memory by the devices at a PCIe port.
    PortIn,
    /// Read from memory by the devices at a PCIe port.
    PortOut,
}

impl TrafficKind {
    /// All kinds.
    pub const ALL: [TrafficKind; 10] = [
        TrafficKind::IoReadMiss,
        TrafficKind::IoWriteMiss,
        TrafficKind::Miss,
        TrafficKind::Writeback,
        TrafficKind::MemoryRead,
        TrafficKind::MemoryWrite,
        TrafficKind::DeviceRead,
        TrafficKind::DeviceWrite,
        TrafficKind::PortIn,
        TrafficKind::PortOut,
    ];

    /// Name in files and recordings.
    pub fn name(self) -> &'static str {
        match self {
            TrafficKind::IoReadMiss => "io_read_misses",
            TrafficKind::IoWriteMiss => "io_write_misses",
            TrafficKind::Miss => "misses",
            TrafficKind::Writeback => "writebacks",
            TrafficKind::MemoryRead => "memory_reads",
            TrafficKind::MemoryWrite => "memory_writes",
            TrafficKind::DeviceRead => "device_reads",
            TrafficKind::DeviceWrite => "device_writes",
            TrafficKind::PortIn => "port_in",
            TrafficKind::PortOut => "port_out",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<TrafficKind> {
        TrafficKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// True for counters of a single port, which are not summed over boxes.
    pub fn is_per_port(self) -> bool {
        matches!(self, TrafficKind::PortIn | TrafficKind::PortOut)
    }

    fn definition(self) -> &'static str {
        match self {
            TrafficKind::IoReadMiss => {
                "Bytes that devices read and that missed the last-level cache (64 per line)."
            }
            TrafficKind::IoWriteMiss => {
                "Bytes that devices wrote and that missed the last-level cache (64 per line)."
            }
            TrafficKind::Miss => {
                "Bytes that processors and devices read or wrote and that missed the last-level \
                cache (64 per line)."
            }
            TrafficKind::Writeback => {
                "Bytes of modified lines that the last-level cache wrote back (64 per line)."
            }
            TrafficKind::MemoryRead => {
                "Bytes read from memory, counted by the memory controllers (64 \
            per burst)."
            }
            TrafficKind::MemoryWrite => {
                "Bytes written to memory, counted by the memory controllers (64 \
            per burst)."
            }
            TrafficKind::DeviceRead => {
                "Bytes that devices read, counted by the data fabric (64 per \
            beat)."
            }
            TrafficKind::DeviceWrite => {
                "Bytes that devices wrote, counted by the data fabric (64 per \
            beat)."
            }
            TrafficKind::PortIn => "Bytes that the devices at a PCIe port wrote to memory.",
            TrafficKind::PortOut => "Bytes that the devices at a PCIe port read from memory.",
        }
    }
}

/// One series of byte counts: a kind, and for per-port kinds the port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrafficSeries {
    /// Quantity counted.
    pub kind: TrafficKind,
    /// The port as `ROOT BUS/NUMBER` (`0000:17/2`), or empty for sums over all boxes.
    pub port: String,
}

impl TrafficSeries {
    /// Name in a recording: `uncore.KIND`, or `uncore.KIND/PORT` for a port.
    pub fn name(&self) -> String {
        match self.port.as_str() {
            "" => format!("uncore.{}", self.kind.name()),
            port => format!("uncore.{}/{port}", self.kind.name()),
        }
    }

    /// Definition for the manifest of the series with this number.
    pub fn define(&self, number: usize) -> EventDef {
        let free = catalogue::FIRST_FREE;
        EventDef {
            id: EventId(free.saturating_add(u16::try_from(number).unwrap_or(u16::MAX))),
            name: self.name(),
            unit: Unit::Bytes,
            provenance: Provenance::Counted,
            description: self.kind.definition().to_owned(),
        }
    }
}

/// Increment of a series in an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficIncrement {
    /// The series.
    pub series: TrafficSeries,
    /// Increment in bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_found_by_its_name() {
        for kind in TrafficKind::ALL {
            assert_eq!(TrafficKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(TrafficKind::from_name("elsewhere"), None);
    }

    #[test]
    fn a_ports_series_has_its_place_in_the_name() {
        let series = TrafficSeries {
            kind: TrafficKind::PortIn,
            port: "0000:17/2".to_owned(),
        };
        assert_eq!(series.name(), "uncore.port_in/0000:17/2");
    }
}
