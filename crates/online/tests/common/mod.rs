//! Threads to profile, and helpers.

// Each test file uses a part of this module.
#![allow(dead_code)]

use std::sync::Once;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memgauge_online::{Profiler, Settings, Source};

/// Work for a thread.
pub(crate) enum Work {
    /// Touches this number of fresh pages.
    Touch(usize),
    /// Computes for this time.
    Compute(Duration),
}

/// A thread that does the work sent to it.
pub(crate) struct Worker {
    pub(crate) tid: u32,
    work: Option<Sender<Work>>,
    done: Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn own_tid() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").expect("procfs");
    let name = link.file_name().and_then(|n| n.to_str()?.parse().ok());
    name.expect("a number")
}

/// Size of the memory. It is larger than the blocks that the allocator caches, so the pages are
/// mapped anew.
const FRESH_BYTES: usize = 40 << 20;

/// Touches pages that the process did not have yet: each is a fault.
pub(crate) fn touch(pages: usize) -> u64 {
    static SMALL_PAGES: Once = Once::new();
    // SAFETY: sets a property of this process and takes no pointers.
    SMALL_PAGES.call_once(|| unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    });
    let mut memory = vec![0u8; FRESH_BYTES.max(pages * 4096)];
    let touched = memory.chunks_mut(4096).take(pages);
    touched
        .map(|page| std::mem::replace(&mut page[0], 1))
        .map(u64::from)
        .sum()
}

pub(crate) fn compute(long: Duration) -> u64 {
    let (began, mut sum) = (Instant::now(), 1u64);
    while began.elapsed() < long {
        for _ in 0..1000 {
            sum = std::hint::black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    sum
}

impl Worker {
    pub(crate) fn new() -> Worker {
        let (work, todo) = channel();
        let (finished, done) = channel();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            tell.send(own_tid()).expect("somebody listens");
            for work in todo {
                let result = match work {
                    Work::Touch(pages) => touch(pages),
                    Work::Compute(long) => compute(long),
                };
                if finished.send(result).is_err() {
                    return;
                }
            }
        });
        Worker {
            tid: told.recv().expect("a number"),
            work: Some(work),
            done,
            thread: Some(thread),
        }
    }

    pub(crate) fn begin(&self, work: Work) {
        let work = self.work.as_ref().map(|w| w.send(work));
        work.expect("it has not ended").expect("the thread listens");
    }

    /// Waits until the current work is done.
    pub(crate) fn done(&self) {
        self.done.recv().expect("the thread goes on");
    }

    pub(crate) fn work(&self, work: Work) {
        self.begin(work);
        self.done();
    }

    pub(crate) fn end(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Every page fault in user space.
pub(crate) fn faults() -> Settings {
    Settings {
        period: Some(1),
        ..Settings::new(Source::Pmu("page-faults:u".to_owned()))
    }
}

/// Returns a profiler, or `None` where this machine allows none.
pub(crate) fn profiler(settings: Settings) -> Option<Profiler> {
    if !std::path::Path::new("/proc/sys/kernel/perf_event_paranoid").exists() {
        memgauge_testing::skipped(
            memgauge_testing::Need::Kernel,
            "this kernel has no perf events",
        );
        return None;
    }
    Some(Profiler::new(settings).expect("the settings make sense"))
}

/// Waits for a condition; fails after a minute.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{what} never came"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}
