//! Bytes in pipes: which write supplied the bytes of a read, and which read made the room for a
//! write.
//!
//! A pipe passes on bytes in order. A read waits for the write of its last byte, and a write waits
//! for the read that frees the room for its last byte. Writes announce their size before they
//! begin. A read reports its size when it has returned, and how many bytes were left. Another write
//! may be in progress then, so the number of bytes in the pipe is unknown, and the bytes read are
//! summed up. If processes outside the session take part, the sum is wrong. It is corrected when it
//! contradicts the number of bytes left.
//!
//! Counting back from the last write by the bytes left, without a sum, was rejected. A large write
//! in progress would then count as read, and since its writer waits for the reader, both would be
//! serialised.

use std::collections::VecDeque;

/// Maximum number of writes and reads kept for each pipe: enough to fill a pipe in pieces of 16
/// bytes.
const MAX_OPERATIONS: usize = 4096;
/// A write in progress is among this many latest ones.
const MAX_WRITES_IN_PROGRESS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Write {
    number: u64,
    ns: u64,
    /// Number of bytes. Negative if an earlier write wrote less than announced.
    bytes: i64,
    /// Number of the mark that shows that it is finished.
    over: u64,
}

/// A read, which ended at byte `to` of all bytes.
#[derive(Clone, Copy, Debug)]
struct PipeRead {
    to: i64,
    ns: u64,
}

/// State of a pipe. Marks of waits come in increasing order of their numbers, others in any order.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    /// In increasing order of their numbers.
    writes: VecDeque<Write>,
    reads: VecDeque<PipeRead>,
    /// Bytes of all writes, including those that are no longer kept.
    all: i64,
    is_cut: bool,
}

impl Pipe {
    /// A thread starts to write `bytes` at `ns`.
    pub(crate) fn write(&mut self, number: u64, ns: u64, bytes: u64) {
        self.insert(Write {
            number,
            ns,
            bytes: signed(bytes),
            over: u64::MAX,
        });
    }

    /// The write with that number wrote `bytes` fewer than announced, as a later mark shows.
    pub(crate) fn shorten(&mut self, number: u64, bytes: u64) {
        self.insert(Write {
            number,
            ns: 0,
            bytes: -signed(bytes),
            over: number,
        });
    }

    fn insert(&mut self, write: Write) {
        let place = self.writes.partition_point(|w| w.number < write.number);
        self.writes.insert(place, write);
        self.all = self.all.saturating_add(write.bytes);
        if self.writes.len() > MAX_OPERATIONS {
            self.writes.pop_front();
            self.is_cut = true;
        }
    }

    /// The write with that number is finished, as the mark `by` shows.
    pub(crate) fn end(&mut self, number: u64, by: u64) {
        let place = self.writes.partition_point(|w| w.number < number);
        if let Some(write) = self.writes.get_mut(place).filter(|w| w.number == number) {
            write.over = by;
        }
    }

    fn before(&self, number: u64) -> impl Iterator<Item = &Write> {
        let place = self.writes.partition_point(|w| w.number < number);
        self.writes.range(..place).rev()
    }

    /// Returns the bytes of all writes before a mark, and how many of these may not have been
    /// written yet.
    fn written(&self, number: u64) -> (i64, i64) {
        let later = self.writes.iter().rev().take_while(|w| w.number >= number);
        let all = later.fold(self.all, |all, w| all.saturating_sub(w.bytes));
        let latest = self.before(number).take(MAX_WRITES_IN_PROGRESS);
        let under_way = latest.filter(|w| w.over > number).map(|w| w.bytes).sum();
        (all, under_way)
    }

    /// A thread has read `bytes` by `now_ns` and left `left` bytes. Returns the time until which it
    /// has waited, if it has.
    pub(crate) fn read(&mut self, number: u64, now_ns: u64, bytes: u64, left: u64) -> Option<u64> {
        let (all, under_way) = self.written(number);
        let (bytes, left) = (signed(bytes), signed(left));
        let come = self.reads.back().map_or(0, |read| read.to);
        let least = all.saturating_sub(under_way);
        let to = (come.saturating_add(bytes + left))
            .clamp(least, all)
            .saturating_sub(left);
        let until_ns = self.writer_of(number, all, to);
        self.reads.push_back(PipeRead {
            to,
            ns: until_ns.map_or(now_ns, |ns| ns.max(now_ns)),
        });
        if self.reads.len() > MAX_OPERATIONS {
            self.reads.pop_front();
        }
        until_ns
    }

    /// Time of the write of byte `to`, of the `all` bytes that were written before a mark.
    fn writer_of(&self, number: u64, all: i64, to: i64) -> Option<u64> {
        let mut from = all;
        for write in self.before(number) {
            from = from.saturating_sub(write.bytes);
            if from < to && write.bytes > 0 {
                return Some(write.ns);
            }
        }
        // The oldest kept write stands for all writes before it. Writes from outside have no time.
        let oldest = self.writes.front().filter(|_| self.is_cut);
        oldest.map(|write| write.ns)
    }

    /// A thread has written to a pipe with capacity `most`. Returns the time until which it has
    /// waited for room, if it has.
    pub(crate) fn room(&self, number: u64, most: u64) -> Option<u64> {
        let (all, under_way) = self.written(number);
        let free = all.saturating_sub(under_way + signed(most));
        if free <= 0 {
            return None;
        }
        // The read that made the room may be reported after the write that it released. Then the
        // last known read is used.
        let place = self.reads.partition_point(|read| read.to < free);
        let read = self.reads.get(place).or(self.reads.back())?;
        Some(read.ns)
    }
}

