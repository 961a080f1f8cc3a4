//! Profilers of threads of this process and of other processes.

mod common;
#[path = "../examples/self.rs"]
mod example;

use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Work, Worker, faults, profiler, until};
use memgauge_online::{
    Clean, ErrorKind, Latency, Profiler, Reader, Sample, Settings, Sharing, Source, Statistics,
    ThreadState, WhenFull,
};

fn all(reader: &mut Reader) -> Vec<Sample> {
    let mut samples = Vec::new();
    while reader.read(&mut samples, 1000) > 0 {}
    samples
}

fn counts(profiler: &Profiler, worker: &Worker) -> Statistics {
    let counts = profiler.statistics(worker.tid).expect("it was added");
    assert!(counts.is_exact(), "{counts:?}");
    counts
}

/// Samples 40 processes one after another with a profiler that is limited to eight threads.
#[test]
fn threads_that_have_ended_make_room_for_those_that_come() {
    for is_read in [false, true] {
        let settings = Settings {
            max_threads: 8,
            ended_make_room: !is_read,
            ..faults()
        };
        let Some(profiler) = profiler(settings) else {
            return;
        };
        let mut reader = profiler.reader(Sharing::Each).expect("a reader");
        let line = "read go; i=0; while [ $i -lt 40 ]; do sleep 0.02; i=$((i+1)); done";
        #[expect(clippy::zombie_processes, reason = "the loop below waits for its end")]
        let mut shell = Command::new("sh")
            .args(["-c", line])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell runs");
        profiler.add_process(shell.id()).expect("it waits");
        drop(shell.stdin.take());
        let (mut delivered, mut ended) = (0, false);
        while !ended {
            ended = shell.try_wait().expect("it is a child").is_some();
            reader.wait(Duration::from_millis(5));
            if is_read {
                delivered += all(&mut reader).len() as u64;
            }
        }
        until("the end of all", || {
            let counts = profiler.all_statistics();
            counts.iter().all(|s| s.state == ThreadState::Ended)
        });
        delivered += all(&mut reader).len() as u64;
        assert_eq!(profiler.missed(), 0);
        // The result includes the threads that made room.
        let counts = profiler.clean(Clean::All);
        assert_eq!(counts.len(), 41);
        let taken: u64 = counts.iter().map(|s| s.samples).sum();
        assert!(taken >= 41, "{taken}");
        assert_eq!(delivered == taken, is_read, "{delivered} of {taken}");
        assert!(profiler.all_statistics().is_empty());
    }
}

#[test]
fn clock_refuses_settings_that_it_does_not_support() {
    for (kernel, physical) in [(true, false), (false, true)] {
        let settings = Settings {
            kernel,
            physical,
            ..Settings::new(Source::Clock)
        };
        let error = Profiler::new(settings).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("kernel samples"), "{error}");
    }
}

