//! Streams whose counts are known by arithmetic.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use memgauge_machine::{
    AccessKind, CacheConfig, Config, Counts, Machine, PmuConfig, Prefetch, Replacement, TlbConfig,
};
use memgauge_trace::{EventId, catalogue as c};

const KIB: u64 = 1024;
const BASE: u64 = 0x5555_5555_0000;

/// Caches of 4 KiB, 16 KiB and 64 KiB with 8 ways each, and TLBs of 8 and 32 pages.
fn small() -> Config {
    let cache = |kib| CacheConfig {
        size_bytes: kib * KIB,
        ..CacheConfig::fitted(kib * KIB, 8, 4)
    };
    Config {
        l1d: cache(4),
        l2: cache(16),
        llc: cache(64),
        dtlb: TlbConfig {
            entries: 8,
            ways: 8,
        },
        stlb: TlbConfig {
            entries: 32,
            ways: 4,
        },
        ..Config::preset("zen5").unwrap()
    }
}

/// Counts of a core that retires a block before each access.
fn run(config: Config, stream: impl Iterator<Item = (u64, u32, AccessKind)>) -> Counts {
    let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    for (addr, size, kind) in stream {
        let (load, store) = (
            u32::from(kind != AccessKind::Store),
            u32::from(kind != AccessKind::Load),
        );
        core.retire(3, load, store, load & store);
        core.access(shared, addr, size, kind);
    }
    core.counts()
}

fn scan(bytes: u64, kind: AccessKind) -> impl Iterator<Item = (u64, u32, AccessKind)> {
    (0..bytes / 8).map(move |n| (BASE + 8 * n, 8, kind))
}

fn check(counts: &Counts, expected: &[(EventId, u64)]) {
    for &(event, value) in expected {
        assert_eq!(counts.get(event), value, "{}", c::name(event).unwrap());
    }
}

#[test]
fn reading_far_beyond_the_last_level_misses_each_line_once() {
    let bytes = 1024 * KIB;
    check(
        &run(small(), scan(bytes, AccessKind::Load)),
        &[
            (c::LOADS, bytes / 8),
            (c::L1D_HIT, bytes / 8 - bytes / 64),
            (c::L1D_MISS, bytes / 64),
            (c::L2_MISS, bytes / 64),
            (c::LLC_MISS, bytes / 64),
            (c::DRAM_READ_BYTES, bytes),
            (c::DRAM_WRITE_BYTES, 0),
            (
                c::DTLB_WALK,
                bytes / 4096 + 1 - u64::from(BASE.is_multiple_of(4096)),
            ),
        ],
    );
}

#[test]
fn writing_sends_back_all_but_what_the_last_level_keeps() {
    let bytes = 1024 * KIB;
    let counts = run(small(), scan(bytes, AccessKind::Store));
    check(
        &counts,
        &[
            (c::L1D_STORE_MISS, bytes / 64),
            (c::L1D_LOAD_MISS, 0),
            (c::L1D_WRITEBACK, (bytes - 4 * KIB) / 64),
            (c::L2_WRITEBACK, (bytes - 16 * KIB) / 64),
            (c::DRAM_READ_BYTES, bytes),
            (c::DRAM_WRITE_BYTES, bytes - 64 * KIB),
        ],
    );
}

#[test]
fn a_cyclic_scan_hits_always_up_to_the_capacity_and_never_beyond_it() {
    // In a fully associative level, one line too many is enough.
    let llc = CacheConfig {
        ways: 16,
        size_bytes: 16 * 64,
        ..small().llc
    };
    let tiny = CacheConfig {
        ways: 2,
        size_bytes: 128,
        ..llc
    };
    let config = Config {
        l1d: tiny,
        l2: tiny,
        llc,
        ..small()
    };
    let passes = 10;
    for (lines, misses) in [(16, 16), (17, 17 * passes)] {
        let stream =
            (0..passes).flat_map(move |_| (0..lines).map(|n| (BASE + 64 * n, 8, AccessKind::Load)));
        check(
            &run(config.clone(), stream),
            &[(c::LLC_MISS, misses), (c::L1D_MISS, lines * passes)],
        );
    }
}

