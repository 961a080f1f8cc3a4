//! Counters read at intervals of virtual time.

use crate::Counts;

/// Increments of a core's counters in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// End of the interval: a multiple of its length in virtual time, the start of a wait or stall
    /// that extends beyond it, or the end of the core.
    pub time_ns: u64,
    /// True length. The first and the last interval of a core, and those next to a wait or a long
    /// stall, are shorter than requested. An interval in which a block or a stall took long is
    /// longer.
    pub interval_ns: u64,
    /// Increment of every event. The ticks of a core add up exactly to its counts.
    pub deltas: Counts,
}

/// The counter series of a core.
pub(crate) struct CounterSeries {
    interval_ns: u64,
    last_ns: u64,
    reported: Counts,
    pending: Vec<Tick>,
}

impl CounterSeries {
    pub(crate) fn new(interval_ns: u64, start_ns: u64) -> Self {
        CounterSeries {
            interval_ns,
            last_ns: start_ns,
            reported: Counts::default(),
            pending: Vec::new(),
        }
    }

    /// Restarts as if nothing had been counted yet.
    pub(crate) fn begin_at(&mut self, start_ns: u64) {
        self.last_ns = start_ns;
    }

    /// Returns the end of the current interval.
    pub(crate) fn deadline_ns(&self) -> u64 {
        (self.last_ns / self.interval_ns)
            .saturating_add(1)
            .saturating_mul(self.interval_ns)
    }

    /// Ends the current interval at the last multiple of its length that has passed, if any.
    pub(crate) fn check(&mut self, now_ns: u64, counts: &Counts) {
        if now_ns >= self.deadline_ns() {
            self.end_interval(now_ns - now_ns % self.interval_ns, counts);
        }
    }

    /// Excludes a wait that does not end in the current interval. Nothing is counted while a core
    /// waits, and a row across the wait would spread earlier counts over it.
    pub(crate) fn wait(&mut self, from_ns: u64, until_ns: u64, counts: &Counts) {
        self.check(from_ns, counts);
        if until_ns >= self.deadline_ns() {
            self.finish(from_ns, counts);
            self.last_ns = until_ns;
        }
    }

    /// Ends the current interval at the start of a stall that is longer than an interval.
    pub(crate) fn stall(&mut self, from_ns: u64, counts: &Counts) {
        self.check(from_ns, counts);
        self.finish(from_ns, counts);
    }

    /// Ends the current interval now, unless nothing has happened in it.
    pub(crate) fn finish(&mut self, now_ns: u64, counts: &Counts) {
        if now_ns > self.last_ns || *counts != self.reported {
            self.end_interval(now_ns, counts);
        }
    }

    fn end_interval(&mut self, end_ns: u64, counts: &Counts) {
        let mut deltas = Counts::default();
        for (at, count) in counts.0.into_iter().enumerate() {
            // First-level hits can lag behind for the duration of a block.
            deltas.0[at] = count.saturating_sub(self.reported[at]);
            self.reported.0[at] += deltas.0[at];
        }
        // The remainder of a block that ended on the boundary has no length of its own.
        let interval_ns = (end_ns - self.last_ns).max(1);
        self.pending.push(Tick {
            time_ns: end_ns,
            interval_ns,
            deltas,
        });
        self.last_ns = end_ns;
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Removes and returns the ticks, oldest first.
    pub(crate) fn take(&mut self, f: impl FnMut(Tick)) {
        self.pending.drain(..).for_each(f);
    }
}
