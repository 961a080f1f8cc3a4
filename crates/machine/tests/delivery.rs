//! Delivery of records that costs time and loses events: figures of the first document, and
//! properties that hold for every program.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use memgauge_machine::pmu::{Interrupt, Precise, Tagged};
use memgauge_machine::{
    AccessKind, Config, Core, Delivered, Delivery, Machine, PmuConfig, SampleSpec, SampledOverflow,
};
use memgauge_trace::{EventId, catalogue as c};
use proptest::prelude::*;

/// 32 MiB, five times the last-level cache.
const LINES: u64 = 512 << 10;

/// Results of one core.
struct Heard {
    overflows: Vec<SampledOverflow>,
    counts: memgauge_machine::Counts,
    delivered: Delivered,
    time_ns: u64,
}

impl Heard {
    /// Events that the records stand for, as a share of `truth`.
    fn share(&self, truth: u64) -> f64 {
        let seen: u64 = self.overflows.iter().map(|o| o.period).sum();
        seen as f64 / truth as f64
    }
}

/// Number of instructions to execute, and the load or store that they make.
type Step = (u32, u64, AccessKind);

fn run(
    delivery: Delivery,
    event: EventId,
    period: u64,
    steps: impl Iterator<Item = Step>,
) -> Heard {
    let pmu = PmuConfig {
        samples: vec![SampleSpec { event, period }],
        interval_ns: None,
        delivery,
    };
    let mut machine = Machine::new(Config::preset("i5-6600k").unwrap(), pmu).unwrap();
    let id = machine.add_core(0);
    let mut overflows = Vec::new();
    let (core, shared) = machine.core_mut(id);
    for (instructions, addr, kind) in steps {
        let store = kind == AccessKind::Store;
        let mut due = core.retire(instructions, u32::from(!store), u32::from(store), 0);
        if Core::crosses_line(addr, 8) || !core.touch(addr, store) {
            due |= core.access(shared, addr, 8, kind).overflow;
        }
        if due {
            core.take_overflows(|o| overflows.push(o));
        }
    }
    machine.finish_core(id);
    let core = machine.core_mut(id).0;
    core.take_overflows(|o| overflows.push(o));
    Heard {
        overflows,
        counts: core.counts(),
        delivered: core.delivered().unwrap_or_default(),
        time_ns: core.time_ns(),
    }
}

/// The document's worst case: loads of consecutive lines and nothing else.
fn worst_case() -> impl Iterator<Item = Step> {
    (0..LINES).map(|line| (1, 0x1000_0000 + line * 64, AccessKind::Load))
}

/// Lines in an order in which the address of a line does not follow from the previous one.
fn chase() -> impl Iterator<Item = Step> {
    (0..LINES / 4).map(|n| {
        let line = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (4, 0x1000_0000 + line * 64 * 67, AccessKind::Load)
    })
}

const PRECISE: Delivery = Delivery::Precise(Precise::DOCUMENT);
const INTERRUPT: Delivery = Delivery::Interrupt(Interrupt::DOCUMENT);

#[track_caller]
fn near(got: f64, expected: f64) {
    assert!((got - expected).abs() < 0.02, "{got} is not {expected}");
}

#[test]
fn recorded_loads_are_the_share_the_document_measured() {
    for (period, share) in [
        (10, 0.7833),
        (50, 0.9294),
        (100, 0.9575),
        (200, 0.9787),
        (1000, 0.9954),
    ] {
        let heard = run(PRECISE, c::LOADS, period, worst_case());
        assert_eq!(heard.counts.get(c::LOADS), LINES, "the counter loses none");
        near(heard.share(LINES), share);
    }
}

#[test]
fn recorded_misses_are_the_share_the_document_measured() {
    for (period, share) in [(10, 0.37), (1000, 0.96)] {
        near(
            run(PRECISE, c::LLC_MISS, period, worst_case()).share(LINES),
            share,
        );
    }
}

#[test]
fn an_activation_loses_up_to_35_misses_in_the_worst_case() {
    let loss = |period| {
        let heard = run(PRECISE, c::LLC_MISS, period, worst_case()).delivered;
        (heard.passed + heard.cleared_lines) as f64 / heard.stops as f64
    };
    assert!((16.0..18.0).contains(&loss(10)), "{}", loss(10));
    assert!((34.0..=35.0).contains(&loss(1000)), "{}", loss(1000));
}

