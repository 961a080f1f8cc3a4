//! Sampling whole CPUs for a task, which kernels before 6.2 need for IBS. The tests use page faults,
//! which every machine has.

use memgauge_testing::{Need, skipped};
use std::collections::BTreeSet;
use std::path::Path;

use memgauge_live::events::{Pmus, parse};
use memgauge_live::sampling::{SamplingOptions, SamplingOutcome, SamplingRate, record};
use memgauge_live::target::Target;
use memgauge_recording::{Recording, Row, Selection};
use memgauge_trace::{Sample, SourceKind, Thread};

fn options(output: &Path, whole_processors: bool) -> SamplingOptions {
    let groups = parse("page-faults:u", &Pmus::default()).expect("an event");
    let script = "ls / > /dev/null; cat /dev/null";
    SamplingOptions {
        target: Target::Command(["sh", "-c", script].map(str::to_owned).into()),
        while_running: None,
        events: vec![(groups[0].events[0].clone(), SamplingRate::Period(1))],
        output: output.to_owned(),
        ring_pages: 128,
        registers: false,
        keep_registers: false,
        physical: false,
        stacks: None,
        overhead: None,
        whole_processors,
        tracing: None,
        regions: Vec::new(),
        source: SourceKind::Pmu,
        interval: None,
    }
}

fn rows<R: Row>(path: &Path) -> Vec<R> {
    let recording = Recording::open(path).expect("a recording");
    let batches = recording.rows::<R>(&Selection::all());
    batches.flat_map(|batch| batch.expect("sound")).collect()
}

/// Names of the programs that have samples.
fn sampled_programs(path: &Path) -> BTreeSet<String> {
    let samples: Vec<Sample> = rows(path);
    let threads: Vec<Thread> = rows(path);
    let has_samples = |t: &&Thread| samples.iter().any(|s| s.tid == t.tid);
    threads
        .iter()
        .filter(has_samples)
        .map(|t| t.program.clone())
        .collect()
}

#[test]
fn only_samples_of_the_target_are_kept_from_whole_cpus() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (wide, narrow) = (folder.path().join("w.mg"), folder.path().join("n.mg"));
    // Another process that causes page faults all the time.
    let mut other = std::process::Command::new("sh")
        .args(["-c", "while :; do ls / > /dev/null; done"])
        .spawn()
        .expect("a shell");
    let recorded = record(&options(&wide, true));
    let by_task = record(&options(&narrow, false));
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    let (wide_outcome, narrow_outcome): (SamplingOutcome, SamplingOutcome) =
        match (recorded, by_task) {
            (Ok(w), Ok(n)) => (w, n),
            (Err(e), _) | (_, Err(e)) => return skipped(Need::Kernel, format!("{e}")),
        };
    let programs = sampled_programs(&wide);
    assert!(programs.iter().any(|p| p == "cat"), "{programs:?}");
    let (w, n) = (&wide_outcome.events[0], &narrow_outcome.events[0]);
    assert!(w.of_others > 0, "{w:?}");
    assert_eq!(n.of_others, 0);
    // The task's own counters begin with exec. Those of whole CPUs also see the fork.
    assert!(w.samples >= n.samples * 9 / 10, "{w:?} {n:?}");
    let notes = wide_outcome.notes.join(" ");
    assert!(notes.contains("whole processors"), "{notes}");
}

/// Page faults of this thread: some, in memory that was never used before.
fn fault() {
    let pages = vec![1_u8; 1 << 20].leak();
    assert_eq!(std::hint::black_box(pages)[4096], 1);
}

/// A ring that passed its watermark while it was read is reported as ready once more. It must not be
/// mistaken for the ring of a task that has ended.
#[test]
fn ring_that_was_read_early_is_not_reported_as_ended() {
    use memgauge_live::sys::perf::{self, EventScope, KernelRing, PollResult};
    use memgauge_perf::abi::{Attr, flag, kind, sample};
    let groups = parse("page-faults:u", &Pmus::default()).expect("an event");
    let mut attr: Attr = groups[0].events[0].attr;
    assert_eq!(attr.kind, kind::SOFTWARE);
    attr.period = 1;
    attr.sample_type = sample::TIME;
    attr.flags |= flag::WATERMARK;
    attr.wakeup = 1;
    let event = match perf::open(&attr, EventScope::Thread(0), None, None) {
        Ok(event) => event,
        Err(e) => return skipped(Need::Kernel, format!("{e}")),
    };
    let mut ring = KernelRing::map(&event, 8).expect("a ring");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&event);
    for _ in 0..3 {
        fault();
        assert!(ring.unread() > 0);
        // Before the first poll.
        ring.discard();
        assert_eq!(perf::wait(&[fd], 0), [PollResult::Ready]);
    }
    // The ring of a thread that has ended.
    let (tid, ids) = std::sync::mpsc::channel();
    let (go, end) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: takes nothing.
        let _ = tid.send(unsafe { libc::gettid() } as u32);
        let _ = end.recv();
    });
    let tid = ids.recv().expect("an id");
    let event = perf::open(&attr, EventScope::Thread(tid), None, None).expect("as before");
    let ring = KernelRing::map(&event, 8).expect("a ring");
    drop(go);
    thread.join().expect("it ends");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&event);
    assert_eq!(perf::wait(&[fd], 1000), [PollResult::Ended]);
    drop(ring);
}
