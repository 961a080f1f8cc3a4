//! Phases of a thread whose behaviour is known: it sweeps over one array, then over another.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{own_tid, profiler};
use memgauge_live::sys::perf::own_thread_ns;
use memgauge_online::{Profiler, Settings, Source, Statistics};

/// Pages of each array, far more than the classes by which places are told apart.
const PAGES: usize = 4096;

/// Loads and stores all over one array, for so much processor time.
fn sweep(array: &mut [u8], ns: u64) {
    let until = own_thread_ns() + ns;
    let mut at = 1usize;
    while own_thread_ns() < until {
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let cell = &mut array[(at >> 20) % (PAGES * 4096)];
            *cell = std::hint::black_box(cell.wrapping_add(1));
        }
    }
}

/// Counts of a thread every 50 ms, while it sweeps over this many arrays in turn, each for
/// so much processor time.
fn observed(
    profiler: &Profiler,
    arrays: usize,
    phases: u64,
    phase_ns: u64,
) -> Vec<(Duration, Statistics)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ((tell, told), (go, begin)) = (channel(), channel());
        let over = &over;
        let thread = scope.spawn(move || {
            let mut memory: Vec<Vec<u8>> = (0..arrays).map(|_| vec![1; PAGES * 4096]).collect();
            tell.send(own_tid()).expect("somebody listens");
            begin.recv().expect("it is told to begin");
            for phase in 0..phases {
                sweep(&mut memory[phase as usize % arrays], phase_ns);
            }
            over.store(true, Ordering::Release);
        });
        let tid: u32 = told.recv().expect("it says its number");
        profiler.add_thread(tid).expect("it can be added");
        go.send(()).expect("it waits");
        let (began, mut seen) = (Instant::now(), Vec::new());
        while !over.load(Ordering::Acquire) {
            assert!(began.elapsed() < Duration::from_secs(600), "it never ends");
            std::thread::sleep(Duration::from_millis(50));
            // It may have ended meanwhile: its counts stay.
            let counts = profiler.statistics(tid);
            seen.extend(counts.map(|counts| (began.elapsed(), counts)));
        }
        thread.join().expect("it ends");
        seen
    })
}

#[test]
fn a_thread_that_turns_to_other_data_is_seen_and_sampled_more() {
    const PHASE_NS: u64 = 3_000_000_000;
    let settings = Settings {
        overhead: Some(0.02),
        phases: true,
        ..Settings::of(Source::Clock)
    };
    let Some(profiler) = profiler(settings.clone()) else {
        return;
    };
    let steady = observed(&profiler, 1, 2, PHASE_NS);
    let (_, last) = steady.last().expect("it was seen");
    assert_eq!(last.changes, 0, "it does the same all the time: {last:?}");
    let seen = observed(&profiler, 2, 4, PHASE_NS);
    let (_, last) = seen.last().expect("it was seen");
    // Three changes; a window that lies astride of one may differ from both sides.
    assert!((3..=6).contains(&last.changes), "{last:?}");
    // Each within half a second of its processor time.
    for boundary in 1..=3 {
        let at = |ns: u64| {
            let counts = seen.iter().find(|s| s.1.processor_ns >= ns);
            counts.map_or(last, |(_, counts)| counts).changes
        };
        let (before, after) = (
            at(boundary * PHASE_NS),
            at(boundary * PHASE_NS + PHASE_NS / 6),
        );
        assert!(
            after > 0 && after >= before.max(boundary),
            "{boundary}: {after}"
        );
    }
    // Samples for processor time: in the second after a change, and a second later.
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
    let old = rate(&|at| since_change(at).is_some_and(|s| s > 2.0));
    assert!(new > 1.5 * old, "{new} against {old} samples a nanosecond");
}
