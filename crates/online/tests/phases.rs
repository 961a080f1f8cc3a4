//! Phases of a program with known behaviour: it works on one array, then on another.

mod common;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::profiler;
use memgauge_online::{Profiler, Settings, Source, Statistics, ThreadState};

/// Reads and writes random words of arrays of 16 MiB: one array per phase, in turn. Arguments:
/// arrays, phases, milliseconds of processor time per phase. Stops before the first phase.
const PHASED: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
enum { WORDS = 1 << 22 };
static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
int main(int argc, char **argv)
{
    int arrays = atoi(argv[1]), phases = atoi(argv[2]);
    long long phase_ns = atoll(argv[3]) * 1000000ll;
    volatile unsigned *all = calloc((size_t)arrays * WORDS, sizeof *all);
    unsigned at = 1;
    for (long i = 0; i < (long)arrays * WORDS; i += 1024)
        all[i] = 1;
    raise(SIGSTOP);
    long long until = now();
    for (int phase = 0; phase < phases; phase++) {
        volatile unsigned *array = all + (size_t)(phase % arrays) * WORDS;
        for (until += phase_ns; now() < until;)
            for (int i = 0; i < 10000; i++) {
                at = at * 1664525u + 1013904223u;
                array[at >> 10]++;
            }
    }
    return 0 * argc;
}
"#;

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The compiled program; `None` without a compiler.
struct Phased(tempfile::TempDir);

impl Phased {
    fn compiled() -> Option<Phased> {
        let folder = tempfile::tempdir().expect("room");
        memgauge_testing::compiled(folder.path(), "phased.c", PHASED, &["-O1"])?;
        Some(Phased(folder))
    }

    /// Runs the program, and returns its counts every 50 ms.
    fn observed(
        &self,
        profiler: &Profiler,
        (arrays, phases, phase_ms): (u32, u32, u64),
    ) -> Vec<(Duration, Statistics)> {
        let numbers = [arrays.to_string(), phases.to_string(), phase_ms.to_string()];
        let mut command = Command::new(self.0.path().join("phased"));
        let running = Running(command.args(numbers).spawn().expect("it runs"));
        let pid = running.0.id();
        common::until("its arrays", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        });
        profiler.add_process(pid).expect("it waits");
        let told = Command::new("kill")
            .args(["-CONT", &pid.to_string()])
            .status();
        assert!(told.is_ok_and(|status| status.success()));
        let (began, mut seen) = (Instant::now(), Vec::new());
        loop {
            assert!(began.elapsed() < Duration::from_secs(600), "it never ends");
            std::thread::sleep(Duration::from_millis(50));
            let counts = profiler.statistics(pid).expect("its counts stay");
            let over = counts.state == ThreadState::Ended;
            seen.push((began.elapsed(), counts));
            if over {
                return seen;
            }
        }
    }
}

#[test]
fn a_change_of_the_data_is_detected_and_sampled_more() {
    const PHASE_NS: u64 = 2_400_000_000;
    let phase_ms = PHASE_NS / 1_000_000;
    let Some(phased) = Phased::compiled() else {
        return;
    };
    let settings = Settings {
        overhead: Some(0.02),
        phases: true,
        ..Settings::new(Source::Clock)
    };
    let Some(profiler) = profiler(settings) else {
        return;
    };
    // The program does the same all the time, but other load on the machine may look like a
    // change: it may be repeated twice.
    let is_steady = |_| {
        let seen = phased.observed(&profiler, (1, 1, phase_ms * 3 / 2));
        let (_, last) = seen.last().expect("it was seen");
        println!("steady: {last:?}");
        last.changes == 0
    };
    assert!((0..3).any(is_steady), "a change was seen in each of three");
    let seen = phased.observed(&profiler, (2, 4, phase_ms));
    let (_, last) = seen.last().expect("it was seen");
    // Three changes; a window that contains one may differ from both sides.
    assert!((3..=6).contains(&last.changes), "{last:?}");
    // Each is detected within half a second of the program's processor time.
    for boundary in 1..=3 {
        let at = |ns: u64| {
            let counts = seen.iter().find(|s| s.1.processor_ns >= ns);
            counts.map_or(last, |(_, counts)| counts).changes
        };
        let (before, after) = (
            at(boundary * PHASE_NS),
            at(boundary * PHASE_NS + 500_000_000),
        );
        assert!(
            after > 0 && after >= before.max(boundary),
            "{boundary}: {after}"
        );
    }
    // Samples per processor time: in the second after a change, and later.
    let changes: Vec<Duration> = (seen.windows(2))
        .filter(|two| two[1].1.changes > two[0].1.changes)
        .map(|two| two[1].0)
        .collect();
    let rate = |part: &dyn Fn(Duration) -> bool| {
        let (mut samples, mut ns) = (0, 0);
        for two in seen.windows(2).filter(|two| part(two[0].0)) {
            samples += two[1].1.samples - two[0].1.samples;
            ns += two[1].1.processor_ns - two[0].1.processor_ns;
        }
        samples as f64 / ns.max(1) as f64
    };
    let since_change = |at: Duration| {
        let before = changes.iter().rev().find(|change| **change <= at);
        before.map(|change| (at - *change).as_secs_f64())
    };
    let new = rate(&|at| since_change(at).is_some_and(|s| (0.2..0.9).contains(&s)));
    let old = rate(&|at| since_change(at).is_some_and(|s| s > 1.6));
    assert!(new > 1.5 * old, "{new} against {old} samples a nanosecond");
}
