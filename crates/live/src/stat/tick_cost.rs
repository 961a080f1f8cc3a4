//! Measures what a tick of a timer costs the program, and whether the kernel throttles a timer's
//! whole group.
//!
//! The same piece of work is timed on this thread with and without a timer.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::MIN_INTERVAL_NS;
use crate::counters::READ_FORMAT;
use crate::sys::perf::{self, EventScope, KernelRing};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};

const ROUNDS: usize = 6;

/// Interval of the timer without output.
const BARE_INTERVAL_NS: u64 = 50_000;
/// Steps of the work while that timer runs, about 20 ms.
const BARE_STEPS: u64 = 20_000_000;

/// Interval of the timer with samples.
const SAMPLED_INTERVAL_NS: u64 = 20_000;
/// Steps of the work beside that timer. It takes about a millisecond, so that the measurement can
/// be done before each run, and has enough ticks.
const SAMPLED_STEPS: u64 = 1_000_000;
const RING_PAGES: usize = 8;

/// Duration of the throttling test: several of the kernel's own ticks, at which it resumes what it
/// has throttled.
const THROTTLING_TEST_TIME: Duration = Duration::from_millis(30);

/// Measures a tick without any output: the part of the overhead that no collector can avoid.
/// Compares the shortest of several rounds, since everything else that happens on the machine only
/// makes a round longer. In nanoseconds; `None` if the timer cannot be opened.
pub(super) fn bare_tick_ns() -> Option<f64> {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = BARE_INTERVAL_NS;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let (mut native, mut timed) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        native = native.min(work(BARE_STEPS));
        let timer = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        timed = timed.min(work(BARE_STEPS));
        drop(timer);
    }
    let ticks = timed.as_nanos() as f64 / BARE_INTERVAL_NS as f64;
    Some(timed.saturating_sub(native).as_nanos() as f64 / ticks)
}

/// Measures a tick that writes a sample, as the ticks of a series do. In nanoseconds; `None` if the
/// timer cannot be opened or its cost is lost in noise. Other work on the machine makes the result
/// uncertain by 10 to 20 %.
pub(crate) fn sampled_tick_ns() -> Option<f64> {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = SAMPLED_INTERVAL_NS;
    attr.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::READ;
    attr.read_format = READ_FORMAT;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let mut without_ticks = attr;
    (without_ticks.period, without_ticks.sample_type) = (0, 0);
    let (mut native_ns, mut rounds) = (u64::MAX, Vec::new());
    for _ in 0..ROUNDS {
        let clock = perf::open(&without_ticks, EventScope::Thread(0), None, None).ok()?;
        native_ns = native_ns.min(cpu_time_of_work_ns(&clock)?);
        let timer = perf::open(&attr, EventScope::Thread(0), None, None).ok()?;
        let mut ring = KernelRing::map(&timer, RING_PAGES).ok()?;
        let cpu_ns = cpu_time_of_work_ns(&timer)?;
        perf::disable(&timer).ok()?;
        let ticks = ring.read_records(|_, _| {}).records;
        rounds.push(TickRound { cpu_ns, ticks });
    }
    median_tick_ns(native_ns, &rounds)
}

/// True if the kernel throttles the whole group of a timer that is too fast. With `too_fast` it is
/// tried on this thread. Otherwise, or if the test says nothing, the kernel's release decides.
pub(super) fn throttles_whole_group(too_fast: bool) -> bool {
    let tested = too_fast.then(test_throttling).flatten();
    tested.unwrap_or_else(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        throttles_whole_group_by_release(&release.unwrap_or_default())
    })
}

/// Linux 6.16 and later do (commit 9734e25fbf5a, "perf: Fix the throttle logic for a group").
fn throttles_whole_group_by_release(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    (next(), next()) >= (Some(6), Some(16))
}

/// Returns `None` if the timer was not throttled, or for too short a time.
fn test_throttling() -> Option<bool> {
    let mut timer = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    timer.period = MIN_INTERVAL_NS;
    timer.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME;
    timer.read_format = READ_FORMAT;
    timer.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::DISABLED;
    let mut clock = timer;
    (clock.period, clock.sample_type, clock.flags) = (0, 0, timer.flags & !flag::DISABLED);
    let timer = perf::open(&timer, EventScope::Thread(0), None, None).ok()?;
    let _clock = perf::open(&clock, EventScope::Thread(0), None, Some(&timer)).ok()?;
    perf::enable(&timer).ok()?;
    let began = Instant::now();
    while began.elapsed() < THROTTLING_TEST_TIME {
        work(SAMPLED_STEPS / 10);
    }
    perf::disable(&timer).ok()?;
    // Number of counters, time enabled, time running, timer, clock.
    let mut words = [0u8; 40];
    let n = perf::read_words(&timer, &mut words).ok()?;
    let word =
        |i: usize| u64::from_le_bytes(words[8 * i..][..8].try_into().expect("SANITY: 8 bytes"));
    if n != words.len() {
        return None;
    }
    was_clock_throttled(word(2), word(3), word(4))
}

