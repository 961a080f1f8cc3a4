//! Measures the cost of the timer's tick without any output: the part of the overhead
//! that no collector can avoid.
//!
//! The same piece of work is timed without and with a timer event on this thread that
//! nobody reads. The shortest of several rounds each are compared, since everything
//! else that happens on the machine only makes them longer.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::SHORTEST_INTERVAL_NS;
use crate::counters::READ_FORMAT;
use crate::sys::perf::{self, EventScope, Ring};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::ring::walk;

const INTERVAL_NS: u64 = 50_000;
const ROUNDS: usize = 6;
/// Steps of the work; about 20 ms.
const STEPS: u64 = 20_000_000;
/// The same where it has to be quick: about a millisecond, and enough ticks in it.
const QUICK_STEPS: u64 = 1_000_000;
const QUICK_INTERVAL_NS: u64 = 20_000;
const QUICK_RING_PAGES: usize = 8;
/// Some of the kernel's own ticks, at which it starts again what it has stopped.
const TRIED: Duration = Duration::from_millis(30);

/// Nanoseconds that a tick takes from the program; `None` where the timer cannot
/// be opened.
pub(super) fn tick_ns() -> Option<f64> {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = INTERVAL_NS;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let (mut bare, mut timed) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        bare = bare.min(work());
        let timer = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        timed = timed.min(work());
        drop(timer);
    }
    let ticks = timed.as_nanos() as f64 / INTERVAL_NS as f64;
    Some(timed.saturating_sub(bare).as_nanos() as f64 / ticks)
}

/// Time of a tick that leaves a sample, as those of a series do, in nanoseconds; `None`
/// where the timer cannot be opened or its cost is lost in noise. It takes some 15 ms, so that it can be done before
/// each run. Other work on the machine makes it uncertain by a tenth or two.
pub(crate) fn sampled_tick_ns() -> Option<f64> {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = QUICK_INTERVAL_NS;
    attr.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::READ;
    attr.read_format = READ_FORMAT;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let mut still = attr;
    (still.period, still.sample_type) = (0, 0);
    let (mut bare_ns, mut rounds) = (u64::MAX, Vec::new());
    for _ in 0..ROUNDS {
        let clock = perf::open(&still, EventScope::Thread(0), None, None).ok()?;
        bare_ns = bare_ns.min(on_processor_ns(&clock)?);
        let timer = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        let mut ring = Ring::map(&timer, QUICK_RING_PAGES).ok()?;
        let timed_ns = on_processor_ns(&timer)?;
        perf::disable(&timer).ok()?;
        let count = |a: &[u8], b: &[u8]| walk(a, b, &mut Vec::new(), |_, _| {}).records;
        rounds.push((timed_ns, ring.drain(count)));
    }
    tick_of(bare_ns, &rounds)
}

/// Whether the kernel stops the whole group of a timer that is too fast. It is tried on
/// this thread where the series' timer may be `too_fast`; else the kernel's release says it.
pub(super) fn stops_with_group(too_fast: bool) -> bool {
    let tried = too_fast.then(tried_stops).flatten();
    tried.unwrap_or_else(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        stops_by_release(&release.unwrap_or_default())
    })
}

/// Linux 6.16 began to (commit 9734e25fbf5a, "perf: Fix the throttle logic for a group").
fn stops_by_release(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    (next(), next()) >= (Some(6), Some(16))
}

/// `None` where the timer was not stopped, or for too short a time to tell.
fn tried_stops() -> Option<bool> {
    let mut timer = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    timer.period = SHORTEST_INTERVAL_NS;
    timer.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME;
    timer.read_format = READ_FORMAT;
    timer.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::DISABLED;
    let mut clock = timer;
    (clock.period, clock.sample_type, clock.flags) = (0, 0, timer.flags & !flag::DISABLED);
    let timer = perf::open(&timer, EventScope::Thread(0), None, None).ok()?;
    let _clock = perf::open(&clock, EventScope::Thread(0), None, Some(&timer)).ok()?;
    perf::enable(&timer).ok()?;
    let began = Instant::now();
    while began.elapsed() < TRIED {
        steps(QUICK_STEPS / 10);
    }
    perf::disable(&timer).ok()?;
    // Number of counters, time enabled, time running, timer, clock.
    let mut words = [0u8; 40];
    let n = perf::read_words(&timer, &mut words).ok()?;
    let word =
        |i: usize| u64::from_le_bytes(words[8 * i..][..8].try_into().expect("SANITY: 8 bytes"));
    let counted = || stops_by_clocks(word(2), word(3), word(4));
    (n == words.len()).then(counted).flatten()
}

