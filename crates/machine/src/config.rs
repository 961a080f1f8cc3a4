//! Parameters of a modelled machine.
//!
//! A [`Config`] is plain data. A `--machine` file contains it as JSON, the presets are values of
//! it, and a front end derives it from the running processor. [`Config::validate`] refuses what the
//! model cannot represent and names the field.

use memgauge_trace::{CacheGeometry, MachineFacts, TlbGeometry};
use serde::{Deserialize, Serialize};

/// Bytes in a cache line. No other size is modelled, because every x86-64 and most 64-bit Arm
/// processors have it, and a constant makes the hot path faster.
pub const LINE_BYTES: u32 = memgauge_trace::LINE_BYTES as u32;

/// Bytes in a page, unless a machine has [huge pages](Config::huge_pages).
pub const PAGE_BYTES: u64 = 4096;

/// Number of bits by which the number of a huge page, of 2 MiB, is shorter than that of a page.
pub(crate) const HUGE_SHIFT: u32 = 9;

/// Bytes in a huge page.
pub const HUGE_PAGE_BYTES: u64 = PAGE_BYTES << HUGE_SHIFT;

/// Maximum number of ways: the widest last-level cache on the market has 48.
const MAX_WAYS: u32 = 64;

/// Maximum number of ways of the first level, for its fast layout. Real ones have 2 to 12.
const MAX_L1D_WAYS: u32 = 16;
/// Maximum size of a cache, larger than any built so far.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum size of the first level. All built so far are smaller.
pub(crate) const MAX_L1D_BYTES: u64 = 192 << 10;

/// Maximum number of entries of a first-level TLB. The largest on the market has 128.
const MAX_DTLB_ENTRIES: u32 = 256;

/// A configuration that the model cannot represent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to accept machine `{machine}`: {field} {reason}")]
pub struct ConfigError {
    machine: String,
    field: String,
    reason: String,
}

impl ConfigError {
    /// The refused field, for example `l2.ways`.
    pub fn field(&self) -> &str {
        &self.field
    }
}

/// A modelled machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name for users.
    pub name: String,
    /// Clock rate in hertz. It is constant.
    pub frequency_hz: u64,
    /// Line size in bytes. Must be [`LINE_BYTES`].
    pub line_bytes: u32,
    /// First-level data cache, one for each core.
    pub l1d: CacheConfig,
    /// Second-level cache, one for each core.
    pub l2: CacheConfig,
    /// Last-level cache, shared by all cores.
    pub llc: CacheConfig,
    /// First-level data TLB, one for each core.
    pub dtlb: TlbConfig,
    /// Second-level TLB, one for each core.
    pub stlb: TlbConfig,
    /// True if the last-level cache contains every line of the private caches.
    pub inclusive_llc: bool,
    /// True if all memory is in pages of 2 MiB instead of 4 KiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub huge_pages: bool,
    /// Hardware prefetchers.
    pub prefetch: Prefetch,
    /// Times and rates other than cache latencies.
    pub timing: Timing,
}

/// Replacement policy: the choice of the line to evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Replacement {
    /// The least recently used line.
    #[default]
    Lru,
    /// A binary tree of bits (tree-PLRU). Each bit points away from the half that was used last.
    TreePlru,
}

/// One cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Number of ways.
    pub ways: u32,
    /// Replacement policy.
    #[serde(default)]
    pub replacement: Replacement,
    /// Cycles from the issue of a load to its data, if this cache delivers it.
    pub latency_cycles: u32,
}

/// One TLB. Replacement is LRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbConfig {
    /// Number of entries.
    pub entries: u32,
    /// Number of ways. Equal to `entries` if it is fully associative.
    pub ways: u32,
}

/// Enabled prefetchers. Both fill the second level and the last-level cache and stay within a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prefetch {
    /// Prefetch the line after one that missed the second level or that was prefetched.
    pub next_line: bool,
    /// Prefetch two lines ahead in a page whose first-level misses had the same distance twice.
    pub stride: bool,
}

/// Times and rates of everything but caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Cycles per thousand instructions if all data are in the first level.
    pub cycles_per_1000_instructions: u32,
    /// Share of the latency of an irregular load miss that the core waits for, in per cent.
    pub exposed_percent: u32,
    /// Number of regular misses in flight. The core waits for a regular miss for its latency
    /// divided by this number.
    pub misses_in_flight: u32,
    /// Number of instructions in flight: entries of the reorder buffer. Irregular loads within so
    /// many instructions overlap unless one needs the data of the other. 0: no loads overlap.
    #[serde(default)]
    pub instructions_in_flight: u32,
    /// Additional cycles of a second-level TLB hit.
    pub stlb_cycles: u32,
    /// Additional cycles of a page-table walk.
    pub walk_cycles: u32,
    /// Number of page-table walks at the same time.
    #[serde(default = "Timing::default_page_walkers")]
    pub page_walkers: u32,
    /// Nanoseconds from the issue of a load to its data, if another core held the line modified.
    #[serde(default = "Timing::default_transfer_ns")]
    pub transfer_ns: u32,
    /// Nanoseconds from the issue of a load to its data, if memory delivers it.
    pub dram_latency_ns: u32,
    /// Memory bandwidth in bytes per second, both directions together.
    pub dram_bytes_per_s: u64,
}

