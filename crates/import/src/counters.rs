//! Increments of counters whose values are recorded with samples.

use memgauge_perf::IdMap;
use memgauge_perf::perf_data::Events;

/// The value of a counter at a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterValue {
    /// The kernel's ID of the counter.
    pub(super) id: u64,
    pub(super) tid: u32,
    pub(super) value: u64,
    pub(super) time_ns: u64,
}

/// Last value of a counter.
#[derive(Clone, Copy, Debug)]
struct LastValue {
    id: u64,
    tid: u32,
    event: usize,
    value: u64,
    time_ns: u64,
}

/// Increment of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Increment {
    /// Number of its event.
    pub(super) event: usize,
    pub(super) value: u64,
    /// Nanoseconds since the previous value, or since the start of the recording.
    pub(super) interval_ns: u64,
}

/// All counters, per thread (thread 0 for counters of a CPU).
#[derive(Debug, Default)]
pub(super) struct CounterValues {
    all: Vec<LastValue>,
    indices: IdMap<(u64, u32), usize>,
    /// Indices of the last group's counters. The next sample usually is of the same group and
    /// thread.
    recent: Vec<usize>,
}

impl CounterValues {
    /// Returns the increment of the `index`-th counter of a group. `None` if no event has this ID.
    #[inline]
    pub(super) fn read(
        &mut self,
        events: &Events,
        index: usize,
        value: CounterValue,
    ) -> Option<Increment> {
        let CounterValue {
            id,
            tid,
            value,
            time_ns,
        } = value;
        let slot = self.recent.get(index).copied();
        let known = slot.filter(|&slot| (self.all[slot].id, self.all[slot].tid) == (id, tid));
        let slot = match known {
            Some(slot) => slot,
            None => self.find(events, index, id, tid)?,
        };
        let last = &mut self.all[slot];
        let increment = Increment {
            event: last.event,
            value: value.saturating_sub(last.value),
            interval_ns: time_ns.saturating_sub(last.time_ns),
        };
        (last.value, last.time_ns) = (value, time_ns);
        Some(increment)
    }

    #[inline(never)]
    fn find(&mut self, events: &Events, index: usize, id: u64, tid: u32) -> Option<usize> {
        let event = events.index_of(id)?;
        let slot = *self.indices.entry((id, tid)).or_insert_with(|| {
            self.all.push(LastValue {
                id,
                tid,
                event,
                value: 0,
                time_ns: 0,
            });
            self.all.len() - 1
        });
        let recent = self.recent.len();
        match self.recent.get_mut(index) {
            Some(recent) => *recent = slot,
            None if index == recent => self.recent.push(slot),
            // Happens after an unknown ID; such counters are looked up each time.
            None => {}
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_perf::abi::Attr;

    /// Event 0 has IDs 10 and 11, event 1 has IDs 20 and 21.
    fn events() -> Events {
        let mut events = Events::default();
        events.add(Attr::default(), [10, 11].into_iter());
        events.add(Attr::default(), [20, 21].into_iter());
        events
    }

    #[test]
    fn increment_is_since_the_last_value_in_the_same_thread() {
        let (events, mut counters) = (events(), CounterValues::default());
        let readings = [
            (0, (10, 1), (5, 100), Some((0, 5, 100))),
            (1, (20, 1), (7, 100), Some((1, 7, 100))),
            (0, (10, 2), (1, 120), Some((0, 1, 120))),
            (1, (20, 2), (2, 120), Some((1, 2, 120))),
            (0, (10, 1), (9, 150), Some((0, 4, 50))),
            (1, (99, 1), (9, 150), None),
            (2, (21, 1), (3, 150), Some((1, 3, 150))),
            (1, (20, 1), (7, 160), Some((1, 0, 60))),
            (0, (10, 2), (0, 170), Some((0, 0, 50))),
        ];
        for (index, (id, tid), (value, time_ns), expected) in readings {
            let value = CounterValue {
                id,
                tid,
                value,
                time_ns,
            };
            let increment = counters.read(&events, index, value);
            let found = increment.map(|g| (g.event, g.value, g.interval_ns));
            assert_eq!(found, expected, "{value:?}");
        }
    }
}
