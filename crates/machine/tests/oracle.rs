//! Compares the fast machine with its slow twin on random streams and geometries. Every counter
//! must be equal.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

mod twin;

use std::ops::Range;
use std::sync::Arc;

use memgauge_machine::{
    AccessKind, AccessOutcome, CacheConfig, Config, Core, CoreId, Counts, Machine, Missed,
    NO_ACCESS, PmuConfig, Prefetch, Replacement, SampleSpec, SampledOverflow, SharedLevels,
    TlbConfig,
};
use memgauge_trace::{EventId, catalogue as c};
use proptest::prelude::*;
use twin::{Peers, TwinCore, TwinLlc, TwinSharing};

/// One access of a stream.
#[derive(Clone, Copy, Debug)]
struct Op {
    core: usize,
    addr: u64,
    size: u32,
    kind: AccessKind,
    /// True if the block is counted before its access.
    retire_first: bool,
    /// True to try the quick path first.
    quick: bool,
    /// True for a prefetch of the address instead of an access.
    prefetches: bool,
}

fn kinds() -> impl Strategy<Value = AccessKind> {
    use AccessKind::{Load, Modify, Store};
    prop_oneof![4 => Just(Load), 2 => Just(Store), 1 => Just(Modify)]
}

/// Addresses in few pages, some far apart and equal in their low bits, some
/// repeated word by word.
fn addresses() -> impl Strategy<Value = u64> {
    let base = prop_oneof![
        Just(0u64),
        Just(0x5555_0000_0000),
        Just(0x7fff_ff00_0000),
        Just(1 << 21)
    ];
    let offset =
        prop_oneof![3 => 0u64..1024, 3 => 0u64..0x8000, 1 => (0u64..64).prop_map(|n| n * 4032)];
    (base, offset).prop_map(|(base, offset)| base + offset)
}

fn ops(cores: usize) -> impl Strategy<Value = Vec<Op>> {
    let size = prop_oneof![8 => Just(8u32), 2 => 0u32..70, 1 => 100u32..6000];
    let op = (
        0..cores,
        addresses(),
        size,
        kinds(),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(core, addr, size, kind, retire_first, quick, prefetches)| Op {
                core,
                addr,
                size,
                kind,
                retire_first,
                quick,
                prefetches,
            },
        );
    let op = op.boxed();
    // Runs over an array, so that patterns and latest lines occur too.
    let run = (op.clone(), 1u64..200, 1usize..12).prop_map(|(op, step, times)| {
        (0..times)
            .map(|n| Op {
                addr: op.addr + step * n as u64,
                ..op
            })
            .collect::<Vec<_>>()
    });
    let one = op.prop_map(|op| vec![op]);
    prop::collection::vec(prop_oneof![one, run], 1..300).prop_map(|runs| runs.concat())
}

fn cache(sets: std::ops::Range<u64>, most_ways: u32) -> impl Strategy<Value = CacheConfig> {
    (sets, 1..=most_ways, any::<bool>()).prop_map(|(sets, ways, tree)| {
        let (replacement, ways) = match tree {
            true => (Replacement::TreePlru, ways.next_power_of_two().min(32)),
            false => (Replacement::Lru, ways),
        };
        CacheConfig {
            size_bytes: sets * u64::from(ways) * 64,
            ways,
            replacement,
            latency_cycles: 4,
        }
    })
}

fn tlb() -> impl Strategy<Value = TlbConfig> {
    (1u32..5, 1u32..20).prop_map(|(sets, ways)| TlbConfig {
        entries: sets * ways,
        ways,
    })
}

fn configs() -> impl Strategy<Value = Config> {
    let caches = (cache(1..6, 12), cache(1..8, 16), cache(1..10, 24));
    (caches, tlb(), tlb(), any::<[bool; 4]>()).prop_map(|((l1d, l2, llc), dtlb, stlb, flags)| {
        let prefetch = Prefetch {
            next_line: flags[1],
            stride: flags[2],
        };
        let zen = Config::preset("zen5").unwrap();
        Config {
            l1d,
            l2,
            llc,
            dtlb,
            stlb,
            inclusive_llc: flags[0],
            huge_pages: flags[3],
            prefetch,
            ..zen
        }
    })
}

fn retire(core: &mut Core, op: &Op) {
    if op.prefetches {
        core.retire(5, 0, 0, 0);
        return;
    }
    let loads = u32::from(op.kind != AccessKind::Store);
    let stores = u32::from(op.kind != AccessKind::Load);
    core.retire(5, loads, stores, loads & stores);
}

/// Returns true if the quick paths completed the access. First touches [`NO_ACCESS`], as an entry
/// without an access does.
fn feed_quickly(core: &mut Core, op: &Op, store: bool) -> bool {
    if !core.touch(NO_ACCESS, false) {
        assert!(core.touches().take(NO_ACCESS, false).is_nothing());
        assert!(core.touch(NO_ACCESS, false));
    }
    match Core::crosses_line(op.addr, op.size) {
        false => core.touch(op.addr, store),
        true => op.size <= 64 && feed_split(core, op, store),
    }
}

