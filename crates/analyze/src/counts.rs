//! Sums by event, and names of events.

use std::collections::BTreeMap;

use memgauge_trace::{EventId, Manifest, catalogue};
use serde::{Deserialize, Serialize};

/// Sums by event name, in the event's own unit, sorted by name.
pub type Counts = BTreeMap<String, u64>;

/// Sums by key during counting. Small and sorted, for tables with an entry for every instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SortedSums<K>(Vec<(K, u64)>);

/// Sums by event id.
pub(crate) type EventSums = SortedSums<EventId>;

/// Sums by event id and group of cache sets.
pub(crate) type GroupSums = SortedSums<(EventId, u8)>;

impl<K> Default for SortedSums<K> {
    fn default() -> Self {
        SortedSums(Vec::new())
    }
}

impl<K: Ord + Copy> SortedSums<K> {
    pub(crate) fn add(&mut self, key: K, value: u64) {
        match self.0.binary_search_by_key(&key, |e| e.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(value),
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for &(key, value) in &other.0 {
            self.add(key, value);
        }
    }

    pub(crate) fn get(&self, key: K) -> u64 {
        self.0
            .binary_search_by_key(&key, |e| e.0)
            .map_or(0, |at| self.0[at].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl GroupSums {
    /// Sum of some events in each group that has any.
    pub(crate) fn by_group(&self, events: &[EventId]) -> BTreeMap<u8, u64> {
        let mut groups = BTreeMap::new();
        for &((event, group), value) in &self.0 {
            if events.contains(&event) {
                *groups.entry(group).or_default() += value;
            }
        }
        groups
    }
}

impl EventSums {
    pub(crate) fn sum(&self, events: &[EventId]) -> u64 {
        events
            .iter()
            .fold(0, |sum, &e| self.get(e).saturating_add(sum))
    }

    pub(crate) fn named(&self, names: &EventNames) -> Counts {
        self.iter().map(|(id, n)| (names.name(id), n)).collect()
    }
}

/// Names of a recording's events.
#[derive(Clone, Debug, Default)]
pub struct EventNames(BTreeMap<EventId, String>);

impl EventNames {
    /// Names from the manifest.
    pub fn of(manifest: &Manifest) -> Self {
        let named = manifest.events.iter().map(|e| (e.id, e.name.clone()));
        EventNames(named.collect())
    }

    /// Name of the event from the manifest, or else from the catalogue, or else its number.
    pub fn name(&self, id: EventId) -> String {
        match (self.0.get(&id), catalogue::name(id)) {
            (Some(name), _) => name.clone(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => format!("event-{}", id.0),
        }
    }
}

/// `part / whole`, or `None` if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_sums_equal_events_and_saturates() {
        let mut tally = EventSums::default();
        tally.add(EventId(3), 5);
        tally.add(EventId(1), u64::MAX);
        tally.add(EventId(3), 7);
        tally.add(EventId(1), 1);
        assert_eq!(tally.get(EventId(3)), 12);
        assert_eq!(tally.get(EventId(1)), u64::MAX);
        assert_eq!(tally.get(EventId(9)), 0);
    }

    #[test]
    fn unknown_events_are_named_by_number() {
        let names = EventNames::default();
        assert_eq!(names.name(catalogue::LLC_MISS), "llc.miss");
        assert_eq!(names.name(EventId(999)), "event-999");
    }
}
