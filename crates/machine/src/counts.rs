//! A core's counters, read at one moment.

use std::ops::Deref;

use memgauge_trace::{EventId, catalogue};

/// Values of all catalogued events, indexed by their ID. Exact for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts(pub(crate) [u64; catalogue::COUNT]);

impl Counts {
    /// Returns the value of an event in its unit, or 0 for an event that is not catalogued.
    pub fn get(&self, event: EventId) -> u64 {
        self.0.get(usize::from(event.0)).copied().unwrap_or(0)
    }

    /// Iterates over all catalogued events and their values.
    pub fn iter(&self) -> impl Iterator<Item = (EventId, u64)> + '_ {
        catalogue::ALL
            .iter()
            .map(|e| e.0)
            .zip(self.0.iter().copied())
    }

    /// Adds the counts of another core or of another interval.
    pub fn add(&mut self, other: &Counts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Adds the increments between two readings of one core.
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
