//! A core's counters, read at one moment.

use std::ops::Deref;

use memgauge_trace::{EventId, catalogue};

/// Value of every catalogued event, indexed by its id. Exact for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts(pub(crate) [u64; catalogue::COUNT]);

impl Counts {
    /// Value of one event, in its unit; 0 for an event that is not catalogued.
    pub fn get(&self, event: EventId) -> u64 {
        self.0.get(usize::from(event.0)).copied().unwrap_or(0)
    }

    /// Every catalogued event with its value.
    pub fn iter(&self) -> impl Iterator<Item = (EventId, u64)> + '_ {
        catalogue::ALL
            .iter()
            .map(|e| e.0)
            .zip(self.0.iter().copied())
    }

    /// Adds another core's counts, or the next interval's.
    pub fn add(&mut self, other: &Counts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Adds what came between two readings of one core.
    pub fn add_since(&mut self, now: &Counts, before: &Counts) {
        for (at, mine) in self.0.iter_mut().enumerate() {
            *mine += now.0[at].saturating_sub(before.0[at]);
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts([0; catalogue::COUNT])
    }
}

impl Deref for Counts {
    type Target = [u64; catalogue::COUNT];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
