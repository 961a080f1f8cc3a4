//! Which regions of interest a thread was in at a time, from the marks that programs
//! write while they run.

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use memgauge_host::regions::OpenRegions;
use memgauge_live::sample::attached::Plan;
use memgauge_live::sample::marks::{Mark, MarkFile, MarkKind};

use crate::regions::RegionTree;
use crate::{Error, ErrorKind, Result};

/// Marks of a thread that wait for a sample behind them; what is more is taken in at once,
/// as if the samples before it had come.
const MOST_WAITING: usize = 1 << 12;
/// Threads that nobody samples and that have made marks.
const MOST_THREADS: usize = 1 << 14;

/// Marks of all threads.
pub(crate) struct ThreadMarks {
    file: MarkFile,
    threads: HashMap<(u32, u32), Marked>,
    lost: u64,
}

/// A thread that has made marks.
#[derive(Default)]
struct Marked {
    waiting: VecDeque<Mark>,
    inside: OpenRegions<String, ()>,
    /// The number of these regions, where it is known.
    number: Option<u16>,
}

impl Marked {
    fn take(&mut self, mark: Mark) {
        self.number = None;
        match mark.kind {
            MarkKind::Begin => drop(self.inside.begin(mark.name, ())),
            // One that had not begun changes nothing.
            MarkKind::End => drop(self.inside.end(&mark.name)),
            MarkKind::Value => {}
        }
    }

    /// Which regions are open is not known any more.
    fn leave_all(&mut self) {
        *self = Marked::default();
    }

    fn at(&mut self, time_ns: u64, tree: &mut RegionTree) -> u16 {
        let is_due = |mark: &Mark| mark.time_ns <= time_ns;
        while self.waiting.front().is_some_and(is_due) {
            if let Some(mark) = self.waiting.pop_front() {
                self.take(mark);
            }
        }
        let names = || self.inside.iter().map(|open| open.name.as_str());
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

    /// Marks that did not come: there was no room for them, or their thread was killed
    /// while it wrote.
    pub(crate) fn lost(&self) -> u64 {
        self.lost + self.file.refused()
    }

    /// Reads what programs have written.
    pub(crate) fn read(&mut self) {
        let before = self.lost();
        let threads = &mut self.threads;
        self.lost += self.file.take(false, |mark| add(threads, mark));
        if self.lost() > before {
            // Any thread's, and the end of a region may be among them.
            self.threads.values_mut().for_each(Marked::leave_all);
        }
    }

    /// The regions that a thread was in.
    pub(crate) fn at(&mut self, ids: (u32, u32), time_ns: u64, tree: &mut RegionTree) -> u16 {
        match self.threads.get_mut(&ids) {
            Some(marked) => marked.at(time_ns, tree),
            None => 0,
        }
    }

    /// A thread has ended.
    pub(crate) fn forget(&mut self, ids: (u32, u32)) {
        self.threads.remove(&ids);
    }
}

fn add(threads: &mut HashMap<(u32, u32), Marked>, mark: Mark) {
    let ids = (mark.pid, mark.tid);
    if threads.len() >= MOST_THREADS && !threads.contains_key(&ids) {
        // Those that are in no region have nothing to forget.
        threads.retain(|_, marked| !marked.waiting.is_empty() || marked.inside.iter().len() > 0);
        if threads.len() >= MOST_THREADS {
            threads.clear();
        }
    }
    let marked = threads.entry(ids).or_default();
    marked.waiting.push_back(mark);
    if marked.waiting.len() > MOST_WAITING
        && let Some(oldest) = marked.waiting.pop_front()
    {
        marked.take(oldest);
    }
}

/// Marks, whose times have to be those of the samples.
pub(crate) fn marks_of(plan: &Plan) -> Result<ThreadMarks> {
    match plan.is_monotonic() {
        true => ThreadMarks::create(),
        false => Err(Error::new(
            ErrorKind::Missing,
            "failed to tell regions of interest: records of PEBS have a clock of their own: \
             take another event, or `memgauge record --region`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(time_ns: u64, tid: u32, kind: MarkKind, name: &str) -> Mark {
        Mark {
            time_ns,
            pid: 1,
            tid,
            value: 0,
            kind,
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_sample_is_in_the_regions_of_its_thread_at_its_time() {
        use MarkKind::{Begin, End};
        let mut marks = ThreadMarks::create().expect("there is room");
        let mut tree = RegionTree::default();
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
        // One thread's samples are read after another's, so times go back.
        let mut at = |time_ns, tid| {
            let number = marks.at((1, tid), time_ns, &mut tree);
            let mut names = Vec::new();
            let mut region = crate::RegionId::of(number);
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
    fn after_a_loss_no_region_is_open_that_may_have_ended() {
        let mut marks = ThreadMarks::create().expect("there is room");
        let mut tree = RegionTree::default();
        add(&mut marks.threads, mark(10, 2, MarkKind::Begin, "a"));
        assert_ne!(marks.at((1, 2), 20, &mut tree), 0);
        marks.threads.values_mut().for_each(Marked::leave_all);
        assert_eq!(marks.at((1, 2), 30, &mut tree), 0);
    }

    #[test]
    fn threads_that_nobody_samples_take_no_memory_without_end() {
        let mut threads = HashMap::new();
        for n in 0..3 * MOST_THREADS as u32 {
            add(&mut threads, mark(1, n, MarkKind::Begin, "a"));
        }
        assert!(threads.len() <= MOST_THREADS);
        for n in 0..3 * MOST_WAITING as u64 {
            add(&mut threads, mark(n, 7, MarkKind::Value, "v"));
        }
        assert!(threads[&(1, 7)].waiting.len() <= MOST_WAITING);
    }
}
