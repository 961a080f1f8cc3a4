//! Measures the time that a sample takes from the program, on this machine, with this
//! event.
//!
//! A piece of work that touches new pages, loads, stores and computes is timed on this
//! thread, without the event and with it, by the thread's processor time: other programs
//! that run meanwhile are no part of it. The samples go into a ring that nobody reads
//! meanwhile. The shortest of some rounds each are compared, since all else that
//! happens on the machine (interrupts, cold caches) only makes them longer. Rejected: wall
//! time. On two busy processors a sample seemed to take twice as long as it did
//! (docs/experiments/online.md). An event that the work does not cause
//! (a breakpoint, a tracepoint) is given the cost of a timer's sample.

use std::hint::black_box;
use std::time::Duration;

use super::attributes::is_timer;
use super::open::RequestedEvent;
use crate::sys::perf::{self, EventScope, Ring};
use memgauge_perf::abi::{Attr, flag, kind, software};

/// Many, and short: one of them is likely to run without interruption.
const ROUNDS: usize = 25;
/// Samples a round that tell enough.
const SAMPLES: u64 = 200;
/// A timer's shortest period here, and the one for events that the work does not
/// cause: a tick may take some 15 us itself.
const TIMER_NS: u64 = 50_000;
const RING_PAGES: usize = 64;
/// New memory that the work touches a part of. More than an allocator keeps for
/// itself (32 MiB, glibc's `DEFAULT_MMAP_THRESHOLD_MAX`), so that it is new each
/// time.
const NEW_BYTES: usize = 40 << 20;
const PAGES: usize = 1024;
const PAGE_BYTES: usize = 4096;
const STEPS: u64 = 300_000;

/// The cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleCost {
    /// Nanoseconds of processor time.
    pub ns: f64,
    /// Measured with a timer in the event's stead.
    pub by_timer: bool,
}

/// Measures it; `None` where not even a timer can be sampled.
pub(super) fn measure(request: &RequestedEvent) -> Option<SampleCost> {
    let own = of_attr(&request.built.attr);
    let timer = || {
        let mut attr = request.built.attr;
        (attr.kind, attr.config) = (kind::SOFTWARE, software::CPU_CLOCK);
        (attr.config1, attr.config2, attr.bp_type) = (0, 0, 0);
        attr.flags &= !(flag::FREQ | 3 << flag::PRECISE_SHIFT);
        attr.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
        at_period(&attr, TIMER_NS)
    };
    let cost = |ns, by_timer| SampleCost { ns, by_timer };
    match own {
        Some(ns) => Some(cost(ns, false)),
        None => timer().map(|ns| cost(ns, true)),
    }
}

/// With the event itself, at a period that gives enough samples.
fn of_attr(attr: &Attr) -> Option<f64> {
    let mut counting = *attr;
    counting.flags &= !(flag::FREQ | flag::DISABLED | 3 << flag::PRECISE_SHIFT);
    (counting.period, counting.sample_type, counting.read_format) = (0, 0, 0);
    counting.sample_regs_intr = 0;
    let counter = perf::open(&counting, EventScope::Thread(0), None, None).ok()?;
    work();
    let events = count(&counter)?;
    drop(counter);
    let mut sampled = *attr;
    sampled.flags &= !flag::FREQ;
    let least = if is_timer(attr) { TIMER_NS } else { 1 };
    (events >= SAMPLES).then(|| at_period(&sampled, (events / SAMPLES).max(least)))?
}

fn count(counter: &std::os::fd::OwnedFd) -> Option<u64> {
    let mut word = [0u8; 8];
    let n = perf::read_words(counter, &mut word).ok()?;
    (n == 8).then_some(u64::from_le_bytes(word))
}

fn at_period(attr: &Attr, period: u64) -> Option<f64> {
    let mut attr = *attr;
    attr.period = period;
    attr.flags &= !(flag::DISABLED | flag::INHERIT | flag::ENABLE_ON_EXEC);
    let (mut bare, mut sampled, mut samples) = (Duration::MAX, Duration::MAX, 0);
    for _ in 0..ROUNDS {
        bare = bare.min(work());
        let event = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        let mut ring = Ring::map(&event, RING_PAGES).ok()?;
        let took = work();
        perf::disable(&event).ok()?;
        if took < sampled {
            sampled = took;
            let walk = |a: &[u8], b: &[u8]| {
                memgauge_perf::ring::walk(a, b, &mut Vec::new(), |_, _| {}).records
            };
            samples = ring.drain(walk);
        }
    }
    let more = sampled.saturating_sub(bare).as_nanos() as f64;
    // A timer that is to sample programs alone interrupts the kernel, too, in which this
    // work spends a part of its time: what is divided is the cost of a tick.
    let taken = match is_timer(&attr) {
        true => sampled.as_nanos() as f64 / period as f64,
        false => samples as f64,
    };
    (samples > 0 && more > 0.0).then(|| more / taken)
}

/// Some milliseconds of new pages, loads, stores and arithmetic; their processor time.
fn work() -> Duration {
    let began_ns = perf::own_thread_ns();
    let mut memory = vec![0u8; NEW_BYTES];
    let pages = &mut memory[..PAGES * PAGE_BYTES];
    for page in pages.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    let mut state = 1u64;
    for _ in 0..STEPS {
        state = state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1;
        let at = (state >> 40) as usize % pages.len();
        pages[at] = pages[at].wrapping_add(1);
    }
    black_box(&memory);
    Duration::from_nanos(perf::own_thread_ns() - began_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_touches_new_pages_each_time() {
        let mut attr = Attr::new(kind::SOFTWARE, 2);
        attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
        let Ok(faults) = perf::open(&attr, EventScope::Thread(0), None, None) else {
            return memgauge_testing::skipped(
                memgauge_testing::Need::Kernel,
                "page faults cannot be counted here",
            );
        };
        let mut before = 0;
        for _ in 0..3 {
            work();
            let now = count(&faults).unwrap();
            // One fault of a huge page serves many pages: then timers have to do.
            assert!(now > before, "{before} then {now}");
            before = now;
        }
    }
}