fn feed_split(core: &mut Core, op: &Op, store: bool) -> bool {
    let hit = core.touches().touch_split(op.addr, op.size, store);
    if hit {
        core.count_split();
    }
    hit
}

fn prefetch(core: &mut Core, shared: &mut SharedLevels, addr: u64) -> AccessOutcome {
    let missed = core.look_up_prefetch(addr);
    match missed.is_nothing() {
        true => AccessOutcome::default(),
        false => core.prefetch(shared, missed, addr),
    }
}

/// Feeds an access as a front end does.
fn feed(core: &mut Core, shared: &mut SharedLevels, op: &Op) -> AccessOutcome {
    if op.retire_first {
        retire(core, op);
    }
    let store = op.kind != AccessKind::Load;
    let outcome = if op.prefetches {
        prefetch(core, shared, op.addr)
    } else if op.quick && feed_quickly(core, op, store) {
        AccessOutcome::default()
    } else {
        core.access(shared, op.addr, op.size, op.kind)
    };
    if !op.retire_first {
        retire(core, op);
    }
    outcome
}

const STALL_CAUSES: [EventId; 4] = [
    c::STALL_IRREGULAR,
    c::STALL_REGULAR,
    c::STALL_WRITEBACKS,
    c::STALL_TLB,
];

const STALL_LEVELS: [EventId; 7] = [
    c::STALL_L2,
    c::STALL_LLC,
    c::STALL_DRAM,
    c::STALL_QUEUE,
    c::STALL_STORES,
    c::STALL_SHARING,
    c::STALL_TLB,
];

/// Checks that the stalls by cause, and those by what the core waited for, each add up to the
/// cycles that instructions do not take.
fn check_stalls(config: &Config, counts: &Counts) {
    let per_1000 = u64::from(config.timing.cycles_per_1000_instructions);
    let own = counts.get(c::INSTRUCTIONS) * per_1000 / 1000;
    let sum = |events: &[EventId]| -> u64 { events.iter().map(|&event| counts.get(event)).sum() };
    let stalled = sum(&STALL_CAUSES);
    let expected = counts.get(c::CYCLES) - own;
    // Each cause is rounded down to whole cycles.
    assert!(
        (stalled..=stalled + 4).contains(&expected),
        "{stalled} of {expected}"
    );
    let by_level = sum(&STALL_LEVELS);
    assert!(
        (by_level..=by_level + 7).contains(&expected),
        "{by_level} of {expected}"
    );
}

/// Checks that the stalls of all accesses add up to those of the cores. Only writebacks of lines that an
/// inclusive last-level cache took from a core's caches belong to no access.
fn check_outcomes_have_all_stalls(
    config: &Config,
    machine: &Machine,
    ids: &[CoreId],
    millicycles: u64,
) {
    let by_core = ids.iter().map(|&id| {
        let counts = machine.core(id).counts();
        STALL_CAUSES
            .iter()
            .map(|&event| counts.get(event))
            .sum::<u64>()
    });
    let counted: u64 = by_core.sum();
    let of_accesses = millicycles / 1000;
    let rounding = 4 * ids.len() as u64;
    assert!(
        of_accesses <= counted + rounding,
        "{of_accesses} of {counted}"
    );
    if !config.inclusive_llc || ids.len() == 1 {
        assert!(of_accesses >= counted, "{of_accesses} of {counted}");
    }
}

fn check(config: &Config, ops: &[Op], cores: usize, is_coherent: bool) {
    check_with_huge_pages(config, ops, cores, is_coherent, &[]);
}

