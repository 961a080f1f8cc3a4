//! Random operations on many threads: every sample is accounted for, and no descriptor leaks.
//!
//! `MEMGAUGE_STRESS=10000` sets the number of operations; the default is 500.

mod common;

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Work, Worker, descriptors, faults, profiler, until};
use memgauge_online::{
    Clean, Profiler, Reader, Sample, Settings, Sharing, Statistics, ThreadState,
};

const THREADS: usize = 200;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

fn operations() -> usize {
    let asked = std::env::var("MEMGAUGE_STRESS").ok();
    asked.map_or(500, |n| n.parse().expect("MEMGAUGE_STRESS is a number"))
}

/// Counts samples by thread as a reader gets them, until `over`.
fn reading(mut reader: Reader, over: &AtomicBool) -> HashMap<u32, u64> {
    let (mut seen, mut samples): (HashMap<u32, u64>, Vec<Sample>) = Default::default();
    loop {
        let last = over.load(Ordering::Acquire);
        reader.wait(Duration::from_millis(20));
        while reader.read(&mut samples, 4096) > 0 {
            for sample in samples.drain(..) {
                *seen.entry(sample.tid.0).or_default() += 1;
            }
        }
        if last {
            return seen;
        }
    }
}

/// Stops the readers, also when the test fails.
struct StopReaders<'a>(&'a AtomicBool);

impl Drop for StopReaders<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn assert_exact(all: &[Statistics]) {
    for thread in all {
        assert!(thread.is_exact(), "{thread:?}");
        // Each fault is a sample: the kernel's count equals what was produced. For a running
        // thread, the count is updated a moment later.
        if thread.state != ThreadState::Started {
            assert_eq!(thread.produced(), thread.counted, "{thread:?}");
        }
    }
}

/// Does one operation on one thread. Refusals are ignored: the thread may not be added now.
fn operate(profiler: &Profiler, workers: &mut [Worker], random: &mut Random) {
    let at = random.below(workers.len());
    let tid = workers[at].tid;
    match random.below(10) {
        0..=2 => drop(profiler.stop(tid)),
        3..=5 => drop(profiler.start(tid)),
        6 => drop(profiler.delete_thread(tid)),
        7 => drop(profiler.add_thread(tid)),
        8 => profiler
            .statistics(tid)
            .into_iter()
            .for_each(|c| assert_exact(&[c])),
        _ => {
            // The thread ends, and a new one takes its place.
            workers[at] = Worker::new();
            profiler.add_thread(workers[at].tid).expect("it is new");
        }
    }
    workers[random.below(THREADS)].begin(Work::Touch(1 + random.below(40)));
}