/// Number of bytes in a mark. Larger values come from damaged words.
fn signed(bytes: u64) -> i64 {
    const MAX_BYTES: u64 = 1 << 48;
    bytes.min(MAX_BYTES).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_write_that_gave_its_last_byte() {
        let writes = [(2, 200, 10), (4, 400, 5), (6, 600, 20)];
        for (bytes, left, expected) in [
            (35, 0, 600),
            (16, 19, 600),
            (15, 20, 400),
            (11, 24, 400),
            (10, 25, 200),
            (1, 34, 200),
        ] {
            let pipe = &mut Pipe::default();
            // The marks are read in any order.
            for at in [2, 0, 1] {
                let (number, ns, bytes) = writes[at];
                pipe.write(number, ns, bytes);
                pipe.end(number, number + 1);
            }
            let found = pipe.read(9, 50, bytes, left);
            assert_eq!(found, Some(expected), "{bytes}, {left}");
        }
    }

    #[test]
    fn a_write_under_way_is_not_taken_for_what_was_read() {
        let pipe = &mut Pipe::default();
        pipe.write(1, 100, 10);
        pipe.end(1, 2);
        pipe.write(3, 300, 1000);
        // 64 bytes of the write are in the pipe, which is known once it has finished.
        assert_eq!(pipe.read(5, 0, 4, 6 + 64), Some(100));
        assert_eq!(pipe.read(6, 0, 6, 64), Some(100));
        assert_eq!(pipe.read(7, 0, 1, 63), Some(300));
        pipe.end(3, 20);
        assert_eq!(pipe.read(8, 0, 1, 62), Some(300));
        assert_eq!(pipe.read(21, 0, 998, 0), Some(300));
    }

    #[test]
    fn shortened_write_counts_only_the_written_bytes() {
        let pipe = &mut Pipe::default();
        pipe.write(1, 100, 10);
        pipe.end(1, 2);
        pipe.write(3, 300, 1000);
        pipe.end(3, 4);
        pipe.shorten(4, 1000);
        pipe.write(5, 500, 10);
        pipe.end(5, 6);
        assert_eq!(pipe.read(9, 0, 10, 10), Some(100));
        assert_eq!(pipe.read(10, 0, 1, 9), Some(500));
    }

    #[test]
    fn bytes_from_outside_are_waited_for_by_nobody_and_set_no_sum_wrong_for_long() {
        let pipe = &mut Pipe::default();
        assert_eq!(pipe.read(1, 0, 50, 0), None);
        assert_eq!(pipe.read(2, 0, 50, 10), None);
        pipe.write(3, 300, 10);
        pipe.end(3, 4);
        // The first read is of the ten bytes from outside.
        assert_eq!(pipe.read(5, 0, 10, 10), None);
        assert_eq!(pipe.read(6, 0, 1, 9), Some(300));
        // Somebody outside reads these nine bytes, and the first ten of the next write.
        pipe.write(7, 700, 10);
        pipe.end(7, 8);
        pipe.write(9, 900, 10);
        pipe.end(9, 10);
        assert_eq!(pipe.read(11, 0, 3, 7), Some(900));
    }

    #[test]
    fn a_write_waits_for_the_read_that_made_the_last_of_its_room() {
        let pipe = &mut Pipe::default();
        for (number, ns) in [(1, 100), (3, 110), (5, 120)] {
            pipe.write(number, ns, 40);
            pipe.end(number, number + 1);
        }
        assert_eq!((pipe.room(2, 64), pipe.room(4, 100)), (None, None));
        assert_eq!(pipe.read(7, 500, 10, 110), Some(100));
        assert_eq!(pipe.read(8, 600, 20, 90), Some(100));
        assert_eq!(pipe.read(9, 700, 30, 60), Some(110));
        // A pipe of 110 bytes took the last of 120 bytes when ten had been read.
        for (most, expected) in [
            (120, None),
            (110, Some(500)),
            (109, Some(600)),
            (60, Some(700)),
        ] {
            assert_eq!(pipe.room(10, most), expected, "{most}");
        }
        // The mark of the read that it waited for comes later, so the last known read stands for
        // it.
        assert_eq!(pipe.room(10, 50), Some(700));
    }

    #[test]
    fn words_that_make_no_sense_do_no_harm() {
        let pipe = &mut Pipe::default();
        for number in 0..200_000 {
            pipe.write(number, number, u64::MAX);
        }
        assert!(pipe.read(300_000, 0, u64::MAX, u64::MAX).is_some());
        for number in 200_000..800_000 {
            pipe.shorten(number, u64::MAX);
        }
        pipe.read(900_000, 0, u64::MAX, u64::MAX);
        pipe.room(900_001, u64::MAX);
    }

    #[test]
    fn oldest_kept_write_stands_for_all_earlier_ones() {
        let pipe = &mut Pipe::default();
        let all = MAX_OPERATIONS as u64;
        for number in 1..=all + 1 {
            pipe.write(number, number, 1);
            pipe.end(number, number);
        }
        assert_eq!(pipe.read(all + 9, 0, 1, all), Some(2));
        assert_eq!(pipe.read(all + 9, 0, 1, all - 1), Some(2));
        assert_eq!(pipe.read(all + 9, 0, 1, all - 2), Some(3));
    }
}
