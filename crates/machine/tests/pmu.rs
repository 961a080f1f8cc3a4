//! Sampling and series: totals, times, and the fields of records.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use memgauge_machine::{
    AccessKind, Config, Core, Delivery, Machine, PmuConfig, SampleSpec, SampledOverflow,
    SharedLevels, Tick,
};
use memgauge_trace::{DataSource, EventId, catalogue as c};
use proptest::prelude::*;

const BASE: u64 = 0x1000_0000;

/// All overflows and ticks of one core.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    overflows: Vec<SampledOverflow>,
    ticks: Vec<Tick>,
    counts: Vec<u64>,
    time_ns: u64,
}

fn drain(core: &mut Core, heard: &mut Heard) {
    core.take_overflows(|o| heard.overflows.push(o));
    core.take_ticks(|t| heard.ticks.push(t));
}

/// Feeds blocks of one instruction count and one access each.
fn feed(
    core: &mut Core,
    shared: &mut SharedLevels,
    blocks: &[(u32, u64, bool)],
    heard: &mut Heard,
) {
    for (n, &(instructions, at, store)) in blocks.iter().enumerate() {
        let (kind, loads) = if store {
            (AccessKind::Store, 0)
        } else {
            (AccessKind::Load, 1)
        };
        let retire_first = n % 2 == 0;
        let mut due = retire_first && core.retire(instructions, loads, 1 - loads, 0);
        if Core::crosses_line(BASE + at, 8) || !core.touch(BASE + at, store) {
            due |= core.access(shared, BASE + at, 8, kind).overflow;
        }
        due |= !retire_first && core.retire(instructions, loads, 1 - loads, 0);
        if due {
            drain(core, heard);
        }
    }
}

fn run(pmu: PmuConfig, start_ns: u64, blocks: &[(u32, u64, bool)]) -> Heard {
    let mut machine = Machine::new(Config::preset("i5-6600k").unwrap(), pmu).unwrap();
    let id = machine.add_core(start_ns);
    let mut heard = Heard::default();
    let (core, shared) = machine.core_mut(id);
    feed(core, shared, blocks, &mut heard);
    machine.finish_core(id);
    let core = machine.core_mut(id).0;
    drain(core, &mut heard);
    heard.counts = core.counts().to_vec();
    heard.time_ns = core.time_ns();
    heard
}

fn blocks() -> impl Strategy<Value = Vec<(u32, u64, bool)>> {
    let at = prop_oneof![4 => 0u64..4096, 2 => 0u64..(1 << 20), 1 => 0u64..(1 << 28)];
    prop::collection::vec((1u32..40, at, any::<bool>()), 1..800)
}

fn all_sampled(period: u64) -> Vec<SampleSpec> {
    c::ALL
        .iter()
        .map(|e| SampleSpec { event: e.0, period })
        .collect()
}

/// A change of sampling between two stretches of a program.
#[derive(Clone, Copy, Debug)]
enum Change {
    Period(u64),
    Pause,
    GoOn,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        2 => (1u64..200).prop_map(Change::Period),
        1 => Just(Change::Pause),
        1 => Just(Change::GoOn),
    ];
    prop::collection::vec(change, 1..6)
}

/// Reference implementation that counts the overflows of a counter step by step.
#[derive(Clone, Copy)]
struct Told {
    period: u64,
    since: u64,
    paused: bool,
}

impl Told {
    fn change(&mut self, change: Change) {
        match change {
            Change::Period(period) => (self.period, self.since) = (period, 0),
            Change::Pause => self.paused = true,
            Change::GoOn => self.paused = false,
        }
    }

    /// Counts `events` and returns the number of overflows.
    fn count(&mut self, events: u64) -> u64 {
        self.since += if self.paused { 0 } else { events };
        let overflows = self.since / self.period;
        self.since %= self.period;
        overflows
    }
}

fn change(core: &mut Core, change: Change) {
    match change {
        Change::Period(period) => c::ALL
            .iter()
            .for_each(|event| core.set_period(event.0, period)),
        Change::Pause => core.pause_sampling(true),
        Change::GoOn => core.pause_sampling(false),
    }
}