/// As [`check`], with these ranges in huge pages.
fn check_with_huge_pages(
    config: &Config,
    ops: &[Op],
    cores: usize,
    is_coherent: bool,
    huge: &[Range<u64>],
) {
    let mut machine = Machine::new(config.clone(), PmuConfig::default()).unwrap();
    let mut sharing = is_coherent.then(TwinSharing::default);
    if is_coherent {
        machine.keep_coherent();
    }
    let mut running = 0;
    let ids: Vec<CoreId> = (0..cores).map(|_| machine.add_core(0)).collect();
    let mut twins: Vec<TwinCore> = (0..cores).map(|_| TwinCore::new(config)).collect();
    let ranges: Arc<[Range<u64>]> = huge.into();
    for (id, twin) in ids.iter().zip(&mut twins) {
        machine.core_mut(*id).0.use_huge_pages(&ranges);
        twin.huge = huge.to_vec();
    }
    let mut llc = TwinLlc::new(config);
    let mut seen = [0u64; 7];
    let mut stalled = 0;
    // Lines with a requested report of their next use.
    let mut fresh = std::collections::BTreeSet::new();
    for (op, n) in ops.iter().zip(0u64..) {
        if op.core != running {
            let (core, shared) = machine.core_mut(ids[running]);
            core.end_turn(shared);
            let (twin, mut peers) = Peers::split(&mut twins, running, sharing.as_mut());
            twin.end_turn(&mut peers);
            running = op.core;
        }
        let (core, shared) = machine.core_mut(ids[op.core]);
        if n % 5 == 0 {
            // A few lines, or more lines than a first level has.
            let start = op.addr / 64 * 64;
            let end = start + 64 * if n % 2 == 0 { 3 } else { 5000 };
            core.report_first_use(shared, start..end);
            fresh.extend((start..end).step_by(64));
        }
        let out = feed(core, shared, op);
        let last = op.addr.saturating_add(u64::from(op.size.max(1) - 1));
        let lines = op.addr / 64..=last / 64;
        let is_use = |line: &u64| !op.prefetches && fresh.remove(&(line * 64));
        let is_first = lines.filter(is_use).count() > 0;
        assert!(!is_first || out.l1d_misses > 0 || out.first_use, "{op:?}");
        assert!(is_first || !out.first_use || cores > 1, "{op:?}");
        let (twin, mut peers) = Peers::split(&mut twins, op.core, sharing.as_mut());
        twin.retire(5);
        match op.prefetches {
            true => twin.prefetch(&mut llc, op.addr),
            false => twin.access(&mut llc, op.addr, op.size, op.kind, &mut peers),
        }
        let gained = [
            out.l1d_misses,
            out.l2_misses,
            out.llc_misses,
            out.dtlb_misses,
            out.walks,
        ];
        seen.iter_mut()
            .zip(gained)
            .for_each(|(sum, by)| *sum += u64::from(by));
        seen[5] += u64::from(out.dram_read_bytes);
        seen[6] += u64::from(out.dram_write_bytes);
        stalled += out.stalled.sum();
    }
    check_outcomes_have_all_stalls(config, &machine, &ids, stalled);
    for (id, twin) in ids.iter().zip(&twins) {
        let counts = machine.core(*id).counts();
        let untimed = counts
            .iter()
            .filter(|(event, _)| *event != c::CYCLES)
            .filter(|(event, _)| !STALL_CAUSES.contains(event) && !STALL_LEVELS.contains(event));
        for (event, value) in untimed {
            assert_eq!(value, twin.get(event), "{}", c::name(event).unwrap());
        }
        check_stalls(config, &counts);
    }
    let charged = [
        c::L1D_MISS,
        c::L2_MISS,
        c::LLC_MISS,
        c::DTLB_MISS,
        c::DTLB_WALK,
        c::DRAM_READ_BYTES,
        c::DRAM_WRITE_BYTES,
    ];
    let totals = charged.map(|event| twins.iter().map(|t| t.get(event)).sum::<u64>());
    assert_eq!(seen, totals, "outcomes add up to the counters");
}

/// Supplies what the first level missed, by the shortcut if the operation is to be `quick`.
fn supply(core: &mut Core, shared: &mut SharedLevels, waiting: &mut Vec<(Op, Missed)>) {
    for (op, mut missed) in waiting.drain(..) {
        retire(core, &op);
        if op.quick && !op.prefetches && !missed.is_nothing() {
            match core.supply_from_l2(shared, missed, op.addr, op.kind) {
                Ok(_) => continue,
                Err(left) => missed = left,
            }
        }
        if missed.is_nothing() {
        } else if op.prefetches {
            core.prefetch(shared, missed, op.addr);
        } else {
            core.supply(shared, missed, op.addr, op.size, op.kind);
        }
    }
}

/// Counts and overflows of one core whose first level is fed up to `ahead` accesses ahead.
fn counts_ahead(
    config: &Config,
    ops: &[Op],
    ahead: usize,
    samples: &[SampleSpec],
) -> (Vec<(EventId, u64)>, Vec<SampledOverflow>) {
    let pmu = PmuConfig {
        samples: samples.to_vec(),
        ..PmuConfig::default()
    };
    let mut machine = Machine::new(config.clone(), pmu).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let mut waiting = Vec::new();
    for op in ops {
        if waiting.len() >= ahead || Core::crosses_line(op.addr, op.size) {
            supply(core, shared, &mut waiting);
        }
        if op.prefetches {
            waiting.push((*op, core.look_up_prefetch(op.addr)));
            continue;
        }
        if Core::crosses_line(op.addr, op.size) {
            retire(core, op);
            core.access(shared, op.addr, op.size, op.kind);
            continue;
        }
        let (mut touches, store) = (core.touches(), op.kind != AccessKind::Load);
        let missed = match touches.touch(op.addr, store) {
            true => Missed::NOTHING,
            false => touches.take(op.addr, store),
        };
        waiting.push((*op, missed));
    }
    supply(core, shared, &mut waiting);
    let mut overflows = Vec::new();
    core.take_overflows(|overflow| overflows.push(overflow));
    (core.counts().iter().collect(), overflows)
}

