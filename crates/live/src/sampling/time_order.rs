//! Merges the records of several rings in the order of time, with bounded memory. Pure.
//!
//! The records of one ring are in order, or nearly so, but rings are read one after the other.
//! A record older than the *beginning* of the previous round must be in a ring that has been read
//! since. So it can be released. Younger records wait for the next round. At most two rounds of
//! full rings wait, and never more than the limit given to [`TimeOrder::new`]. If the limit is
//! reached, all records are released, and later records that are older than those are counted.

use memgauge_perf::record::Header;

#[derive(Clone, Copy, Debug)]
struct WaitingRecord {
    time_ns: u64,
    header: Header,
    /// Offset of the body in `bodies`.
    offset: usize,
    bytes: usize,
}

/// Records that wait for older ones.
#[derive(Debug, Default)]
pub(super) struct TimeOrder {
    bodies: Vec<u8>,
    waiting: Vec<WaitingRecord>,
    max_bytes: usize,
    released_until_ns: u64,
    late: u64,
}

impl TimeOrder {
    pub(super) fn new(max_bytes: usize) -> TimeOrder {
        TimeOrder {
            max_bytes,
            ..TimeOrder::default()
        }
    }

    pub(super) fn push(&mut self, time_ns: u64, header: Header, body: &[u8]) {
        self.late += u64::from(time_ns < self.released_until_ns);
        self.waiting.push(WaitingRecord {
            time_ns,
            header,
            offset: self.bodies.len(),
            bytes: body.len(),
        });
        self.bodies.extend_from_slice(body);
    }

    /// Number of records that came after younger ones had been released.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Releases the records older than `horizon_ns` in order, or all if too many wait. Records
    /// of equal time keep the order in which they came.
    pub(super) fn release(&mut self, horizon_ns: u64, mut each: impl FnMut(Header, &[u8])) {
        self.waiting.sort_by_key(|record| record.time_ns);
        let ready = match self.bodies.len() > self.max_bytes {
            true => self.waiting.len(),
            false => self
                .waiting
                .partition_point(|record| record.time_ns < horizon_ns),
        };
        for record in &self.waiting[..ready] {
            let body = &self.bodies[record.offset..record.offset + record.bytes];
            each(record.header, body);
        }
        if let Some(last) = ready.checked_sub(1) {
            self.released_until_ns = self.released_until_ns.max(self.waiting[last].time_ns);
        }
        self.remove_first(ready);
    }

    /// Forgets the released records and moves the bodies of the others to the front.
    fn remove_first(&mut self, ready: usize) {
        self.waiting.drain(..ready);
        // With a single ring the waiting bodies are the last ones, without gaps.
        if self.waiting.is_sorted_by_key(|record| record.offset) {
            let first = self.waiting.first();
            let first = first.map_or(self.bodies.len(), |record| record.offset);
            let waiting_bytes: usize = self.waiting.iter().map(|record| record.bytes).sum();
            if first + waiting_bytes == self.bodies.len() {
                self.bodies.drain(..first);
                for record in &mut self.waiting {
                    record.offset -= first;
                }
                return;
            }
        }
        let mut kept = Vec::new();
        for record in &mut self.waiting {
            let offset = kept.len();
            kept.extend_from_slice(&self.bodies[record.offset..record.offset + record.bytes]);
            record.offset = offset;
        }
        // Copied back, so that `bodies` keeps its capacity.
        self.bodies.clear();
        self.bodies.extend_from_slice(&kept);
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

    fn push(order: &mut TimeOrder, times: &[u64]) {
        for &time in times {
            order.push(time, HEADER, &time.to_le_bytes());
        }
    }

    fn release(order: &mut TimeOrder, horizon: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        order.release(horizon, |_, body| {
            seen.push(u64::from_le_bytes(body.try_into().unwrap()));
        });
        seen
    }

    #[test]
    fn records_of_two_rings_are_released_in_the_order_of_time() {
        let mut order = TimeOrder::new(1 << 20);
        push(&mut order, &[10, 30, 50]);
        push(&mut order, &[20, 40, 60]);
        assert_eq!(release(&mut order, 35), [10, 20, 30]);
        push(&mut order, &[45, 70]);
        assert_eq!(release(&mut order, u64::MAX), [40, 45, 50, 60, 70]);
        assert_eq!((order.late(), order.bodies.len()), (0, 0));
    }

    #[test]
    fn late_record_is_counted_and_released() {
        let mut order = TimeOrder::new(1 << 20);
        push(&mut order, &[10, 20]);
        release(&mut order, 100);
        push(&mut order, &[15, 25]);
        assert_eq!(release(&mut order, 100), [15, 25]);
        assert_eq!(order.late(), 1);
    }

    #[test]
    fn memory_stays_below_the_limit() {
        let mut order = TimeOrder::new(64);
        for time in 0..1000 {
            push(&mut order, &[time]);
            release(&mut order, 0);
            assert!(order.bodies.len() <= 64);
        }
        assert_eq!(order.late(), 0);
    }

    #[test]
    fn merging_random_rings_equals_sorting() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..50 {
            let (mut order, mut all, mut seen) = (TimeOrder::new(1 << 20), Vec::new(), Vec::new());
            let mut previous = 0;
            for round in 1..10u64 {
                let (begin, mut times) = (round * 100, Vec::new());
                times.extend((0..random(20)).map(|_| previous + random(begin - previous + 50)));
                times.sort_unstable();
                // No record is older than the beginning of the previous round.
                times.retain(|&t| t >= previous);
                push(&mut order, &times);
                all.extend(times);
                seen.extend(release(&mut order, previous));
                previous = begin;
            }
            seen.extend(release(&mut order, u64::MAX));
            all.sort_unstable();
            assert_eq!((seen, order.late()), (all, 0));
        }
    }
}