#[test]
fn the_counter_beside_loses_only_what_was_cleared_and_memory_nothing() {
    let heard = run(PRECISE, c::LLC_MISS, 100, worst_case());
    let counted = heard.counts.get(c::LLC_MISS);
    assert_eq!(counted + heard.delivered.cleared_lines, LINES);
    assert_eq!(heard.counts.get(c::DRAM_READ_BYTES), LINES * 64);
    assert_eq!(heard.counts.get(c::L1D_HIT), heard.delivered.cleared_lines);
    let recorded = heard.overflows.len() as u64 * 100;
    let rest = counted - recorded - heard.delivered.passed;
    assert!(rest <= 100, "{rest} events are neither recorded nor lost");
    assert_eq!(rest, heard.delivered.rest);
}

/// Checks that the stalled cycles of all causes add up to the cycles that instructions do not take.
fn check_stalls(heard: &Heard) {
    let causes = [
        c::STALL_IRREGULAR,
        c::STALL_REGULAR,
        c::STALL_WRITEBACKS,
        c::STALL_TLB,
    ];
    let config = Config::preset("i5-6600k").unwrap();
    let per_1000 = u64::from(config.timing.cycles_per_1000_instructions);
    let own = heard.counts.get(c::INSTRUCTIONS) * per_1000 / 1000;
    let stalled = heard.counts.get(c::CYCLES) - own;
    let by_cause: u64 = causes.iter().map(|&event| heard.counts.get(event)).sum();
    // Each cause is rounded down to whole cycles.
    assert!(
        (by_cause..=by_cause + causes.len() as u64).contains(&stalled),
        "{by_cause} of {stalled}"
    );
}

#[test]
fn no_cause_keeps_a_stall_that_a_stop_hid() {
    for (name, delivery) in Delivery::NAMED {
        let heard = run(delivery, c::LLC_MISS, 100, worst_case());
        let hidden = heard.delivered.cleared_lines;
        assert!(hidden > 0 || delivery == Delivery::Ideal, "{name}");
        check_stalls(&heard);
    }
}

#[test]
fn dependent_loads_lose_next_to_nothing() {
    let plain = run(Delivery::Ideal, c::LLC_MISS, 100, chase());
    let truth = plain.counts.get(c::LLC_MISS);
    let heard = run(PRECISE, c::LLC_MISS, 100, chase());
    let loss = truth as f64 / heard.overflows.len() as f64 - 100.0;
    assert!((0.5..2.5).contains(&loss), "{loss}");
}

#[test]
fn interrupts_record_all_that_the_counter_counts() {
    for period in [10, 100, 1000] {
        let heard = run(INTERRUPT, c::LLC_MISS, period, worst_case());
        let counted = heard.counts.get(c::LLC_MISS);
        let recorded = heard.overflows.len() as u64 * period;
        // The interrupt of the last overflow may not have arrived yet.
        assert!(counted - recorded < 2 * period + 32, "{counted} {recorded}");
        assert_eq!(heard.delivered.passed, 0);
        assert_eq!(counted + heard.delivered.cleared_lines, LINES);
    }
}

#[test]
fn interrupts_slow_the_program_more_than_assists() {
    let time = |delivery, period| run(delivery, c::LLC_MISS, period, worst_case()).time_ns as f64;
    let plain = time(Delivery::Ideal, 10);
    let (precise, interrupt) = (time(PRECISE, 10) / plain, time(INTERRUPT, 10) / plain);
    assert!(
        precise > 1.2 && interrupt > 2.0 * precise,
        "{precise} {interrupt}"
    );
    assert!(time(PRECISE, 1000) / plain < 1.05);
}

#[test]
fn records_that_find_the_buffer_full_are_counted() {
    let tiny = Precise {
        buffer_records: 4,
        threshold_records: 4,
        latency_cycles: 100_000,
        ..Precise::DOCUMENT
    };
    let heard = run(Delivery::Precise(tiny), c::LLC_MISS, 10, worst_case());
    assert!(heard.delivered.full > 100 && heard.delivered.swaps > 10);
    assert_eq!(heard.delivered.records, heard.overflows.len() as u64);
    let stops = heard.delivered.records + heard.delivered.full;
    assert_eq!(stops, heard.delivered.stops);
}