impl CacheConfig {
    /// Creates the nearest cache that the model can represent: `ways` limited to `1..=64`, capacity
    /// rounded down to whole sets (at least one), LRU. For values read from a processor or a
    /// hypervisor, which are not always consistent.
    pub fn fitted(size_bytes: u64, ways: u32, latency_cycles: u32) -> Self {
        let ways = ways.clamp(1, MAX_WAYS);
        let set_bytes = u64::from(ways) * u64::from(LINE_BYTES);
        let sets = (size_bytes / set_bytes).max(1);
        CacheConfig {
            size_bytes: sets * set_bytes,
            ways,
            replacement: Replacement::Lru,
            latency_cycles,
        }
    }

    /// Number of sets. It need not be a power of two. The set of a line is its number modulo this.
    pub fn sets(&self) -> u64 {
        self.size_bytes / (u64::from(self.ways) * u64::from(LINE_BYTES))
    }

    fn check(&self, most_ways: u32, most_bytes: u64) -> Result<(), (&'static str, String)> {
        if self.ways == 0 || self.ways > most_ways {
            return Err(("ways", format!("`{}` is not in 1..={most_ways}", self.ways)));
        }
        let set_bytes = u64::from(self.ways) * u64::from(LINE_BYTES);
        if self.size_bytes == 0 || !self.size_bytes.is_multiple_of(set_bytes) {
            let size = self.size_bytes;
            return Err((
                "size_bytes",
                format!("`{size}` is not a multiple of ways x line, {set_bytes}"),
            ));
        }
        if self.size_bytes > most_bytes {
            let size = self.size_bytes;
            return Err(("size_bytes", format!("`{size}` is over {most_bytes}")));
        }
        if self.replacement == Replacement::TreePlru && !self.ways.is_power_of_two() {
            return Err((
                "ways",
                format!(
                    "`{}` is not a power of two, which tree-plru needs",
                    self.ways
                ),
            ));
        }
        Ok(())
    }

    fn geometry(&self) -> CacheGeometry {
        CacheGeometry {
            size_bytes: self.size_bytes,
            ways: self.ways,
            line_bytes: LINE_BYTES,
        }
    }
}

impl TlbConfig {
    /// Creates the nearest TLB that the model can represent. `ways` of 0 or more than `entries`
    /// means fully associative, and entries are rounded down to whole sets.
    pub fn fitted(entries: u32, ways: u32) -> Self {
        let entries = entries.max(1);
        let ways = if ways == 0 || ways > entries {
            entries
        } else {
            ways
        };
        TlbConfig {
            entries: entries / ways * ways,
            ways,
        }
    }

    /// Number of sets. The set of a page is its number modulo this.
    pub fn sets(&self) -> u32 {
        self.entries / self.ways
    }

    fn check(&self, most: u32, most_ways: u32) -> Result<(), (&'static str, String)> {
        if self.entries == 0 || self.entries > most {
            return Err((
                "entries",
                format!("`{}` is not in 1..={most}", self.entries),
            ));
        }
        if self.ways == 0 || self.ways > most_ways || !self.entries.is_multiple_of(self.ways) {
            return Err((
                "ways",
                format!(
                    "`{}` does not divide {} entries into sets of at most {most_ways}",
                    self.ways, self.entries
                ),
            ));
        }
        Ok(())
    }

    fn geometry(&self) -> TlbGeometry {
        TlbGeometry {
            entries: self.entries,
            ways: self.ways,
        }
    }
}

impl Default for Timing {
    /// A current server core: 0.4 cycles per instruction, nine tenths of an irregular miss exposed,
    /// twelve regular ones in flight, memory at 95 ns and 40 GB/s. These are modelling choices for
    /// machines about which nothing better is known.
    fn default() -> Self {
        Timing {
            cycles_per_1000_instructions: 400,
            exposed_percent: 90,
            misses_in_flight: 12,
            instructions_in_flight: 0,
            stlb_cycles: 7,
            walk_cycles: 30,
            page_walkers: Timing::default_page_walkers(),
            transfer_ns: Timing::default_transfer_ns(),
            dram_latency_ns: 95,
            dram_bytes_per_s: 40_000_000_000,
        }
    }
}

/// Minimum bandwidth of memory.
const MIN_DRAM_BYTES_PER_S: u64 = 1_000_000;
/// Maximum number of misses in flight.
const MAX_MISSES_IN_FLIGHT: u32 = 4096;
/// Maximum number of page-table walks at the same time.
const MAX_PAGE_WALKERS: u32 = 64;

impl Timing {
    fn default_transfer_ns() -> u32 {
        45
    }