/// True if the clock beside a timer stopped with it. `None` if the timer missed too little: while
/// they are throttled, both still count until the thread leaves the CPU, which on a busy machine
/// may be all the time.
fn was_clock_throttled(running_ns: u64, timer_ns: u64, clock_ns: u64) -> Option<bool> {
    let missed = |counted_ns| running_ns.saturating_sub(counted_ns);
    (missed(timer_ns) > running_ns / 20).then(|| missed(clock_ns) > missed(timer_ns) / 2)
}

/// One round of the work beside a timer.
#[derive(Clone, Copy, Debug)]
struct TickRound {
    cpu_ns: u64,
    ticks: u64,
}

/// Time of a tick. It is the median over the rounds of the time beyond `native_ns`, the shortest
/// time without a timer. Some rounds are disturbed, and some have few ticks or none because the
/// kernel throttled the timer. `None` if half of the rounds took no longer than without a timer.
fn median_tick_ns(native_ns: u64, rounds: &[TickRound]) -> Option<f64> {
    let mut tick_ns: Vec<f64> = rounds
        .iter()
        .filter(|round| round.ticks > 0)
        .map(|round| (round.cpu_ns as f64 - native_ns as f64) / round.ticks as f64)
        .collect();
    tick_ns.sort_by(f64::total_cmp);
    let median = *tick_ns.get(tick_ns.len() / 2)?;
    (median > 0.0).then_some(median)
}

/// CPU time of the work, by this clock. Time in which other programs run is not in it.
fn cpu_time_of_work_ns(clock: &OwnedFd) -> Option<u64> {
    let read = || {
        // Number of counters, time enabled, time running, value.
        let mut words = [0u8; 32];
        let n = perf::read_words(clock, &mut words).ok()?;
        let value = words.last_chunk::<8>().filter(|_| n == words.len())?;
        Some(u64::from_le_bytes(*value))
    };
    let before = read()?;
    work(SAMPLED_STEPS);
    Some(read()?.saturating_sub(before))
}

fn work(steps: u64) -> Duration {
    let began = Instant::now();
    let mut state = 1u64;
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1);
    }
    began.elapsed()
}

#[cfg(test)]
mod tests {
    use super::{TickRound, median_tick_ns, throttles_whole_group_by_release, was_clock_throttled};

    #[test]
    fn whole_groups_are_throttled_from_linux_6_16_on() {
        for (release, expected) in [
            ("6.18.44-fc-v657\n", true),
            ("6.16.0", true),
            ("7.0.0-rc1", true),
            ("6.12.38+deb13-amd64", false),
            ("5.15.0", false),
            ("", false),
        ] {
            assert_eq!(
                throttles_whole_group_by_release(release),
                expected,
                "{release}"
            );
        }
    }

    #[test]
    fn clock_that_misses_as_much_as_its_timer_was_throttled() {
        assert_eq!(was_clock_throttled(30_000, 2_000, 1_900), Some(true));
        assert_eq!(was_clock_throttled(30_000, 2_000, 29_990), Some(false));
        assert_eq!(was_clock_throttled(30_000, 29_900, 29_700), None);
        assert_eq!(was_clock_throttled(30_000, 30_001, 30_001), None);
    }

    #[test]
    fn tick_cost_is_the_median_of_the_rounds() {
        let round = |cpu_ns, ticks| TickRound { cpu_ns, ticks };
        let rounds = [
            round(1_090_000, 50),
            round(9_000_000, 50),
            round(1_100_000, 50),
            round(1_000, 0),
        ];
        assert_eq!(median_tick_ns(1_000_000, &rounds), Some(2000.0));
        for no_cost in [
            round(1_000_000, 50),
            round(900_000, 50),
            round(1_100_000, 0),
        ] {
            assert_eq!(median_tick_ns(1_000_000, &[no_cost]), None);
        }
        assert_eq!(median_tick_ns(1_000_000, &[]), None);
    }
}
