//! Finds the regions of interest that a thread was in at a given time, from the marks that programs
//! write while they run.

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use memgauge_host::roi::OpenRegions;
use memgauge_live::sampling::SamplingPlan;
use memgauge_live::sampling::roi_marks::{MarkFile, RoiMark, RoiMarkKind};

use crate::procfs::ThreadIds;
use crate::roi::RoiTree;
use crate::{Error, ErrorKind, Result};

/// Maximum number of marks of a thread that wait for a later sample. The oldest further ones are
/// applied at once, as if the samples before them had been read.
const MAX_WAITING: usize = 1 << 12;
/// Maximum number of threads whose marks are kept.
const MAX_THREADS: usize = 1 << 14;

/// Marks of all threads.
pub(crate) struct ThreadMarks {
    file: MarkFile,
    threads: HashMap<ThreadIds, MarkedThread>,
    lost: u64,
}

/// Marks of one thread.
#[derive(Default)]
struct MarkedThread {
    waiting: VecDeque<RoiMark>,
    open: OpenRegions<String, ()>,
    /// Number of the open regions, if it is known.
    number: Option<u16>,
}

impl MarkedThread {
    fn apply(&mut self, mark: RoiMark) {
        self.number = None;
        match mark.kind {
            RoiMarkKind::Begin => drop(self.open.begin(mark.name, ())),
            // The end of a region that is not open changes nothing.
            RoiMarkKind::End => drop(self.open.end(&mark.name)),
            RoiMarkKind::Value => {}
        }
    }

    /// Forgets which regions are open.
    fn close_all(&mut self) {
        *self = MarkedThread::default();
    }

    fn at(&mut self, time_ns: u64, tree: &mut RoiTree) -> u16 {
        let is_due = |mark: &RoiMark| mark.time_ns <= time_ns;
        while self.waiting.front().is_some_and(is_due) {
            if let Some(mark) = self.waiting.pop_front() {
                self.apply(mark);
            }
        }
        let names = || self.open.iter().map(|region| region.name.as_str());
        *self.number.get_or_insert_with(|| tree.number(names()))
    }
}

impl ThreadMarks {
    pub(crate) fn create() -> Result<ThreadMarks> {
        Ok(ThreadMarks {
            file: MarkFile::create()?,
            threads: HashMap::new(),
            lost: 0,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Number of lost marks: there was no room for them, or their thread was killed while it wrote
    /// them.
    pub(crate) fn lost(&self) -> u64 {
        self.lost + self.file.refused()
    }

    /// Reads the marks that programs have written.
    pub(crate) fn read(&mut self) {
        let before = self.lost();
        let threads = &mut self.threads;
        self.lost += self.file.drain(false, |mark| add(threads, mark));
        if self.lost() > before {
            // The lost marks can be of any thread and can include the end of a region.
            self.threads.values_mut().for_each(MarkedThread::close_all);
        }
    }

    /// Returns the number of the regions that a thread was in.
    pub(crate) fn at(&mut self, ids: ThreadIds, time_ns: u64, tree: &mut RoiTree) -> u16 {
        match self.threads.get_mut(&ids) {
            Some(thread) => thread.at(time_ns, tree),
            None => 0,
        }
    }

    /// Forgets a thread that has ended.
    pub(crate) fn forget(&mut self, ids: ThreadIds) {
        self.threads.remove(&ids);
    }
}

fn add(threads: &mut HashMap<ThreadIds, MarkedThread>, mark: RoiMark) {
    let ids = ThreadIds {
        pid: mark.pid,
        tid: mark.tid,
    };
    if threads.len() >= MAX_THREADS && !threads.contains_key(&ids) {
        // Threads that are in no region have nothing to forget.
        threads.retain(|_, thread| !thread.waiting.is_empty() || thread.open.iter().len() > 0);
        if threads.len() >= MAX_THREADS {
            threads.clear();
        }
    }
    let thread = threads.entry(ids).or_default();
    thread.waiting.push_back(mark);
    if thread.waiting.len() > MAX_WAITING
        && let Some(oldest) = thread.waiting.pop_front()
    {
        thread.apply(oldest);
    }
}

/// Creates the file for marks. The times of marks and samples must be from the same clock.
pub(crate) fn create_marks(plan: &SamplingPlan) -> Result<ThreadMarks> {
    match plan.is_monotonic() {
        true => ThreadMarks::create(),
        false => Err(Error::new(
            ErrorKind::Missing,
            "failed to track regions of interest: PEBS records use another clock; choose another \
             event, or use `memgauge record --region`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(tid: u32) -> ThreadIds {
        ThreadIds { pid: 1, tid }
    }

    fn mark(time_ns: u64, tid: u32, kind: RoiMarkKind, name: &str) -> RoiMark {
        RoiMark {
            time_ns,
            pid: 1,
            tid,
            value: 0,
            kind,
            name: name.to_owned(),
        }
    }

    #[test]
    fn sample_has_the_regions_of_its_thread_and_time() {
        use RoiMarkKind::{Begin, End};
        let mut marks = ThreadMarks::create().expect("there is room");
        let mut tree = RoiTree::default();
        for m in [
            mark(10, 2, Begin, "a"),
            mark(20, 2, Begin, "b"),
            mark(25, 3, Begin, "c"),
            mark(30, 2, End, "a"),
            mark(40, 2, End, "b"),
            mark(50, 2, End, "b"),
        ] {
            add(&mut marks.threads, m);
        }
        // Samples are read thread by thread, so their times can go back.
        let mut at = |time_ns, tid| {
            let number = marks.at(ids(tid), time_ns, &mut tree);
            let mut names = Vec::new();
            let mut region = crate::RegionId::from_number(number);
            while let Some(found) = region.and_then(|id| tree.region(id)) {
                names.insert(0, found.name);
                region = found.outer;
            }
            names.join("/")
        };
        assert_eq!(at(5, 2), "");
        assert_eq!(at(15, 2), "a");
        assert_eq!(at(25, 2), "a/b");
        assert_eq!(at(35, 2), "b");
        assert_eq!(at(60, 2), "");
        assert_eq!(at(24, 3), "");
        assert_eq!(at(26, 3), "c");
        assert_eq!(at(26, 4), "");
    }

    #[test]
    fn all_regions_are_closed_after_a_loss() {
        let mut marks = ThreadMarks::create().expect("there is room");
        let mut tree = RoiTree::default();
        add(&mut marks.threads, mark(10, 2, RoiMarkKind::Begin, "a"));
        assert_ne!(marks.at(ids(2), 20, &mut tree), 0);
        marks.threads.values_mut().for_each(MarkedThread::close_all);
        assert_eq!(marks.at(ids(2), 30, &mut tree), 0);
    }

    #[test]
    fn memory_for_unsampled_threads_is_bounded() {
        let mut threads = HashMap::new();
        for n in 0..3 * MAX_THREADS as u32 {
            add(&mut threads, mark(1, n, RoiMarkKind::Begin, "a"));
        }
        assert!(threads.len() <= MAX_THREADS);
        for n in 0..3 * MAX_WAITING as u64 {
            add(&mut threads, mark(n, 7, RoiMarkKind::Value, "v"));
        }
        assert!(threads[&ids(7)].waiting.len() <= MAX_WAITING);
    }
}
