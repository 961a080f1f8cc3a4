//! Names of columns by which tables can be sorted.

use serde::Serialize;

/// Bytes moved between the last-level cache and memory, both ways.
pub(crate) const DRAM_BYTES: &str = "dram_bytes";
/// Cycles in which a core waited for memory.
pub(crate) const STALLED_CYCLES: &str = "stalled_cycles";

/// Titles of columns in the text report and the exports that differ from the key in the JSON.
const TITLES: [(&str, &str); 22] = [
    ("l1d miss", "l1d.miss"),
    ("llc miss", "llc.miss"),
    ("dram", DRAM_BYTES),
    ("stalled", STALLED_CYCLES),
    ("instr.", "instructions"),
    ("in use", "at_peak_bytes"),
    ("at peak", "at_peak_bytes"),
    ("not freed", "live_bytes"),
    ("not used", "untouched_bytes"),
    ("lifetime", "mean_lifetime_ns"),
    ("run time", "run_ns"),
    ("idle", "idle_ns"),
    ("size", "bytes"),
    ("n", "samples"),
    ("time", "events"),
    ("unfreed_bytes", "live_bytes"),
    ("allocated by", "name"),
    ("allocated_by", "name"),
    ("data", "name"),
    ("region", "name"),
    ("line", "file"),
    ("place", "file"),
];

/// A column by which tables are sorted: a field of rows in the JSON, or an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SortColumn(pub(crate) String);

impl SortColumn {
    /// Finds a column by its key in the JSON, an event's name, or its title in the text report.
    pub fn new(name: &str) -> Self {
        let title = TITLES
            .iter()
            .find(|(title, _)| title.eq_ignore_ascii_case(name));
        SortColumn(title.map_or(name, |(_, key)| key).to_owned())
    }

    /// Key in the JSON, or name of the event.
    pub fn key(&self) -> &str {
        &self.0
    }
}
