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
use memgauge_perf::abi::{Attr, flag, kind, record, sample, software};
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
    let (mut bare_ns, mut timed_ns, mut ticks) = (0, 0, 0);
    for _ in 0..ROUNDS {
        bare_ns += on_processor_ns(&perf::open(&still, EventScope::Thread(0), None, None).ok()?)?;
        let timer = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        let mut ring = Ring::map(&timer, QUICK_RING_PAGES).ok()?;
        timed_ns += on_processor_ns(&timer)?;
        perf::disable(&timer).ok()?;
        let count = |a: &[u8], b: &[u8]| walk(a, b, &mut Vec::new(), |_, _| {}).records;
        ticks += ring.drain(count);
    }
    tick_of(bare_ns, timed_ns, ticks)
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

/// `None` where the timer was not stopped.
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
    let mut ring = Ring::map(&timer, QUICK_RING_PAGES).ok()?;
    perf::enable(&timer).ok()?;
    let began = Instant::now();
    let mut stopped = false;
    while began.elapsed() < TRIED {
        steps(QUICK_STEPS / 10);
        ring.drain(|a, b| {
            walk(a, b, &mut Vec::new(), |header, _| {
                stopped |= header.kind == record::THROTTLE;
            })
        });
    }
    perf::disable(&timer).ok()?;
    // Number of counters, time enabled, time running, timer, clock.
    let mut words = [0u8; 40];
    let n = perf::read_words(&timer, &mut words).ok()?;
    let word =
        |i: usize| u64::from_le_bytes(words[8 * i..][..8].try_into().expect("SANITY: 8 bytes"));
    let (running_ns, counted_ns) = (word(2), word(4));
    (stopped && n == words.len()).then(|| counted_ns < running_ns / 100 * 99)
}

/// Time of a tick, from that of work without and with so many of them. Where work took
/// less time with them, other things took longer than ticks do: then it is not known.
fn tick_of(bare_ns: u64, timed_ns: u64, ticks: u64) -> Option<f64> {
    let more_ns = timed_ns.checked_sub(bare_ns).filter(|&more| more > 0)?;
    (ticks > 0).then(|| more_ns as f64 / ticks as f64)
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
    use super::{stops_by_release, tick_of};

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
    fn a_tick_that_noise_hides_has_no_time() {
        assert_eq!(tick_of(1_000_000, 1_100_000, 50), Some(2000.0));
        assert_eq!(tick_of(1_000_000, 1_000_000, 50), None);
        assert_eq!(tick_of(1_000_000, 900_000, 50), None);
        assert_eq!(tick_of(1_000_000, 1_100_000, 0), None);
    }
}
