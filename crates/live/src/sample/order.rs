//! Records of several rings in the order of time, with bounded memory. Pure.
//!
//! A ring's records come in order, or nearly so, but rings are read one after the
//! other. A record older than the *beginning* of the last round of reading must be in
//! some ring that has been read since, so it can be handed on. A younger one waits for
//! the next round. At most two rounds of rings wait, and never more than
//! [`Order::new`]'s bytes. Beyond that all records are handed on, and those that then
//! come too late are counted.

use memgauge_perf::record::Header;

/// A waiting record.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    time_ns: u64,
    header: Header,
    at: usize,
    bytes: usize,
}

/// Records that wait for older ones.
#[derive(Debug, Default)]
pub(super) struct Order {
    bytes: Vec<u8>,
    waiting: Vec<Waiting>,
    most_bytes: usize,
    handed_until_ns: u64,
    /// Records that came after younger ones had been handed on.
    pub(super) late: u64,
}

impl Order {
    pub(super) fn new(most_bytes: usize) -> Order {
        Order {
            most_bytes,
            ..Order::default()
        }
    }

    pub(super) fn add(&mut self, time_ns: u64, header: Header, body: &[u8]) {
        self.late += u64::from(time_ns < self.handed_until_ns);
        self.waiting.push(Waiting {
            time_ns,
            header,
            at: self.bytes.len(),
            bytes: body.len(),
        });
        self.bytes.extend_from_slice(body);
    }

    /// Hands on, in order, what is older than `horizon_ns`, or everything where
    /// too much waits. Records of equal time keep the order they came in.
    pub(super) fn release(&mut self, horizon_ns: u64, mut each: impl FnMut(Header, &[u8])) {
        self.waiting.sort_by_key(|w| w.time_ns);
        let ready = match self.bytes.len() > self.most_bytes {
            true => self.waiting.len(),
            false => self.waiting.partition_point(|w| w.time_ns < horizon_ns),
        };
        for w in &self.waiting[..ready] {
            each(w.header, &self.bytes[w.at..w.at + w.bytes]);
        }
        if let Some(last) = ready.checked_sub(1) {
            self.handed_until_ns = self.handed_until_ns.max(self.waiting[last].time_ns);
        }
        self.keep(ready);
    }

    /// Forgets what has been handed on; what is left moves to the front.
    fn keep(&mut self, ready: usize) {
        self.waiting.drain(..ready);
        // Of a single ring what is left came last, one after the other.
        if self.waiting.is_sorted_by_key(|w| w.at) {
            let first = self.waiting.first().map_or(self.bytes.len(), |w| w.at);
            let left: usize = self.waiting.iter().map(|w| w.bytes).sum();
            if first + left == self.bytes.len() {
                self.bytes.drain(..first);
                self.waiting.iter_mut().for_each(|w| w.at -= first);
                return;
            }
        }
        let mut kept = Vec::new();
        for w in &mut self.waiting {
            let at = kept.len();
            kept.extend_from_slice(&self.bytes[w.at..w.at + w.bytes]);
            w.at = at;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(&kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        kind: 9,
        misc: 0,
        size: 16,
    };

    fn add(order: &mut Order, times: &[u64]) {
        for &time in times {
            order.add(time, HEADER, &time.to_le_bytes());
        }
    }

    fn release(order: &mut Order, horizon: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        order.release(horizon, |_, body| {
            seen.push(u64::from_le_bytes(body.try_into().unwrap()));
        });
        seen
    }

    #[test]
    fn records_of_two_rings_come_in_the_order_of_time() {
        let mut order = Order::new(1 << 20);
        add(&mut order, &[10, 30, 50]);
        add(&mut order, &[20, 40, 60]);
        assert_eq!(release(&mut order, 35), [10, 20, 30]);
        add(&mut order, &[45, 70]);
        assert_eq!(release(&mut order, u64::MAX), [40, 45, 50, 60, 70]);
        assert_eq!((order.late, order.bytes.len()), (0, 0));
    }

    #[test]
    fn what_comes_too_late_is_counted_and_handed_on() {
        let mut order = Order::new(1 << 20);
        add(&mut order, &[10, 20]);
        release(&mut order, 100);
        add(&mut order, &[15, 25]);
        assert_eq!(release(&mut order, 100), [15, 25]);
        assert_eq!(order.late, 1);
    }

    #[test]
    fn no_more_waits_than_was_allowed() {
        let mut order = Order::new(64);
        for time in 0..1000 {
            add(&mut order, &[time]);
            release(&mut order, 0);
            assert!(order.bytes.len() <= 64);
        }
        assert_eq!(order.late, 0);
    }

    #[test]
    fn any_two_rings_merge_as_sorting_would() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..50 {
            let (mut order, mut all, mut seen) = (Order::new(1 << 20), Vec::new(), Vec::new());
            let mut previous = 0;
            for round in 1..10u64 {
                let (begin, mut times) = (round * 100, Vec::new());
                times.extend((0..random(20)).map(|_| previous + random(begin - previous + 50)));
                times.sort_unstable();
                // No record is older than the beginning of the previous round.
                times.retain(|&t| t >= previous);
                add(&mut order, &times);
                all.extend(times);
                seen.extend(release(&mut order, previous));
                previous = begin;
            }
            seen.extend(release(&mut order, u64::MAX));
            all.sort_unstable();
            assert_eq!((seen, order.late), (all, 0));
        }
    }
}
