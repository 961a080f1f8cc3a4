//! Threads of followed processes that are not sampled: each counts once, however often it
//! is tried again.

use std::collections::BTreeSet;

/// Those that were missed.
#[derive(Default)]
pub(crate) struct MissedThreads {
    /// They ended before they could be attached to.
    pub(crate) ended: u64,
    /// They live, or did when they could not be attached to.
    pub(crate) alive: u64,
    /// Threads that are counted already, and still there.
    counted: BTreeSet<u32>,
}

impl MissedThreads {
    /// A thread could not be attached to.
    pub(crate) fn note(&mut self, tid: u32, has_ended: bool) {
        if self.counted.insert(tid) {
            let counter = match has_ended {
                true => &mut self.ended,
                false => &mut self.alive,
            };
            *counter += 1;
        }
    }

    pub(crate) fn has(&self, tid: u32) -> bool {
        self.counted.contains(&tid)
    }

    /// `there`: threads that run and are not sampled. The numbers of all others may come
    /// back as those of other threads.
    pub(crate) fn keep(&mut self, there: &BTreeSet<u32>) {
        self.counted.retain(|tid| there.contains(tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_once_until_its_number_is_another_ones() {
        let mut missed = MissedThreads::default();
        (0..3).for_each(|_| missed.note(7, false));
        missed.note(8, true);
        missed.keep(&BTreeSet::from([7]));
        missed.note(7, false);
        assert_eq!((missed.ended, missed.alive), (1, 1));
        missed.note(8, false);
        assert_eq!((missed.ended, missed.alive), (1, 2));
    }
}
