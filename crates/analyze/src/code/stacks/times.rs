//! Call stacks over time in few bins, for viewers that show a selected range.

use std::collections::BTreeMap;

use ahash::{HashMap, HashMapExt};

use serde::Serialize;

use super::StackKey;

/// The nodes of a tree over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimedCalls {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// For each node without its callees: bins with samples, the number of samples, and the events
    /// that they represent.
    pub own: Vec<Vec<(u32, u64, u64)>>,
}

/// Samples and events by time bin.
pub(super) type ByBin = BTreeMap<u32, (u64, u64)>;

/// Samples by stack and time. The bins double in width when there are too many bins or cells.
#[derive(Clone, Debug)]
pub(super) struct StackTimes {
    bin_ns: u64,
    cells: usize,
    stacks: HashMap<StackKey, ByBin>,
}

/// Initial width of a bin in nanoseconds, which most runs outgrow.
const FIRST_BIN_NS: u64 = 1000;
/// Maximum number of time bins.
pub(super) const BINS: u64 = 128;
/// Maximum number of cells (stack and bin). A cell takes about 12 bytes in a page.
const MAX_CELLS: usize = 1 << 17;

impl StackTimes {
    pub(super) fn new() -> StackTimes {
        StackTimes {
            bin_ns: FIRST_BIN_NS,
            cells: 0,
            stacks: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, key: StackKey, time_ns: u64, sums: (u64, u64)) {
        while time_ns / self.bin_ns >= BINS || self.cells >= MAX_CELLS && self.bin_ns < time_ns {
            self.double();
        }
        let bin = (time_ns / self.bin_ns) as u32;
        self.add_to_bin(key, bin, sums);
    }

    pub(super) fn bin_ns(&self) -> u64 {
        self.bin_ns
    }

    pub(super) fn of(&self, key: &StackKey) -> Option<&ByBin> {
        self.stacks.get(key)
    }

    fn add_to_bin(&mut self, key: StackKey, bin: u32, (samples, events): (u64, u64)) {
        let bins = self.stacks.entry(key).or_default();
        let known = bins.len();
        let cell = bins.entry(bin).or_default();
        cell.0 += samples;
        cell.1 = cell.1.saturating_add(events);
        self.cells += bins.len() - known;
    }

    fn double(&mut self) {
        self.bin_ns *= 2;
        self.cells = 0;
        for bins in self.stacks.values_mut() {
            let mut coarser = ByBin::new();
            for (bin, (samples, events)) in std::mem::take(bins) {
                let cell = coarser.entry(bin / 2).or_default();
                cell.0 += samples;
                cell.1 = cell.1.saturating_add(events);
            }
            self.cells += coarser.len();
            *bins = coarser;
        }
    }

    pub(super) fn merge(&mut self, mut other: StackTimes) {
        while self.bin_ns < other.bin_ns {
            self.double();
        }
        while other.bin_ns < self.bin_ns {
            other.double();
        }
        for (key, bins) in other.stacks {
            for (bin, sums) in bins {
                self.add_to_bin(key, bin, sums);
            }
        }
    }
}

/// Maps sums by tree node and bin to the kept nodes.
pub(super) fn timed(
    bin_ns: u64,
    nodes: usize,
    kept_nodes: &[u32],
    times: BTreeMap<(u32, u32), (u64, u64)>,
) -> TimedCalls {
    let mut own: Vec<ByBin> = vec![ByBin::new(); nodes];
    for ((at, bin), (samples, events)) in times {
        let cell = own[kept_nodes[at as usize] as usize]
            .entry(bin)
            .or_default();
        cell.0 += samples;
        cell.1 = cell.1.saturating_add(events);
    }
    let cells = |bins: ByBin| bins.into_iter().map(|(bin, (s, e))| (bin, s, e)).collect();
    TimedCalls {
        bin_ns,
        own: own.into_iter().map(cells).collect(),
    }
}
