//! Measures the CPU time that a sample of an event takes from the program, on this machine.
//!
//! A piece of work that touches new pages, loads, stores and computes is timed on this thread
//! with and without the event. The CPU time of the thread is compared, so other programs that run
//! at the same time are not in it. The samples go into a ring that nobody reads. The shortest of
//! several rounds counts, since everything else that happens on the machine (interrupts, cold
//! caches) only makes a round longer.
//!
//! An event that the work does not cause (a breakpoint, a tracepoint) gets the cost of a timer's
//! sample.
//!
//! Rejected: wall time. On two busy CPUs a sample seemed to take twice as long as it did
//! (docs/experiments/online.md).

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::attributes::is_timer;
use super::open::RequestedEvent;
use crate::sys::perf::{self, EventScope, KernelRing};
use memgauge_perf::abi::{Attr, flag, kind, software};

/// Many short rounds: it is likely that one of them runs without interruption.
const ROUNDS: usize = 25;
/// Number of samples in a round that is enough to distinguish their cost from noise.
const SAMPLES_PER_ROUND: u64 = 200;
/// Minimum period of a timer here, since a tick itself may take 15 µs. Also the period of the
/// timer that replaces events that the work does not cause.
const TIMER_PERIOD_NS: u64 = 50_000;
const RING_PAGES: usize = 64;
/// Size of the memory that the work allocates. An allocator keeps smaller blocks for later
/// (up to 32 MiB, glibc's `DEFAULT_MMAP_THRESHOLD_MAX`), and then their pages are not new.
const ALLOCATED_BYTES: usize = 40 << 20;
/// Number of new pages that the work touches.
const TOUCHED_PAGES: usize = 1024;
const PAGE_BYTES: usize = 4096;
const STEPS: u64 = 300_000;

/// The cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleCost {
    /// Nanoseconds of CPU time.
    pub ns: f64,
    /// True if a timer was measured instead of the event.
    pub by_timer: bool,
}

/// Returns `None` if not even a timer can be sampled.
pub(super) fn measure(request: &RequestedEvent) -> Option<SampleCost> {
    let attr = &request.sampling.attr;
    if let Some(ns) = measure_event(attr) {
        let by_timer = false;
        return Some(SampleCost { ns, by_timer });
    }
    let mut timer = *attr;
    (timer.kind, timer.config) = (kind::SOFTWARE, software::CPU_CLOCK);
    (timer.config1, timer.config2, timer.bp_type) = (0, 0, 0);
    timer.flags &= !(flag::FREQ | 3 << flag::PRECISE_SHIFT);
    timer.flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let ns = measure_at_period(&timer, TIMER_PERIOD_NS)?;
    let by_timer = true;
    Some(SampleCost { ns, by_timer })
}

/// Measures the event itself, at a period that gives enough samples. Returns `None` if the work
/// does not cause enough of its events.
fn measure_event(attr: &Attr) -> Option<f64> {
    let mut counting = *attr;
    counting.flags &= !(flag::FREQ | flag::DISABLED | 3 << flag::PRECISE_SHIFT);
    (counting.period, counting.sample_type, counting.read_format) = (0, 0, 0);
    counting.sample_regs_intr = 0;
    let counter = perf::open(&counting, EventScope::Thread(0), None, None).ok()?;
    work();
    let events = read_count(&counter)?;
    drop(counter);
    if events < SAMPLES_PER_ROUND {
        return None;
    }
    let mut sampled = *attr;
    sampled.flags &= !flag::FREQ;
    let min_period = if is_timer(attr) { TIMER_PERIOD_NS } else { 1 };
    measure_at_period(&sampled, (events / SAMPLES_PER_ROUND).max(min_period))
}

fn read_count(counter: &OwnedFd) -> Option<u64> {
    let mut word = [0u8; 8];
    let n = perf::read_words(counter, &mut word).ok()?;
    (n == 8).then_some(u64::from_le_bytes(word))
}

fn measure_at_period(attr: &Attr, period: u64) -> Option<f64> {
    let mut attr = *attr;
    attr.period = period;
    attr.flags &= !(flag::DISABLED | flag::INHERIT | flag::ENABLE_ON_EXEC);
    let (mut native, mut sampled, mut samples) = (Duration::MAX, Duration::MAX, 0);
    for _ in 0..ROUNDS {
        native = native.min(work());
        let event = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        let mut ring = KernelRing::map(&event, RING_PAGES).ok()?;
        let round = work();
        perf::disable(&event).ok()?;
        if round < sampled {
            sampled = round;
            samples = ring.read_records(|_, _| {}).records;
        }
    }
    let added_ns = sampled.saturating_sub(native).as_nanos() as f64;
    // A timer of user space interrupts the kernel as well, without a sample, and this work spends
    // a part of its time there. So divide by the number of ticks.
    let interruptions = match is_timer(&attr) {
        true => sampled.as_nanos() as f64 / period as f64,
        false => samples as f64,
    };
    (samples > 0 && added_ns > 0.0).then(|| added_ns / interruptions)
}

/// Some milliseconds of new pages, loads, stores and arithmetic. Returns their CPU time.
fn work() -> Duration {
    let began_ns = perf::thread_cpu_time_ns();
    let mut memory = vec![0u8; ALLOCATED_BYTES];
    let pages = &mut memory[..TOUCHED_PAGES * PAGE_BYTES];
    for page in pages.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    let mut state = 1u64;
    for _ in 0..STEPS {
        state = state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1;
        let index = (state >> 40) as usize % pages.len();
        pages[index] = pages[index].wrapping_add(1);
    }
    black_box(&memory);
    Duration::from_nanos(perf::thread_cpu_time_ns() - began_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_touches_new_pages_each_time() {
        /// `PERF_COUNT_SW_PAGE_FAULTS`.
        const PAGE_FAULTS: u64 = 2;
        let mut attr = Attr::new(kind::SOFTWARE, PAGE_FAULTS);
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
            let now = read_count(&faults).unwrap();
            // With huge pages one fault serves many pages. The cost then comes from a timer.
            assert!(now > before, "{before} then {now}");
            before = now;
        }
    }
}