#[test]
fn a_cyclic_scan_of_pages_walks_only_beyond_both_tlbs() {
    let passes = 10;
    for (pages, first, walks) in [
        (8, 8, 8),
        (9, 9 * passes, 9),
        (32, 32 * passes, 32),
        (40, 40 * passes, 40 * passes),
    ] {
        let stream = (0..passes)
            .flat_map(move |_| (0..pages).map(|n| (BASE + 4096 * n, 8, AccessKind::Load)));
        check(
            &run(small(), stream),
            &[
                (c::DTLB_MISS, first),
                (c::DTLB_WALK, walks),
                (c::STLB_HIT, first - walks),
            ],
        );
    }
}

#[test]
fn a_split_access_looks_two_lines_up_and_counts_once() {
    let stream = (0..1000u64).map(|n| (BASE + 60 + 64 * n, 8, AccessKind::Load));
    check(
        &run(small(), stream),
        &[
            (c::LOADS, 1000),
            (c::SPLITS, 1000),
            (c::L1D_MISS, 1001),
            (c::L1D_HIT, 999),
            (c::DRAM_READ_BYTES, 1001 * 64),
        ],
    );
}

#[test]
fn a_modify_is_one_look_up_and_a_load_miss() {
    check(
        &run(small(), scan(256 * KIB, AccessKind::Modify)),
        &[
            (c::LOADS, 32 * KIB),
            (c::STORES, 32 * KIB),
            (c::MODIFIES, 32 * KIB),
            (c::L1D_HIT, 28 * KIB),
            (c::L1D_LOAD_MISS, 4 * KIB),
            (c::L1D_STORE_MISS, 0),
        ],
    );
}

#[test]
fn the_next_line_prefetcher_leaves_one_miss_a_page_on_a_scan() {
    let prefetch = Prefetch {
        next_line: true,
        stride: false,
    };
    let pages = 256;
    check(
        &run(
            Config {
                prefetch,
                ..small()
            },
            scan(pages * 4096, AccessKind::Load),
        ),
        &[
            (c::L2_MISS, pages),
            (c::PREFETCHES, pages * 63),
            (c::PREFETCH_HITS, pages * 63),
            (c::DRAM_READ_BYTES, pages * 4096),
        ],
    );
}

#[test]
fn the_stride_prefetcher_learns_a_distance_within_a_page() {
    let prefetch = Prefetch {
        next_line: false,
        stride: true,
    };
    let stream = (0..16u64).map(|n| (BASE + 256 * n, 8, AccessKind::Load));
    // The distance of 4 lines has occurred twice at the third miss, so lines 12 to 60 of the page
    // are prefetched.
    check(
        &run(
            Config {
                prefetch,
                ..small()
            },
            stream,
        ),
        &[(c::L2_MISS, 3), (c::PREFETCHES, 13), (c::PREFETCH_HITS, 13)],
    );
}

#[test]
fn tree_plru_keeps_a_line_used_between_all_others() {
    let l1d = CacheConfig {
        replacement: Replacement::TreePlru,
        ..small().l1d
    };
    let set_step = l1d.size_bytes / 8;
    let stream = (0..100u64)
        .flat_map(|n| [BASE, BASE + set_step * (1 + n)])
        .map(|a| (a, 8, AccessKind::Load));
    check(
        &run(Config { l1d, ..small() }, stream),
        &[(c::L1D_MISS, 101), (c::L1D_HIT, 99)],
    );
}

