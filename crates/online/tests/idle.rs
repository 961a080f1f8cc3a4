//! An idle profiler: it does not poll rings, and the next sample is still read at once. There is
//! one test in this file, because it counts the waits of all reader threads of the process.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Work, Worker, faults, profiler};
use memgauge_online::{Latency, Profiler, Reader, Settings, Sharing};

/// Returns the number of waits of the threads that read rings.
fn waits() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let file = |folder: &std::path::Path, name| {
        std::fs::read_to_string(folder.join(name)).unwrap_or_default()
    };
    let readers = tasks
        .flatten()
        .map(|task| task.path())
        .filter(|path| file(path, "comm").trim() == "memgauge");
    let waits = readers.filter_map(|path| {
        let status = file(&path, "status");
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    waits.sum()
}

/// Asserts that the profiler does not poll: polling every 10 ms would be 100 waits.
fn assert_idle(what: &str) {
    std::thread::sleep(Duration::from_millis(500));
    let before = waits();
    std::thread::sleep(Duration::from_secs(1));
    let waited = waits() - before;
    assert!(waited <= 20, "{what}: {waited} looks in a second");
}

/// Returns the time until there are samples.
fn time_to_samples(reader: &mut Reader, samples: &mut Vec<memgauge_online::Sample>) -> Duration {
    let began = Instant::now();
    while reader.read(samples, 1000) == 0 && began.elapsed() < Duration::from_secs(10) {
        reader.wait(Duration::from_millis(20));
    }
    began.elapsed()
}

fn check(profiler: &Profiler, what: &str) {
    let worker = Worker::new();
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    profiler.add_thread(worker.tid).expect("it can be added");
    assert_idle(&format!("a thread that sleeps, {what}"));
    let mut samples = Vec::new();
    let mut took: Vec<Duration> = (0..9)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(200));
            worker.begin(Work::Touch(3));
            let took = time_to_samples(&mut reader, &mut samples);
            worker.done();
            took
        })
        .collect();
    took.sort_unstable();
    assert!(took[4] < Duration::from_millis(50), "{what}: {took:?}");
    // A thread that runs without samples is not idle. Drain the reader first, so that the counts
    // below compare.
    profiler.statistics(worker.tid).expect("it was added");
    while reader.read(&mut samples, 1000) > 0 {}
    worker.begin(Work::Compute(Duration::from_millis(600)));
    worker.begin(Work::Touch(3));
    worker.done();
    worker.done();
    let took = time_to_samples(&mut reader, &mut samples);
    assert!(took < Duration::from_millis(500), "{what}: {took:?}");
    let seen = samples.len() as u64;
    let counts = profiler.statistics(worker.tid).expect("it was added");
    assert_eq!(counts.produced(), counts.counted);
    assert!(seen <= counts.samples && seen >= 30, "{seen} of {counts:?}");
    // Neither a stopped thread nor a profiler that is off is polled.
    for off in [true, false] {
        worker.begin(Work::Compute(Duration::from_secs(2)));
        match off {
            true => profiler.off(),
            false => profiler.stop(worker.tid).expect("it runs"),
        }
        assert_idle(&format!("a thread that is not sampled, {what}"));
        worker.done();
        profiler.on();
    }
    profiler.delete_thread(worker.tid).expect("it was added");
    // A process that is followed to new threads and children.
    let sleeper = Command::new("sleep")
        .arg("60")
        .stdout(Stdio::null())
        .spawn();
    let mut sleeper = sleeper.expect("it runs");
    profiler.add_process(sleeper.id()).expect("it can be added");
    assert_idle(&format!("a process that sleeps, {what}"));
    profiler.off();
    assert_idle(&format!("a process that is not sampled, {what}"));
    sleeper.kill().expect("it runs");
    sleeper.wait().expect("it ends");
}

#[test]
fn an_idle_profiler_does_not_poll_and_reads_the_next_sample_soon() {
    for (latency, what) in [
        (Latency::TenMilliseconds, "10 ms"),
        (Latency::OneMillisecond, "1 ms"),
    ] {
        let Some(profiler) = profiler(Settings {
            latency,
            ..faults()
        }) else {
            return;
        };
        check(&profiler, what);
    }
}
