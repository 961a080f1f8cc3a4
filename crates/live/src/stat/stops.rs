//! Time in which the kernel had stopped a series' timer, and what was probably counted
//! in it. Pure.
//!
//! A timer faster than `kernel.perf_event_max_sample_rate` is stopped until the kernel's
//! next tick. From Linux 6.16 on (`perf_event_throttle_group`) its whole group stops with
//! it, before that it stopped alone. The group's time running goes on, the timer's own
//! count does not: the difference is the time stopped.
//!
//! ```text
//! ticks    | | | | |                       | | | | |
//! running  ---------------------------------------->
//! counted  --------- stop, then nothing ------------ and so on
//! ```
//!
//! Events of a stop are estimated by the thread's rate around it: from its previous stop to the
//! next tick. Ticks take time in which the program does nothing, and a stop has none, so the
//! rate is that of the time without them. Rejected: time from the records of stop and start, as the thread may
//! sleep between them; and one rate for the whole run, as programs have phases.

use std::collections::BTreeMap;

use super::Ticks;
use super::series::Values;

/// Time counted after which older counts weigh half: some ticks of the kernel, which are 1
/// to 10 ms apart (CONFIG_HZ).
const WINDOW_NS: u64 = 20_000_000;

/// Least part of the time that is taken for the program's own: what a tick takes is known to a
/// tenth or two.
const LEAST_OWN: f64 = 0.2;

const SECOND_NS: u64 = 1_000_000_000;

/// Whether the kernel may stop a timer of this interval.
pub(super) fn may_stop(interval_ns: u64, most_a_second: u64) -> bool {
    interval_ns.saturating_mul(most_a_second) <= SECOND_NS
}

/// What a user should know before the start, where the interval is below what the kernel
/// allows.
pub(super) fn ahead(interval_ns: u64, most_a_second: u64) -> Option<String> {
    let wanted = SECOND_NS.div_ceil(interval_ns.max(1));
    let shortest_us = SECOND_NS.div_ceil(most_a_second.max(1)).div_ceil(1000);
    (wanted > most_a_second).then(|| {
        format!(
            "the kernel takes {most_a_second} ticks a second, one every {} us would be {wanted}: it \
             will stop timer and counters again and again, and counts of that time are estimated \
             (choose -I {shortest_us}us, or sysctl kernel.perf_event_max_sample_rate={wanted})",
            interval_ns as f64 / 1e3,
        )
    })
}

/// The same after a run in which it was stopped.
pub(super) fn afterwards(ticks: &Ticks) -> Option<String> {
    let share = 100.0 * ticks.stopped_ns as f64 / ticks.running_ns.max(1) as f64;
    (ticks.stopped_ns > 0).then(|| {
        format!(
            "the kernel stopped timer and counters {} times for too many ticks \
             (kernel.perf_event_max_sample_rate), {:.1} ms or {share:.1} % of the running time: counts \
             of that time are estimated from those around it",
            ticks.throttled,
            ticks.stopped_ns as f64 / 1e6,
        )
    })
}

/// What a thread's group counted around the last stop.
#[derive(Debug, Default)]
struct Recent {
    counted_ns: u64,
    ticks: u64,
    values: Values,
}

/// Stops of all timers.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// A timer that stops takes its group along.
    with_group: bool,
    /// Time that a tick takes from the program.
    tick_ns: f64,
    /// There may be stops: recent counts are kept.
    expected: bool,
    /// There was one.
    seen: bool,
    /// By thread (or processor) and group.
    recent: BTreeMap<(u32, usize), Recent>,
    /// Nanoseconds stopped, by group.
    stopped_ns: BTreeMap<usize, u64>,
    /// Events added for that time, by group and place in it.
    added: BTreeMap<(usize, usize), u64>,
}

impl Stops {
    /// Stops of timers with or without their groups, whose ticks take `tick_ns`. Recent counts
    /// are kept from the start where stops are `expected`, else from the first on.
    pub(super) fn new(with_group: bool, expected: bool, tick_ns: f64) -> Stops {
        Stops {
            with_group,
            expected,
            tick_ns,
            ..Stops::default()
        }
    }

    /// A timer was stopped.
    pub(super) fn see(&mut self) {
        (self.expected, self.seen) = (true, true);
    }

    /// Adds what probably happened while the group was stopped to what it gained in
    /// `running_ns`.
    pub(super) fn fill(&mut self, whose: u32, group: usize, running_ns: u64, gained: &mut [u64]) {
        let Some(&counted_ns) = gained.first() else {
            return;
        };
        if !self.with_group || !self.expected {
            return;
        }
        let recent = self.recent.entry((whose, group)).or_default();
        recent.add(counted_ns, gained);
        let stopped_ns = running_ns.saturating_sub(counted_ns);
        if !self.seen || stopped_ns == 0 {
            return;
        }
        *self.stopped_ns.entry(group).or_default() += stopped_ns;
        let mut next = Recent::default();
        next.add(counted_ns, gained);
        gained[0] += stopped_ns;
        for (index, value) in gained.iter_mut().enumerate().skip(1) {
            let added = recent.in_time(index, stopped_ns, self.tick_ns);
            *value = value.saturating_add(added);
            *self.added.entry((group, index)).or_default() += added;
        }
        // The clocks differ by some nanoseconds at each tick: that ends no window.
        if stopped_ns > counted_ns / 10 {
            *recent = next;
        }
    }

