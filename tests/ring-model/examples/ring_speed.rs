//! Samples a second through the ring: with a writer that waits for its readers (it writes
//! again what was refused), and with one that overwrites what they have not read. Beside
//! them, samples a second of the writer's own processor time, which other programs disturb
//! less.
//!
//! `make bench-online`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ring::SampleRing;

mod atomic {
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

// It shows a part of it.
#[allow(dead_code)]
#[path = "../../../crates/online/src/ring.rs"]
mod ring;

const WORDS: usize = 10;
const FOR: Duration = Duration::from_millis(100);

/// Nanoseconds of this thread's processor time.
fn own_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("procfs");
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    first.expect("a number")
}

/// Where nothing was done: spins a while, then lets others run.
fn wait(done: usize, idle: &mut u32) {
    *idle = if done == 0 { *idle + 1 } else { 0 };
    match *idle {
        0 => {}
        1..2000 => (0..32).for_each(|_| std::hint::spin_loop()),
        _ => std::thread::yield_now(),
    }
}

/// Samples that one writer wrote, a second and a second of its processor time, and that
/// each reader read a second.
fn run(refuses: bool, readers: usize, at_once: usize) -> (f64, f64, Vec<f64>) {
    let (ring, mut writer) = SampleRing::<WORDS>::new(4096, refuses);
    let over = Arc::new(AtomicBool::new(false));
    let all: Vec<_> = (1..=readers)
        .map(|queue| {
            let (ring, over) = (Arc::clone(&ring), Arc::clone(&over));
            ring.open(queue);
            std::thread::spawn(move || {
                let mut idle = 0;
                let (mut into, mut read, mut sum) = (vec![[0u64; WORDS]; 256], 0u64, 0u64);
                while !over.load(Ordering::Relaxed) {
                    let n = ring.read(queue, &mut into);
                    sum = into[..n].iter().fold(sum, |sum, s| sum.wrapping_add(s[0]));
                    read += n as u64;
                    wait(n, &mut idle);
                }
                std::hint::black_box(sum);
                read
            })
        })
        .collect();
    let (began, began_ns) = (Instant::now(), own_ns());
    let (mut written, mut idle) = (0u64, 0);
    let batch = vec![[7u64; WORDS]; at_once];
    while began.elapsed() < FOR {
        for _ in 0..64 {
            let accepted = writer.write(&batch);
            written += accepted as u64;
            wait(accepted, &mut idle);
        }
    }
    let (seconds, own_s) = (began.elapsed().as_secs_f64(), (own_ns() - began_ns) / 1e9);
    over.store(true, Ordering::Relaxed);
    let read = all
        .into_iter()
        .map(|r| r.join().expect("it reads") as f64 / seconds);
    (
        written as f64 / seconds,
        written as f64 / own_s,
        read.collect(),
    )
}

/// Samples a second of processor time where one thread writes and reads in turn: what both cost together
/// where nothing passes between processors.
fn in_turn() -> f64 {
    let (ring, mut writer) = SampleRing::<WORDS>::new(4096, true);
    ring.open(1);
    let batch = vec![[7u64; WORDS]; 64];
    let (mut into, mut through) = (vec![[0u64; WORDS]; 256], 0u64);
    let (began, began_ns) = (Instant::now(), own_ns());
    while began.elapsed() < FOR {
        for _ in 0..64 {
            for _ in 0..4 {
                writer.write(&batch);
            }
            through += std::hint::black_box(ring.read(1, &mut into)) as u64;
        }
    }
    through as f64 / (own_ns() - began_ns) * 1e9
}

fn main() {
    println!(
        "samples of {} bytes, millions a second, median of 9",
        WORDS * 8
    );
    let mut turns: Vec<f64> = (0..9).map(|_| in_turn()).collect();
    turns.sort_by(f64::total_cmp);
    println!(
        "one thread in turn: {:.0} (best {:.0})",
        turns[4] / 1e6,
        turns[8] / 1e6
    );
    for (refuses, how) in [(true, "waits"), (false, "overwrites")] {
        for (at_once, readers) in [(1, 1), (1, 4), (64, 1), (64, 4)] {
            let mut rounds: Vec<_> = (0..9).map(|_| run(refuses, readers, at_once)).collect();
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut own: Vec<f64> = rounds.iter().map(|round| round.1).collect();
            own.sort_by(f64::total_cmp);
            let (written, _, read) = &rounds[rounds.len() / 2];
            let read: Vec<String> = read.iter().map(|r| format!("{:.0}", r / 1e6)).collect();
            println!(
                "{how}, {at_once:2} at once, {readers} readers: written {:.0}, read {}; written in its \
                 own time {:.0}",
                written / 1e6,
                read.join(" "),
                own[own.len() / 2] / 1e6
            );
        }
    }
}