/// Whether the clock beside a timer stopped with it. Both go on to the moment at which the thread leaves
/// the processor while they are stopped, so on a busy machine they may have missed nothing.
fn stops_by_clocks(running_ns: u64, timer_ns: u64, clock_ns: u64) -> Option<bool> {
    let missed = |counted_ns| running_ns.saturating_sub(counted_ns);
    (missed(timer_ns) > running_ns / 20).then(|| missed(clock_ns) > missed(timer_ns) / 2)
}

/// Time of a tick: the median of rounds of the same work, each with its time and its ticks, above
/// the shortest time without any. Some rounds are disturbed, and where the kernel stops the timer some
/// have few ticks or none. Not known where half of them took no longer than without.
fn tick_of(bare_ns: u64, rounds: &[(u64, u64)]) -> Option<f64> {
    let ticked = rounds.iter().filter(|(_, ticks)| *ticks > 0);
    let each = ticked.map(|&(ns, ticks)| (ns as f64 - bare_ns as f64) / ticks as f64);
    let mut each: Vec<f64> = each.collect();
    each.sort_by(f64::total_cmp);
    each.get(each.len() / 2).copied().filter(|&ns| ns > 0.0)
}

/// Time that the work takes on a processor, by this clock: others' turns are not in it.
fn on_processor_ns(clock: &OwnedFd) -> Option<u64> {
    let read = || {
        // Number of counters, time enabled, time running, value.
        let mut words = [0u8; 32];
        let n = perf::read_words(clock, &mut words).ok()?;
        let value = words.last_chunk::<8>().filter(|_| n == words.len())?;
        Some(u64::from_le_bytes(*value))
    };
    let before = read()?;
    steps(QUICK_STEPS);
    Some(read()?.saturating_sub(before))
}

fn work() -> Duration {
    steps(STEPS)
}

fn steps(steps: u64) -> Duration {
    let began = Instant::now();
    let mut state = 1u64;
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1);
    }
    began.elapsed()
}

#[cfg(test)]
mod tests {
    use super::{stops_by_clocks, stops_by_release, tick_of};

    #[test]
    fn groups_stop_with_their_timer_from_6_16_on() {
        for (release, stops) in [
            ("6.18.44-fc-v657\n", true),
            ("6.16.0", true),
            ("7.0.0-rc1", true),
            ("6.12.38+deb13-amd64", false),
            ("5.15.0", false),
            ("", false),
        ] {
            assert_eq!(stops_by_release(release), stops, "{release}");
        }
    }

    #[test]
    fn a_clock_that_misses_what_its_timer_misses_stops_with_it() {
        assert_eq!(stops_by_clocks(30_000, 2_000, 1_900), Some(true));
        assert_eq!(stops_by_clocks(30_000, 2_000, 29_990), Some(false));
        assert_eq!(stops_by_clocks(30_000, 29_900, 29_700), None);
        assert_eq!(stops_by_clocks(30_000, 30_001, 30_001), None);
    }

    #[test]
    fn a_tick_takes_what_it_takes_in_most_rounds() {
        let rounds = [
            (1_090_000, 50),
            (9_000_000, 50),
            (1_100_000, 50),
            (1_000, 0),
        ];
        assert_eq!(tick_of(1_000_000, &rounds), Some(2000.0));
        assert_eq!(tick_of(1_000_000, &[(1_000_000, 50)]), None);
        assert_eq!(tick_of(1_000_000, &[(900_000, 50)]), None);
        assert_eq!(tick_of(1_000_000, &[(1_100_000, 0)]), None);
        assert_eq!(tick_of(1_000_000, &[]), None);
    }
}