    /// Nanoseconds in which a group was stopped, all threads together.
    pub(super) fn ns(&self, group: usize) -> u64 {
        self.stopped_ns.get(&group).copied().unwrap_or(0)
    }

    /// The same of all groups.
    pub(super) fn all_ns(&self) -> u64 {
        self.stopped_ns.values().sum()
    }

    /// Events added to the counter at this place of a group.
    pub(super) fn added(&self, group: usize, index: usize) -> u64 {
        self.added.get(&(group, index)).copied().unwrap_or(0)
    }
}

impl Recent {
    fn add(&mut self, counted_ns: u64, gained: &[u64]) {
        if self.counted_ns > WINDOW_NS {
            self.counted_ns /= 2;
            self.ticks /= 2;
            self.values.iter_mut().for_each(|value| *value /= 2);
        }
        self.counted_ns += counted_ns;
        self.ticks += 1;
        let longest = self.values.len().max(gained.len());
        self.values.resize(longest, 0);
        for (sum, value) in self.values.iter_mut().zip(gained) {
            *sum += value;
        }
    }

    /// Events of the counter at this place in so much time, at the recent rate.
    fn in_time(&self, index: usize, ns: u64, tick_ns: f64) -> u64 {
        let value = self.values.get(index).copied().unwrap_or(0) as f64;
        let counted_ns = self.counted_ns.max(1) as f64;
        let own_ns = counted_ns - tick_ns * self.ticks as f64;
        (value * ns as f64 / own_ns.max(LEAST_OWN * counted_ns)).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills one row of a group of a timer and a counter.
    fn fill(stops: &mut Stops, running_ns: u64, counted: [u64; 2]) -> [u64; 2] {
        let mut gained = counted;
        stops.fill(7, 0, running_ns, &mut gained);
        gained
    }

    #[test]
    fn a_stop_has_the_rate_since_the_previous_one() {
        let mut stops = Stops::new(true, true, 0.0);
        assert_eq!(fill(&mut stops, 100, [100, 10]), [100, 10]);
        stops.see();
        assert_eq!(fill(&mut stops, 100, [100, 20]), [100, 20]);
        // 30 more in 100 ns, then stopped for 600: 60 events in 300 ns.
        assert_eq!(fill(&mut stops, 700, [100, 30]), [700, 150]);
        // The next rate begins after that stop: 30 and 10 events in 200 ns.
        assert_eq!(fill(&mut stops, 300, [100, 10]), [300, 10 + 40]);
        assert_eq!((stops.ns(0), stops.all_ns()), (800, 800));
        assert_eq!(stops.added(0, 1), 160);
    }

    #[test]
    fn clocks_that_differ_a_little_are_no_stop_between_two_windows() {
        let mut stops = Stops::new(true, true, 0.0);
        stops.see();
        assert_eq!(fill(&mut stops, 101, [100, 0]), [101, 0]);
        assert_eq!(fill(&mut stops, 101, [100, 60]), [101, 60]);
        assert_eq!(fill(&mut stops, 700, [100, 30]), [700, 30 + 180]);
    }

    #[test]
    fn a_timer_that_stops_alone_leaves_counts_as_they_are() {
        let mut stops = Stops::new(false, true, 0.0);
        stops.see();
        assert_eq!(fill(&mut stops, 700, [100, 30]), [100, 30]);
        assert_eq!((stops.all_ns(), stops.added(0, 1)), (0, 0));
    }

    #[test]
    fn without_a_stop_a_difference_of_the_clocks_means_nothing() {
        let mut stops = Stops::new(true, true, 0.0);
        assert_eq!(fill(&mut stops, 101, [100, 30]), [100, 30]);
        assert_eq!(stops.all_ns(), 0);
    }

    #[test]
    fn a_group_that_never_counted_has_no_rate() {
        let mut stops = Stops::new(true, false, 0.0);
        stops.see();
        assert_eq!(fill(&mut stops, 700, [0, 0]), [700, 0]);
        assert_eq!(stops.ns(0), 700);
    }

    #[test]
    fn intervals_below_what_the_kernel_allows_are_told_before_the_start() {
        assert!(!may_stop(100_001, 10_000));
        assert!(may_stop(100_000, 10_000));
        assert_eq!(ahead(100_000, 10_000), None);
        let warning = ahead(20_000, 24_000).expect("a warning");
        for words in ["takes 24000 ticks", "every 20 us would be 50000", "-I 42us"] {
            assert!(warning.contains(words), "`{words}` is not in {warning}");
        }
        assert!(ahead(0, 0).is_some());
    }

    #[test]
    fn a_stop_has_no_ticks_which_slow_the_program_down() {
        let mut stops = Stops::new(true, true, 50.0);
        stops.see();
        // 30 events in the 50 ns that the tick leaves of 100.
        assert_eq!(fill(&mut stops, 200, [100, 30]), [200, 30 + 60]);
        let mut stops = Stops::new(true, true, 99.0);
        stops.see();
        assert_eq!(fill(&mut stops, 200, [100, 30]), [200, 30 + 150]);
    }

    #[test]
    fn threads_have_rates_of_their_own() {
        let mut stops = Stops::new(true, true, 0.0);
        stops.see();
        let mut other = [100, 1000];
        stops.fill(8, 0, 100, &mut other);
        assert_eq!(fill(&mut stops, 200, [100, 10]), [200, 20]);
    }
}
