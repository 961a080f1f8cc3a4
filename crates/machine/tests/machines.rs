//! Configurations, and cores that share a machine.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use memgauge_machine::{
    AccessKind, CacheConfig, Config, Core, CoreId, Machine, PmuConfig, Replacement, TlbConfig,
    presets,
};
use memgauge_trace::catalogue as c;

const BASE: u64 = 0x4000_0000;

fn load(machine: &mut Machine, id: CoreId, addr: u64) {
    let (core, shared) = machine.core_mut(id);
    core.retire(1, 1, 0, 0);
    core.access(shared, addr, 8, AccessKind::Load);
}

fn store(machine: &mut Machine, id: CoreId, addr: u64) {
    let (core, shared) = machine.core_mut(id);
    core.retire(1, 0, 1, 0);
    core.access(shared, addr, 8, AccessKind::Store);
}

fn count(machine: &Machine, id: CoreId, event: memgauge_trace::EventId) -> u64 {
    machine.core(id).counts().get(event)
}

fn machine(config: Config) -> Machine {
    Machine::new(config, PmuConfig::default()).unwrap()
}

#[test]
fn presets_are_valid_and_survive_json() {
    for config in presets() {
        config.validate().unwrap();
        let json = serde_json::to_string(config).unwrap();
        assert_eq!(&serde_json::from_str::<Config>(&json).unwrap(), config);
        assert_eq!(Config::preset(&config.name).as_ref(), Some(config));
        assert_eq!(config.to_facts().llc.size_bytes, config.llc.size_bytes);
    }
    assert_eq!(presets().len(), 9);
    assert_eq!(Config::preset("pdp-11"), None);
}

#[test]
fn only_the_core_2_has_no_second_level() {
    for config in presets() {
        let expected = config.name != "core2-x5355";
        assert_eq!(config.has_l2(), expected, "{}", config.name);
        assert_eq!(config.to_facts().has_l2(), expected, "{}", config.name);
    }
}

#[test]
fn a_refusal_names_the_field_and_the_value() {
    let good = Config::preset("zen3").unwrap();
    let check = |config: Config, field: &str, part: &str| {
        let error = config.validate().unwrap_err();
        assert_eq!(error.field(), field);
        assert!(error.to_string().contains(part), "{error}");
    };
    check(
        Config {
            line_bytes: 128,
            ..good.clone()
        },
        "line_bytes",
        "`128`",
    );
    check(
        Config {
            frequency_hz: 0,
            ..good.clone()
        },
        "frequency_hz",
        "`0`",
    );
    let l2 = CacheConfig {
        size_bytes: 1000,
        ..good.l2
    };
    check(Config { l2, ..good.clone() }, "l2.size_bytes", "`1000`");
    let llc = CacheConfig {
        replacement: Replacement::TreePlru,
        ..CacheConfig::fitted(1 << 20, 12, 9)
    };
    check(
        Config {
            llc,
            ..good.clone()
        },
        "llc.ways",
        "tree-plru",
    );
    let l1d = CacheConfig::fitted(32 << 10, 32, 4);
    check(
        Config {
            l1d,
            ..good.clone()
        },
        "l1d.ways",
        "`32`",
    );
    check(
        Config {
            dtlb: TlbConfig {
                entries: 64,
                ways: 5,
            },
            ..good.clone()
        },
        "dtlb.ways",
        "`5`",
    );
    let mut slow = good;
    slow.timing.dram_bytes_per_s = 999_999;
    check(slow, "timing.dram_bytes_per_s", "`999999` is below");
}

#[test]
fn odd_geometries_are_fitted() {
    assert_eq!(CacheConfig::fitted(48 << 10, 12, 4).sets(), 64);
    assert_eq!(CacheConfig::fitted(30 << 20, 12, 4).sets(), 40960);
    assert_eq!(CacheConfig::fitted(1000, 3, 4).size_bytes, 960);
    assert_eq!(CacheConfig::fitted(0, 0, 4).size_bytes, 64);
    assert_eq!(
        TlbConfig::fitted(72, 0),
        TlbConfig {
            entries: 72,
            ways: 72
        }
    );
    assert_eq!(
        TlbConfig::fitted(65, 4),
        TlbConfig {
            entries: 64,
            ways: 4
        }
    );
}

#[test]
fn cores_share_the_last_level_only() {
    let mut m = machine(Config::preset("zen5").unwrap());
    let (a, b) = (m.add_core(0), m.add_core(0));
    load(&mut m, a, BASE);
    load(&mut m, b, BASE);
    assert_eq!(count(&m, a, c::LLC_MISS), 1);
    assert_eq!((count(&m, b, c::L2_MISS), count(&m, b, c::LLC_HIT)), (1, 1));
}