#[test]
fn every_fault_is_delivered_overwritten_or_lost() {
    let settings = Settings {
        buffer: 64,
        ring_pages: 1,
        ..faults()
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    let mut one = profiler.reader(Sharing::Each).expect("a reader");
    let mut other = profiler
        .reader_of_thread(worker.tid, Sharing::Each)
        .expect("a reader");
    // A ring of one page overflows sooner or later, however quick the collector is.
    let overflowed = (0..100).any(|_| {
        worker.work(Work::Touch(20_000));
        counts(&profiler, &worker).lost > 0
    });
    profiler.stop(worker.tid).expect("it runs");
    let seen = all(&mut one).len() as u64;
    let counts = counts(&profiler, &worker);
    // The kernel's counter is independent of the samples.
    assert_eq!(counts.produced(), counts.counted);
    assert!(counts.counted >= 20_000, "{counts:?}");
    assert!(overflowed, "a page of ring cannot hold this: {counts:?}");
    let (mine, others) = (one.accounts()[&worker.tid], other.accounts()[&worker.tid]);
    assert_eq!((mine.delivered, mine.waiting), (seen, 0));
    assert_eq!(others.delivered, 0);
    for account in [mine, others] {
        let sum = account.delivered + account.overwritten + account.waiting;
        assert_eq!(sum, counts.samples);
    }
}

#[test]
fn a_buffer_that_refuses_keeps_the_oldest() {
    let settings = Settings {
        buffer: 64,
        ring_pages: 128,
        when_full: WhenFull::RefuseNewest,
        ..faults()
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    worker.work(Work::Touch(1000));
    profiler.stop(worker.tid).expect("it runs");
    let counts = counts(&profiler, &worker);
    assert_eq!(
        (counts.account.waiting, counts.account.overwritten),
        (64, 0)
    );
    assert!(counts.refused >= 936, "{counts:?}");
    let first = all(&mut reader);
    assert_eq!(first.len(), 64);
    // There is room again.
    profiler.start(worker.tid).expect("it lives");
    worker.work(Work::Touch(100));
    profiler.stop(worker.tid).expect("it runs");
    let second = all(&mut reader);
    assert_eq!(second.len(), 64);
    assert!(first.iter().all(|s| s.time_ns < second[0].time_ns));
}

/// A batch that was read once, and a reader of the queue that went away, leave positions in the
/// buffer that may never be used again.
#[test]
fn an_abandoned_position_takes_no_room_from_a_reader() {
    for left_by in [Sharing::Batch, Sharing::Queue] {
        let settings = Settings {
            buffer: 64,
            ring_pages: 128,
            when_full: WhenFull::RefuseNewest,
            ..faults()
        };
        let Some(profiler) = profiler(settings) else {
            return;
        };
        let worker = Worker::new();
        profiler.add_thread(worker.tid).expect("it can be added");
        let mut running = profiler.reader(Sharing::Each).expect("a reader");
        let mut left = profiler.reader(left_by).expect("a reader");
        let touch = |running: &mut Reader| {
            worker.work(Work::Touch(20));
            counts(&profiler, &worker);
            all(running).len() as u64
        };
        let mut got = touch(&mut running);
        assert!(left.read(&mut Vec::new(), 10) == 10, "a part of it");
        drop(left);
        // More than the buffer holds.
        (0..10).for_each(|_| got += touch(&mut running));
        profiler.stop(worker.tid).expect("it runs");
        got += all(&mut running).len() as u64;
        let counts = counts(&profiler, &worker);
        assert!(counts.is_exact() && counts.samples >= 220, "{counts:?}");
        assert_eq!((counts.refused, got), (0, counts.samples), "{left_by:?}");
        // A reader that returns to the position gets the remaining samples, and the count of the
        // others.
        let mut again = profiler.reader(Sharing::Batch).expect("a reader");
        let found = all(&mut again).len() as u64;
        let account = again.accounts()[&worker.tid];
        assert_eq!((found, account.waiting), (64, 0));
        assert_eq!(account.overwritten, counts.samples - 10 - found);
    }
}

/// Samples that one reader got are delivered, even if the queue is unused.
#[test]
fn a_sample_is_delivered_once_any_reader_has_got_it() {
    let settings = Settings {
        buffer: 64,
        ring_pages: 128,
        ..faults()
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    // A queue that was asked for and dropped.
    drop(profiler.reader(Sharing::Queue).expect("a reader"));
    let mut stream = profiler.reader(Sharing::Each).expect("a reader");
    let (mut got, mut idle) = (0, profiler.reader(Sharing::Each).expect("a reader"));
    for _ in 0..10 {
        worker.work(Work::Touch(20));
        // Asking for counts moves all samples to the buffer.
        counts(&profiler, &worker);
        got += all(&mut stream).len() as u64;
    }
    let now = counts(&profiler, &worker);
    assert_eq!((now.account.delivered, now.account.overwritten), (got, 0));
    assert!(got >= 200, "{now:?}");
    // Each reader has its own count of overwritten samples.
    let missed = idle.accounts()[&worker.tid];
    assert_eq!(missed.overwritten + missed.waiting, got);
    assert!(missed.overwritten >= 100, "{missed:?}");
    // Samples that no reader got wait or are overwritten.
    worker.work(Work::Touch(500));
    profiler.stop(worker.tid).expect("it runs");
    let before = counts(&profiler, &worker);
    assert_eq!(before.account.waiting, 64);
    assert!(before.account.overwritten >= 436, "{before:?}");
    let (one, other) = (all(&mut stream).len(), all(&mut idle).len());
    assert_eq!((one, other), (64, 64));
    let after = counts(&profiler, &worker);
    assert_eq!(after.account.delivered, got + 64);
    assert_eq!(after.account.overwritten, before.account.overwritten);
    // Dropping readers does not change the account.
    drop((stream, idle));
    assert_eq!(counts(&profiler, &worker).account, after.account);
}

#[test]
fn readers_of_a_queue_share_and_others_see_all() {
    let settings = Settings {
        buffer: 1 << 14,
        ring_pages: 512,
        ..faults()
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let worker = Worker::new();
    let mut every = profiler.reader(Sharing::Each).expect("a reader");
    let mut sharing: Vec<Reader> = (0..3)
        .map(|_| profiler.reader(Sharing::Queue).expect("a reader"))
        .collect();
    profiler.add_thread(worker.tid).expect("it can be added");
    worker.work(Work::Touch(5000));
    profiler.stop(worker.tid).expect("it runs");
    let mut parts: Vec<Sample> = Vec::new();
    std::thread::scope(|scope| {
        let readers = sharing.iter_mut().map(|reader| {
            scope.spawn(|| {
                let mut samples = Vec::new();
                while reader.read(&mut samples, 7) > 0 {}
                samples
            })
        });
        let readers: Vec<_> = readers.collect();
        for reader in readers {
            parts.extend(reader.join().expect("it reads"));
        }
    });
    parts.sort_by_key(|s| s.time_ns);
    let whole = all(&mut every);
    assert_eq!(whole.len() as u64, counts(&profiler, &worker).samples);
    assert_eq!(parts, whole);
}

#[test]
fn nothing_is_sampled_while_stopped_and_nothing_is_lost_by_it() {
    let Some(profiler) = profiler(Settings {
        ring_pages: 64,
        ..faults()
    }) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    for _ in 0..20 {
        worker.work(Work::Touch(100));
        profiler.stop(worker.tid).expect("it runs");
        let stopped = counts(&profiler, &worker);
        assert_eq!(
            (stopped.state, stopped.samples),
            (ThreadState::Stopped, stopped.counted)
        );
        worker.work(Work::Touch(100));
        assert_eq!(counts(&profiler, &worker).counted, stopped.counted);
        profiler.start(worker.tid).expect("it lives");
    }
    profiler.off();
    let off = counts(&profiler, &worker);
    worker.work(Work::Touch(100));
    assert_eq!(counts(&profiler, &worker).counted, off.counted);
    profiler.on();
    worker.work(Work::Touch(100));
    assert!(counts(&profiler, &worker).counted > off.counted);
}

#[test]
fn each_sample_says_the_period_that_it_was_taken_at() {
    let Some(profiler) = profiler(Settings {
        ring_pages: 64,
        ..faults()
    }) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    for period in [1, 7, 3, 50] {
        let before = counts(&profiler, &worker).counted;
        assert_eq!(
            profiler.set_period(worker.tid, period).expect("it runs"),
            period
        );
        worker.work(Work::Touch(1000));
        let counts = counts(&profiler, &worker);
        assert_eq!(counts.period, period);
        let samples = all(&mut reader);
        assert!(
            samples
                .iter()
                .all(|s| (s.period, s.stands_for) == (period, period))
        );
        assert_eq!(samples.len() as u64, (counts.counted - before) / period);
    }
}

#[test]
fn timer_samples_stand_for_what_was_counted_whatever_the_period_became() {
    let settings = Settings {
        period: Some(1_000_000),
        ..Settings::new(Source::Clock)
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    for period in [1_000_000, 5_000_000, 250_000] {
        profiler.set_period(worker.tid, period).expect("it runs");
        worker.work(Work::Compute(Duration::from_millis(100)));
        profiler.stop(worker.tid).expect("it runs");
        let samples = all(&mut reader);
        assert!(samples.iter().all(|s| s.period == period), "{samples:?}");
        profiler.start(worker.tid).expect("it lives");
    }
    profiler.stop(worker.tid).expect("it runs");
    let counts = counts(&profiler, &worker);
    // Samples stand for everything counted, except what follows the last sample.
    assert!(counts.stands_for <= counts.counted, "{counts:?}");
    assert!(counts.stands_for * 10 > counts.counted * 8, "{counts:?}");
    assert!(counts.processor_ns * 10 > counts.counted * 9, "{counts:?}");
}

#[test]
fn a_budget_raises_the_period_and_the_account_stays_exact() {
    let settings = Settings {
        overhead: Some(0.01),
        ring_pages: 64,
        ..faults()
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    // At first, every fault is a sample, and takes much of the thread's time.
    until("a longer period", || {
        worker.work(Work::Touch(2000));
        counts(&profiler, &worker).period > 1
    });
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    worker.work(Work::Touch(2000));
    profiler.stop(worker.tid).expect("it runs");
    let counts = counts(&profiler, &worker);
    assert!(counts.stands_for <= counts.counted, "{counts:?}");
    let samples = all(&mut reader);
    assert!(
        samples
            .iter()
            .all(|s| s.period >= 1 && s.stands_for == s.period)
    );
    let none = Settings {
        overhead: Some(0.0),
        ..faults()
    };
    let none = Profiler::new(none).err().expect("nothing is allowed");
    assert!(none.to_string().contains("`0`"), "{none}");
}

#[test]
fn a_descriptor_tells_that_there_are_samples() {
    for latency in [Latency::TenMilliseconds, Latency::OneMillisecond] {
        let Some(profiler) = profiler(Settings {
            latency,
            ..faults()
        }) else {
            return;
        };
        let worker = Worker::new();
        profiler.add_thread(worker.tid).expect("it can be added");
        let mut reader = profiler.reader(Sharing::Each).expect("a reader");
        all(&mut reader);
        let readable = |reader: &Reader| {
            memgauge_live::sys::perf::wait(&[reader.as_fd().as_raw_fd()], 0)[0]
                != memgauge_live::sys::perf::PollResult::NotReady
        };
        assert!(!readable(&reader));
        assert!(!reader.wait(Duration::from_millis(1)));
        worker.work(Work::Touch(100));
        assert!(reader.wait(Duration::from_secs(60)));
        profiler.stop(worker.tid).expect("it runs");
        let mut some = Vec::new();
        assert_eq!(reader.read(&mut some, 1), 1);
        assert!(readable(&reader), "the rest waits");
        assert!(!all(&mut reader).is_empty());
    }
}

#[test]
fn samples_of_an_ended_thread_are_kept_until_they_are_read() {
    let Some(profiler) = profiler(Settings {
        ring_pages: 64,
        ..faults()
    }) else {
        return;
    };
    let mut worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    worker.work(Work::Touch(500));
    worker.end();
    let ended = || profiler.statistics(worker.tid).expect("kept").state == ThreadState::Ended;
    until("the end", ended);
    let counts = counts(&profiler, &worker);
    assert_eq!(counts.produced(), counts.counted);
    assert!(counts.samples >= 500, "{counts:?}");
    assert!(profiler.clean(Clean::Read).is_empty(), "nobody has read it");
    let mut reader = profiler
        .reader_of_thread(worker.tid, Sharing::Each)
        .expect("a reader");
    assert_eq!(all(&mut reader).len() as u64, counts.samples);
    let cleaned = profiler.clean(Clean::Read);
    assert_eq!(cleaned.len(), 1);
    assert!(cleaned[0].is_exact());
    let error = profiler.statistics(worker.tid).expect_err("it is gone");
    assert!(
        error.to_string().contains(&worker.tid.to_string()),
        "{error}"
    );
}

/// Starts a shell that waits for a line before it runs the script.
fn shell(script: &str) -> std::process::Child {
    Command::new("sh")
        .args(["-c", &format!("read line; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("there is a shell")
}

#[test]
fn a_process_is_followed_through_forks_and_execs() {
    let settings = Settings {
        kernel: true,
        ring_pages: 64,
        buffer: 1 << 14,
        ..faults()
    };
    let settings = Settings {
        source: Source::Pmu("page-faults".to_owned()),
        ..settings
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let mut shell = shell("sh -c '/bin/true; sleep 0.3; exec sleep 0.3' & wait; exec sleep 0.2");
    let pid = shell.id();
    assert_eq!(profiler.add_process(pid).expect("it can be added"), 1);
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
    let all_over = || {
        let all = profiler.all_statistics();
        all.iter().all(|t| t.state == ThreadState::Ended)
    };
    until("the end of all", all_over);
    let all = profiler.all_statistics();
    let of_first = all.iter().find(|t| t.pid == pid).expect("it was added");
    assert!(of_first.samples > 0, "{of_first:?}");
    let others = all.iter().filter(|t| t.pid != pid).count() as u64;
    // The second shell and its `sleep` are sampled. `true` may end too soon.
    assert!(others >= 2, "{all:?}");
    assert_eq!(profiler.notes(), Vec::<String>::new());
    for thread in &all {
        assert!(thread.is_exact(), "{thread:?}");
        assert_eq!(thread.produced(), thread.counted, "{thread:?}");
    }
    assert_eq!(profiler.clean(Clean::All).len(), all.len());
}

/// This includes threads that it started a moment before.
#[test]
fn nothing_of_a_deleted_process_is_sampled() {
    let Some(profiler) = profiler(faults()) else {
        return;
    };
    let own = std::process::id();
    for _round in 0..20 {
        profiler.add_process(own).expect("this process");
        let (stay, until) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || until.recv().is_err());
        profiler.delete_process(own).expect("it was added");
        let mut counts = profiler.all_statistics();
        // Children, such as the shells of other tests, are still followed.
        counts.retain(|counts| {
            counts.pid == own && matches!(counts.state, ThreadState::Started | ThreadState::Stopped)
        });
        assert_eq!(counts.len(), 0, "{counts:?}");
        drop(stay);
        assert!(thread.join().expect("it ends"));
    }
}

#[test]
fn addresses_are_rebuilt_while_the_program_runs() {
    if !cfg!(target_arch = "x86_64") {
        let need = memgauge_testing::Need::Kernel;
        return memgauge_testing::skipped(need, "source clock decodes x86-64 only");
    }
    let settings = Settings {
        period: Some(200_000),
        ..Settings::new(Source::Clock)
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    let mut shell = shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    profiler.add_process(shell.id()).expect("it can be added");
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    drop(shell.stdin.take());
    shell.wait().expect("it ends");
    until("the end", || {
        profiler
            .all_statistics()
            .iter()
            .all(|t| t.state == ThreadState::Ended)
    });
    let samples = all(&mut reader);
    let with_address = samples.iter().filter(|s| s.addr.is_some()).count();
    assert!(samples.len() > 50, "{}", samples.len());
    assert!(
        with_address * 2 > samples.len(),
        "{with_address} of {}",
        samples.len()
    );
    assert!(
        samples
            .iter()
            .all(|s| s.derivation.is_some() == s.addr.is_some())
    );
}

#[test]
fn the_example_samples_itself() {
    if !cfg!(target_arch = "x86_64") {
        let need = memgauge_testing::Need::Kernel;
        return memgauge_testing::skipped(need, "source clock decodes x86-64 only");
    }
    if profiler(faults()).is_some() {
        example::main().expect("it is allowed");
    }
}

#[test]
fn errors_name_the_object() {
    let Some(profiler) = profiler(faults()) else {
        return;
    };
    let check = |error: memgauge_online::Error, kind, words: &[&str]| {
        assert_eq!(error.kind(), kind, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    };
    let nobody = u32::MAX / 2;
    let number = nobody.to_string();
    let added = profiler.add_thread(nobody).expect_err("nobody");
    check(added, ErrorKind::NoSuchTask, &[&number, "no such"]);
    let added = profiler.add_process(nobody).expect_err("nobody");
    check(added, ErrorKind::NoSuchTask, &[&number, "no such"]);
    let stopped = profiler.stop(nobody).expect_err("nobody");
    check(stopped, ErrorKind::NoSuchTask, &[&number, "not added"]);
    let worker = Worker::new();
    profiler.add_thread(worker.tid).expect("it can be added");
    let twice = profiler.add_thread(worker.tid).expect_err("twice");
    check(
        twice,
        ErrorKind::Usage,
        &[&worker.tid.to_string(), "already added"],
    );
    let never = profiler.set_period(worker.tid, 0).expect_err("zero");
    check(never, ErrorKind::Usage, &["`0`"]);
    let none = profiler.set_default_buffer(0).expect_err("no buffer");
    check(none, ErrorKind::Usage, &["`0`"]);
    let two = Settings::new(Source::Pmu("page-faults,cpu-clock".to_owned()));
    let two = Profiler::new(two).err().expect("two events");
    check(two, ErrorKind::Usage, &["page-faults,cpu-clock"]);
    let unknown = Settings::new(Source::Pmu("page-falts".to_owned()));
    let unknown = Profiler::new(unknown).err().expect("no such event");
    assert!(unknown.to_string().contains("page-falts"), "{unknown}");
    profiler.delete_thread(worker.tid).expect("it was added");
    let readers: Vec<_> = (0..16).map(|_| profiler.reader(Sharing::Each)).collect();
    assert_eq!(readers.iter().filter(|r| r.is_err()).count(), 1);
}