#[test]
fn page_misses_are_delivered_too() {
    let pages = || (0..LINES / 8).map(|n| (3, 0x1000_0000 + n * 4096, AccessKind::Load));
    let heard = run(PRECISE, c::DTLB_WALK, 10, pages());
    let lost = heard.delivered.passed + heard.delivered.cleared_pages;
    let counted = heard.counts.get(c::DTLB_WALK);
    assert_eq!(counted + heard.delivered.cleared_pages, LINES / 8);
    assert!(lost > 1000 && heard.share(LINES / 8) < 0.95);
}

#[test]
fn tags_find_each_event_once_a_period() {
    let zen = Delivery::Tagged(Tagged::ZEN4);
    let steps = || (0..LINES).map(|n| (2 + (n % 7) as u32, 0x1000_0000 + n * 64, AccessKind::Load));
    let heard = run(zen, c::LLC_MISS, 256, steps());
    // The share is of all lines. A stop rarely hides lines from the next tag, which comes later.
    let share = heard.share(LINES);
    assert!((share - 1.0).abs() < 0.06, "{share}");
}

#[test]
fn tags_for_events_without_an_access_are_refused() {
    let pmu = PmuConfig {
        samples: vec![SampleSpec {
            event: c::CYCLES,
            period: 1000,
        }],
        delivery: Delivery::Tagged(Tagged::ZEN4),
        ..PmuConfig::default()
    };
    let refused = Machine::new(Config::preset("zen4").unwrap(), pmu).map(|_| ());
    assert_eq!(refused.unwrap_err().field(), "samples[0].event");
}

#[test]
fn parameters_are_data_and_nonsense_is_refused() {
    for (name, delivery) in Delivery::NAMED {
        assert_eq!(Delivery::by_name(name), Some(delivery));
        let text = serde_json::to_string(&delivery).unwrap();
        assert_eq!(serde_json::from_str::<Delivery>(&text).unwrap(), delivery);
    }
    let over = Precise {
        threshold_records: 9,
        buffer_records: 8,
        ..Precise::LINUX
    };
    let pmu = PmuConfig {
        delivery: Delivery::Precise(over),
        ..PmuConfig::default()
    };
    let refused = Machine::new(Config::preset("zen4").unwrap(), pmu).map(|_| ());
    assert_eq!(refused.unwrap_err().field(), "delivery.threshold_records");
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let at = prop_oneof![2 => 0u64..4096, 4 => 0u64..(1 << 20), 4 => 0u64..(1 << 28)];
    let kind = prop_oneof![Just(AccessKind::Load), Just(AccessKind::Store)];
    prop::collection::vec((1u32..40, at, kind), 1..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_delivery_breaks_the_relations_between_events(
        steps in any_steps(),
        period in 1u64..60,
        which in 0usize..c::COUNT,
        way in 1usize..Delivery::NAMED.len(),
    ) {
        let (event, delivery) = (c::ALL[which].0, Delivery::NAMED[way].1);
        let tagged = matches!(delivery, Delivery::Tagged(_));
        prop_assume!(!(tagged && matches!(event, c::INSTRUCTIONS | c::CYCLES | c::LOADS | c::STORES | c::MODIFIES | c::L1D_HIT)));
        let heard = run(delivery, event, period, steps.iter().copied());
        let plain = run(Delivery::Ideal, event, period, steps.iter().copied());
        let get = |e| heard.counts.get(e);
        prop_assert_eq!(get(c::L1D_MISS), get(c::L1D_LOAD_MISS) + get(c::L1D_STORE_MISS));
        prop_assert_eq!(get(c::L1D_MISS), get(c::L2_HIT) + get(c::L2_MISS));
        prop_assert_eq!(get(c::L2_MISS), get(c::LLC_HIT) + get(c::LLC_MISS));
        prop_assert_eq!(get(c::DTLB_MISS), get(c::STLB_HIT) + get(c::DTLB_WALK));
        for memory in [c::DRAM_READ_BYTES, c::DRAM_WRITE_BYTES, c::LOADS, c::INSTRUCTIONS] {
            prop_assert_eq!(get(memory), plain.counts.get(memory));
        }
        let cleared = heard.delivered.cleared_lines;
        prop_assert_eq!(get(c::L1D_MISS) + cleared, plain.counts.get(c::L1D_MISS));
        check_stalls(&heard);
        prop_assert!(heard.overflows.is_sorted_by_key(|o| o.time_ns));
        if !tagged {
            let recorded = heard.overflows.len() as u64 * period;
            prop_assert!(recorded + heard.delivered.passed <= get(event));
        }
    }
}