#[test]
fn equal_addresses_in_two_spaces_are_two_lines() {
    let mut m = machine(Config::preset("zen5").unwrap());
    let (a, b) = (m.add_core_in(0, 1), m.add_core_in(0, 2));
    load(&mut m, a, BASE);
    load(&mut m, b, BASE);
    assert_eq!(
        (count(&m, a, c::LLC_MISS), count(&m, b, c::LLC_MISS)),
        (1, 1)
    );
}

/// A last level of four lines below larger private caches.
fn inclusive() -> Config {
    let good = Config::preset("i5-6600k").unwrap();
    Config {
        llc: CacheConfig {
            size_bytes: 256,
            ways: 4,
            ..good.llc
        },
        ..good
    }
}

#[test]
fn an_inclusive_last_level_recalls_lines_from_other_cores() {
    for others in [4u64, 10_000] {
        let mut m = machine(inclusive());
        let (a, b) = (m.add_core(0), m.add_core(0));
        store(&mut m, a, BASE);
        (1..=others).for_each(|n| load(&mut m, b, BASE + 64 * n));
        load(&mut m, a, BASE);
        assert_eq!(count(&m, a, c::L1D_MISS), 2, "the line was recalled");
        assert_eq!(count(&m, a, c::DRAM_WRITE_BYTES), 64, "and was dirty");
    }
}

#[test]
fn a_line_fetched_again_is_not_recalled() {
    let mut m = machine(inclusive());
    let (a, b) = (m.add_core(0), m.add_core(0));
    load(&mut m, a, BASE);
    (1..=4).for_each(|n| load(&mut m, b, BASE + 64 * n));
    load(&mut m, b, BASE);
    load(&mut m, a, BASE);
    assert_eq!(count(&m, a, c::L1D_MISS), 1);
}

#[test]
fn a_removed_core_leaves_its_dirty_lines_to_the_last_level() {
    let config = Config {
        inclusive_llc: false,
        ..inclusive()
    };
    let mut m = machine(config);
    let (a, b) = (m.add_core(0), m.add_core(0));
    (0..8).for_each(|n| store(&mut m, a, BASE + 64 * n));
    assert_eq!(count(&m, a, c::DRAM_WRITE_BYTES), 0);
    assert!(m.remove_core(a) && !m.remove_core(a));
    // Four of the eight lines fit into the last level and replace four clean lines.
    assert_eq!(m.unattributed_write_bytes(), 4 * 64);
    (100..104).for_each(|n| load(&mut m, b, BASE + 64 * n));
    assert_eq!(count(&m, b, c::DRAM_WRITE_BYTES), 4 * 64);
}

#[test]
fn cores_that_run_together_share_memory_bandwidth() {
    let mut config = Config::preset("zen5").unwrap();
    config.timing.dram_bytes_per_s = 10_000_000_000;
    let bytes_per_s = |cores: u64| {
        let mut m = machine(config.clone());
        let ids: Vec<CoreId> = (0..cores).map(|_| m.add_core(0)).collect();
        for n in 0..40_000 {
            ids.iter()
                .zip(0..)
                .for_each(|(&id, k)| load(&mut m, id, BASE + (k << 32) + 64 * n));
        }
        (cores * 40_000 * 64) as f64 / (m.core(ids[0]).time_ns() as f64 / 1e9)
    };
    for cores in [1, 4] {
        let rate = bytes_per_s(cores);
        assert!(
            (9.5e9..10.05e9).contains(&rate),
            "{rate} bytes/s with {cores} cores"
        );
    }
}

/// Length of the intervals of [`eight_cores`].
const INTERVAL_NS: u64 = 20_000;

/// Eight cores with series, and the maximum number of bytes that memory moves in an interval. The
/// lines of a window, and one more line per core, may be reserved ahead.
fn eight_cores() -> (Machine, Vec<CoreId>, u64) {
    let config = Config::preset("i5-6600k").unwrap();
    let rate = config.timing.dram_bytes_per_s;
    let pmu = PmuConfig {
        interval_ns: Some(INTERVAL_NS),
        ..PmuConfig::default()
    };
    let mut m = Machine::new(config, pmu).unwrap();
    let ids = (0..8).map(|_| m.add_core(0)).collect();
    let limit = rate * INTERVAL_NS / 1_000_000_000 + (40 + 8) * 64;
    (m, ids, limit)
}

