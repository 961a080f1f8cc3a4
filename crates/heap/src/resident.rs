//! Resident memory of a process over time, as the kernel reports it.
//!
//! It is read at most once per [`READ_INTERVAL_NS`], whenever the rings are read. A maximum is kept for
//! each of at most [`MAX_INTERVALS`] intervals, whose length is doubled when a run exceeds them.

use memgauge_host::sys::pages::page_bytes;
use memgauge_trace::{HeapUseRow, Pid};

/// Reading takes a few microseconds, so this costs less than 0.1 % of a processor per process.
const READ_INTERVAL_NS: u64 = 10_000_000;

const MAX_INTERVALS: u64 = 512;

/// Resident bytes of a process by interval.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    start_ns: u64,
    interval_ns: u64,
    next_ns: u64,
    /// Intervals in which it was read, and their maxima.
    points: Vec<(u64, u64)>,
}

impl Resident {
    /// That of a process that starts at `start_ns`.
    pub(crate) fn new(start_ns: u64) -> Resident {
        Resident {
            start_ns,
            interval_ns: READ_INTERVAL_NS,
            next_ns: 0,
            points: Vec::new(),
        }
    }

    /// Reads it, if it is time to.
    pub(crate) fn read(&mut self, pid: u32, now_ns: u64) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + READ_INTERVAL_NS;
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        // A process that has ended has none.
        if let Some(pages) = pages.filter(|&pages: &u64| pages > 0) {
            self.add(now_ns, pages * page_bytes());
        }
    }

    fn add(&mut self, now_ns: u64, bytes: u64) {
        let since_ns = now_ns.saturating_sub(self.start_ns);
        while since_ns / self.interval_ns >= MAX_INTERVALS {
            self.interval_ns *= 2;
            self.points.iter_mut().for_each(|point| point.0 /= 2);
            self.points.dedup_by(|next, point| {
                let is_same = next.0 == point.0;
                if is_same {
                    point.1 = point.1.max(next.1);
                }
                is_same
            });
        }
        let interval = since_ns / self.interval_ns;
        match self.points.last_mut() {
            Some(last) if last.0 == interval => last.1 = last.1.max(bytes),
            _ => self.points.push((interval, bytes)),
        }
    }

    /// Adds it to the rows of a process that ended at `end_ns`.
    pub(crate) fn add_to(&self, history: &mut Vec<HeapUseRow>, pid: Pid, end_ns: u64) {
        let mut in_use: Vec<HeapUseRow> = Vec::new();
        history.retain(|row| {
            let is_of_all = row.site.is_none();
            if is_of_all {
                in_use.push(row.clone());
            }
            !is_of_all
        });
        let time = |interval: u64| self.start_ns + interval * self.interval_ns;
        let points = self.points.iter();
        let points = points.map(|&(interval, bytes)| (time(interval), bytes));
        let end = self.points.last().map(|&(interval, _)| {
            // The end may be in the interval of the last point.
            (end_ns.max(time(interval) + 1), 0)
        });
        let mut next = points.chain(end).peekable();
        let mut bytes = 0;
        let mut merged = Vec::new();
        let resident = |time_ns, resident_bytes, bytes| HeapUseRow {
            pid,
            time_ns,
            site: None,
            bytes,
            resident_bytes: Some(resident_bytes),
        };
        for mut row in in_use {
            while let Some((time_ns, of_time)) = next.next_if(|&(at_ns, _)| at_ns < row.time_ns) {
                merged.push(resident(time_ns, of_time, bytes));
            }
            bytes = row.bytes;
            let same = next.next_if(|&(at_ns, _)| at_ns == row.time_ns);
            row.resident_bytes = same.map(|(_, bytes)| bytes);
            merged.push(row);
        }
        merged.extend(next.map(|(time_ns, of_time)| resident(time_ns, of_time, bytes)));
        history.splice(0..0, merged);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with all values that were read. The bytes in use must not change.
        #[test]
        fn rows_have_the_maximum_of_each_interval_and_the_bytes_in_use_as_before(
            steps in proptest::collection::vec((0u64..60_000_000, 1u64..1000), 1..800),
            uses in proptest::collection::vec((1u64..2_000_000_000, 1u64..100), 1..40),
        ) {
            let mut resident = Resident::new(5);
            let (mut now_ns, mut read) = (5, Vec::new());
            for (step, bytes) in steps {
                now_ns += step;
                resident.add(now_ns, bytes);
                read.push((now_ns, bytes));
            }
            let row = |(time_ns, bytes): (u64, u64)| HeapUseRow {
                pid: Pid(1),
                time_ns,
                bytes,
                ..HeapUseRow::default()
            };
            let mut uses: Vec<HeapUseRow> = uses.into_iter().map(row).collect();
            uses.sort_by_key(|row| row.time_ns);
            uses.dedup_by_key(|row| row.time_ns);
            let mut rows = uses.clone();
            resident.add_to(&mut rows, Pid(1), now_ns + 1);
            prop_assert!(rows.is_sorted_by_key(|row| row.time_ns));
            let known: Vec<&HeapUseRow> =
                rows.iter().filter(|row| row.resident_bytes.is_some()).collect();
            prop_assert!(known.len() as u64 <= MAX_INTERVALS + 1);
            prop_assert_eq!(known.last().and_then(|row| row.resident_bytes), Some(0));
            for pair in known.windows(2) {
                let range = pair[0].time_ns..pair[0].time_ns + resident.interval_ns;
                let within = read.iter().filter(|(time_ns, _)| range.contains(time_ns));
                let most = within.map(|&(_, bytes)| bytes).max();
                prop_assert_eq!(pair[0].resident_bytes, most);
            }
            let in_use = |rows: &[HeapUseRow], at_ns: u64| {
                let before = rows.iter().rev().find(|row| row.time_ns <= at_ns);
                before.map_or(0, |row| row.bytes)
            };
            for at_ns in rows.iter().map(|row| row.time_ns) {
                prop_assert_eq!(in_use(&rows, at_ns), in_use(&uses, at_ns));
            }
        }
    }
}
