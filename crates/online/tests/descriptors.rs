//! A table of descriptors that sampling has filled: the program still has some, and each
//! thread that could not be sampled is told of once. In a process of its own: the limit is
//! that of the whole process.

mod common;

use std::fs::File;
use std::time::Duration;

use common::{Worker, descriptors, profiler, until};
use memgauge_online::{ErrorKind, Profiler, Settings, Source, State};

const LIMIT: usize = 64;
/// Of 64, a quarter is the program's.
const KEPT: usize = 16;

fn limit_descriptors() {
    let limit = libc::rlimit {
        rlim_cur: LIMIT as u64,
        rlim_max: LIMIT as u64,
    };
    // SAFETY: a valid limit; it only becomes smaller.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(set, 0);
}

fn live(profiler: &Profiler) -> usize {
    let all = profiler.all_statistics();
    let live = all.iter().filter(|s| s.state == State::Started);
    live.count()
}

/// Opens as many files as there is room for.
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
        ..Settings::of(Source::Pmu("cpu-clock:u".to_owned()))
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    limit_descriptors();
    let own = std::process::id();
    let before = descriptors();
    {
        // All of a process that is too large, or nothing.
        let _many: Vec<Worker> = (0..LIMIT).map(|_| Worker::new()).collect();
        let error = profiler.add_process(own).expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.to_string().contains("too many open files"), "{error}");
        assert_eq!((live(&profiler), descriptors()), (0, before));
        assert_eq!(profiler.missed(), 0);
    }
    // One that grows when it is followed.
    let added = profiler.add_process(own).expect("there is room");
    let workers: Vec<Worker> = (0..LIMIT).map(|_| Worker::new()).collect();
    let told = || (profiler.missed(), profiler.missed_alive(), live(&profiler));
    let all = added + workers.len();
    until("all threads", || {
        let (missed, alive, live) = told();
        missed == alive && missed as usize + live == all
    });
    let at_first = told();
    // Looks for new threads come each 100 ms: each would count all of them again.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(), at_first);
    assert!(files() >= KEPT, "the program opens files");
    let notes = profiler.notes().join(" ");
    assert!(notes.contains("too many open files"), "{notes}");
}