/// Events of the misses that the shortcut supplies, and others.
fn samples() -> impl Strategy<Value = Vec<SampleSpec>> {
    let events = vec![
        c::L1D_MISS,
        c::L1D_LOAD_MISS,
        c::L1D_STORE_MISS,
        c::L1D_WRITEBACK,
        c::L2_HIT,
        c::L2_MISS,
        c::L1D_CONFLICT,
        c::STALL_L2,
        c::DTLB_MISS,
    ];
    let event = proptest::sample::select(events);
    let sample = (event, 1u64..20).prop_map(|(event, period)| SampleSpec { event, period });
    proptest::collection::vec(sample, 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn feeding_the_first_level_ahead_changes_nothing(config in configs(), ops in ops(1)) {
        let config = Config { inclusive_llc: false, ..config };
        let counts = |ahead| counts_ahead(&config, &ops, ahead, &[]).0;
        prop_assert_eq!(counts(1), counts(100));
    }

    #[test]
    fn the_shortcut_for_second_level_hits_changes_nothing(
        config in configs(),
        ops in ops(1),
        samples in samples(),
    ) {
        let config = Config { inclusive_llc: false, ..config };
        let with_shortcut = |quick| {
            let ops: Vec<Op> = ops.iter().map(|op| Op { quick: quick && op.quick, ..*op }).collect();
            counts_ahead(&config, &ops, 1, &samples)
        };
        prop_assert_eq!(with_shortcut(true), with_shortcut(false));
    }

    #[test]
    fn one_core_counts_as_its_twin(config in configs(), ops in ops(1)) {
        check(&config, &ops, 1, false);
    }

    #[test]
    fn cores_share_the_last_level_as_their_twins(config in configs(), ops in ops(3)) {
        check(&Config { inclusive_llc: false, ..config }, &ops, 3, false);
    }

    #[test]
    fn coherent_cores_count_as_their_twins(config in configs(), mut ops in ops(3)) {
        // The directory does not know of prefetched copies.
        let config = Config {
            inclusive_llc: false,
            prefetch: Prefetch::default(),
            ..config
        };
        ops.iter_mut().for_each(|op| op.prefetches = false);
        check(&config, &ops, 3, true);
    }

    #[test]
    fn some_pages_may_be_huge(
        config in configs(),
        ops in ops(1),
        huge in prop::sample::subsequence(vec![0u64, 1, 0x5555_0000_0000 >> 21, 0x7fff_ff00_0000 >> 21], 0..4),
    ) {
        let huge: Vec<Range<u64>> = huge.into_iter().map(|page| page << 21..(page + 1) << 21).collect();
        check_with_huge_pages(&config, &ops, 1, false, &huge);
    }
}

// Fewer cases, because caches of full size take long to build.
proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn full_size_tlb_and_first_level_count_as_their_twins(
        jumps in prop::collection::vec((0u64..2000, any::<bool>()), 1..3000),
        name in prop::sample::select(vec!["zen5", "opteron-6128", "icelake-sp"]),
    ) {
        let config = Config::preset(name).unwrap();
        let op = |(n, quick): (u64, bool)| {
            let addr = (n % 150) * 4096 * 7 + n % 64 * 64;
            Op { core: 0, addr, size: 8, kind: AccessKind::Load, retire_first: true, quick, prefetches: false }
        };
        check(&config, &jumps.into_iter().map(op).collect::<Vec<_>>(), 1, false);
    }

    /// Columns of a matrix, with accesses to other places in between.
    #[test]
    fn lines_in_few_sets_count_as_their_twins(
        rows in 20u64..200,
        pitch_lines in prop::sample::select(vec![8u64, 16, 63, 64, 65, 128]),
        columns in 20u64..60,
        name in prop::sample::select(vec!["zen4", "zen5", "opteron-6128"]),
        others in prop::collection::vec((0u64..4000, 0u64..100_000), 0..2000),
    ) {
        let config = Config::preset(name).unwrap();
        let op = |addr| Op {
            core: 0,
            addr,
            size: 8,
            kind: AccessKind::Load,
            retire_first: true,
            quick: true,
            prefetches: false,
        };
        let accesses = (0..columns).flat_map(|j| (0..rows).map(move |i| i * pitch_lines * 64 + j * 8));
        let mut accesses: Vec<Op> = accesses.map(op).collect();
        for (at, line) in others {
            accesses.insert(at as usize % accesses.len(), op((1 << 30) + line * 64));
        }
        check(&config, &accesses, 1, false);
    }
}
