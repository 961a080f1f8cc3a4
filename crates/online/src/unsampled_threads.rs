//! Threads of followed processes that are not sampled. Each is counted once, even though attaching
//! is retried.

use std::collections::BTreeSet;

/// Number of threads that could not be attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsampledCounts {
    /// Threads that ended before they could be attached to.
    pub(crate) ended: u64,
    /// Threads that were alive when attaching failed.
    pub(crate) alive: u64,
}

/// Counts threads that could not be attached to.
#[derive(Default)]
pub(crate) struct UnsampledThreads {
    pub(crate) counts: UnsampledCounts,
    /// Running threads that are already counted.
    counted: BTreeSet<u32>,
}

impl UnsampledThreads {
    /// Counts a thread that could not be attached to.
    pub(crate) fn record(&mut self, tid: u32, has_ended: bool) {
        if self.counted.insert(tid) {
            let counter = match has_ended {
                true => &mut self.counts.ended,
                false => &mut self.counts.alive,
            };
            *counter += 1;
        }
    }

    pub(crate) fn contains(&self, tid: u32) -> bool {
        self.counted.contains(&tid)
    }

    /// Forgets all threads except those in `running`, because their numbers can be reused.
    pub(crate) fn retain(&mut self, running: &BTreeSet<u32>) {
        self.counted.retain(|tid| running.contains(tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_counted_once_until_its_number_is_reused() {
        let mut unsampled = UnsampledThreads::default();
        (0..3).for_each(|_| unsampled.record(7, false));
        unsampled.record(8, true);
        unsampled.retain(&BTreeSet::from([7]));
        unsampled.record(7, false);
        let counts = |ended, alive| UnsampledCounts { ended, alive };
        assert_eq!(unsampled.counts, counts(1, 1));
        unsampled.record(8, false);
        assert_eq!(unsampled.counts, counts(1, 2));
    }
}
