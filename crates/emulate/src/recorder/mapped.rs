//! When what a process has mapped was mapped.
//!
//! Its catalogue tells of it before the thread that did so is read that far: a mark in that
//! thread's words says when it gets there.

use std::collections::VecDeque;

use memgauge_trace::Module;

/// Times of all that a process mapped and unmapped.
pub(super) struct Mapped {
    /// When it began, then when a thread came to each; rising.
    times_ns: Vec<u64>,
    /// Those that none has come to: where the catalogue has them (bytes, their record
    /// included), and what is to be written.
    ahead: VecDeque<(u64, Option<Module>)>,
}

impl Default for Mapped {
    fn default() -> Mapped {
        Mapped::since(0)
    }
}

impl Mapped {
    /// Of a program that begins at this time.
    pub(super) fn since(began_ns: u64) -> Mapped {
        Mapped {
            times_ns: vec![began_ns],
            ahead: VecDeque::new(),
        }
    }

    /// Of a child that was forked at this time, when it had all of them.
    pub(super) fn inherited(&self, forked_ns: u64) -> Mapped {
        let mut times_ns = self.times_ns.clone();
        let last = self.last_ns();
        times_ns.extend(self.ahead.iter().map(|_| forked_ns.max(last)));
        Mapped {
            times_ns,
            ahead: VecDeque::new(),
        }
    }

    fn last_ns(&self) -> u64 {
        self.times_ns.last().copied().unwrap_or(0)
    }

    /// A time after all of them that is not before `now_ns`: another program may begin then.
    pub(super) fn end_ns(&self, now_ns: u64) -> u64 {
        now_ns.max(self.last_ns() + self.ahead.len() as u64 + 1)
    }

    /// The time of what code runs in that was met after so many of them: it is what was mapped
    /// then, or next.
    pub(super) fn code_ns(&self, mappings: u32) -> u64 {
        let known = self.times_ns.get(mappings as usize);
        known.copied().unwrap_or_else(|| self.last_ns())
    }

    /// The catalogue tells of one, in its first `bytes`. Returns its number, which begins with 1.
    pub(super) fn tell(&mut self, bytes: u64, row: Option<Module>) -> u32 {
        let number = self.times_ns.len() + self.ahead.len();
        self.ahead.push_back((bytes, row));
        number as u32
    }

    /// A thread has come to those in the catalogue's first `bytes`: their rows, with their
    /// times.
    pub(super) fn reach(&mut self, bytes: u64, now_ns: u64) -> Vec<Module> {
        let mut rows = Vec::new();
        while self.ahead.front().is_some_and(|(at, _)| *at <= bytes) {
            let row = self.ahead.pop_front().and_then(|(_, row)| row);
            // After what was used before: also where no time has passed.
            let time_ns = now_ns.max(self.last_ns()) + 1;
            self.times_ns.push(time_ns);
            rows.extend(row.map(|row| Module { time_ns, ..row }));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(rows: &[Module]) -> Vec<u64> {
        rows.iter().map(|row| row.time_ns).collect()
    }

    #[test]
    fn each_has_the_time_at_which_a_thread_comes_to_it() {
        let mut mapped = Mapped::since(5);
        for bytes in [100, 200, 300] {
            mapped.tell(bytes, Some(Module::default()));
        }
        mapped.tell(400, None);
        assert_eq!(times(&mapped.reach(250, 1000)), [1001, 1002]);
        assert_eq!(
            [0, 1, 2, 3].map(|n| mapped.code_ns(n)),
            [5, 1001, 1002, 1002]
        );
        let child = mapped.inherited(5000);
        assert_eq!([2, 3, 4].map(|n| child.code_ns(n)), [1002, 5000, 5000]);
        assert_eq!((mapped.end_ns(0), mapped.end_ns(9000)), (1005, 9000));
        assert_eq!(times(&mapped.reach(u64::MAX, 1000)), [1003]);
        assert_eq!(mapped.code_ns(4), 1004);
    }
}
