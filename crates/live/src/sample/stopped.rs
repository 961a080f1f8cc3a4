//! Times in which the kernel had stopped an event for taking too many samples.
//!
//! A stopped event neither samples nor counts, and its count does not tell: only the
//! records of stop and start have times.

use std::collections::HashMap;

use memgauge_perf::record::{Record, Trailer};

/// What is known of the stops of all events.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// Since when, by event id and thread.
    since_ns: HashMap<(u64, u32), (usize, u64)>,
    /// By event number: nanoseconds.
    by_event: HashMap<usize, u64>,
}

impl Stopped {
    /// Takes a record. `event` is the number of the one it names.
    pub(super) fn take(&mut self, record: &Record<'_>, trailer: &Trailer, event: Option<usize>) {
        let key = (trailer.id, trailer.tid);
        match (record, event) {
            (Record::Throttle { .. }, Some(event)) => {
                self.since_ns.entry(key).or_insert((event, trailer.time_ns));
            }
            (Record::Unthrottle { .. }, _) => self.end(key, trailer.time_ns),
            (Record::Exit(task), _) => self.exited(task.tid, trailer.time_ns),
            _ => {}
        }
    }

    /// A thread's events remain stopped when it ends.
    fn exited(&mut self, tid: u32, now_ns: u64) {
        let of_it = self.since_ns.keys().filter(|key| key.1 == tid).copied();
        for key in of_it.collect::<Vec<_>>() {
            self.end(key, now_ns);
        }
    }

    fn end(&mut self, key: (u64, u32), now_ns: u64) {
        if let Some((event, since_ns)) = self.since_ns.remove(&key) {
            *self.by_event.entry(event).or_default() += now_ns.saturating_sub(since_ns);
        }
    }

    /// Nanoseconds in which an event was stopped, all threads together.
    pub(super) fn ns(&self, event: usize) -> u64 {
        self.by_event.get(&event).copied().unwrap_or(0)
    }
}

/// What a user should know of an event that was stopped so many times.
pub(super) fn in_words(name: &str, times: u64, ns: u64) -> String {
    format!(
        "{name}: the kernel stopped it {times} times for too many samples, {:.1} ms in all: what \
        happened then is neither sampled nor counted: choose a larger period (-c), or raise \
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
    fn take(stopped: &mut Stopped, kind: u32, words: &[u64], tid: u32, time_ns: u64) {
        let mut attr = Attr::new(0, 0);
        attr.sample_type = sample::TID | sample::TIME | sample::ID;
        attr.flags = flag::SAMPLE_ID_ALL;
        let layout = Layout::of(&attr);
        let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        body.extend([tid, tid].iter().flat_map(|w| w.to_le_bytes()));
        body.extend([time_ns, 7].iter().flat_map(|w| w.to_le_bytes()));
        let header = Header {
            kind,
            misc: 0,
            size: (8 + body.len()) as u16,
        };
        let (record, trailer) = layout.record(header, &body).expect("a whole record");
        stopped.take(&record, &trailer, Some(0));
    }

    #[test]
    fn time_from_stop_to_start_is_counted_by_thread() {
        let mut stopped = Stopped::default();
        take(&mut stopped, record::THROTTLE, &[1000, 7, 7], 11, 1000);
        take(&mut stopped, record::THROTTLE, &[1500, 7, 7], 12, 1500);
        take(&mut stopped, record::UNTHROTTLE, &[4000, 7, 7], 11, 4000);
        assert_eq!(stopped.ns(0), 3000);
        take(&mut stopped, record::UNTHROTTLE, &[5000, 7, 7], 12, 5000);
        assert_eq!(stopped.ns(0), 6500);
        // A start without a stop, as after a loss.
        take(&mut stopped, record::UNTHROTTLE, &[6000, 7, 7], 12, 6000);
        assert_eq!(stopped.ns(0), 6500);
    }

    #[test]
    fn a_thread_that_ends_stopped_was_stopped_until_then() {
        let mut stopped = Stopped::default();
        take(&mut stopped, record::THROTTLE, &[1000, 7, 7], 11, 1000);
        // pid and parent, tid and parent, time
        let pair = |low: u64, high: u64| low | high << 32;
        take(
            &mut stopped,
            record::EXIT,
            &[pair(11, 1), pair(11, 1), 9000],
            11,
            9000,
        );
        assert_eq!(stopped.ns(0), 8000);
    }
}