    fn default_page_walkers() -> u32 {
        2
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let positive = [
            (
                "cycles_per_1000_instructions",
                u64::from(self.cycles_per_1000_instructions),
            ),
            ("misses_in_flight", u64::from(self.misses_in_flight)),
            ("page_walkers", u64::from(self.page_walkers)),
        ];
        if let Some((field, _)) = positive.iter().find(|f| f.1 == 0) {
            return Err((field, "`0` is not positive".to_owned()));
        }
        // Slower memory or longer queues would exceed the clock.
        if self.dram_bytes_per_s < MIN_DRAM_BYTES_PER_S {
            let rate = self.dram_bytes_per_s;
            let text = format!("`{rate}` is below {MIN_DRAM_BYTES_PER_S} bytes per second");
            return Err(("dram_bytes_per_s", text));
        }
        if self.misses_in_flight > MAX_MISSES_IN_FLIGHT {
            let misses = self.misses_in_flight;
            let text = format!("`{misses}` is over {MAX_MISSES_IN_FLIGHT}");
            return Err(("misses_in_flight", text));
        }
        if self.page_walkers > MAX_PAGE_WALKERS {
            let walkers = self.page_walkers;
            let text = format!("`{walkers}` is over {MAX_PAGE_WALKERS}");
            return Err(("page_walkers", text));
        }
        if self.exposed_percent > 100 {
            return Err((
                "exposed_percent",
                format!("`{}` is over 100", self.exposed_percent),
            ));
        }
        let latencies = [
            ("transfer_ns", self.transfer_ns),
            ("dram_latency_ns", self.dram_latency_ns),
        ];
        if let Some((field, ns)) = latencies.iter().find(|latency| latency.1 > 1_000_000) {
            return Err((field, format!("`{ns}` is over a millisecond")));
        }
        Ok(())
    }
}

impl Prefetch {
    fn names(self) -> Vec<String> {
        [(self.next_line, "next-line"), (self.stride, "stride")]
            .iter()
            .filter(|p| p.0)
            .map(|p| p.1.to_owned())
            .collect()
    }
}

impl Config {
    /// Number of bits by which the number of a huge page is shorter than that of a page. 0 with
    /// pages of 4 KiB.
    pub(crate) fn page_shift(&self) -> u32 {
        match self.huge_pages {
            true => HUGE_SHIFT,
            false => 0,
        }
    }

    /// Checks that the model can represent the machine.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.line_bytes != LINE_BYTES {
            return Err(self.refuse(
                "line_bytes",
                format!("`{}` is not 64, the only size modelled", self.line_bytes),
            ));
        }
        if !(1_000_000..=1_000_000_000_000).contains(&self.frequency_hz) {
            return Err(self.refuse(
                "frequency_hz",
                format!("`{}` is not between 1 MHz and 1 THz", self.frequency_hz),
            ));
        }
        let parts = [
            ("l1d", self.l1d.check(MAX_L1D_WAYS, MAX_L1D_BYTES)),
            ("l2", self.l2.check(MAX_WAYS, MAX_BYTES)),
            ("llc", self.llc.check(MAX_WAYS, MAX_BYTES)),
            ("dtlb", self.dtlb.check(MAX_DTLB_ENTRIES, MAX_DTLB_ENTRIES)),
            ("stlb", self.stlb.check(1 << 20, 1 << 10)),
            ("timing", self.timing.check()),
        ];
        for (part, verdict) in parts {
            verdict.map_err(|(field, why)| self.refuse(&format!("{part}.{field}"), why))?;
        }
        Ok(())
    }

    pub(crate) fn refuse(&self, field: &str, reason: String) -> ConfigError {
        ConfigError {
            machine: self.name.clone(),
            field: field.to_owned(),
            reason,
        }
    }

    /// Returns the preset of that name.
    pub fn preset(name: &str) -> Option<Config> {
        crate::presets().iter().find(|p| p.name == name).cloned()
    }

    /// Returns true if it has the name of a preset but other values. Prefetchers do not count,
    /// because an option enables them and they are shown next to the name.
    pub fn is_modified(&self) -> bool {
        let same = |preset: &Config| {
            let mut mine = self.clone();
            mine.prefetch = preset.prefetch;
            mine == *preset
        };
        Config::preset(&self.name).is_some_and(|preset| !same(&preset))
    }

    /// Returns true if there is a level between the first and the last. The model always has three.
    /// In machines with two, a level smaller than the first stands in for it
    /// (docs/machine-model.md).
    pub fn has_l2(&self) -> bool {
        self.l2.size_bytes >= self.l1d.size_bytes
    }

    /// Returns the facts about this machine for a recording's manifest.
    pub fn to_facts(&self) -> MachineFacts {
        MachineFacts {
            name: self.name.clone(),
            frequency_hz: self.frequency_hz,
            l1d: self.l1d.geometry(),
            l2: self.l2.geometry(),
            llc: self.llc.geometry(),
            dtlb: self.dtlb.geometry(),
            stlb: self.stlb.geometry(),
            prefetchers: self.prefetch.names(),
            dram_bytes_per_s: self.timing.dram_bytes_per_s,
            // SANITY: numbers and strings have a JSON form.
            model: serde_json::to_value(self).ok(),
            modified: self.is_modified(),
        }
    }
}
