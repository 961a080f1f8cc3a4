//! Samples a program of known behaviour on the modelled machine while it runs: counts and compares
//! samples, and checks the effect of each operation of a profiler.

mod engine;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use engine::{LINES, addresses, compiled};
use memgauge_emulate::sampled::{SampledOptions, SampledProgram};
use memgauge_machine::Config;
use memgauge_online::{
    CommandEnd, ErrorKind, Profiler, Reader, Sample, SampledRun, Settings, Sharing, Source,
    ThreadState, WhenFull,
};

fn program(command: &[&Path], event: &str, period: u64) -> Box<SampledProgram> {
    let command: Vec<String> = command
        .iter()
        .map(|word| word.to_str().expect("a plain name").to_owned())
        .collect();
    let mut options = SampledOptions::of(&command, event).expect("the model has it");
    options.machine = Config::preset("i5-6600k").expect("it is known");
    options.event.period = period;
    Box::new(SampledProgram::start(&options).expect("the engine runs"))
}

fn settings() -> Settings {
    Settings {
        buffer: 1 << 16,
        ..Settings::new(Source::Program)
    }
}

fn all(reader: &mut Reader) -> Vec<Sample> {
    let mut samples = Vec::new();
    while reader.read(&mut samples, 1000) > 0 {}
    samples
}

#[test]
fn each_line_that_is_loaded_once_is_one_miss_in_its_region() {
    let folder = tempfile::tempdir().expect("room");
    let Some(lines) = compiled(folder.path(), "lines", LINES) else {
        return;
    };
    let told = folder.path().join("told");
    let run = program(&[&lines, &told], "llc.miss", 1);
    assert_eq!((run.event(), run.period()), ("llc.miss", 1));
    let pid = run.pid();
    let profiler = Profiler::for_program(settings(), run).expect("the settings make sense");
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    assert_eq!(profiler.wait().expect("it runs"), CommandEnd::Exited(5));
    let samples = all(&mut reader);
    // Every miss of the program is a sample.
    let counts = profiler.all_statistics();
    assert_eq!((counts.len(), counts[0].pid, counts[0].tid), (1, pid, pid));
    assert_eq!(counts[0].state, ThreadState::Ended);
    assert!(counts[0].is_exact(), "{counts:?}");
    assert_eq!(counts[0].counted, samples.len() as u64);
    assert_eq!(counts[0].stands_for, samples.len() as u64);
    let arrays = addresses(&told);
    let expected = [
        (arrays[0], 4000, vec!["load".to_owned()]),
        (arrays[1], 3000, vec!["load".to_owned(), "parse".to_owned()]),
        (arrays[2], 2000, vec![]),
    ];
    for (start, lines, regions) in expected {
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for sample in &samples {
            let addr = sample.addr.expect("a miss is of an access").0;
            if (start..start + lines * 64).contains(&addr) {
                *seen.entry((addr - start) / 64).or_default() += 1;
                assert_eq!(profiler.region_names(sample.region), regions);
                assert_eq!((sample.period, sample.pid.0), (1, pid));
            }
        }
        assert_eq!(seen.len() as u64, lines);
        assert!(seen.values().all(|&misses| misses == 1));
    }
}

/// Ends a region three times without a begin, and misses often enough for hardware to lose events
/// between an overflow and its record.
const UNMATCHED: &str = r#"
#include <memgauge_region.h>
#include <stdlib.h>
int main(void)
{
    volatile char *memory = malloc(4 << 20);
    for (long at = 0; at < 4 << 20; at += 64)
        memory[at] = 1;
    for (int i = 0; i < 3; i++)
        memgauge_region_end("never");
    return 5;
}
"#;

#[test]
fn losses_of_a_sampled_program_are_notes_of_its_profiler() {
    let folder = tempfile::tempdir().expect("room");
    let Some(unmatched) = compiled(folder.path(), "unmatched", UNMATCHED) else {
        return;
    };
    let run = program(&[&unmatched], "l1d.miss/precise", 100);
    let profiler = Profiler::for_program(settings(), run).expect("the settings make sense");
    assert_eq!(profiler.wait().expect("it runs"), CommandEnd::Exited(5));
    let notes = profiler.notes();
    let has = |words: &str| notes.iter().any(|note| note.contains(words));
    assert!(has("lost: 3 ends of regions of interest"), "{notes:?}");
    assert!(
        has("events between an overflow and its record"),
        "{notes:?}"
    );
}