/// Batches of 2000 lines arrive per core, so that each core is first far ahead of the others and
/// then far behind.
#[test]
fn no_interval_moves_more_than_memory_can_however_batches_arrive() {
    let (mut m, ids, limit) = eight_cores();
    for batch in 0..40 {
        for (&id, k) in ids.iter().zip(0..) {
            let lines = batch * 2_000..(batch + 1) * 2_000;
            lines.for_each(|n| load(&mut m, id, BASE + (k << 32) + 64 * n));
        }
    }
    let mut moved = std::collections::BTreeMap::<u64, u64>::new();
    let mut note = |tick: memgauge_machine::Tick| {
        let bytes = tick.deltas.get(c::DRAM_READ_BYTES);
        // Several ticks of a core may end in one interval of the machine's last core.
        *moved.entry(tick.time_ns.div_ceil(INTERVAL_NS)).or_default() += bytes;
    };
    for &id in &ids {
        m.finish_core(id);
        m.core_mut(id).0.take_ticks(&mut note);
    }
    assert_eq!(moved.values().sum::<u64>(), 8 * 80_000 * 64);
    let most = moved.values().max().copied().unwrap();
    assert!(most <= limit, "{most} bytes of {limit}");
}

/// Four cores use all memory bandwidth from 115 to 150 µs. Four others reach that time later and
/// find room only after it. Their transfers before this stall must not be spread over it.
#[test]
fn no_interval_moves_more_than_memory_can_where_cores_stall_for_longer_than_one() {
    let (mut m, ids, limit) = eight_cores();
    for (&id, k) in ids.iter().zip(0..) {
        let (start_ns, lines) = if k < 4 { (115_000, 4_550) } else { (0, 20_000) };
        m.core_mut(id).0.begin_at(start_ns);
        (0..lines).for_each(|n| load(&mut m, id, BASE + (k << 32) + 64 * n));
    }
    let mut moved = std::collections::BTreeMap::<u64, f64>::new();
    let (mut all, mut stalls) = (0, 0);
    let mut note = |tick: memgauge_machine::Tick| {
        let bytes = tick.deltas.get(c::DRAM_READ_BYTES);
        all += bytes;
        stalls += usize::from(tick.interval_ns >= INTERVAL_NS && bytes < 10 * 64);
        let (end, mut at) = (tick.time_ns, tick.time_ns - tick.interval_ns);
        while at < end {
            let next = end.min((at / INTERVAL_NS + 1) * INTERVAL_NS);
            let part = (next - at) as f64 / tick.interval_ns as f64;
            *moved.entry(at / INTERVAL_NS).or_default() += part * bytes as f64;
            at = next;
        }
    };
    for &id in &ids {
        m.finish_core(id);
        m.core_mut(id).0.take_ticks(&mut note);
    }
    assert_eq!(all, (4 * 4_550 + 4 * 20_000) * 64);
    assert!(stalls > 0, "nobody stalled");
    let most = moved.values().copied().fold(0.0, f64::max);
    assert!(most <= limit as f64, "{most} bytes of {limit}: {moved:?}");
}

#[test]
fn a_wait_is_idle_time_and_no_event_counts_it() {
    let mut m = machine(Config::preset("zen3").unwrap());
    let id = m.add_core(0);
    m.core_mut(id).0.begin_at(5_000);
    (0..100).for_each(|n| load(&mut m, id, BASE + 64 * n));
    let (before_ns, cycles) = (m.core(id).time_ns(), count(&m, id, c::CYCLES));
    m.core_mut(id).0.wait_until(before_ns + 1_000);
    m.core_mut(id).0.wait_until(before_ns);
    assert!(before_ns > 5_000);
    assert!(m.core(id).time_ns().abs_diff(before_ns + 1_000) <= 1);
    assert!(m.core(id).idle_ns().abs_diff(1_000) <= 1);
    assert_eq!(count(&m, id, c::CYCLES), cycles);
}

#[test]
fn a_presets_name_with_other_values_is_told() {
    let mut config = Config::preset("zen4").unwrap();
    assert!(!config.is_modified());
    config.prefetch.stride = true;
    assert!(!config.is_modified());
    config.timing.dram_latency_ns += 1;
    assert!(config.is_modified() && config.to_facts().modified);
    config.name = "mine".to_owned();
    assert!(!config.is_modified());
}

#[test]
fn a_core_far_behind_does_not_wait_for_one_ahead() {
    let mut m = machine(Config::preset("zen5").unwrap());
    let (ahead, behind) = (m.add_core(50_000_000), m.add_core(0));
    (0..10_000).for_each(|n| load(&mut m, ahead, BASE + 64 * n));
    (0..10_000).for_each(|n| load(&mut m, behind, BASE + (1 << 32) + 64 * n));
    assert!(m.core(behind).time_ns() < 1_000_000);
}

#[test]
fn an_access_that_ends_at_the_line_does_not_cross_it() {
    assert!(!Core::crosses_line(56, 8) && Core::crosses_line(57, 8));
    assert!(!Core::crosses_line(63, 0) && Core::crosses_line(0, 65));
}