/// Counts of a core that executes `stores` non-temporal stores after loads and stores.
fn run_non_temporal(
    before: &[(u64, AccessKind)],
    stores: impl Iterator<Item = (u64, u32)>,
) -> Counts {
    let mut machine = Machine::new(small(), PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    for &(addr, kind) in before {
        let store = u32::from(kind == AccessKind::Store);
        core.retire(3, 1 - store, store, 0);
        core.access(shared, addr, 8, kind);
    }
    for (addr, size) in stores {
        core.retire(3, 0, 1, 0);
        core.store_non_temporal(shared, addr, size);
    }
    core.counts()
}

#[test]
fn non_temporal_stores_of_whole_lines_write_them_without_reading() {
    let bytes = 1024 * KIB;
    for size in [4, 8, 16, 32, 64] {
        let stores = (0..bytes / size).map(|n| (BASE + size * n, size as u32));
        check(
            &run_non_temporal(&[], stores),
            &[
                (c::STORES, bytes / size),
                (c::L1D_HIT, 0),
                (c::L1D_MISS, 0),
                (c::LLC_WRITEBACK, 0),
                (c::DRAM_READ_BYTES, 0),
                (c::DRAM_WRITE_BYTES, bytes),
                (c::DTLB_WALK, bytes / 4096),
            ],
        );
    }
}

#[test]
fn a_partly_written_line_leaves_once_its_buffer_is_needed() {
    let buffers = u64::from(small().timing.misses_in_flight);
    // Each round writes the next eight bytes of all lines. If each line has a buffer, all lines are
    // complete in the end. With one line more than buffers, each store finds that its line's buffer
    // has been written.
    let rounds = |lines: u64| {
        (0..8).flat_map(move |part| (0..lines).map(move |line| (BASE + 64 * line + 8 * part, 8)))
    };
    let fits = run_non_temporal(&[], rounds(buffers));
    check(&fits, &[(c::DRAM_WRITE_BYTES, 64 * buffers)]);
    let lines = buffers + 1;
    let full = run_non_temporal(&[], rounds(lines));
    check(&full, &[(c::DRAM_WRITE_BYTES, 64 * (8 * lines - buffers))]);
}

#[test]
fn a_non_temporal_store_takes_its_line_out_of_all_caches() {
    use AccessKind::{Load, Store};
    let line = |n: u64| BASE + 64 * n;
    let before = [(line(0), Load), (line(1), Store)];
    let stores = [(line(0), 64), (line(1), 64)];
    let counts = run_non_temporal(&before, stores.into_iter());
    // Two whole lines are written, and one dirty line before.
    let expected = [(c::DRAM_WRITE_BYTES, 192), (c::LLC_WRITEBACK, 1)];
    check(&counts, &expected);

    let mut machine = Machine::new(small(), PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    core.access(shared, BASE, 8, Load);
    core.store_non_temporal(shared, BASE, 64);
    core.access(shared, BASE, 8, Load);
    check(
        &core.counts(),
        &[(c::LLC_MISS, 2), (c::DRAM_READ_BYTES, 128)],
    );
}

#[test]
fn a_non_temporal_store_across_lines_is_a_split() {
    let counts = run_non_temporal(&[], [(BASE + 60, 8)].into_iter());
    check(
        &counts,
        &[(c::SPLITS, 1), (c::L1D_HIT, 0), (c::L1D_MISS, 0)],
    );
}

#[test]
fn a_non_temporal_store_across_pages_translates_both() {
    let counts = run_non_temporal(&[], [(BASE + 4092, 8)].into_iter());
    check(&counts, &[(c::SPLITS, 1), (c::DTLB_WALK, 2)]);
}

/// Counts of a core that loads the first line of each of 32 pages. With `gap`, it prefetches each
/// line and executes this many instructions before the load.
fn run_prefetched(gap: Option<u32>) -> Counts {
    // One huge page, so that translation takes no time after the first load.
    let config = Config {
        huge_pages: true,
        ..small()
    };
    let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    for page in 0..32 {
        // The pages are far apart, so that no load is regular and none waits for memory bandwidth.
        let addr = BASE + page * 40 * 4096 + 1024;
        core.retire(10_000, 0, 0, 0);
        if let Some(gap) = gap {
            let missed = core.look_up_prefetch(addr);
            assert!(!missed.is_nothing());
            core.prefetch(shared, missed, addr);
            core.retire(gap, 0, 0, 0);
        }
        core.retire(0, 1, 0, 0);
        core.access(shared, addr, 8, AccessKind::Load);
    }
    core.counts()
}

#[test]
fn a_prefetch_hides_the_time_until_the_load() {
    let timing = small().timing;
    let without = run_prefetched(None);
    check(&without, &[(c::LLC_MISS, 32), (c::PREFETCHES, 0)]);

    let early = run_prefetched(Some(10_000));
    let expected = [
        (c::PREFETCHES, 32),
        (c::PREFETCH_HITS, 32),
        (c::L1D_MISS, 32),
        (c::L2_HIT, 32),
        (c::LLC_MISS, 0),
        (c::DRAM_READ_BYTES, 32 * 64),
        (c::STALL_DRAM, 0),
        (c::STALL_L2, 0),
    ];
    check(&early, &expected);

    let late = run_prefetched(Some(0));
    assert_eq!(late.get(c::STALL_DRAM), without.get(c::STALL_DRAM));

    // When the load executes, a quarter of the latency has passed.
    let latency = u64::from(timing.dram_latency_ns) * small().frequency_hz / 1_000_000_000;
    let gap = latency * 1000 / 4 / u64::from(timing.cycles_per_1000_instructions);
    let stalled = run_prefetched(Some(gap as u32)).get(c::STALL_DRAM);
    let expected = 32 * latency * 3 / 4;
    assert!(stalled.abs_diff(expected) < 64, "{stalled} of {expected}");
}

/// Millicycles for which a core stalls that executes this many instructions before each store to a line
/// that only the last level holds, and the number of these stores.
fn run_stores_from_llc(config: &Config, instructions: u32) -> (u64, u64) {
    let mut machine = Machine::new(config.clone(), PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let lines = 512;
    for line in 0..lines {
        core.retire(0, 1, 0, 0);
        core.access(shared, BASE + 64 * line, 8, AccessKind::Load);
    }
    core.retire(1_000_000, 0, 0, 0);
    let before = core.counts();
    for line in 0..lines {
        core.retire(instructions, 0, 1, 0);
        core.access(shared, BASE + 64 * line, 8, AccessKind::Store);
    }
    let counts = core.counts();
    let gained = |event| counts.get(event) - before.get(event);
    assert_eq!(gained(c::LLC_HIT), lines);
    let stalls = [c::STALL_IRREGULAR, c::STALL_REGULAR, c::STALL_WRITEBACKS];
    let all: u64 = stalls.map(gained).iter().sum();
    assert_eq!(gained(c::STALL_STORES), all);
    (gained(c::STALL_STORES) * 1000, lines)
}

#[test]
fn stores_wait_if_their_lines_come_slower_than_they_are_executed() {
    let config = Config {
        l2: CacheConfig::fitted(16 * KIB, 8, 14),
        llc: CacheConfig::fitted(64 * KIB, 8, 52),
        huge_pages: true,
        ..small()
    };
    let timing = &config.timing;
    let beyond = u64::from(config.llc.latency_cycles - config.l1d.latency_cycles);
    let drain = beyond * 1000 / u64::from(timing.misses_in_flight);
    let instruction = u64::from(timing.cycles_per_1000_instructions);
    let fast = (drain / 3 / instruction) as u32;
    let (stalled, stores) = run_stores_from_llc(&config, fast);
    // The buffer has room for 56 stores.
    let expected = stores * (drain - u64::from(fast) * instruction) - 56 * drain;
    assert!(
        stalled.abs_diff(expected) < 2 * drain + 1000,
        "{stalled} of {expected}"
    );

    let slow = drain.div_ceil(instruction) as u32;
    assert_eq!(run_stores_from_llc(&config, slow).0, 0);
}

/// Prefetches lines of one page, and loads them after the last one has arrived.
fn run_late(lines: u64) -> Counts {
    let config = Config {
        l2: CacheConfig::fitted(64 * KIB, 8, 14),
        ..small()
    };
    let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let all = (0..lines).map(|line| BASE + 64 * line);
    for addr in all.clone() {
        let missed = core.look_up_prefetch(addr);
        core.prefetch(shared, missed, addr);
    }
    core.retire(100_000, 0, 0, 0);
    for addr in all {
        core.retire(0, 1, 0, 0);
        core.access(shared, addr, 8, AccessKind::Load);
    }
    core.counts()
}

#[test]
fn lines_that_arrived_long_ago_take_no_time() {
    // Includes more lines than the model remembers.
    for lines in [1, 63, 64, 65, 256] {
        let counts = run_late(lines);
        let expected = [
            (c::PREFETCH_HITS, lines),
            (c::STALL_L2, 0),
            (c::STALL_DRAM, 0),
        ];
        check(&counts, &expected);
    }
}

#[test]
fn prefetches_wait_in_the_queue_and_are_no_look_ups() {
    let counts = run_late(256);
    let expected = [
        (c::DTLB_MISS, 0),
        (c::DTLB_WALK, 0),
        (c::STALL_STORES, 0),
        (c::STALL_WRITEBACKS, 0),
    ];
    check(&counts, &expected);
    assert!(counts.get(c::STALL_QUEUE) > 0);
    assert_eq!(counts.get(c::STALL_QUEUE), counts.get(c::STALL_REGULAR));
}

#[test]
fn a_prefetch_of_a_line_that_is_there_does_nothing() {
    let mut machine = Machine::new(small(), PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    core.access(shared, BASE, 8, AccessKind::Store);
    let before = core.counts();
    assert!(core.look_up_prefetch(BASE + 32).is_nothing());
    // The first level evicts the line, and the second level holds it.
    for way in 1..=8 {
        core.access(
            shared,
            BASE + way * small().l1d.size_bytes,
            8,
            AccessKind::Load,
        );
    }
    let missed = core.look_up_prefetch(BASE);
    core.prefetch(shared, missed, BASE);
    let counts = core.counts();
    check(&counts, &[(c::PREFETCHES, 0)]);
    assert_eq!(
        counts.get(c::DRAM_READ_BYTES) - before.get(c::DRAM_READ_BYTES),
        8 * 64
    );
}

/// Nanoseconds per access.
fn ns_per_access(config: &Config, addresses: &[u64]) -> f64 {
    let mut machine = Machine::new(config.clone(), PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    for &addr in addresses {
        core.retire(3, 1, 0, 0);
        core.access(shared, addr, 8, AccessKind::Load);
    }
    core.time_ns() as f64 / addresses.len() as f64
}

#[test]
fn a_chase_takes_memory_latency_and_a_scan_its_bandwidth() {
    for config in memgauge_machine::presets() {
        let timing = config.timing;
        let mut at = 1u64;
        let chase: Vec<u64> = std::iter::repeat_with(|| {
            at = at
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            BASE + (at >> 34) / 8 * 8
        })
        .take(100_000)
        .collect();
        let ns = ns_per_access(config, &chase);
        assert!(
            (60.0..140.0).contains(&ns),
            "{}: {ns} ns a chased access",
            config.name
        );

        let scan: Vec<u64> = (0..500_000).map(|n| BASE + 64 * n).collect();
        let bytes_per_s = 64e9 / ns_per_access(config, &scan);
        let core_limit =
            64e9 * f64::from(timing.misses_in_flight) / f64::from(timing.dram_latency_ns);
        let limit = core_limit.min(timing.dram_bytes_per_s as f64);
        assert!(
            (0.4 * limit..=1.01 * limit).contains(&bytes_per_s),
            "{}: {bytes_per_s} of {limit}",
            config.name
        );
    }
}