/// Two threads that read random words of 8 MiB until the program is killed. The program writes
/// their IDs to a file first.
const FOR_EVER: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static pthread_barrier_t both;
static long tids[2];
static void *work(void *number)
{
    volatile char *memory = malloc(8 << 20);
    *(long *)number = syscall(SYS_gettid);
    pthread_barrier_wait(&both);
    for (;;)
        for (long at = 0; at < 8 << 20; at += 64)
            memory[at];
    return 0;
}
int main(int argc, char **argv)
{
    pthread_t threads[2];
    pthread_barrier_init(&both, 0, 3);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, work, &tids[i]);
    pthread_barrier_wait(&both);
    FILE *told = fopen(argv[argc - 1], "w");
    fprintf(told, "%ld %ld\n", tids[0], tids[1]);
    fclose(told);
    pthread_join(threads[0], 0);
}
"#;

/// A program that is killed when the test ends.
struct Killed(u32);

impl Killed {
    fn kill(&self) {
        let pid = self.0.to_string();
        // The program may have ended already.
        let _ = Command::new("kill").args(["-9", &pid]).status();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{what} never came"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the program has written the IDs of its threads, and returns them.
fn threads(told: &Path) -> [u32; 2] {
    until("the program's word", || {
        let text = std::fs::read_to_string(told).ok()?;
        let mut numbers = text.strip_suffix('\n')?.split(' ');
        let mut next = || numbers.next()?.parse().ok();
        Some([next()?, next()?])
    })
}

struct Run {
    profiler: Profiler,
    program: Killed,
    tids: [u32; 2],
    _folder: tempfile::TempDir,
}

/// `None` without a compiler.
fn run_for_ever(settings: Settings, event: &str, period: u64) -> Option<Run> {
    let folder = tempfile::tempdir().expect("room");
    let binary = compiled(folder.path(), "for_ever", FOR_EVER)?;
    let told = folder.path().join("told");
    let run = program(&[&binary, &told], event, period);
    let program = Killed(run.pid());
    let profiler = Profiler::for_program(settings, run).expect("the settings make sense");
    let tids = threads(&told);
    // The program writes the IDs before the recorder reads that the threads began.
    until("both threads are read", || {
        tids.iter()
            .all(|tid| profiler.statistics(*tid).is_ok())
            .then_some(())
    });
    Some(Run {
        tids,
        profiler,
        program,
        _folder: folder,
    })
}

#[test]
fn periods_change_while_it_runs_and_each_sample_says_its_own() {
    let Some(run) = run_for_ever(settings(), "l1d.miss", 1000) else {
        return;
    };
    let (profiler, [one, other]) = (&run.profiler, run.tids);
    let mut reader = profiler
        .reader_of_thread(one, Sharing::Each)
        .expect("a reader");
    let counts = |tid| {
        let counts = profiler.statistics(tid).expect("it runs");
        assert!(counts.is_exact(), "{counts:?}");
        counts
    };
    // Stop, change, start: one sample per whole period, exact to the event.
    for next in [700, 5_000, 64] {
        profiler.stop(one).expect("it runs");
        let before = counts(one);
        all(&mut reader);
        assert_eq!(profiler.set_period(one, next).expect("it runs"), next);
        std::thread::sleep(Duration::from_millis(20));
        let still = counts(one);
        assert_eq!(
            (still.samples, still.counted),
            (before.samples, before.counted)
        );
        assert_eq!((still.state, still.period), (ThreadState::Stopped, next));
        profiler.start(one).expect("it runs");
        until("samples", || {
            (counts(one).samples > before.samples + 20).then_some(())
        });
        profiler.stop(one).expect("it runs");
        let after = counts(one);
        let new = all(&mut reader);
        assert_eq!(new.len() as u64, after.samples - before.samples);
        assert_eq!(new.len() as u64, (after.counted - before.counted) / next);
        assert!(new.iter().all(|s| s.period == next && s.stands_for == next));
        profiler.start(one).expect("it runs");
    }
    // Change while it runs: all samples with one period precede those with the next.
    for next in [300, 4_000] {
        profiler.set_period(one, next).expect("it runs");
        let at = counts(one).samples;
        until("samples", || (counts(one).samples > at + 20).then_some(()));
    }
    let mut periods: Vec<u64> = all(&mut reader).iter().map(|s| s.period).collect();
    periods.dedup();
    assert_eq!(periods, [64, 300, 4_000]);
    // The other thread is unchanged. Its events and samples are read at different times, because it
    // runs.
    profiler.stop(other).expect("it runs");
    let others = counts(other);
    assert_eq!(others.period, 1000);
    assert_eq!(others.samples, others.counted / 1000, "{others:?}");
    let error = profiler
        .add_thread(1)
        .expect_err("it is of another program");
    assert_eq!(error.kind(), ErrorKind::Usage);
    run.program.kill();
    assert_eq!(profiler.wait().expect("it ran"), CommandEnd::Signalled(9));
    let error = profiler.set_period(one, 7).expect_err("it has ended");
    assert_eq!(error.kind(), ErrorKind::NoSuchTask);
}

#[test]
fn off_and_on_and_deleting_lose_no_sample() {
    let settings = Settings {
        buffer: 64,
        when_full: WhenFull::RefuseNewest,
        ..settings()
    };
    let Some(run) = run_for_ever(settings, "l2.miss/tagged", 100) else {
        return;
    };
    let (profiler, [one, other]) = (&run.profiler, run.tids);
    let mut reader = profiler.reader(Sharing::Each).expect("a reader");
    until("samples", || {
        let counts = profiler.statistics(one).expect("it runs");
        (counts.refused > 0).then_some(())
    });
    profiler.off();
    let off = profiler.all_statistics();
    assert!(off.iter().all(|counts| counts.is_exact()), "{off:?}");
    assert_eq!(all(&mut reader).len() as u64, {
        let waiting = off.iter().map(|counts| counts.account.waiting);
        waiting.sum::<u64>()
    });
    std::thread::sleep(Duration::from_millis(20));
    let still = profiler.all_statistics();
    let samples = |all: &[memgauge_online::Statistics]| -> Vec<u64> {
        all.iter().map(|counts| counts.samples).collect()
    };
    assert_eq!(samples(&still), samples(&off));
    profiler.on();
    until("more samples", || {
        let now = profiler.statistics(one).expect("it runs").samples;
        (now > off.iter().find(|c| c.tid == one)?.samples).then_some(())
    });
    profiler.delete_thread(one).expect("it runs");
    let deleted = profiler.statistics(one).expect("its samples stay");
    assert_eq!(deleted.state, ThreadState::Deleted);
    assert!(deleted.is_exact(), "{deleted:?}");
    // Every sample of this event is an access that missed the second level.
    let seen = all(&mut reader);
    assert!(seen.iter().all(|s| s.addr.is_some() && s.period == 100));
    assert!(profiler.statistics(other).expect("it runs").samples > 0);
    drop(reader);
    // The program continues without its profiler.
    let pid = run.program.0;
    let Run {
        profiler, program, ..
    } = run;
    drop(profiler);
    let alive = || Path::new(&format!("/proc/{pid}/stat")).exists();
    std::thread::sleep(Duration::from_millis(50));
    assert!(alive());
    program.kill();
    until("its end, which is asked after", || (!alive()).then_some(()));
}

#[test]
fn a_program_that_cannot_run_and_settings_without_sense_are_refused() {
    let missing = SampledOptions::of(&["/no/such/program".to_owned()], "llc.miss");
    let missing = missing.expect("the event is there");
    let error = SampledProgram::start(&missing).err().expect("none");
    assert_eq!(error.kind(), ErrorKind::ProgramNotFound);
    for event in ["no.such", "llc.miss/no-such"] {
        let error = SampledOptions::of(&["true".to_owned()], event).expect_err("none");
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
    let start = || {
        let options = SampledOptions::of(&["true".to_owned()], "llc.miss").expect("it is there");
        Box::new(SampledProgram::start(&options).expect("it runs"))
    };
    for settings in [
        Settings::new(Source::Clock),
        Settings {
            overhead: Some(0.01),
            ..settings()
        },
        Settings {
            period: Some(0),
            ..settings()
        },
    ] {
        let refused = Profiler::for_program(settings, start());
        let error = refused.err().expect("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
    let error = Profiler::new(settings())
        .err()
        .expect("there is no program");
    assert!(error.to_string().contains("for_program"), "{error}");
}
