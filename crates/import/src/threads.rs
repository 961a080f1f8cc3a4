//! Threads of an imported recording, from COMM, FORK and EXIT records and from samples.

use memgauge_trace::{Pid, Thread, Tid};

use memgauge_perf::IdMap;
use memgauge_perf::record::Task;

/// Threads by ID. A thread that executes another program, or whose ID is reused, has one row for
/// each.
#[derive(Debug, Default)]
pub(super) struct Threads {
    current: IdMap<u32, Thread>,
    done: Vec<Thread>,
    /// Thread of the last sample and its start. Consecutive samples are usually of the same thread.
    last_seen: Option<(u32, u64)>,
    /// Changes to be sorted by time at the end, if records are not in order.
    unsorted: Option<Vec<(u64, ThreadChange)>>,
}

/// A change to a thread that a record reports.
#[derive(Clone, Debug)]
pub(super) enum ThreadChange {
    Named {
        pid: u32,
        tid: u32,
        exec: bool,
        name: String,
    },
    Forked(Task),
    Ended(Task),
}

impl Threads {
    /// For records in several files, where the end of a thread may be read before its start.
    pub(super) fn for_unordered_records() -> Threads {
        Threads {
            unsorted: Some(Vec::new()),
            ..Threads::default()
        }
    }

    /// Applies a change, now or at the end.
    pub(super) fn change(&mut self, change: ThreadChange, time_ns: u64) {
        match &mut self.unsorted {
            Some(unsorted) => unsorted.push((time_ns, change)),
            None => self.apply(&change, time_ns),
        }
    }

    fn apply(&mut self, change: &ThreadChange, time_ns: u64) {
        match change {
            ThreadChange::Named {
                pid,
                tid,
                exec,
                name,
            } => self.named(*pid, *tid, *exec, name, time_ns),
            ThreadChange::Forked(task) => self.forked(task, time_ns),
            ThreadChange::Ended(task) => self.ended(task, time_ns),
        }
    }

    fn entry(&mut self, pid: u32, tid: u32, time_ns: u64) -> &mut Thread {
        let new = || Thread {
            pid: Pid(pid),
            tid: Tid(tid),
            start_ns: time_ns,
            ..Thread::default()
        };
        let thread = self.current.entry(tid).or_insert_with(new);
        thread.start_ns = thread.start_ns.min(time_ns);
        thread
    }

    /// Records that a thread was active.
    #[inline]
    pub(super) fn record_activity(&mut self, pid: u32, tid: u32, time_ns: u64) {
        if self
            .last_seen
            .is_none_or(|(t, since)| t != tid || time_ns < since)
        {
            let since = self.entry(pid, tid, time_ns).start_ns;
            self.last_seen = Some((tid, since));
        }
    }

    fn named(&mut self, pid: u32, tid: u32, exec: bool, name: &str, time_ns: u64) {
        let thread = self.entry(pid, tid, time_ns);
        let other = !thread.program.is_empty() && thread.program != name;
        if exec && other {
            let parent_pid = thread.parent_pid;
            thread.end_ns = Some(time_ns);
            self.finish_row(tid);
            self.entry(pid, tid, time_ns).parent_pid = parent_pid;
        }
        name.clone_into(&mut self.entry(pid, tid, time_ns).program);
    }

    fn forked(&mut self, task: &Task, time_ns: u64) {
        if self
            .current
            .get(&task.tid)
            .is_some_and(|t| t.end_ns.is_some())
        {
            self.finish_row(task.tid);
        }
        let program = self
            .current
            .get(&task.parent_tid)
            .map(|p| p.program.clone());
        let thread = self.entry(task.pid, task.tid, time_ns);
        thread.parent_pid = Pid(task.parent_pid);
        if thread.program.is_empty() {
            thread.program = program.unwrap_or_default();
        }
    }

    fn ended(&mut self, task: &Task, time_ns: u64) {
        self.entry(task.pid, task.tid, time_ns).end_ns = Some(time_ns);
    }

    fn finish_row(&mut self, tid: u32) {
        self.last_seen = None;
        self.done.extend(self.current.remove(&tid));
    }

    /// Returns all rows in order of their start.
    pub(super) fn rows(mut self) -> Vec<Thread> {
        let mut unsorted = self.unsorted.take().unwrap_or_default();
        unsorted.sort_by_key(|(time_ns, _)| *time_ns);
        for (time_ns, change) in unsorted {
            self.apply(&change, time_ns);
        }
        self.done.extend(self.current.into_values());
        self.done.sort_by_key(|t| (t.start_ns, t.pid.0, t.tid.0));
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_has_a_row_for_each_program() {
        let mut threads = Threads::default();
        threads.named(5, 5, false, "sh", 10);
        let task = Task {
            pid: 6,
            tid: 6,
            parent_pid: 5,
            parent_tid: 5,
            time_ns: 20,
        };
        threads.forked(&task, 20);
        threads.named(6, 6, true, "ls", 30);
        threads.ended(&task, 40);
        let rows: Vec<_> = threads
            .rows()
            .into_iter()
            .map(|t| (t.tid.0, t.parent_pid.0, t.program, t.start_ns, t.end_ns))
            .collect();
        let expected = [
            (5, 0, "sh".to_owned(), 10, None),
            (6, 5, "sh".to_owned(), 20, Some(30)),
            (6, 5, "ls".to_owned(), 30, Some(40)),
        ];
        assert_eq!(rows, expected);
    }
}
