//! Machines with names.
//!
//! Geometry, TLB entries, clock, memory bandwidth and latencies are published numbers. They have
//! not been checked one by one against the vendors' manuals yet. Memory latency and everything in
//! [`Timing`] except the bandwidth are plausible modelling choices. `docs/machine-model.md` has a
//! table of all machines.

use std::sync::OnceLock;

use crate::{CacheConfig, Config, LINE_BYTES, Prefetch, Timing, TlbConfig};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const MHZ: u64 = 1_000_000;

/// One row of the table below.
struct PresetRow {
    name: &'static str,
    mhz: u64,
    /// KiB, ways, cycles.
    l1d: (u64, u32, u32),
    l2: (u64, u32, u32),
    llc: (u64, u32, u32),
    inclusive: bool,
    /// Entries, ways.
    dtlb: (u32, u32),
    stlb: (u32, u32),
    /// Cycles per thousand instructions.
    cpi: u32,
    /// Misses in flight.
    in_flight: u32,
    /// Page-table walks at the same time.
    walkers: u32,
    /// Nanoseconds to a line that another core modified.
    transfer_ns: u32,
    /// Nanoseconds, megabytes per second.
    dram: (u32, u64),
}

/// Returns all presets, in the order in which users see them.
pub fn presets() -> &'static [Config] {
    static PRESETS: OnceLock<Vec<Config>> = OnceLock::new();
    PRESETS.get_or_init(|| ROWS.iter().map(PresetRow::config).collect())
}

impl PresetRow {
    fn config(&self) -> Config {
        let cache = |(kib, ways, cycles)| CacheConfig::fitted(kib * KIB, ways, cycles);
        let tlb = |(entries, ways)| TlbConfig { entries, ways };
        Config {
            name: self.name.to_owned(),
            frequency_hz: self.mhz * MHZ,
            line_bytes: LINE_BYTES,
            l1d: cache(self.l1d),
            l2: cache(self.l2),
            llc: cache(self.llc),
            dtlb: tlb(self.dtlb),
            stlb: tlb(self.stlb),
            inclusive_llc: self.inclusive,
            huge_pages: false,
            prefetch: Prefetch::default(),
            timing: Timing {
                cycles_per_1000_instructions: self.cpi,
                misses_in_flight: self.in_flight,
                page_walkers: self.walkers,
                transfer_ns: self.transfer_ns,
                dram_latency_ns: self.dram.0,
                dram_bytes_per_s: self.dram.1 * 1_000_000,
                ..Timing::default()
            },
        }
    }
}

const ROWS: &[PresetRow] = &[
    PresetRow {
        name: "core2-x5355",
        mhz: 2660,
        l1d: (32, 8, 3),
        // No second level: one set of sixteen lines stands in for it, like a victim buffer.
        l2: (1, 16, 4),
        llc: (4 * MIB / KIB, 16, 14),
        inclusive: false,
        dtlb: (16, 4),
        stlb: (256, 4),
        cpi: 600,
        in_flight: 8,
        walkers: 1,
        transfer_ns: 45,
        dram: (110, 10_600),
    },
    PresetRow {
        name: "i5-6600k",
        mhz: 3500,
        l1d: (32, 8, 4),
        l2: (256, 4, 12),
        llc: (6 * MIB / KIB, 12, 42),
        inclusive: true,
        dtlb: (64, 4),
        stlb: (1536, 12),
        cpi: 400,
        in_flight: 10,
        walkers: 2,
        transfer_ns: 27,
        dram: (70, 34_100),
    },
    PresetRow {
        name: "xeon-e5-2618lv3",
        mhz: 2300,
        l1d: (32, 8, 4),
        l2: (256, 8, 12),
        llc: (20 * MIB / KIB, 20, 50),
        inclusive: true,
        dtlb: (64, 4),
        stlb: (1024, 8),
        cpi: 450,
        in_flight: 10,
        walkers: 1,
        transfer_ns: 44,
        dram: (95, 59_700),
    },
    PresetRow {
        name: "opteron-6128",
        mhz: 2000,
        l1d: (64, 2, 3),
        l2: (512, 16, 12),
        llc: (6 * MIB / KIB, 48, 40),
        inclusive: false,
        dtlb: (48, 48),
        stlb: (512, 4),
        cpi: 600,
        in_flight: 8,
        walkers: 1,
        transfer_ns: 50,
        dram: (100, 21_300),
    },
    PresetRow {
        name: "skylake-sp",
        mhz: 2400,
        l1d: (32, 8, 4),
        l2: (MIB / KIB, 16, 14),
        llc: (28_160, 11, 68),
        inclusive: false,
        dtlb: (64, 4),
        stlb: (1536, 12),
        cpi: 400,
        in_flight: 12,
        walkers: 2,
        transfer_ns: 48,
        dram: (90, 128_000),
    },
    PresetRow {
        name: "icelake-sp",
        mhz: 2300,
        l1d: (48, 12, 5),
        l2: (1280, 20, 14),
        llc: (60 * MIB / KIB, 12, 70),
        inclusive: false,
        dtlb: (64, 4),
        stlb: (2048, 16),
        cpi: 350,
        in_flight: 12,
        walkers: 2,
        transfer_ns: 51,
        dram: (95, 204_800),
    },
    PresetRow {
        name: "zen3",
        mhz: 2450,
        l1d: (32, 8, 4),
        l2: (512, 8, 12),
        llc: (32 * MIB / KIB, 16, 46),
        inclusive: false,
        dtlb: (64, 64),
        stlb: (2048, 16),
        cpi: 350,
        in_flight: 20,
        walkers: 6,
        transfer_ns: 24,
        dram: (95, 204_800),
    },
    PresetRow {
        name: "zen4",
        mhz: 2400,
        l1d: (32, 8, 4),
        l2: (MIB / KIB, 8, 14),
        llc: (32 * MIB / KIB, 16, 50),
        inclusive: false,
        dtlb: (72, 72),
        stlb: (3072, 24),
        cpi: 330,
        in_flight: 24,
        walkers: 6,
        transfer_ns: 24,
        dram: (100, 460_800),
    },
    PresetRow {
        name: "zen5",
        mhz: 2700,
        l1d: (48, 12, 4),
        l2: (MIB / KIB, 16, 14),
        llc: (32 * MIB / KIB, 16, 50),
        inclusive: false,
        dtlb: (96, 96),
        stlb: (4096, 16),
        cpi: 300,
        in_flight: 24,
        walkers: 6,
        transfer_ns: 25,
        dram: (100, 576_000),
    },
];
