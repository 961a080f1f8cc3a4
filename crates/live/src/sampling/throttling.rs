//! Time in which the kernel had stopped an event because it took too many samples.
//!
//! A throttled event neither samples nor counts, and its count does not show that. Only the
//! THROTTLE and UNTHROTTLE records have times.

use std::collections::HashMap;

use memgauge_perf::record::{Record, Trailer};

/// An event in one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EventInThread {
    id: u64,
    tid: u32,
}

#[derive(Clone, Copy, Debug)]
struct ThrottledEvent {
    /// Index of the requested event.
    event: usize,
    since_ns: u64,
}

/// Throttled time of all events.
#[derive(Debug, Default)]
pub(super) struct ThrottledTime {
    stopped: HashMap<EventInThread, ThrottledEvent>,
    /// Nanoseconds by index of the event.
    ns_by_event: HashMap<usize, u64>,
}

impl ThrottledTime {
    /// Observes a record. `event` is the index of the event that it names.
    pub(super) fn observe(&mut self, record: &Record<'_>, trailer: &Trailer, event: Option<usize>) {
        let key = EventInThread {
            id: trailer.id,
            tid: trailer.tid,
        };
        let since_ns = trailer.time_ns;
        match (record, event) {
            (Record::Throttle { .. }, Some(event)) => {
                self.stopped
                    .entry(key)
                    .or_insert(ThrottledEvent { event, since_ns });
            }
            (Record::Unthrottle { .. }, _) => self.end_stop(key, trailer.time_ns),
            (Record::Exit(task), _) => self.end_thread(task.tid, trailer.time_ns),
            _ => {}
        }
    }

    /// A thread's events stay throttled until it ends.
    fn end_thread(&mut self, tid: u32, now_ns: u64) {
        let of_thread = self.stopped.keys().filter(|key| key.tid == tid).copied();
        for key in of_thread.collect::<Vec<_>>() {
            self.end_stop(key, now_ns);
        }
    }

    fn end_stop(&mut self, key: EventInThread, now_ns: u64) {
        if let Some(stop) = self.stopped.remove(&key) {
            let ns = now_ns.saturating_sub(stop.since_ns);
            *self.ns_by_event.entry(stop.event).or_default() += ns;
        }
    }

    /// Throttled time of an event in all threads, in nanoseconds.
    pub(super) fn of_event_ns(&self, event: usize) -> u64 {
        self.ns_by_event.get(&event).copied().unwrap_or(0)
    }
}

/// Note for the user about an event that was throttled.
pub(super) fn note(name: &str, times: u64, ns: u64) -> String {
    format!(
        "{name}: the kernel stopped it {times} times for too many samples, {:.1} ms in total. Events \
         in that time are neither sampled nor counted. Choose a larger period (-c), or raise \
         kernel.perf_event_max_sample_rate",
        ns as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_perf::abi::{Attr, flag, record, sample};
    use memgauge_perf::record::{Header, Layout};

    /// Parses a record's body as the kernel writes it: these words, then the trailer of
    /// TID, TIME and ID.
    fn observe(throttled: &mut ThrottledTime, kind: u32, words: &[u64], tid: u32, time_ns: u64) {
        let mut attr = Attr::new(0, 0);
        attr.sample_type = sample::TID | sample::TIME | sample::ID;
        attr.flags = flag::SAMPLE_ID_ALL;
        let layout = Layout::new(&attr);
        let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        body.extend([tid, tid].iter().flat_map(|w| w.to_le_bytes()));
        body.extend([time_ns, 7].iter().flat_map(|w| w.to_le_bytes()));
        let header = Header {
            kind,
            misc: 0,
            size: (8 + body.len()) as u16,
        };
        let (record, trailer) = layout.record(header, &body).expect("a whole record");
        throttled.observe(&record, &trailer, Some(0));
    }

    #[test]
    fn time_from_throttle_to_unthrottle_is_counted_by_thread() {
        let mut throttled = ThrottledTime::default();
        observe(&mut throttled, record::THROTTLE, &[1000, 7, 7], 11, 1000);
        observe(&mut throttled, record::THROTTLE, &[1500, 7, 7], 12, 1500);
        observe(&mut throttled, record::UNTHROTTLE, &[4000, 7, 7], 11, 4000);
        assert_eq!(throttled.of_event_ns(0), 3000);
        observe(&mut throttled, record::UNTHROTTLE, &[5000, 7, 7], 12, 5000);
        assert_eq!(throttled.of_event_ns(0), 6500);
        // UNTHROTTLE without THROTTLE, as after a lost record.
        observe(&mut throttled, record::UNTHROTTLE, &[6000, 7, 7], 12, 6000);
        assert_eq!(throttled.of_event_ns(0), 6500);
    }

    #[test]
    fn thread_stays_throttled_until_it_ends() {
        let mut throttled = ThrottledTime::default();
        observe(&mut throttled, record::THROTTLE, &[1000, 7, 7], 11, 1000);
        // pid and parent, tid and parent, time
        let pair = |low: u64, high: u64| low | high << 32;
        observe(
            &mut throttled,
            record::EXIT,
            &[pair(11, 1), pair(11, 1), 9000],
            11,
            9000,
        );
        assert_eq!(throttled.of_event_ns(0), 8000);
    }
}