#[test]
fn two_hundred_threads_at_random_are_accounted_for_and_leave_nothing_open() {
    let settings = Settings {
        buffer: 256,
        ring_pages: 1,
        ..faults()
    };
    let mut random = Random(20_261_123);
    // Opens what the process keeps open.
    drop(profiler(settings.clone()));
    let before = descriptors();
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let mut workers: Vec<Worker> = (0..THREADS).map(|_| Worker::new()).collect();
    for worker in &workers {
        profiler.add_thread(worker.tid).expect("it can be added");
    }
    let over = AtomicBool::new(false);
    let each = profiler.reader(Sharing::Each).expect("a reader");
    let shared: Vec<Reader> = (0..2)
        .map(|_| profiler.reader(Sharing::Queue).expect("a reader"))
        .collect();
    let seen = std::thread::scope(|scope| {
        let _end = StopReaders(&over);
        let each = scope.spawn(|| reading(each, &over));
        let shared: Vec<_> = shared
            .into_iter()
            .map(|reader| scope.spawn(|| reading(reader, &over)))
            .collect();
        for _ in 0..operations() {
            operate(&profiler, &mut workers, &mut random);
        }
        workers.clear();
        let ended = || {
            let all = profiler.all_statistics();
            all.iter()
                .all(|t| matches!(t.state, ThreadState::Ended | ThreadState::Deleted))
        };
        until("the end of all threads", ended);
        over.store(true, Ordering::Release);
        let each = each.join().expect("it reads");
        let mut seen: HashMap<u32, u64> = HashMap::new();
        for part in shared {
            for (tid, samples) in part.join().expect("it reads") {
                *seen.entry(tid).or_default() += samples;
            }
        }
        [each, seen]
    });
    let all = profiler.all_statistics();
    assert_exact(&all);
    let (mut counts, mut samples): (HashMap<u32, [u64; 2]>, u64) = Default::default();
    for thread in &all {
        let account = thread.account;
        assert_eq!(account.waiting, 0, "{thread:?}");
        let of_tid = counts.entry(thread.tid).or_default();
        of_tid[0] += account.delivered;
        of_tid[1] += account.overwritten;
        samples += thread.samples;
    }
    // The readers' own counts equal the deliveries that the buffers report: each sample once,
    // whichever reader got it.
    for (tid, [delivered, overwritten]) in counts {
        let got = seen
            .each_ref()
            .map(|reader| reader.get(&tid).copied().unwrap_or(0));
        assert!(
            delivered <= got[0] + got[1],
            "{tid}: {delivered} of {got:?}"
        );
        assert!(
            delivered + overwritten >= got[0].max(got[1]),
            "{tid}: {delivered} of {got:?}"
        );
    }
    assert!(samples > 0);
    let cleaned = profiler.clean(Clean::Read);
    assert_eq!(cleaned.len(), all.len());
    drop(profiler);
    assert_eq!(descriptors(), before);
    vanishing();
    latency();
}

/// Threads that vanish between listing and opening: adds a process that starts and ends threads
/// all the time, again and again.
fn vanishing() {
    let before = descriptors();
    let profiler = profiler(faults()).expect("there was one before");
    for _ in 0..20 {
        let script = "for i in 1 2 3 4 5 6; do (:) & done";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::null())
            .spawn()
            .expect("there is a shell");
        if let Err(e) = profiler.add_process(child.id()) {
            assert!(e.to_string().contains("no such process"), "{e}");
        }
        child.wait().expect("it ends");
    }
    let ended = || {
        profiler
            .all_statistics()
            .iter()
            .all(|t| t.state == ThreadState::Ended)
    };
    until("the end of all", ended);
    assert_exact(&profiler.all_statistics());
    assert_eq!(profiler.notes(), Vec::<String>::new());
    drop(profiler);
    assert_eq!(descriptors(), before);
}

/// Prints the delay from sample to reader. No limit is asserted, because other programs may use
/// the processors.
fn latency() {
    for latency in [Default::default(), memgauge_online::Latency::OneMillisecond] {
        let profiler = profiler(Settings {
            latency,
            ..faults()
        })
        .expect("as before");
        let mut reader = profiler.reader(Sharing::Each).expect("a reader");
        let worker = Worker::new();
        profiler.add_thread(worker.tid).expect("it can be added");
        let (mut delays, mut samples) = (Vec::new(), Vec::new());
        let began = Instant::now();
        while delays.len() < 200 && began.elapsed() < Duration::from_secs(30) {
            worker.begin(Work::Touch(1));
            while reader.wait(Duration::from_millis(20)) {
                reader.read(&mut samples, 1000);
                let now_ns = memgauge_live::sys::perf::monotonic_ns();
                delays.extend(samples.drain(..).map(|s| now_ns.saturating_sub(s.time_ns)));
            }
        }
        delays.sort_unstable();
        let at = |part: f64| delays[(delays.len() as f64 * part) as usize] / 1000;
        println!(
            "{latency:?}: {} samples, median {} us, 95 % {} us, 99 % {} us",
            delays.len(),
            at(0.5),
            at(0.95),
            at(0.99)
        );
        assert!(delays.len() >= 200);
    }
}