#[test]
fn a_tagged_record_on_its_way_says_the_period_it_was_taken_at_and_none_comes_of_a_pause() {
    let pmu = PmuConfig {
        samples: vec![SampleSpec {
            event: c::L1D_MISS,
            period: 10,
        }],
        delivery: Delivery::by_name("tagged").unwrap(),
        ..PmuConfig::default()
    };
    let mut machine = Machine::new(Config::preset("i5-6600k").unwrap(), pmu).unwrap();
    let id = machine.add_core(0);
    let mut heard = Heard::default();
    let (core, shared) = machine.core_mut(id);
    // Each access is to another line, so all of them miss.
    let mut at = 0;
    let mut stretch = |core: &mut Core, heard: &mut Heard, lines: u64| {
        let blocks: Vec<_> = (at..at + lines).map(|n| (300, n * 64, false)).collect();
        at += lines;
        heard.overflows.clear();
        feed(core, shared, &blocks, heard);
        core.take_overflows(|o| heard.overflows.push(o));
        heard.overflows.iter().map(|o| o.period).collect::<Vec<_>>()
    };
    let first = stretch(core, &mut heard, 10_000);
    // The period counts instructions, so one access in ten is tagged. Half of these accesses were
    // aborted by the stop for the previous tag, are repeated, and then hit.
    assert!((400..=600).contains(&first.len()), "{}", first.len());
    assert!(first.iter().all(|&period| period == 10));
    core.set_period(c::L1D_MISS, 100);
    let second = stretch(core, &mut heard, 10_000);
    let (old, new): (Vec<u64>, Vec<u64>) = second.iter().partition(|&&period| period == 10);
    assert!(old.len() <= 1, "one was on its way: {old:?}");
    let tenth = first.len() / 10;
    assert!(new.len().abs_diff(tenth) < tenth / 2, "{}", new.len());
    assert!(new.iter().all(|&period| period == 100));
    core.pause_sampling(true);
    assert!(stretch(core, &mut heard, 10_000).is_empty());
    core.pause_sampling(false);
    let third = stretch(core, &mut heard, 10_000);
    assert!(third.len().abs_diff(tenth) < tenth / 2, "{}", third.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn periods_change_and_pauses_count_to_the_very_event(
        period in 1u64..200, blocks in blocks(), changes in changes()
    ) {
        let pmu = PmuConfig { samples: all_sampled(period), ..PmuConfig::default() };
        let mut machine = Machine::new(Config::preset("i5-6600k").unwrap(), pmu).unwrap();
        let id = machine.add_core(0);
        let mut told = vec![Told { period, since: 0, paused: false }; c::ALL.len()];
        let mut before = machine.core(id).counts();
        let part = blocks.len() / (changes.len() + 1) + 1;
        for (at, stretch) in blocks.chunks(part).enumerate() {
            let mut heard = Heard::default();
            let (core, shared) = machine.core_mut(id);
            feed(core, shared, stretch, &mut heard);
            let now = core.counts();
            // Everything before the change is sampled with the old settings.
            let next = changes.get(at).copied().unwrap_or(Change::Pause);
            change(core, next);
            drain(core, &mut heard);
            for (told, (event, name, ..)) in told.iter_mut().zip(c::ALL) {
                let gained = now.get(*event) - before.get(*event);
                let expected = told.count(gained);
                let of: Vec<_> = heard.overflows.iter().filter(|o| o.event == *event).collect();
                prop_assert_eq!(of.len() as u64, expected, "{} in stretch {}", name, at);
                prop_assert!(of.iter().all(|o| o.period == told.period));
                told.change(next);
            }
            before = now;
        }
    }

    #[test]
    fn every_event_overflows_once_a_period(period in 1u64..200, blocks in blocks()) {
        let pmu = PmuConfig { samples: all_sampled(period), interval_ns: None, ..PmuConfig::default() };
        let heard = run(pmu, 0, &blocks);
        for (event, name, ..) in c::ALL {
            let overflows = heard.overflows.iter().filter(|o| o.event == *event).count() as u64;
            prop_assert_eq!(overflows, heard.counts[usize::from(event.0)] / period, "{}", name);
        }
        prop_assert!(heard.overflows.is_sorted_by_key(|o| o.time_ns));
    }

    #[test]
    fn ticks_add_up_to_the_counts_and_to_the_time(
        interval_ns in 1u64..5000,
        start_ns in 0u64..100_000,
        blocks in blocks(),
    ) {
        let pmu = PmuConfig { samples: Vec::new(), interval_ns: Some(interval_ns), ..PmuConfig::default() };
        let heard = run(pmu, start_ns, &blocks);
        let mut sum = memgauge_machine::Counts::default();
        heard.ticks.iter().for_each(|t| sum.add(&t.deltas));
        prop_assert_eq!(sum.to_vec(), heard.counts);
        let mut last_ns = start_ns;
        let (end, whole) = heard.ticks.split_last().unwrap();
        for tick in whole {
            prop_assert!(tick.time_ns.is_multiple_of(interval_ns));
            prop_assert_eq!(tick.time_ns - last_ns, tick.interval_ns);
            last_ns = tick.time_ns;
        }
        prop_assert_eq!(end.time_ns, heard.time_ns);
    }

    #[test]
    fn the_same_feed_gives_the_same_records(blocks in blocks()) {
        let pmu = PmuConfig { samples: all_sampled(7), interval_ns: Some(1000), ..PmuConfig::default() };
        prop_assert_eq!(run(pmu.clone(), 5, &blocks), run(pmu, 5, &blocks));
    }

    #[test]
    fn observing_changes_no_count(blocks in blocks()) {
        let pmu = PmuConfig { samples: all_sampled(3), interval_ns: Some(500), ..PmuConfig::default() };
        let plain = run(PmuConfig::default(), 0, &blocks);
        prop_assert_eq!(run(pmu, 0, &blocks).counts, plain.counts);
    }
}

/// Feeds blocks and checks after each whether everything due was reported.
fn check_promptness(period: u64, blocks: &[(u32, u64, bool)]) {
    let pmu = PmuConfig {
        samples: all_sampled(period),
        interval_ns: Some(period * 10),
        ..PmuConfig::default()
    };
    let mut machine = Machine::new(Config::preset("i5-6600k").unwrap(), pmu).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let mut heard = Heard::default();
    for &(instructions, at, store) in blocks {
        let hits_before = core.counts().get(c::L1D_HIT);
        if core.retire(instructions, u32::from(!store), u32::from(store), 0) {
            drain(core, &mut heard);
        }
        let said = |event| heard.overflows.iter().filter(|o| o.event == event).count() as u64;
        for event in [c::INSTRUCTIONS, c::CYCLES, c::LOADS, c::STORES] {
            assert_eq!(
                said(event),
                core.counts().get(event) / period,
                "{}",
                c::name(event).unwrap()
            );
        }
        assert_eq!(said(c::L1D_HIT), hits_before / period);
        let end_ns = heard.ticks.last().map_or(0, |t| t.time_ns);
        assert_eq!(
            end_ns / (period * 10),
            core.time_ns() / (period * 10),
            "the last tick"
        );
        let kind = if store {
            AccessKind::Store
        } else {
            AccessKind::Load
        };
        // The access is wider than a line, so that one block may have several hits.
        if core.access(shared, BASE + at, 200, kind).overflow {
            drain(core, &mut heard);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_due_is_said_with_the_block_that_makes_it_so(period in 1u64..300, blocks in blocks()) {
        check_promptness(period, &blocks);
    }
}

fn sampled(event: EventId, blocks: &[(u32, u64, bool)]) -> Vec<SampledOverflow> {
    let samples = vec![SampleSpec { event, period: 1 }];
    run(
        PmuConfig {
            samples,
            interval_ns: None,
            ..PmuConfig::default()
        },
        0,
        blocks,
    )
    .overflows
}

#[test]
fn a_miss_names_its_access() {
    let found = sampled(
        c::LLC_MISS,
        &[(3, 64, false), (3, 72, false), (3, 640, true)],
    );
    let addresses: Vec<_> = found.iter().map(|o| o.addr).collect();
    assert_eq!(addresses, [Some(BASE + 64), Some(BASE + 640)]);
    let kinds: Vec<_> = found.iter().map(|o| o.kind).collect();
    assert_eq!(kinds, [AccessKind::Load, AccessKind::Store]);
    assert!(
        found
            .iter()
            .all(|o| o.source == DataSource::Dram && o.size_bytes == 8)
    );
    // The latency is 70 ns at 3.5 GHz. The first access also needs a page walk of 30 cycles.
    assert_eq!(found[0].latency_cycles, 245 + 30);
}

#[test]
fn block_events_name_no_access() {
    let found = sampled(c::LOADS, &[(3, 64, false), (3, 64, false)]);
    assert_eq!(found.len(), 2);
    assert!(
        found
            .iter()
            .all(|o| o.addr.is_none() && o.source == DataSource::Unknown)
    );
}

/// Ticks of a core that retires, waits and retires, with its counts.
fn ticks_around_a_wait(until_ns: u64) -> (Vec<memgauge_machine::Tick>, memgauge_machine::Counts) {
    let pmu = PmuConfig {
        samples: Vec::new(),
        interval_ns: Some(1000),
        ..PmuConfig::default()
    };
    let mut machine = Machine::new(Config::preset("zen5").unwrap(), pmu).unwrap();
    let id = machine.add_core(0);
    let core = machine.core_mut(id).0;
    // 9 instructions take a nanosecond, at 0.3 cycles each and 2.7 GHz.
    (0..1125).for_each(|_| {
        core.retire(9, 1, 0, 0);
    });
    core.wait_until(until_ns);
    assert_eq!(core.time_ns(), until_ns);
    (0..1125).for_each(|_| {
        core.retire(9, 1, 0, 0);
    });
    let counts = core.counts();
    let mut ticks = Vec::new();
    machine.finish_core(id);
    machine.core_mut(id).0.take_ticks(|t| ticks.push(t));
    (ticks, counts)
}

fn spans(ticks: &[memgauge_machine::Tick]) -> Vec<(u64, u64)> {
    let span = |t: &memgauge_machine::Tick| (t.time_ns - t.interval_ns, t.time_ns);
    ticks.iter().map(span).collect()
}

#[test]
fn a_wait_lies_between_two_intervals() {
    let (ticks, counts) = ticks_around_a_wait(10_500);
    let expected = [(0, 1000), (1000, 1125), (10_500, 11_000), (11_000, 11_625)];
    assert_eq!(spans(&ticks), expected);
    let sum = |ticks: &[memgauge_machine::Tick], event| -> u64 {
        ticks.iter().map(|t| t.deltas.get(event)).sum()
    };
    for event in [c::INSTRUCTIONS, c::CYCLES, c::LOADS, c::L1D_HIT] {
        assert_eq!(sum(&ticks, event), counts.get(event));
    }
    // All counts from before the wait are in the ticks before it.
    assert_eq!(sum(&ticks[..2], c::LOADS), 1125);
}

#[test]
fn a_wait_within_an_interval_does_not_end_it() {
    let (ticks, _) = ticks_around_a_wait(1_500);
    assert_eq!(spans(&ticks), [(0, 1000), (1000, 2000), (2000, 2625)]);
}

#[test]
fn time_is_instructions_when_all_data_are_near() {
    let mut machine = Machine::new(Config::preset("zen5").unwrap(), PmuConfig::default()).unwrap();
    let id = machine.add_core(123_456_789);
    let core = machine.core_mut(id).0;
    assert_eq!(core.time_ns(), 123_456_789);
    (0..9_000_000).for_each(|_| {
        core.retire(1000, 0, 0, 0);
    });
    // 9 G instructions take a second, at 0.3 cycles each and 2.7 GHz.
    assert_eq!(core.time_ns(), 1_123_456_789);
    assert_eq!(core.counts().get(c::CYCLES), 2_700_000_000);
}

#[test]
fn specs_that_mean_nothing_are_refused() {
    let config = Config::preset("zen5").unwrap();
    let bad = |samples, interval_ns| {
        Machine::new(
            config.clone(),
            PmuConfig {
                samples,
                interval_ns,
                ..PmuConfig::default()
            },
        )
        .err()
        .unwrap()
        .to_string()
    };
    let never = SampleSpec {
        event: c::LOADS,
        period: 0,
    };
    assert_eq!(
        bad(vec![never], None),
        "failed to accept machine `zen5`: samples[0].period `0` is not positive"
    );
    let unknown = SampleSpec {
        event: EventId(999),
        period: 1,
    };
    assert!(bad(vec![unknown], None).contains("`999` is not a catalogued event"));
    assert!(bad(Vec::new(), Some(0)).contains("interval_ns `0`"));
}
