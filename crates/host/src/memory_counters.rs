//! Counters of the memory traffic that devices make, for any source that reads them.
//!
//! A source that wants them takes a [`MemoryCounters`]; another source reads the
//! hardware, or a file. [`NoCounters`] says why there are none.

use std::fmt::Debug;

use memgauge_trace::{EventDef, EventId, Provenance, Unit, catalogue};

/// A counter of memory traffic.
pub trait MemoryCounters: Debug + Send {
    /// Where the counts come from, in words; empty where there are none.
    fn source(&self) -> String;

    /// Why there are none; empty where there are.
    fn without(&self) -> &str {
        ""
    }

    /// Counters that are missing, in words.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// Starts: what was counted before is forgotten.
    fn begin(&mut self) {}

    /// Increments of the counters since the previous call, up to this time.
    fn take(&mut self, time_ns: u64) -> Vec<Gained>;

    /// Every series that will come.
    fn series(&self) -> Vec<Series>;
}

/// No counters, and why.
#[derive(Clone, Debug)]
pub struct NoCounters(pub String);

impl MemoryCounters for NoCounters {
    fn source(&self) -> String {
        String::new()
    }

    fn without(&self) -> &str {
        &self.0
    }

    fn take(&mut self, _time_ns: u64) -> Vec<Gained> {
        Vec::new()
    }

    fn series(&self) -> Vec<Series> {
        Vec::new()
    }
}

/// Quantity that a counter stands for, the same on all processors. All are in bytes:
/// lines of a cache and beats of a fabric are 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// Lines that devices read and no cache had.
    IoReadMiss,
    /// Lines that devices wrote and no cache had.
    IoWriteMiss,
    /// Lines that anybody read or wrote and no cache had.
    Miss,
    /// Modified lines that the last-level cache gave up.
    Writeback,
    /// Read from memory, by the memory controllers.
    MemoryRead,
    /// Written to memory, by the memory controllers.
    MemoryWrite,
    /// Read by devices, by the fabric.
    DeviceRead,
    /// Written by devices, by the fabric.
    DeviceWrite,
    /// Written to memory by the devices at a port.
    PortIn,
    /// Read from memory by the devices at a port.
    PortOut,
}

impl Term {
    /// Every term.
    pub const ALL: [Term; 10] = [
        Term::IoReadMiss,
        Term::IoWriteMiss,
        Term::Miss,
        Term::Writeback,
        Term::MemoryRead,
        Term::MemoryWrite,
        Term::DeviceRead,
        Term::DeviceWrite,
        Term::PortIn,
        Term::PortOut,
    ];

    /// Its name in files and recordings.
    pub fn name(self) -> &'static str {
        match self {
            Term::IoReadMiss => "io_read_misses",
            Term::IoWriteMiss => "io_write_misses",
            Term::Miss => "misses",
            Term::Writeback => "writebacks",
            Term::MemoryRead => "memory_reads",
            Term::MemoryWrite => "memory_writes",
            Term::DeviceRead => "device_reads",
            Term::DeviceWrite => "device_writes",
            Term::PortIn => "port_in",
            Term::PortOut => "port_out",
        }
    }

    /// The term of that name.
    pub fn named(name: &str) -> Option<Term> {
        Term::ALL.into_iter().find(|term| term.name() == name)
    }

    /// Whether each box counts something of its own, so that boxes are not added up.
    pub fn is_of_a_port(self) -> bool {
        matches!(self, Term::PortIn | Term::PortOut)
    }

    fn definition(self) -> &'static str {
        match self {
            Term::IoReadMiss => {
                "Bytes that devices read and that missed the last-level cache (64 per line)."
            }
            Term::IoWriteMiss => {
                "Bytes that devices wrote and that missed the last-level cache (64 per line)."
            }
            Term::Miss => {
                "Bytes that processors and devices read or wrote and that missed the last-level \
                cache (64 per line)."
            }
            Term::Writeback => {
                "Bytes of modified lines that the last-level cache wrote back (64 per line)."
            }
            Term::MemoryRead => {
                "Bytes read from memory, counted by the memory controllers (64 \
            per burst)."
            }
            Term::MemoryWrite => {
                "Bytes written to memory, counted by the memory controllers (64 \
            per burst)."
            }
            Term::DeviceRead => {
                "Bytes that devices read, counted by the data fabric (64 per \
            beat)."
            }
            Term::DeviceWrite => {
                "Bytes that devices wrote, counted by the data fabric (64 per \
            beat)."
            }
            Term::PortIn => "Bytes that the devices at a PCIe port wrote to memory.",
            Term::PortOut => "Bytes that the devices at a PCIe port read from memory.",
        }
    }
}

/// One series of bytes: a term, and of a port also which one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Quantity counted.
    pub term: Term,
    /// The port, as `ROOT BUS/NUMBER` (`0000:17/2`); empty for sums of all boxes.
    pub port: String,
}

impl Series {
    /// Its name in a recording: `uncore.TERM`, or `uncore.TERM/PORT` for the counter of
    /// a port.
    pub fn name(&self) -> String {
        match self.port.as_str() {
            "" => format!("uncore.{}", self.term.name()),
            port => format!("uncore.{}/{port}", self.term.name()),
        }
    }

    /// Its definition for the manifest, as the `number`th series.
    pub fn define(&self, number: usize) -> EventDef {
        let free = catalogue::FIRST_FREE;
        EventDef {
            id: EventId(free.saturating_add(u16::try_from(number).unwrap_or(u16::MAX))),
            name: self.name(),
            unit: Unit::Bytes,
            provenance: Provenance::Counted,
            description: self.term.definition().to_owned(),
        }
    }
}

/// Increment of a series in an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gained {
    /// Which.
    pub series: Series,
    /// Bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_found_by_its_name() {
        for term in Term::ALL {
            assert_eq!(Term::named(term.name()), Some(term));
        }
        assert_eq!(Term::named("elsewhere"), None);
    }

    #[test]
    fn a_ports_series_has_its_place_in_the_name() {
        let series = Series {
            term: Term::PortIn,
            port: "0000:17/2".to_owned(),
        };
        assert_eq!(series.name(), "uncore.port_in/0000:17/2");
    }
}
