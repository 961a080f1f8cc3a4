//! A process whose descriptor table is filled by sampling: the program can still open files, and
//! each thread that could not be sampled is reported once. This runs in its own process, because
//! the limit is per process.

mod common;

use std::fs::File;
use std::time::Duration;

use common::{Worker, descriptors, profiler, until};
use memgauge_online::{ErrorKind, Profiler, Settings, Source, ThreadState};

const LIMIT: usize = 64;
/// Descriptors reserved for the program: a quarter of 64.
const RESERVED: usize = 16;

fn limit_descriptors() {
    let limit = libc::rlimit {
        rlim_cur: LIMIT as u64,
        rlim_max: LIMIT as u64,
    };
    // SAFETY: the limit is valid, and is only lowered.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(set, 0);
}

fn live(profiler: &Profiler) -> usize {
    let all = profiler.all_statistics();
    let live = all.iter().filter(|s| s.state == ThreadState::Started);
    live.count()
}

/// Opens files until the limit is reached; returns their number.
fn files() -> usize {
    let all: Vec<File> = (0..LIMIT)
        .map_while(|_| File::open("/dev/null").ok())
        .collect();
    all.len()
}

#[test]
fn sampling_leaves_descriptors_to_the_program_and_tells_of_each_thread_once() {
    let settings = Settings {
        period: Some(10_000_000),
        ..Settings::new(Source::Pmu("cpu-clock:u".to_owned()))
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    limit_descriptors();
    let own = std::process::id();
    let before = descriptors();
    {
        // A process with too many threads is refused as a whole.
        let _many: Vec<Worker> = (0..LIMIT).map(|_| Worker::new()).collect();
        let error = profiler.add_process(own).expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.to_string().contains("too many open files"), "{error}");
        assert_eq!((live(&profiler), descriptors()), (0, before));
        assert_eq!(profiler.missed(), 0);
    }
    // A process that grows while it is followed.
    let added = profiler.add_process(own).expect("there is room");
    let workers: Vec<Worker> = (0..LIMIT).map(|_| Worker::new()).collect();
    let unsampled_counts = || (profiler.missed(), profiler.missed_alive(), live(&profiler));
    let all = added + workers.len();
    until("all threads", || {
        let (missed, alive, live) = unsampled_counts();
        missed == alive && missed as usize + live == all
    });
    let first = unsampled_counts();
    // New threads are searched every 100 ms: without care, each search would count them again.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(unsampled_counts(), first);
    assert!(files() >= RESERVED, "the program opens files");
    let notes = profiler.notes().join(" ");
    assert!(notes.contains("too many open files"), "{notes}");
}
