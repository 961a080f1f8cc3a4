//! Increments of counters that are read with samples.

use memgauge_perf::IdMap;
use memgauge_perf::perf_data::Events;

/// A counter's last reading.
#[derive(Clone, Copy, Debug)]
struct Last {
    id: u64,
    tid: u32,
    event: usize,
    value: u64,
    time_ns: u64,
}

/// Increment of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gain {
    /// Number of its event.
    pub(super) event: usize,
    pub(super) value: u64,
    /// Nanoseconds since it was read before, or since the recording began.
    pub(super) interval_ns: u64,
}

/// All counters, each in each thread (0 where a counter is a processor's).
#[derive(Debug, Default)]
pub(super) struct Counters {
    all: Vec<Last>,
    places: IdMap<(u64, u32), usize>,
    /// Where those of the last reading are: the next is mostly of the same group in
    /// the same thread.
    recent: Vec<usize>,
}

impl Counters {
    /// Takes the reading of the `index`-th counter of a group; `None` where no event
    /// has this id.
    #[inline]
    pub(super) fn read(
        &mut self,
        events: &Events,
        index: usize,
        (id, tid): (u64, u32),
        (value, time_ns): (u64, u64),
    ) -> Option<Gain> {
        let place = self.recent.get(index).copied();
        let known = place.filter(|&place| (self.all[place].id, self.all[place].tid) == (id, tid));
        let place = match known {
            Some(place) => place,
            None => self.find(events, index, id, tid)?,
        };
        let last = &mut self.all[place];
        let gain = Gain {
            event: last.event,
            value: value.saturating_sub(last.value),
            interval_ns: time_ns.saturating_sub(last.time_ns),
        };
        (last.value, last.time_ns) = (value, time_ns);
        Some(gain)
    }

    #[inline(never)]
    fn find(&mut self, events: &Events, index: usize, id: u64, tid: u32) -> Option<usize> {
        let event = events.of_id(id)?;
        let place = *self.places.entry((id, tid)).or_insert_with(|| {
            self.all.push(Last {
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
            Some(recent) => *recent = place,
            None if index == recent => self.recent.push(place),
            // After an unknown id: looked up each time.
            None => {}
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_perf::abi::Attr;

    /// Event 0 has the ids 10 and 11, event 1 the ids 20 and 21.
    fn events() -> Events {
        let mut events = Events::default();
        events.add(Attr::default(), [10, 11].into_iter());
        events.add(Attr::default(), [20, 21].into_iter());
        events
    }

    #[test]
    fn a_counter_gains_since_its_last_reading_in_the_same_thread() {
        let (events, mut counters) = (events(), Counters::default());
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
        for (index, of, at, expected) in readings {
            let gain = counters.read(&events, index, of, at);
            let seen = gain.map(|g| (g.event, g.value, g.interval_ns));
            assert_eq!(seen, expected, "{of:?} at {at:?}");
        }
    }
}
