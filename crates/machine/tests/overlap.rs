//! Loads that overlap, against an instruction-by-instruction pipeline.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use memgauge_machine::{
    AccessKind, Config, LineAccess, LineBytes, LoadId, LoadInFlight, LoadOrder, LoadStart, Machine,
    PmuConfig, TlbConfig,
};
use memgauge_trace::catalogue as c;
use proptest::prelude::*;

const BASE: u64 = 0x5555_5540_0000;

/// A machine without translation, and with more bandwidth than a core can use.
fn machine() -> Config {
    let mut config = Config::preset("zen4").unwrap();
    config.huge_pages = true;
    config.stlb = TlbConfig {
        entries: 4096,
        ways: 16,
    };
    config.timing.dram_bytes_per_s = 1 << 42;
    config.timing.stlb_cycles = 0;
    config.timing.walk_cycles = 0;
    config.timing.instructions_in_flight = 320;
    config.timing.exposed_percent = 100;
    config
}

/// A load of a line that no cache has, some instructions after the one before.
#[derive(Clone, Copy, Debug)]
struct Load {
    instructions: u32,
    /// It needs the load this many loads before it. 0 for none.
    needs: usize,
}

/// Knows which load needs which.
struct KnownOrder<'a> {
    loads: &'a [Load],
    number: usize,
}

impl LoadOrder for KnownOrder<'_> {
    fn id(&self) -> Option<LoadId> {
        Some(LoadId {
            number: self.number as u64,
            line: 0,
        })
    }

    fn start(&mut self, in_flight: &[LoadInFlight]) -> LoadStart {
        let needs = self.loads[self.number].needs;
        let needed = (self.number - needs) as u64;
        let found = in_flight.iter().position(|load| load.id.number == needed);
        found
            .filter(|_| needs > 0)
            .map_or(LoadStart::AtOnce, LoadStart::After)
    }
}

/// Address of a load: a line in no order with the others.
fn address(number: usize) -> u64 {
    let line = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
    BASE + 64 * line
}

/// Returns the stalled and all cycles of the model.
fn model(config: &Config, loads: &[Load]) -> [f64; 2] {
    let mut machine = Machine::new(config.clone(), PmuConfig::default()).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    for (number, load) in loads.iter().enumerate() {
        core.retire(load.instructions, 1, 0, 0);
        let addr = address(number);
        let missed = core.touches().take(addr, false);
        let access = LineAccess {
            addr,
            size: 8,
            kind: AccessKind::Load,
            bytes: LineBytes::of(addr, 8, AccessKind::Load),
        };
        let mut order = KnownOrder { loads, number };
        let mut outcome = Default::default();
        core.supply_line(shared, missed, &access, &mut order, &mut outcome);
    }
    let counts = core.counts();
    let stalled = counts.get(c::STALL_DRAM) + counts.get(c::STALL_QUEUE);
    [stalled, counts.get(c::CYCLES)].map(|cycles| cycles as f64)
}

/// Returns the cycles of a pipeline that dispatches, executes and retires each instruction.
fn pipeline(config: &Config, loads: &[Load]) -> f64 {
    let timing = &config.timing;
    let step = f64::from(timing.cycles_per_1000_instructions) / 1000.0;
    let cycles_per_ns = config.frequency_hz as f64 / 1e9;
    let beyond_l1d =
        f64::from(timing.dram_latency_ns) * cycles_per_ns - f64::from(config.l1d.latency_cycles);
    let window = timing.instructions_in_flight as usize;
    let in_flight = timing.misses_in_flight as usize;
    let mut retired: Vec<f64> = Vec::new();
    let mut arrived: Vec<f64> = Vec::new();
    let mut dispatched = 0.0f64;
    for (number, load) in loads.iter().enumerate() {
        for insn in 1..=load.instructions {
            let room = retired
                .len()
                .checked_sub(window)
                .map_or(0.0, |n| retired[n]);
            dispatched = (dispatched + step).max(room);
            let mut done = dispatched;
            if insn == load.instructions {
                let needed = (load.needs > 0).then(|| arrived[number - load.needs]);
                let buffer = number.checked_sub(in_flight).map(|before| arrived[before]);
                done = done.max(needed.unwrap_or(0.0)).max(buffer.unwrap_or(0.0)) + beyond_l1d;
                arrived.push(done);
            }
            let before = retired.last().copied().unwrap_or(0.0);
            retired.push(done.max(before + step));
        }
    }
    retired.last().copied().unwrap_or(0.0)
}

fn loads(count: usize, instructions: u32, needs: usize) -> Vec<Load> {
    let load = |n: usize| Load {
        instructions,
        needs: needs.min(n),
    };
    (0..count).map(load).collect()
}

#[test]
fn independent_loads_take_the_time_of_one_for_each_window() {
    let config = machine();
    let latency = model(&config, &loads(1, 20, 0))[0];
    // 320 instructions in flight are 16 loads.
    let stalled = model(&config, &loads(1600, 20, 0))[0];
    let windows = stalled / latency;
    assert!((90.0..102.0).contains(&windows), "{windows} windows");
}

#[test]
fn as_many_loads_as_misses_in_flight_take_the_time_of_one() {
    let config = machine();
    let latency = model(&config, &loads(1, 2, 0))[0];
    let count = 100 * config.timing.misses_in_flight as usize;
    let groups = model(&config, &loads(count, 2, 0))[0] / latency;
    assert!((90.0..105.0).contains(&groups), "{groups} groups");
}

#[test]
fn a_chain_of_loads_takes_the_time_of_each() {
    let config = machine();
    let cycles = model(&config, &loads(1000, 10, 1))[1];
    let latency = model(&config, &loads(1, 10, 0))[0];
    let lengths = cycles / latency;
    assert!((998.0..1002.0).contains(&lengths), "{lengths}");
    // Four chains at the same time.
    let of_four = model(&config, &loads(1000, 10, 4))[1] / latency;
    assert!((248.0..260.0).contains(&of_four), "{of_four}");
}

#[test]
fn loads_farther_apart_than_the_window_do_not_overlap() {
    let config = machine();
    let latency = model(&config, &loads(1, 400, 0))[0];
    let stalled = model(&config, &loads(100, 400, 0))[0];
    assert_eq!(stalled.round(), (100.0 * latency).round());
}

proptest! {
    #[test]
    fn time_is_that_of_a_pipeline(
        loads in prop::collection::vec((1u32..120, 0usize..8, any::<bool>()), 50..400),
        window in 40u32..500,
        in_flight in 4u32..40,
    ) {
        let mut config = machine();
        config.timing.instructions_in_flight = window;
        config.timing.misses_in_flight = in_flight;
        let loads: Vec<Load> = loads
            .iter()
            .enumerate()
            .map(|(n, &(instructions, needs, is_free))| Load {
                instructions,
                needs: if is_free { 0 } else { needs.min(n) },
            })
            .collect();
        let [_, cycles] = model(&config, &loads);
        let expected = pipeline(&config, &loads);
        // After a wait, the model executes the instructions that the pipeline executes during it. Each
        // wait is therefore too long by at most the time of the instructions in flight.
        let filled = f64::from(window * config.timing.cycles_per_1000_instructions) / 1000.0;
        let latency = model(&config, &loads[..1])[0];
        let most = expected * (1.0 + filled / latency) * 1.03;
        prop_assert!((0.97 * expected..most).contains(&cycles), "{cycles} instead of {expected}");
    }
}
